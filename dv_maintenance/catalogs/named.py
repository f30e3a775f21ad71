"""What kinds of catalogs say alike of names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from dv_maintenance.catalogs import parts_of
from dv_maintenance.errors import (
    DvMaintenanceError,
    MissingSoftwareError,
    RefusedError,
    TableNotFoundError,
    UnsupportedFeatureError,
    UsageError,
)
from dv_maintenance.tables.find import FoundTable
from dv_maintenance.tables.publish import Overtaken
from dv_maintenance.tables.registry import known_format, quoted

ALL = "*"
"""In place of a schema: each of them."""

_THREADS: Final = 8


def table_in(name: str, title: str, *form: str) -> tuple[str, ...]:
    """The parts of a table's name after that of the catalog, which are those of ``form``. Raises UsageError."""
    return _parts(name, f"a table in {title}", form)


def schema_in(name: str, title: str, *form: str) -> tuple[str, ...]:
    """As :func:`table_in`, for a schema."""
    return _parts(name, f"a schema in {title}", form)


def _parts(name: str, what: str, form: tuple[str, ...]) -> tuple[str, ...]:
    catalog, *parts = parts_of(name)
    if len(parts) != len(form):
        raise UsageError(
            f"{name!r} is not the name of {what}", next_step=f"write {'.'.join((quoted([catalog]), *form))}"
        )
    return tuple(parts)


def found(path: Iterable[str], format: str, left_alone: str) -> FoundTable:
    """What a catalog lists, by the parts of its name."""
    return FoundTable(quoted(path), "" if left_alone else format, left_alone)


def known_or_left(format: str) -> tuple[str, str]:
    """The format that a catalog says, and why a table of it is left alone if it is. Iceberg tables have other names."""
    kind = format.lower()
    if known_format(kind) is None or kind == "iceberg":
        return "", f"a table of the format {kind or 'none'}"
    return kind, ""


def looked_at(tables: Sequence[str], look: Callable[[str], tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    """Each table with its format, and why it is left alone, as ``look`` finds them by a request."""

    def asked(table: str) -> tuple[str, str]:
        try:
            return look(table)
        except TableNotFoundError:
            return "", "dropped meanwhile"

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="catalog") as threads:
        for table, (kind, why) in zip(tables, threads.map(asked, tables), strict=True):
            yield table, kind, why


def left_alone(name: str, why: str, next_step: str = "name a table of a format that `dvm` knows") -> RefusedError:
    """The error for something else than a table to maintain. ``why``: as in ``FoundTable.left_alone``."""
    return UnsupportedFeatureError(f"{name} is {why}, which is left alone", features=(why,), next_step=next_step)


def missing_package(name: str, package: str, extra: str, error: ImportError) -> MissingSoftwareError:
    """The error for a catalog whose client is not installed."""
    return MissingSoftwareError(
        f"{name}: the package {package}, which asks this catalog, is not installed ({error})",
        next_step=f"install dv-maintenance[{extra}]",
    )


@contextmanager
def client_errors(
    name: str, *, package: str, extra: str, failed: Callable[[str, Exception], DvMaintenanceError]
) -> Iterator[None]:
    """What a catalog's client raises, as errors of this package. ``failed``: what an exception of it means."""
    try:
        yield
    except ImportError as error:
        raise missing_package(name, package, extra, error) from error
    except (DvMaintenanceError, Overtaken):
        raise
    except Exception as error:
        raise failed(name, error) from error


def in_schemas(schemas: Callable[[], Iterable[str]], schema: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each schema to list, with the parts that names of its tables begin with. ``schemas`` asks for their names."""
    if schema != ALL:
        yield schema, ()
        return
    for each in schemas():
        yield each, (each,)

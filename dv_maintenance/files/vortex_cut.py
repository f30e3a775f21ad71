"""Some rows of a Vortex file as a file of their own, with the same columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, MissingSoftwareError
from dv_maintenance.files.copies import copied, write_copied
from dv_maintenance.resources import raise_if_refused

if TYPE_CHECKING:
    from types import ModuleType

    import pyarrow as pa


def library() -> ModuleType:
    """The module ``vortex``. Raises MissingSoftwareError."""
    try:
        return import_module("vortex")
    except ImportError as error:
        raise MissingSoftwareError(
            f"vectors of this table are in Vortex files, and vortex-data, which reads them, is not installed ({error})",
            next_step="pip install 'dv-maintenance[vortex]'",
        ) from error


def cut(file: pa.NativeFile, rows: range, of: int, sink: Any) -> None:
    """Write some rows.

    of : how many rows the file has.

    Raises
    ------
    DamagedTableError : it is damaged, or has another number of rows.
    MissingSoftwareError : as :func:`library`.
    """
    with _opened(file, of) as source:
        write_copied(lambda path: library().io.write(_of(source, rows), path), sink)


def batches(
    file: pa.NativeFile, rows: range, of: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Some rows, of all ``columns`` unless some are named. Raises as :func:`cut`."""
    with _opened(file, of) as source:
        yield from _of(source, rows, columns)


def _of(source: Any, rows: range, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
    return source.scan(None if columns is None else list(columns), indices=library().array(rows)).to_arrow()


@contextmanager
def _opened(file: pa.NativeFile, of: int) -> Iterator[Any]:
    vortex = library()
    with copied(file) as path:
        try:
            found = vortex.open(path)
            if len(found) != of:
                raise DamagedTableError(f"it has {len(found)} rows, not {of}")
            yield found
        except (DvMaintenanceError, KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # its code panics
            raise_if_refused(error, "a Vortex file")
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the storage
            raise DamagedTableError(f"it can't be read by Vortex: {error}") from error

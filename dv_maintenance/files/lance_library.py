"""Lance's own library: its import, its inputs and its errors.

Only reading rows and commits need it. It starts threads when it is imported and does not survive a fork, so it is
imported only where and when work is done.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.credentials import as_options
from dv_maintenance.errors import (
    ConflictError,
    DamagedTableError,
    DvMaintenanceError,
    MissingSoftwareError,
    MissingValueError,
    RefusedError,
)
from dv_maintenance.resources import out_of_resources
from dv_maintenance.storage import Storage
from dv_maintenance.storage.failures import storage_failure

if TYPE_CHECKING:
    from types import ModuleType

FLOOR: Final = (12, 0, 0)
"""The first release that can rewrite chosen fragments only, and limit batches by bytes. Before 6.0.1 a distributed
compaction could bring back rows that others deleted concurrently (lance-format/lance#6653).
"""

_INSTALL: Final = "pip install 'dv-maintenance[lance]'"


def library() -> ModuleType:
    """The module ``lance``.

    Raises
    ------
    MissingSoftwareError : pylance is not installed, does not start, or is older than FLOOR.
    """
    try:
        import lance
    except ImportError as error:
        what = f"pylance does not start ({error})" if _is_there() else "pylance is not installed"
        raise MissingSoftwareError(f"Lance's own library is needed for this: {what}", next_step=_INSTALL) from error
    version = str(lance.__version__)
    if _numbers(version) < FLOOR:
        least = ".".join(map(str, FLOOR))
        raise MissingSoftwareError(
            f"pylance {version} is too old: {least} is the oldest that works, and before 6.0.1 a compaction could "
            "bring deleted rows back",
            next_step=_INSTALL,
        )
    module: ModuleType = lance
    return module


def _is_there() -> bool:
    from importlib.util import find_spec

    return find_spec("lance") is not None


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version. A pre-release sorts directly before its release.

    >>> _numbers("14.0.2"), _numbers("12.0.0rc2") < (12, 0, 0)
    ((14, 0, 2), True)
    """
    match = re.match(r"(\d+)\.(\d+)\.(\d+)(.*)", version)
    if not match:
        return ()
    numbers = tuple(map(int, match.groups()[:3]))
    early = match[4] and not match[4].startswith(("+", ".post"))
    return (*numbers[:2], numbers[2] - 1, 1) if early else numbers


# -- inputs -------------------------------------------------------------------------------------------------------


def lance_place(uri: str, storage: Storage) -> str:
    """The dataset at ``uri`` (absolute, percent-encoded) in the form that Lance accepts: a local path, or the URI."""
    return storage.local(uri) if uri.startswith("file://") else uri


_CLIENT: Final = re.compile(
    r"(?:aws|google|azure)_(allow_http|allow_invalid_certificates|connect_timeout|http1_only|pool_idle_timeout"
    r"|proxy_url|timeout|user_agent)"
)


def lance_options(options: Mapping[str, str]) -> dict[str, str]:
    """Storage options in the form that Lance accepts. The names are the same, in lower case, except that options of the
    client never have the store's name as a prefix. Keys that a catalog vends are asked for now.
    """
    return {_CLIENT.sub(r"\1", key.lower()): str(value) for key, value in as_options(options).items()}


def open_dataset(storage: Storage, version: int | None = None) -> Any:
    """The dataset at the root of ``storage``, in its newest version by default. To be called within
    :func:`lance_errors`. Raises as :func:`library`.
    """
    options = lance_options(storage.options) or None
    return library().dataset(lance_place(storage.uri, storage), version=version, storage_options=options)


# -- errors -------------------------------------------------------------------------------------------------------

# Where in Lance's source an error was made, which it appends to each message.
_SOURCE_PLACE: Final = re.compile(r",? ?(?:/[\w.+@-]+)+\.rs:\d+:\d+")
_NO_FILES: Final = re.compile(r"Fragment \d+ does not contain any data")
_MISSING: Final = re.compile(r"[Nn]ot found|No such file")
_CUT: Final = re.compile(
    r"failed to fill whole buffer|[Rr]ange [Nn]ot [Ss]atisfiable|[Ii]nvalid ?[Rr]ange|[Rr]equested range"
)
_STORAGE: Final = re.compile(
    r"Generic (?:S3|GCS|MicrosoftAzure|HTTP|LocalFileSystem)|HTTP error|[Pp]ermission denied|Unauthenticated"
    r"|Access ?Denied|No space left|os error"
)
_CONFLICT: Final = re.compile(r"[Cc]ommit conflict|Incompatible transaction|two fragments with id|concurrent writers")
_NULLS: Final = re.compile(r"unmasked nulls for non-nullable \w+ field \"([^\"]+)\"")
_REFUSED: Final = re.compile(r"Not supported|not yet supported|NotSupported|not implemented|No field named")


def reason_of(error: BaseException) -> str:
    """The message of a Lance error, in one line, without locations in Lance's source."""
    text = _SOURCE_PLACE.sub("", " ".join(str(error).split()))
    return text[:500] or type(error).__name__


@contextmanager
def lance_errors(what: str, *, table: str | None = None, version: int | None = None) -> Iterator[None]:
    """Raises Lance's errors as errors of this package. ``what``: what was read, as the subject of a sentence.

    Raises
    ------
    DamagedTableError : a file is missing, or is not what it should be.
    StorageError : the storage did not answer.
    RefusedError : the table has something that this release of Lance does not read.
    ConflictError : the commit lost to a concurrent one; nothing was committed.
    """
    try:
        yield
    except (DvMaintenanceError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        # Lance raises ValueError, OSError, RuntimeError and Arrow's errors for the same causes, and a panic of its code
        # is not an Exception: only the text identifies the cause.
        raise translated(error, what, table=table, version=version) from error


def missing_value(column: str, problem: str, **place: Any) -> MissingValueError:
    """The error for Lance tables, which know no SQL."""
    command = f"lance.dataset(...).alter_columns({{'path': {column!r}, 'nullable': True}})"
    return MissingValueError(column, problem, command=command, **place)


def translated(error: BaseException, what: str, **place: Any) -> DvMaintenanceError:
    """The error that :func:`lance_errors` raises for one of Lance's; ``place``: table and version."""
    text = reason_of(error)
    if _CONFLICT.search(text):
        return ConflictError(f"{what} lost to a concurrent commit: {text}", **place)
    if _NO_FILES.search(text):
        return RefusedError(
            f"Lance cannot read {what}: {text}. All columns with values were dropped, what is left has only nulls",
            next_step="restore the version from before that, or write the rows again",
            **place,
        )
    if _MISSING.search(text):
        return DamagedTableError(
            f"{what} needs a file that does not exist: {text}",
            next_step="restore the file; if a cleanup removed it, read a newer version of the table",
            **place,
        )
    if (refused := out_of_resources(error, what)) is not None:
        return refused
    if _CUT.search(text):
        return DamagedTableError(f"{what} is truncated: a file ends before the data it should hold", **place)
    if (nulls := _NULLS.search(text)) is not None:
        return missing_value(nulls[1], f"{what} has rows in which it is null", **place)
    if _STORAGE.search(text):
        return storage_failure(what, error, **place)
    if _REFUSED.search(text):
        return RefusedError(f"Lance cannot read {what}: {text}", next_step="use a newer release of pylance", **place)
    return DamagedTableError(f"{what} cannot be read by Lance: {text}", **place)

"""Lance's own library: whether it is there, what it is given, and what it complains about.

Only reading rows and commits need it. It starts threads of its own when it is imported and does not survive a fork, so
it is imported by whoever does the work, when the work is done.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.errors import ConflictError, DamagedTableError, DvMaintenanceError, RefusedError, StorageError
from dv_maintenance.storage import Storage

if TYPE_CHECKING:
    from types import ModuleType

__all__ = [
    "FLOOR",
    "lance_errors",
    "lance_options",
    "lance_place",
    "library",
    "open_dataset",
    "reason_of",
    "translated",
]

FLOOR: Final = (12, 0, 0)
"""The first release that can be asked to rewrite chosen fragments only, and for batches of so many bytes. Before 6.0.1
a distributed compaction could bring rows back that others delete meanwhile (lance-format/lance#6653).
"""

_INSTALL: Final = "pip install 'dv-maintenance[lance]'"


def library() -> ModuleType:
    """The module ``lance``.

    Raises
    ------
    RefusedError : pylance is not installed, does not start, or is older than FLOOR.
    """
    try:
        import lance
    except ImportError as error:
        what = f"pylance does not start ({error})" if _is_there() else "pylance is not installed"
        raise RefusedError(f"Lance's own library is needed for this: {what}", next_step=_INSTALL) from error
    version = str(lance.__version__)
    if _numbers(version) < FLOOR:
        least = ".".join(map(str, FLOOR))
        raise RefusedError(
            f"pylance {version} is too old: {least} is the first that works here, and before 6.0.1 a compaction could "
            "bring deleted rows back",
            next_step=_INSTALL,
        )
    module: ModuleType = lance
    return module


def _is_there() -> bool:
    from importlib.util import find_spec

    return find_spec("lance") is not None


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers in front: a pre-release counts as what it is on its way to, less one that comes before all others.

    >>> _numbers("14.0.2"), _numbers("12.0.0rc2") < (12, 0, 0)
    ((14, 0, 2), True)
    """
    match = re.match(r"(\d+)\.(\d+)\.(\d+)(.*)", version)
    if not match:
        return ()
    numbers = tuple(map(int, match.groups()[:3]))
    early = match[4] and not match[4].startswith(("+", ".post"))
    return (*numbers[:2], numbers[2] - 1, 1) if early else numbers


# -- what it is given ---------------------------------------------------------------------------------------------


def lance_place(uri: str, storage: Storage) -> str:
    """The dataset at ``uri`` (absolute, percent-encoded) as Lance takes it: a local path, or the URI."""
    return storage.local(uri) if uri.startswith("file://") else uri


_CLIENT: Final = re.compile(
    r"(?:aws|google|azure)_(allow_http|allow_invalid_certificates|connect_timeout|http1_only|pool_idle_timeout"
    r"|proxy_url|timeout|user_agent)"
)


def lance_options(options: Mapping[str, str]) -> dict[str, str]:
    """Storage options as Lance takes them: the names are those of the object stores here and there, in lower case, but
    a client's own options never have a store's name in front.
    """
    return {_CLIENT.sub(r"\1", key.lower()): str(value) for key, value in options.items()}


def open_dataset(storage: Storage, version: int | None = None) -> Any:
    """The dataset that lies at the root of ``storage``, the newest version by default. To be called within
    :func:`lance_errors`. Raises as :func:`library`.
    """
    options = lance_options(storage.options) or None
    return library().dataset(lance_place(storage.uri, storage), version=version, storage_options=options)


# -- what it complains about --------------------------------------------------------------------------------------

# Where in Lance's source an error was made, which it appends to each message.
_SOURCE_PLACE: Final = re.compile(r",? ?(?:/[\w.+@-]+)+\.rs:\d+:\d+")
_MISSING: Final = re.compile(r"[Nn]ot found|No such file")
_CUT: Final = re.compile(
    r"failed to fill whole buffer|[Rr]ange [Nn]ot [Ss]atisfiable|[Ii]nvalid ?[Rr]ange|[Rr]equested range"
)
_STORAGE: Final = re.compile(
    r"Generic (?:S3|GCS|MicrosoftAzure|HTTP|LocalFileSystem)|HTTP error|[Pp]ermission denied|Unauthenticated"
    r"|Access ?Denied|No space left|os error"
)
_CONFLICT: Final = re.compile(r"[Cc]ommit conflict|Incompatible transaction|two fragments with id|concurrent writers")
_REFUSED: Final = re.compile(r"Not supported|not yet supported|NotSupported|not implemented|No field named")


def reason_of(error: BaseException) -> str:
    """What an error of Lance says, in one line, without the places in its source."""
    text = _SOURCE_PLACE.sub("", " ".join(str(error).split()))
    return text[:500] or type(error).__name__


@contextmanager
def lance_errors(what: str, *, table: str | None = None, version: int | None = None) -> Iterator[None]:
    """Lance's errors as ours. ``what``: what was read, as the subject of a sentence.

    Raises
    ------
    DamagedTableError : a file is missing, or is not what it should be.
    StorageError : the storage did not answer.
    RefusedError : the table has something that this release of Lance does not read.
    ConflictError : another commit was faster; nothing was committed.
    """
    try:
        yield
    except (DvMaintenanceError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        # Lance raises ValueError, OSError, RuntimeError and Arrow's errors for the same things, and a panic of its
        # code is no Exception: the text says what it is.
        raise translated(error, what, table=table, version=version) from error


def translated(error: BaseException, what: str, **place: Any) -> DvMaintenanceError:
    """The error that :func:`lance_errors` raises for one of Lance's; ``place``: table and version."""
    text = reason_of(error)
    if _CONFLICT.search(text):
        return ConflictError(f"{what} lost against another one: {text}", **place)
    if _MISSING.search(text):
        return DamagedTableError(
            f"{what} needs a file that does not exist: {text}",
            next_step="restore the file; if a cleanup removed it, read a newer version of the table",
            **place,
        )
    if _CUT.search(text):
        return DamagedTableError(f"{what} is truncated: a file ends before what it should hold", **place)
    if _STORAGE.search(text):
        # The text may quote signed URLs or headers: the cause is chained, the message names the kind.
        return StorageError(f"storage failed on {what}: {type(error).__name__}", **place)
    if _REFUSED.search(text):
        return RefusedError(f"Lance does not read {what}: {text}", next_step="use a newer release of pylance", **place)
    return DamagedTableError(f"{what} cannot be read by Lance: {text}", **place)

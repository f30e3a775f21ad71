"""What can go wrong, as a caller sees it.

Every error names the table, its version, what had been done before the error and what to do next. Two mix-ins say
whether a retry can help; an orchestrator maps them to its own retry rules. ``exit_code`` is the exit status of the
command line and part of its contract.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

from dv_maintenance.remedies import Remedy, run, setting

__all__ = [
    "ConflictError",
    "DamagedDeletionVectorError",
    "DamagedTableError",
    "DvMaintenanceError",
    "EngineUnavailableError",
    "FatalError",
    "MissingSoftwareError",
    "MissingValueError",
    "NotPermittedError",
    "OutOfResourcesError",
    "RefusedError",
    "RestorableError",
    "RetryableError",
    "StorageDeniedError",
    "StorageError",
    "StorageUnavailableError",
    "TableNotFoundError",
    "UnsupportedFeatureError",
    "UsageError",
    "VerificationError",
]

# user:password@ in front of a host; and a query (SAS tokens, signatures), plain or percent-encoded, up to the end of
# the URL. Outside the web a question mark may be part of a name: there, only what looks like a query counts as one.
_LOGIN = re.compile(r"(?<=://)[^\s/@\"'<>]*:[^\s/@\"'<>]*(?=@)")
_PLACE = r"[^\s\"'<>?]*?(?:\?|%3[Ff])"
_QUERY = re.compile(rf"((?:https?://{_PLACE}|[A-Za-z][\w+.-]*://{_PLACE}(?=[^\s\"'<>]*=)))[^\s\"'<>]+", re.IGNORECASE)


def redacted(text: str) -> str:
    """The text without the secrets that URLs in it may carry: passwords and whole queries.

    >>> redacted("GET https://me:pass@host/a?sig=abc%2F failed")
    'GET https://***@host/a?*** failed'
    """
    return _QUERY.sub(r"\1***", _LOGIN.sub("***", text)) if "://" in text else text


class RetryableError(Exception):
    """Mix-in: the same call may succeed later, unchanged."""


class FatalError(Exception):
    """Mix-in: the same call fails again until somebody changes something."""


class RestorableError(FatalError):
    """Mix-in: somebody can put it right without a commit, other settings or another release."""


class Versioned(Protocol):
    """A version of a table."""

    @property
    def table(self) -> str: ...

    @property
    def version(self) -> int: ...


class DvMaintenanceError(Exception):
    """Base of all errors raised on purpose.

    Parameters
    ----------
    message
        subject and problem in plain words, without a trailing full stop.
    table
        path or URI of the table, if known.
    version
        table version at which the problem appeared, if known.
    at
        what has both, such as a snapshot, in place of them.
    done
        what had been done before the error; ``None`` means "nothing was changed".
    next_step
        what the reader should do, as an imperative; ``None``: the usual remedy for this class of errors.
    """

    exit_code: ClassVar[int] = 1
    usual_step: ClassVar[str | Remedy | None] = None
    uncommitted: bool = False
    """Whether a commit raised this, and certainly committed nothing."""

    def __init__(
        self,
        message: str,
        *,
        table: str | None = None,
        version: int | None = None,
        at: Versioned | None = None,
        done: str | None = None,
        next_step: str | Remedy | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.table = table if at is None else at.table
        self.version = version if at is None else at.version
        self.done = done
        self.next_step = next_step or self.usual_step

    @property
    def advice(self) -> str | Remedy | None:
        """``next_step``, and what else helps with errors of this class."""
        return self.next_step

    def __str__(self) -> str:
        where = self.table or ""
        if where and self.version is not None:
            where += f" at version {self.version}"
        parts = [f"{where}: {self.message}" if where else self.message]
        if self.done:
            parts.append(f"Done so far: {self.done}")
        if self.advice:
            parts.append(f"Next: {self.advice}")
        return redacted(". ".join(part.rstrip(".") for part in parts))

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (Spark workers, orchestrator steps); the default protocol replays
        # positional arguments only and would lose the keyword-only context.
        return (rebuild_error, (type(self), self.args, self.__dict__.copy()))

    def to_json(self) -> dict[str, Any]:
        """The error as the command line prints it under ``--json``."""
        return {
            "error": type(self).__name__,
            "message": redacted(self.message),
            "table": None if self.table is None else redacted(self.table),
            "version": self.version,
            "done": redacted(self.done or "nothing was changed"),
            "next_step": None if self.advice is None else redacted(str(self.advice)),
            "remedy": self.advice.to_json() if isinstance(self.advice, Remedy) else [],
            "retryable": isinstance(self, RetryableError),
        }


@contextmanager
def located(table: str, version: int | None = None, file: str = "") -> Iterator[None]:
    """Add the table, its version and the file in question to errors that name no table yet."""
    try:
        yield
    except DvMaintenanceError as error:
        if error.table is None:
            error.table = table
            error.version = version if error.version is None else error.version
            if file:
                error.message = f"{file}: {error.message}"
                error.args = (error.message,)
        raise


def rebuild_error(cls: type[DvMaintenanceError], args: tuple[Any, ...], state: dict[str, Any]) -> DvMaintenanceError:
    """The error that had these ``args`` and this ``__dict__`` on the other side of a process border."""
    # A class derived from both ValueError and OSError has to be created by OSError.__new__.
    error = OSError.__new__(cls) if issubclass(cls, OSError) else cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class UsageError(DvMaintenanceError, FatalError, ValueError):
    """The request names something that does not exist or contradicts itself."""

    exit_code = 2


class TableNotFoundError(UsageError, RestorableError, FileNotFoundError):
    """The location holds no table of a known format, or none now."""


class RefusedError(DvMaintenanceError, FatalError):
    """Unsupported or unsafe here: nothing was changed."""

    exit_code = 3


class UnsupportedFeatureError(RefusedError):
    """The table uses features that this operation does not understand; ``features`` has their names."""

    def __init__(self, message: str, *, features: tuple[str, ...], **context: Any) -> None:
        super().__init__(message, **context)
        self.features = features

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "features": list(self.features)}


class NotPermittedError(RefusedError, RestorableError):
    """The catalog of the table does not permit the operation: nothing was changed."""


class MissingSoftwareError(RefusedError, RestorableError):
    """Java or a package is missing or too old, here or on Spark's workers: nothing was changed."""


class ConflictError(DvMaintenanceError, RetryableError):
    """In every attempt, another writer changed the files that this operation was about to replace."""

    exit_code = 4
    usual_step = "run again when the table is less busy"


class DamagedTableError(DvMaintenanceError, RestorableError):
    """The table's own files contradict its format or each other."""

    exit_code = 5
    usual_step = "restore the file from a backup, or repair the table with the engine that wrote it"

    @property
    def advice(self) -> str | Remedy | None:
        step = self.next_step
        if step is None or "fsck" in str(step):
            return step
        return Remedy.of(step).then("; {} shows all damage, and how to repair it", run("fsck", self.table))


class DamagedDeletionVectorError(DamagedTableError):
    """A deletion vector cannot be trusted.

    Attributes
    ----------
    file
        the file that holds it; ``None`` if it is inline.
    offset
        its position in the file, bytes.
    reason
        what is wrong with it.

    ``of``: the data file whose rows it deletes, for the message.
    """

    def __init__(
        self, reason: str, *, file: str | None = None, offset: int | None = None, of: str | None = None, **context: Any
    ) -> None:
        place = "inline deletion vector" if file is None else f"deletion vector in {file}"
        if offset is not None:
            place += f" at offset {offset}"
        if of is not None:
            place += f" of {of}"
        super().__init__(f"{place}: {reason}", **context)
        self.reason = reason
        self.file = file
        self.offset = offset

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "file": self.file, "offset": self.offset, "reason": self.reason}


class MissingValueError(DamagedTableError):
    """A file has rows without a value in a NOT NULL column.

    Attributes
    ----------
    column
        its name, dotted if it is nested.
    command
        lets it be null; by default in SQL.
    """

    def __init__(self, column: str, problem: str, *, command: str | None = None, **context: Any) -> None:
        if command is None:
            parts = (
                part if re.fullmatch(r"\w+", part) else "`" + part.replace("`", "``") + "`"
                for part in column.split(".")
            )
            command = f"ALTER TABLE ... ALTER COLUMN {'.'.join(parts)} DROP NOT NULL"
        step = f"let the column be null ({command}): then all rows can be read, and be given a value"
        super().__init__(f"column {column} is NOT NULL, but {problem}", **{"next_step": step, **context})
        self.column, self.command = column, command


class VerificationError(DvMaintenanceError, FatalError):
    """A gate found that the result would change what a query returns; nothing was committed."""

    usual_step = "report this as a bug"


class StorageError(DvMaintenanceError):
    """The storage did not do what it was asked to do: one of the two classes below."""

    usual_step = Remedy("check the storage, the permissions and {}, then run again", (setting("storage_options"),))


class StorageUnavailableError(StorageError, RetryableError):
    """The storage did not answer as expected (network, throttling)."""


class StorageDeniedError(StorageError, RestorableError):
    """The storage refused, and will refuse again until somebody changes something: permissions, credentials, a file
    system mounted for reading, no space. The call had no effect.
    """


class EngineUnavailableError(DvMaintenanceError, RetryableError):
    """The server of an engine did not answer."""


class OutOfResourcesError(DvMaintenanceError, RetryableError):
    """The system refused this process memory, threads or file handles. It says nothing about the table."""

    usual_step = "give the process more of it, or run less at the same time; then run again"

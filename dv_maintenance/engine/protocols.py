"""What the readers and writers of each file format implement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.engine.rows.live_rows import LiveRows
    from dv_maintenance.tables.predicate import Predicate
    from dv_maintenance.tables.work import OutputFile

__all__ = ["WHOLE", "Format", "NewFile", "Reader", "Span", "StoredFile"]


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a file's bytes, ``[start, stop)``. A row group belongs to the one that holds its middle, so spans
    that cover a file share out its row groups before anyone has read the footer.
    """

    start: int = 0
    stop: int | None = None

    def holds(self, position: int) -> bool:
        return self.start <= position and (self.stop is None or position < self.stop)


WHOLE = Span()


class Reader(Protocol):
    """An open source: ``rows`` (physical), ``purged`` (named by the DV) and ``size`` in bytes are known before any row
    is read.
    """

    @property
    def rows(self) -> int: ...
    @property
    def purged(self) -> int: ...
    @property
    def size(self) -> int: ...

    def batches(self, span: Span = WHOLE, predicate: Predicate | None = None) -> Iterator[pa.RecordBatch]:
        """Live rows in file order, as batches of the task's schema: of the part of the file that belongs to ``span``,
        without what the bound ``predicate`` can be told not to be true for.
        """

    def live(self, span: Span = WHOLE, predicate: Predicate | None = None) -> Iterator[LiveRows]:
        """The ``batches``, with the place of their rows in the file."""


class StoredFile(Protocol):
    """An open file: the Arrow ``schema`` of what is in it, and its ``rows``."""

    @property
    def schema(self) -> pa.Schema: ...
    @property
    def rows(self) -> int: ...

    def check(self, fields: tuple[int, ...]) -> None:
        """Raise RefusedError if these columns, by their places in the schema, would not be read exactly."""

    def batches(self, fields: tuple[int, ...]) -> Iterator[pa.RecordBatch]:
        """All rows in order: these columns, in the order of the schema. Memory is bounded by a part of the file."""


class NewFile(Protocol):
    """A file being written. What is held of it in memory is bounded, whatever its size."""

    def takes(self, footer: Any, origins: Mapping[str, int]) -> bool:
        """Whether rows of this source may be added to what is in the file. Asked before each batch of it."""

    def add(self, batch: pa.RecordBatch) -> bool:
        """Append rows; whether the file is as large as it is to be."""

    def finish(self) -> OutputFile:
        """Close the file and look at what the storage has.

        Raises
        ------
        VerificationError : the stored file has not the size or the rows that were written.
        StorageError : the storage failed.
        """

    def abandon(self) -> None:
        """Close what is open. Raises nothing."""


class Format(Protocol):
    """Makes the files of one task; ``suffix``: what their names say of the compression."""

    suffix: str

    def begin(self, uri: str, footer: Any, origins: Mapping[str, int]) -> NewFile:
        """A new file. ``footer``, ``origins``: see ``RollingWriter.write``."""

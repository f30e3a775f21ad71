"""Protocols of the readers and writers of file formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dv_maintenance.engine.span import WHOLE, Span

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.engine.parquet.row_group_copy import Copies
    from dv_maintenance.engine.rows.live_rows import LiveRows
    from dv_maintenance.tables.predicate import Predicate
    from dv_maintenance.tables.work import OutputFile, SourceFile


class Reader(Protocol):
    """An open source. All fields are known before any row is read.

    rows : physical rows.
    purged : rows that the DV names.
    size : bytes.
    """

    @property
    def rows(self) -> int: ...
    @property
    def purged(self) -> int: ...
    @property
    def size(self) -> int: ...

    def batches(self, span: Span = WHOLE, predicate: Predicate | None = None) -> Iterator[pa.RecordBatch]:
        """Live rows in file order, as batches of the task's schema.

        span : only the part of the file that belongs to it.
        predicate : rows for which this bound predicate is known not to be true may be omitted.
        """

    def live(self, span: Span = WHOLE, predicate: Predicate | None = None) -> Iterator[LiveRows]:
        """The ``batches``, with the positions of their rows in the file."""


class StoredFile(Protocol):
    """An open file that is always read whole.

    schema : Arrow schema of the file.
    rows : physical rows.
    """

    @property
    def schema(self) -> pa.Schema: ...
    @property
    def rows(self) -> int: ...

    def check(self, fields: tuple[int, ...]) -> None:
        """Raise RefusedError if these columns, by their index in the schema, would not be read exactly."""

    def batches(self, fields: tuple[int, ...]) -> Iterator[pa.RecordBatch]:
        """All rows in order: these columns, in the order of the schema. Memory is bounded by a part of the file."""


class NewFile(Protocol):
    """A file being written. Its memory is bounded, no matter how large the file is."""

    def accepts(self, footer: Any, origins: Mapping[str, int], batch: pa.RecordBatch | None = None) -> bool:
        """Whether rows of this source may be added to the file. Called before each ``batch`` of the source, and before
        what is copied.
        """

    def add(self, batch: pa.RecordBatch) -> bool:
        """Append rows; whether the file has reached its target size."""

    def finish(self) -> OutputFile:
        """Close the file and check what the storage has.

        Raises
        ------
        VerificationError : the size or the row count of the stored file differs from what was written.
        StorageError : the storage failed.
        """

    def abandon(self) -> None:
        """Close all resources. Raises nothing."""


@runtime_checkable
class TakesGroups(NewFile, Protocol):
    """A new file that takes row groups unchanged."""

    def takes(self, copies: Copies) -> bool:
        """Whether row groups of a source can be copied into the file."""

    def has_room(self, size: int) -> bool:
        """Whether ``size`` more bytes bring the file closer to its target size."""

    def copy(self, copies: Copies, number: int) -> bool:
        """Append a row group of a source unchanged; whether the file has reached its target size."""


class Format(Protocol):
    """Creates the files of one task. ``suffix``: the compression as part of their names."""

    suffix: str

    def examine(self, source: SourceFile, reader: Reader) -> Copies | None:
        """The row groups of a source that may be copied; ``None`` if there are none. To be called for each source,
        before its first batch.
        """

    def begin(self, uri: str, footer: Any, origins: Mapping[str, int]) -> NewFile:
        """A new file. ``footer``, ``origins``: see ``RollingWriter.write``."""

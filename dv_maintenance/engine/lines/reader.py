"""Files whose rows are lines: they have one column, the bytes of each line. The suffix of a file's name says how it is
compressed. The first line of a ``headed`` file is its header.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from dv_maintenance.engine.faults import decoding, reading
from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.files.lines import CODECS, MARK, unpacked_lines

if TYPE_CHECKING:
    from dv_maintenance.tables.work import ScanTask, SourceFile

SCHEMA: Final = pa.schema([pa.field("line", pa.binary())])
HEADED: Final = "headed"


class LinesStored:
    """See ``protocols.StoredFile``. ``header``: the first line of a headed file.

    Raises
    ------
    DamagedTableError : the row count is unknown, or a header is missing.
    """

    schema: pa.Schema = SCHEMA

    def __init__(self, file: pa.NativeFile, source: SourceFile, *, headed: bool = False) -> None:
        if source.rows is None:
            raise DamagedTableError(f"the row count of {source.uri} is unknown")
        self.rows: int = source.rows
        self._uri = source.uri
        self._lines = unpacked_lines(file, packed_as(source.uri))
        self.header: bytes | None = None
        if headed:
            with decoding(source.uri):
                first = next(self._lines, [])
            if not first:
                raise DamagedTableError(f"{source.uri} has no header")
            self.header, *rest = first
            self._lines = chain([rest], self._lines)
        else:
            self._lines = _unmarked(self._lines)

    def check(self, fields: tuple[int, ...]) -> None:
        """Accepts all lines."""

    def batches(self, fields: tuple[int, ...]) -> Iterator[pa.RecordBatch]:
        """See ``protocols.StoredFile``. Raises RefusedError if lines are not rows."""
        del fields  # there is one
        found = 0
        with reading(self._uri, "lines"), decoding(self._uri):
            for lines in self._lines:
                found += len(lines)
                if found > self.rows:
                    break
                yield pa.record_batch([pa.array(lines, pa.binary())], schema=SCHEMA)
        if found != self.rows:
            least = "at least " * (found > self.rows)
            raise RefusedError(
                f"{self._uri} has {least}{found} lines of {self.rows} rows: with line breaks in values, rows can't be "
                "told apart",
                next_step="let the table's own engine rewrite the file",
            )


class TextStored(LinesStored):
    """Lines of text, as the one column that ``SourceFile.details`` names."""

    def __init__(self, file: pa.NativeFile, source: SourceFile) -> None:
        super().__init__(file, source)
        self.schema = pa.schema([pa.field(source.details["column"], pa.string())])

    def batches(self, fields: tuple[int, ...]) -> Iterator[pa.RecordBatch]:
        """See :class:`LinesStored`. Raises DamagedTableError, too: a line is not UTF-8."""
        for batch in super().batches(fields):
            with reading(self._uri, "text"):
                text = batch.column(0).cast(pa.string())
            yield pa.record_batch([text], schema=self.schema)


def _unmarked(lines: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """Without the mark at the begin of the file."""
    for first, *rest in lines:
        yield [first.removeprefix(MARK), *rest]
        break
    yield from lines


def open_lines(file: pa.NativeFile, source: SourceFile, task: ScanTask) -> LinesStored:
    """See ``file_formats.FileFormat.stored``. Raises as :class:`LinesStored`."""
    del task
    return LinesStored(file, source, headed=source.format == HEADED)


def open_text(file: pa.NativeFile, source: SourceFile, task: ScanTask) -> TextStored:
    """See ``file_formats.FileFormat.stored``. Raises as :class:`LinesStored`."""
    del task
    return TextStored(file, source)


def packed_as(uri: str) -> str:
    """The end of a name that says how the file is packed, empty if it is not."""
    end = f".{uri.rpartition('.')[2]}"
    return end if end in CODECS else ""

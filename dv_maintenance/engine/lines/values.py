"""Files of lines whose values are read: CSV and JSON. ``SourceFile.details`` has their ``schema``, see
``tables.work.schema_text``, and for CSV its ``dialect``, see ``csv_fields``, the text that is null, and whether the
first line is a header.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.engine.faults import reading
from dv_maintenance.engine.lines.json_values import OddValueError, rows_of, why_not
from dv_maintenance.engine.lines.reader import LinesStored
from dv_maintenance.engine.lines.texts import OddTextError, array_of, unread, values_of
from dv_maintenance.errors import RefusedError
from dv_maintenance.files.arrays import text
from dv_maintenance.files.csv_fields import Dialect
from dv_maintenance.remedies import Remedy, setting
from dv_maintenance.tables.work import schema_of

if TYPE_CHECKING:
    from dv_maintenance.tables.work import ScanTask, SourceFile

_LONGEST = 100
_LEAVE_OUT = Remedy("leave it out with {}, or read the table with its own engine", (setting("columns"),))

# A purge copies lines, whatever their values are.
_GET_RID = Remedy(
    "leave it out with {}, or delete the row with the table's own engine, and purge the table", (setting("columns"),)
)


class _ValuesStored(LinesStored, ABC):
    """See ``protocols.StoredFile``."""

    title: str

    def __init__(self, file: pa.NativeFile, source: SourceFile) -> None:
        super().__init__(file, source, headed=source.details.get("headed", False))
        self.schema = schema_of(source.details["schema"])

    @abstractmethod
    def unread(self, type_: pa.DataType) -> str | None:
        """Why values of this type are not read."""

    @abstractmethod
    def columns(self, lines: list[str], fields: list[pa.Field]) -> list[pa.Array]:
        """Raises OddValueError."""

    def check(self, fields: tuple[int, ...]) -> None:
        """See ``protocols.StoredFile``."""
        for field in map(self.schema.field, fields):
            if what := self.unread(field.type):
                raise RefusedError(
                    f"column {field.name} of {self._uri} holds {what}: this release reads none in {self.title} files",
                    next_step=_LEAVE_OUT,
                )

    def batches(self, fields: tuple[int, ...]) -> Iterator[pa.RecordBatch]:
        """See ``protocols.StoredFile``. Raises RefusedError for a value that Paimon may read in another way, and
        DamagedTableError if a line is not UTF-8.
        """
        wanted = [self.schema.field(index) for index in fields]
        first = 1 + (self.header is not None)
        for batch in super().batches(fields):
            with reading(self._uri, self.title):
                lines = batch.column(0).cast(pa.string()).to_pylist()
            try:
                arrays = self.columns(lines, wanted)
            except OddValueError as odd:
                raise self._refused(first + odd.row, odd) from None
            first += batch.num_rows
            yield pa.record_batch(arrays, schema=pa.schema(wanted))

    def _refused(self, line: int, odd: OddValueError) -> RefusedError:
        found = str(odd.found)
        shown = repr(found if len(found) <= _LONGEST else f"{found[:_LONGEST]}...")
        what = f"has {shown} for {odd.name}" if odd.name else f"is {shown}"
        return RefusedError(
            f"line {line} of {self._uri} {what}: what Paimon reads there is not known here for certain",
            next_step=_GET_RID if odd.name else "correct the line, or read the table with its own engine",
        )


class CsvStored(_ValuesStored):
    """A file of CSV. Empty or quoted, a field with the text of null is null."""

    title = "CSV"

    def __init__(self, file: pa.NativeFile, source: SourceFile) -> None:
        super().__init__(file, source)
        self._dialect = Dialect(**source.details["dialect"])
        self._null = text(source.details["null"])

    def unread(self, type_: pa.DataType) -> str | None:
        return unread(type_)

    def columns(self, lines: list[str], fields: list[pa.Field]) -> list[pa.Array]:
        places = [self.schema.get_field_index(each.name) for each in fields]
        count = max(places) + 1
        rows = [self._fields(at, line, count) for at, line in enumerate(lines)]
        return [self._column([row[at] for row in rows], each) for at, each in zip(places, fields, strict=True)]

    def _fields(self, row: int, line: str, count: int) -> list[str | None]:
        try:
            return self._dialect.fields(line, count)
        except ValueError:
            raise OddValueError(row, "", line) from None

    def _column(self, texts: list[str | None], field: pa.Field) -> pa.Array:
        found = array_of(texts)
        found = pc.if_else(pc.equal(found, self._null), pa.scalar(None, pa.string()), found)
        try:
            return values_of(found, field)
        except OddTextError as odd:
            raise OddValueError(odd.at, field.name, texts[odd.at]) from None


class JsonStored(_ValuesStored):
    """A file with an object of JSON in each line."""

    title = "JSON"

    def unread(self, type_: pa.DataType) -> str | None:
        return why_not(type_)

    def columns(self, lines: list[str], fields: list[pa.Field]) -> list[pa.Array]:
        return rows_of(lines, fields)


def open_csv(file: pa.NativeFile, source: SourceFile, task: ScanTask) -> CsvStored:
    """See ``file_formats.FileFormat.stored``. Raises as ``reader.LinesStored``."""
    del task
    return CsvStored(file, source)


def open_json(file: pa.NativeFile, source: SourceFile, task: ScanTask) -> JsonStored:
    """See ``file_formats.FileFormat.stored``. Raises as ``reader.LinesStored``."""
    del task
    return JsonStored(file, source)

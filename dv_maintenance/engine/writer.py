"""Writes rows into new files of about the wanted size. All but Parquet files are read back once they are written. The
writers of single files: ``parquet.writer``, ``orc.writer``, ``avro.writer``, ``lines.writer``.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import types

from dv_maintenance.engine.faults import writing
from dv_maintenance.engine.file_formats import writer_of
from dv_maintenance.engine.parquet.footer import compressed_bytes
from dv_maintenance.engine.parquet.int96 import marks_of
from dv_maintenance.engine.protocols import TakesGroups
from dv_maintenance.engine.scan import open_source
from dv_maintenance.errors import VerificationError
from dv_maintenance.files.orc_shapes import NOT_ORC
from dv_maintenance.tables.fingerprint import RowSums, fingerprint
from dv_maintenance.tables.model import REQUIRED, FileKey, logical_type
from dv_maintenance.tables.work import ScanTask, SourceFile

if TYPE_CHECKING:
    from dv_maintenance.engine.parquet.row_group_copy import Copies
    from dv_maintenance.engine.protocols import NewFile, Reader
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.fingerprint import Fingerprint
    from dv_maintenance.tables.work import OutputFile, RewriteTask

_FIELD_ID: Final = b"PARQUET:field_id"


class RollingWriter:
    """Writes batches of one schema into files below ``task.output_uri``. Names are new in every attempt, so that
    retried and speculative tasks never share files.

    threads : see ``rewrite``.

    Raises
    ------
    RefusedError : the format, its compression codec or a column's type can't be written.
    VerificationError : by ``write`` and ``close``: a file does not have the rows that were written.
    """

    def __init__(
        self, task: RewriteTask, schema: pa.Schema, storage: Storage, threads: Callable[[], int] = lambda: 1
    ) -> None:
        self._task = task
        self._storage = storage
        self._format = writer_of(task.format)(task, schema, storage, threads)
        self._file: NewFile | None = None
        self._begun: list[str] = []
        self._finished: list[OutputFile] = []
        self._rows_left = [*reversed(task.file_rows)]  # of the files to come, that of the current file last
        self._plain = pa.schema(
            [pa.field(each.name, each.type, metadata=_id_of(each) | marks_of(each)) for each in schema]
        )
        # Names in Avro files may differ from those of columns.
        self._match_by = "id" if all(map(_id_of, schema)) else "name"
        self._sums = self._new_sums()

    def write(self, batch: pa.RecordBatch, footer: Any, origins: Mapping[str, int]) -> None:
        """Append rows of one source.

        footer : of the source; ``None`` if it is not Parquet. A new file uses the encodings of its first source.
        origins : see ``Projection``.
        """
        if not self._task.file_rows:
            self._append(batch, footer, origins)
            return
        while batch.num_rows:
            if not self._rows_left:
                raise VerificationError(f"task {self._task.id} read more rows than its new files should have")
            part = batch.slice(0, self._rows_left[-1])
            self._append(part, footer, origins)
            self._rows_left[-1] -= part.num_rows
            if not self._rows_left[-1]:
                self._rows_left.pop()
                if self._file is not None:
                    self._end(self._file)
            batch = batch.slice(part.num_rows)

    def _append(self, batch: pa.RecordBatch, footer: Any, origins: Mapping[str, int]) -> None:
        if not batch.num_rows:
            return
        if self._file is not None and not self._file.accepts(footer, origins, batch):
            self._end(self._file)
        if self._file is None:
            self._file = self._begin(footer, origins)
            self._file.accepts(footer, origins, batch)
        if self._sums is not None:
            self._sums.add(batch)
        if self._file.add(batch) and not self._task.file_rows:
            self._end(self._file)

    def examine(self, source: SourceFile, reader: Reader) -> Copies | None:
        """The row groups of a source that may be copied, see :meth:`copy`; ``None`` if there are none. To be called
        for each source, before its first batch.
        """
        return None if self._task.file_rows else self._format.examine(source, reader)

    def takes(self, copies: Copies) -> bool:
        """Whether row groups of a source can be copied to the current file, or there is none yet."""
        return self._file is None or (isinstance(self._file, TakesGroups) and self._file.takes(copies))

    def copy(self, copies: Copies, number: int, footer: Any, origins: Mapping[str, int]) -> None:
        """Append a row group of a source unchanged. ``footer``, ``origins``: see :meth:`write`."""
        size = compressed_bytes(footer.row_group(number), range(footer.num_columns))
        file = self._file
        if isinstance(file, TakesGroups) and not (file.accepts(footer, origins) and file.has_room(size)):
            self._end(file)
        if self._file is None:
            self._file = self._begin(footer, origins)
            self._file.accepts(footer, origins)
        file = self._file
        assert isinstance(file, TakesGroups), "only Parquet files are examined"
        if file.copy(copies, number):
            self._end(file)

    def close(self) -> tuple[OutputFile, ...]:
        """Finish the last file; all files in the order of their rows. No rows, no file."""
        if self._file is not None:
            self._end(self._file)
        return tuple(self._finished)

    def discard(self) -> None:
        """Delete every file begun, as far as the storage allows."""
        if self._file is not None:
            self._file.abandon()
        with suppress(Exception):
            self._storage.delete(self._begun)

    def _begin(self, footer: Any, origins: Mapping[str, int]) -> NewFile:
        task = hashlib.sha1(self._task.id.encode(), usedforsecurity=False).hexdigest()[:8]
        name = self._task.file_name.format(
            task=task, uuid=uuid.uuid4(), codec=self._format.suffix, number=len(self._begun)
        )
        uri = f"{self._task.output_uri}/{name}"
        self._begun.append(uri)
        with writing(uri):
            return self._format.begin(uri, footer, origins)

    def _end(self, file: NewFile) -> None:
        output = file.finish()
        self._file = None
        if self._sums is not None:
            self._read_back(output, self._sums.fingerprint())
            self._sums = self._new_sums()
        self._finished.append(output)

    def _new_sums(self) -> RowSums | None:
        # Parquet's writer is trusted to store the rows it was given; files of others are read back.
        return None if self._task.format == "parquet" else RowSums()

    def _read_back(self, output: OutputFile, written: Fingerprint) -> None:
        """Raise VerificationError if the rows of a file differ from those that were written."""
        key = FileKey(output.uri)
        source = SourceFile(key, output.uri, output.size, output.rows, format=self._task.format)
        with open_source(source, ScanTask((source,), self._plain, self._match_by), self._storage) as reader:
            found = fingerprint(reader.batches())
        if found != written:
            raise VerificationError(
                f"the {found.rows} rows read back from {output.uri} are not the {written.rows} that were written to it",
                done="nothing was committed",
                next_step=NOT_ORC,
            )


def _id_of(field: pa.Field) -> dict[bytes, bytes]:
    number = (field.metadata or {}).get(_FIELD_ID)
    return {} if number is None else {_FIELD_ID: number}


def as_optional(schema: pa.Schema) -> pa.Schema:
    """The schema with every field nullable, except map keys, as Spark writes its files. What was not is marked as
    ``REQUIRED``.
    """
    return pa.schema([_optional(field) for field in schema], schema.metadata)


def _optional(field: pa.Field) -> pa.Field:
    nested, metadata = field.type, field.metadata or {}
    if logical_type(field) == "variant":
        pass  # its parts are required, it is null as a whole
    elif types.is_struct(nested):
        nested = pa.struct([_optional(child) for child in nested])
    elif types.is_list(nested):
        nested = pa.list_(_optional(nested.value_field))
    elif types.is_map(nested):
        key = nested.key_field.with_type(_optional(nested.key_field).type)
        nested = pa.map_(key, _optional(nested.item_field))
    if not field.nullable:
        field = field.with_metadata({**metadata, REQUIRED: b""})
    return field.with_type(nested).with_nullable(True)

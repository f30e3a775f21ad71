"""Avro data files, block by block."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from dv_maintenance.engine.faults import decoding, reading
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.avro.arrow_types import record_batch, stored_schema
from dv_maintenance.files.avro.container import AvroFile
from dv_maintenance.storage.remote_input import RemoteInput

if TYPE_CHECKING:
    from typing import BinaryIO

    from dv_maintenance.tables.work import ScanTask, SourceFile

_BUFFER = 1 << 20
# Records of a batch that is made of small blocks.
_ROWS = 8192


class AvroStored:
    """See ``protocols.StoredFile``. An Avro file does not record its row count: the log must.

    Raises
    ------
    DamagedTableError : names the file.
    RefusedError : fastavro is not installed.
    """

    def __init__(self, file: pa.NativeFile, source: SourceFile) -> None:
        self._uri, self._file = source.uri, file
        if source.rows is None:
            raise DamagedTableError(f"the row count of {source.uri} is unknown")
        self.rows: int = source.rows
        with decoding(self._uri):
            self._avro = AvroFile(cast("BinaryIO", io.BufferedReader(file, _BUFFER)), file.size())
            self.schema: pa.Schema = stored_schema(self._avro.schema)

    def check(self, fields: tuple[int, ...]) -> None:
        """Accepts all columns: every value is read exactly."""

    def batches(self, fields: tuple[int, ...]) -> Iterator[pa.RecordBatch]:
        """See ``protocols.StoredFile``: memory is bounded by a block of the file."""
        schema = pa.schema([self.schema.field(index) for index in fields])
        if isinstance(self._file, RemoteInput):
            # What the buffer did not read yet. Blocks hold all columns, so everything is read.
            self._file.expect([(self._file.tell(), self._file.size() - self._file.tell())])
        with decoding(self._uri), reading(self._uri, "Avro"):
            records = []
            for block in self._avro.blocks(dict.fromkeys(schema.names)):
                records += block
                if len(records) >= _ROWS:
                    yield record_batch(records, schema)
                    records = []
            if records:
                yield record_batch(records, schema)


def open_avro(file: pa.NativeFile, source: SourceFile, task: ScanTask) -> AvroStored:
    """See ``file_formats.FileFormat.stored``. Raises as :class:`AvroStored`."""
    del task
    return AvroStored(file, source)

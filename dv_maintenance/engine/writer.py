"""Rows into Parquet files of about the wanted size, a row group at a time.

Written as Spark and Delta's other writers do, so that every reader sees what it knows: all fields optional,
timestamps as INT64 microseconds, field ids where the schema has them, no Arrow schema beside Parquet's own.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from dv_maintenance.engine.faults import writing
from dv_maintenance.engine.footer import dictionary_pays
from dv_maintenance.engine.stats import StatsCollector
from dv_maintenance.errors import RefusedError, VerificationError
from dv_maintenance.tables.work import OutputFile, RewriteTask

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

__all__ = ["RollingWriter", "as_optional"]

# A row group is held decoded until it is full: this is what bounds a worker's memory.
ROW_GROUP_BYTES = 64 << 20
ROW_GROUP_ROWS = 1 << 20

# Table property -> (Arrow's name, part of the file name).
_CODECS = {
    "none": ("NONE", ""),
    "uncompressed": ("NONE", ""),
    "snappy": ("SNAPPY", ".snappy"),
    "gzip": ("GZIP", ".gz"),
    "zstd": ("ZSTD", ".zstd"),
    "brotli": ("BROTLI", ".br"),
    "lz4": ("LZ4", ".lz4"),
    "lz4_raw": ("LZ4", ".lz4raw"),
}


class RollingWriter:
    """Writes batches of one schema into files below ``task.output_uri``. Names are new in every attempt, so that a
    retried or speculative task never meets its twin's files.

    Raises
    ------
    RefusedError : the compression codec is unknown.
    """

    def __init__(self, task: RewriteTask, schema: pa.Schema, storage: Storage) -> None:
        self._task = task
        self._schema = schema
        self._storage = storage
        self._codec, self._suffix = _codec(task.compression)
        self._paths = _leaf_paths(schema)
        self._file: _File | None = None
        self._begun: list[str] = []
        self._finished: list[OutputFile] = []
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = self._pending_rows = 0
        # Bytes on disk per byte in memory, as measured on the last row group.
        self._shrink = 1.0

    def write(self, batch: pa.RecordBatch, footer: Any, origins: Mapping[str, int]) -> None:
        """Append rows. ``footer`` and ``origins`` (see ``Projection``) are those of the file they come from: a new
        file takes its encodings from the source that it begins with. Without a footer that one is not Parquet.
        """
        if not batch.num_rows:
            return
        if self._file is None:
            self._file = self._begin(footer, origins)
        self._file.stats.add(batch)
        self._pending.append(batch)
        self._pending_bytes += batch.nbytes
        self._pending_rows += batch.num_rows
        if self._pending_bytes >= self._room() or self._pending_rows >= ROW_GROUP_ROWS:
            self._flush(self._file)
            if self._file.sink.tell() >= self._task.target_bytes:
                self._end(self._file)

    def close(self) -> tuple[OutputFile, ...]:
        """Finish the last file; all files in the order of their rows. No rows, no file."""
        if self._file is not None:
            self._flush(self._file)
            self._end(self._file)
        return tuple(self._finished)

    def discard(self) -> None:
        """Delete every file begun, as far as the storage lets us."""
        if self._file is not None:
            # In this order: Arrow's writer, left open, would write its footer into a closed sink when collected.
            with suppress(Exception):
                self._file.writer.close()
            with suppress(Exception):
                self._file.sink.close()
        with suppress(Exception):
            self._storage.delete(self._begun)

    def _room(self) -> float:
        """Decoded bytes that should make the next row group: what the file lacks, but neither huge nor tiny."""
        written = self._file.sink.tell() if self._file else 0
        most = min(ROW_GROUP_BYTES, self._task.target_bytes)
        return min(most, max((self._task.target_bytes - written) / self._shrink, most / 8))

    def _flush(self, file: _File) -> None:
        if not self._pending:
            return
        table = pa.Table.from_batches(self._pending, self._schema)
        before = file.sink.tell()
        with writing(file.uri):
            file.writer.write_table(table, row_group_size=self._pending_rows)
        self._shrink = max(file.sink.tell() - before, 1) / max(self._pending_bytes, 1)
        file.rows += self._pending_rows
        self._pending = []
        self._pending_bytes = self._pending_rows = 0

    def _begin(self, footer: Any, origins: Mapping[str, int]) -> _File:
        task = hashlib.sha1(self._task.id.encode(), usedforsecurity=False).hexdigest()[:8]
        name = self._task.file_name.format(task=task, uuid=uuid.uuid4(), codec=self._suffix)
        uri = f"{self._task.output_uri}/{name}"
        # Of what is no Parquet nobody knows: Parquet gives a dictionary up where it does not pay.
        repetitive = [
            path
            for path in self._paths
            if footer is None or (path in origins and dictionary_pays(footer, origins[path]))
        ]
        self._begun.append(uri)
        with writing(uri):
            return _File(uri, self._schema, self._storage, self._codec, repetitive, self._task)

    def _end(self, file: _File) -> None:
        self._finished.append(file.finish(self._storage))
        self._file = None


class _File:
    """One file being written."""

    def __init__(
        self,
        uri: str,
        schema: pa.Schema,
        storage: Storage,
        codec: str,
        repetitive: list[str],
        task: RewriteTask,
    ) -> None:
        self.uri = uri
        self.rows = 0
        self.stats = StatsCollector(schema, task.stats_columns)
        self.sink = storage.open_output(uri)
        self.writer = pq.ParquetWriter(
            self.sink,
            schema,
            compression=codec,
            use_dictionary=repetitive or False,
            store_schema=False,
            store_decimal_as_integer=True,
            write_page_index=True,
        )

    def finish(self, storage: Storage) -> OutputFile:
        """Close the file and look at what the storage has.

        Raises
        ------
        VerificationError : the stored file has not the size or the rows that were written.
        """
        with writing(self.uri):
            self.writer.close()
            written = self.sink.tell()
            self.sink.close()
            info = storage.head(self.uri)
            with storage.open_input(self.uri) as file:
                footer = pq.read_metadata(file)
        if (info.size, footer.num_rows) != (written, self.rows):
            raise VerificationError(
                f"{self.uri} has {info.size} bytes and {footer.num_rows} rows, "
                f"but {written} bytes and {self.rows} rows were written"
            )
        return OutputFile(self.uri, info.size, self.rows, info.modified, self.stats.fold(footer))


def _codec(name: str) -> tuple[str, str]:
    codec, suffix = _CODECS.get(name.lower(), ("", ""))
    if not codec or (codec != "NONE" and not pa.Codec.is_available(codec.lower())):
        raise RefusedError(
            f"the compression codec {name!r} is not supported",
            next_step=f"set the table's compression to one of {', '.join(sorted(_CODECS))}",
        )
    return codec, suffix


def as_optional(schema: pa.Schema) -> pa.Schema:
    """The schema with every field nullable, map keys aside: a NOT NULL that a file breaks is not ours to judge, and
    Spark writes its files the same way.
    """
    return pa.schema([_optional(field) for field in schema], schema.metadata)


def _optional(field: pa.Field) -> pa.Field:
    if (field.metadata or {}).get(b"dvm:delta") == b"variant":  # its parts are required, it is null as a whole
        return field.with_nullable(True)
    nested = field.type
    if types.is_struct(nested):
        nested = pa.struct([_optional(child) for child in nested])
    elif types.is_list(nested):
        nested = pa.list_(_optional(nested.value_field))
    elif types.is_map(nested):
        key = nested.key_field.with_type(_optional(nested.key_field).type)
        nested = pa.map_(key, _optional(nested.item_field))
    return field.with_type(nested).with_nullable(True)


def _leaf_paths(schema: pa.Schema) -> list[str]:
    """Dotted paths of the leaves as Parquet names them."""
    paths: list[str] = []

    def walk(path: str, type: pa.DataType) -> None:
        if types.is_struct(type):
            for field in type:
                walk(f"{path}.{field.name}", field.type)
        elif types.is_map(type):
            walk(f"{path}.key_value.key", type.key_type)
            walk(f"{path}.key_value.value", type.item_type)
        elif types.is_list(type):
            walk(f"{path}.list.element", type.value_type)
        else:
            paths.append(path)

    for field in schema:
        walk(field.name, field.type)
    return paths

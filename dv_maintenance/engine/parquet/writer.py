"""A new Parquet file, a row group at a time.

The layout is that of Spark and Delta's other writers, which every reader knows: all fields optional, timestamps as
INT64 microseconds (nanoseconds: as the task says), field ids if the schema has them, no Arrow schema beside Parquet's
own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from dv_maintenance.engine.faults import reading, writing
from dv_maintenance.engine.parallel import columns_at_once
from dv_maintenance.engine.parquet.calendars import PROLEPTIC, CalendarKeys, readers_use_keys
from dv_maintenance.engine.parquet.codecs import codec_options
from dv_maintenance.engine.parquet.dictionaries import decoded_bytes, repetitive_texts
from dv_maintenance.engine.parquet.footer import dictionary_pays
from dv_maintenance.engine.parquet.int96 import marked, stored_batch
from dv_maintenance.engine.parquet.output import ParquetOutput
from dv_maintenance.engine.parquet.proof import check_copies
from dv_maintenance.engine.parquet.reader import SourceReader
from dv_maintenance.engine.parquet.row_group_copy import Surgeon, Writer
from dv_maintenance.engine.sinks import close_sink
from dv_maintenance.engine.stats import ChunkStats, StatsCollector
from dv_maintenance.errors import RefusedError, VerificationError
from dv_maintenance.files.parquet_footer import read_footer
from dv_maintenance.tables.work import OutputFile

if TYPE_CHECKING:
    from dv_maintenance.engine.parquet.copier import CopiedGroup
    from dv_maintenance.engine.parquet.layout import Layout
    from dv_maintenance.engine.parquet.row_group_copy import Copies, GroupCopy
    from dv_maintenance.engine.protocols import Reader
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.work import RewriteTask, SourceFile

# A row group is held decoded until it is full: this bounds a worker's memory.
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


class ParquetFiles:
    """See ``protocols.Format``.

    Raises
    ------
    RefusedError : the compression codec is unknown.
    """

    def __init__(
        self, task: RewriteTask, schema: pa.Schema, storage: Storage, threads: Callable[[], int] = lambda: 1
    ) -> None:
        if task.int96_nanoseconds:
            schema = marked(schema)
        self.task, self.schema, self.storage, self.threads = task, schema, storage, threads
        self.readers_use_keys = readers_use_keys(task.scan)
        self.codec, self.suffix = _codec(task.compression)
        # Bytes on disk per byte in memory, measured on the last row group.
        self.shrink = 1.0
        self._paths = _leaf_paths(schema)
        self._surgeon = Surgeon(task, schema, self.codec)
        # Of the source that is being read; ``None``: our own.
        self.layout: Layout | None = None
        self._strict = True

    def examine(self, source: SourceFile, reader: Reader) -> Copies | None:
        """The row groups of a source that may be copied. To be called for each source, before its first batch.

        Lets the reader keep dictionaries of text, if the source's writer is known: no value may occur in one twice.
        """
        if isinstance(reader, SourceReader) and self._keeps_dictionaries(source, reader):
            reader.keep_dictionaries(repetitive_texts(reader.footer, reader.projection))
        found = self._surgeon.examine(source, reader) if isinstance(reader, SourceReader) else None
        if found is not None and found.layout.required and not self._strict:
            found = None
        self.layout = None if found is None or found.canonical else found.layout
        return found

    def _keeps_dictionaries(self, source: SourceFile, reader: SourceReader) -> bool:
        if self.task.order_by or source.details or source.row_defaults:
            return False
        try:
            return Writer.of(reader.footer.created_by or "") is not None
        except UnicodeDecodeError:
            return False  # the writer's name is damaged; whether more is, the values show

    def refuse_required(self) -> None:
        """From now on only take layouts whose columns are all optional."""
        self._strict = False

    def begin(self, uri: str, footer: Any, origins: Mapping[str, int]) -> ParquetFile:
        """``footer``, ``origins``: see ``RollingWriter.write``."""
        # Unknown for other formats: Parquet drops a dictionary that does not pay off.
        repetitive = [
            path
            for path in self._paths
            if footer is None or (path in origins and dictionary_pays(footer, origins[path]))
        ]
        return ParquetFile(self, uri, repetitive)


class ParquetFile:
    """See ``protocols.NewFile``."""

    def __init__(self, files: ParquetFiles, uri: str, repetitive: list[str]) -> None:
        self.uri, self._files = uri, files
        self._rows = 0
        self._keys = CalendarKeys.IRRELEVANT
        self._seen: Any = None
        self._stats = StatsCollector(files.schema, files.task.stats_columns)
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = self._pending_rows = 0
        self._sink = files.storage.open_output(uri)
        self.layout = files.layout
        self._output = ParquetOutput(
            self._sink,
            files.schema,
            files.layout,
            bytes_have_order=files.task.bytes_have_order,
            use_dictionary=repetitive or False,
            store_schema=False,
            store_decimal_as_integer=True,
            write_page_index=True,
            **codec_options(files.codec),
        )
        self._copied: list[tuple[int, GroupCopy, CopiedGroup]] = []
        self._by_value: dict[tuple[int, int], ChunkStats] = {}

    def accepts(self, footer: Any, origins: Mapping[str, int], batch: pa.RecordBatch | None = None) -> bool:
        """See ``protocols.NewFile``. A footer has calendar keys or not: one file can't hold the dates of sources with
        keys and of sources without. Nor can a required column take rows of a source whose column is optional.
        """
        del batch
        if self.layout is not None and self.layout.required and self._files.layout is not self.layout:
            self._files.refuse_required()
            return False
        if not self._files.readers_use_keys or (footer is not None and footer is self._seen):
            return True
        keys = CalendarKeys.of(footer, origins.values())
        if CalendarKeys.IRRELEVANT not in (keys, self._keys) and keys is not self._keys:
            return False
        self._seen = footer
        self._keys = self._keys if keys is CalendarKeys.IRRELEVANT else keys
        return True

    def add(self, batch: pa.RecordBatch) -> bool:
        """See ``protocols.NewFile``."""
        if self._files.task.int96_nanoseconds:
            batch = stored_batch(batch, self._files.schema)
        self._stats.add(batch)
        self._pending.append(batch)
        self._pending_bytes += decoded_bytes(batch)
        self._pending_rows += batch.num_rows
        if self._pending_bytes < self._room() and self._pending_rows < ROW_GROUP_ROWS:
            return False
        self._flush()
        return bool(self._sink.tell() >= self._files.task.target_bytes)

    def takes(self, copies: Copies) -> bool:
        """Whether row groups of a source can be copied into the file."""
        return self.layout is (None if copies.canonical else copies.layout)

    def has_room(self, size: int) -> bool:
        """Whether ``size`` more bytes bring the file closer to its target size."""
        return self._sink.tell() + size // 2 <= self._files.task.target_bytes or not self._sink.tell()

    def copy(self, copies: Copies, number: int) -> bool:
        """Append a row group of a source; whether the file has reached its target size."""
        self._flush()
        wanted = copies.prepare(number, self._stats)
        with reading(wanted.uri):
            copied = self._output.copy(wanted)
        place = self._output.groups - 1
        self._copied.append((place, wanted, copied))
        self._rows += wanted.group.rows
        for column, count in wanted.nulls:
            self._stats.add_nulls(column, count)
        self._by_value |= {(place, leaf): stats for leaf, stats in wanted.by_value.items()}
        return bool(self._sink.tell() >= self._files.task.target_bytes)

    def finish(self) -> OutputFile:
        """See ``protocols.NewFile``."""
        self._flush()
        storage = self._files.storage
        with writing(self.uri):
            self._output.close({} if self._keys is CalendarKeys.ABSENT else PROLEPTIC)
        info = close_sink(self._sink, storage, self.uri)
        with writing(self.uri), storage.open_input(self.uri) as file:
            try:
                footer = read_footer(file)
            except pa.ArrowInvalid as error:
                raise VerificationError(f"{self.uri} was written, and its footer can't be read: {error}") from error
        if footer.num_rows != self._rows:
            raise VerificationError(f"{self.uri} has {footer.num_rows} rows, but {self._rows} were written")
        self._check_meaning(footer)
        check_copies(storage, self.uri, footer, self._copied)
        stats = self._stats.fold(footer, self._output.nan_leaves, self._output.negative_zero_leaves, self._by_value)
        return OutputFile(self.uri, info.size, self._rows, info.modified, stats)

    def _check_meaning(self, footer: Any) -> None:
        """Raise VerificationError unless the footer lets Spark find the values that are there."""
        if (column := self._output.bounds_with_nan(footer)) is not None:
            raise VerificationError(f"{self.uri} has bounds for {column}, which contains NaN: filters would miss rows")
        keys = footer.metadata or {}
        if any((key in keys) is (self._keys is CalendarKeys.ABSENT) for key in PROLEPTIC):
            raise VerificationError(f"the calendar keys in the footer of {self.uri} differ from those of its sources")

    def abandon(self) -> None:
        """See ``protocols.NewFile``."""
        # In this order: Arrow's writer, left open, would write its footer into a closed sink when collected.
        with suppress(Exception):
            self._output.close()
        with suppress(Exception):
            self._sink.close()

    def _room(self) -> float:
        """Decoded bytes for the next row group: those that the file still needs, within limits."""
        target = self._files.task.target_bytes
        most = min(ROW_GROUP_BYTES, target)
        lacking: float = (target - self._sink.tell()) / self._files.shrink
        return min(most, max(lacking, most / 8))

    def _flush(self) -> None:
        if not self._pending:
            return
        before = self._sink.tell()
        with writing(self.uri):
            self._output.write(self._pending, columns_at_once(self._files.threads()))
        if self.layout is not None and self.layout.int96:
            self._note_instants()
        self._files.shrink = max(self._sink.tell() - before, 1) / max(self._pending_bytes, 1)
        self._rows += self._pending_rows
        self._pending = []
        self._pending_bytes = self._pending_rows = 0

    def _note_instants(self) -> None:
        """Statistics of the timestamps just written: for INT96 a footer has none."""
        for column in self._stats.columns:
            if types.is_timestamp(column.type):
                found = ChunkStats(column.type)
                for batch in self._pending:
                    found.add(column.pick(batch))
                self._by_value[self._output.groups - 1, column.leaf] = found


def _codec(name: str) -> tuple[str, str]:
    codec, suffix = _CODECS.get(name.lower(), ("", ""))
    if not codec or (codec != "NONE" and not pa.Codec.is_available(codec.lower())):
        raise RefusedError(
            f"the compression codec {name!r} is not supported",
            next_step=f"set the table's compression to one of {', '.join(sorted(_CODECS))}",
        )
    return codec, suffix


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

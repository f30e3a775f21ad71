"""A new ORC file, a stripe at a time.

Written as by Paimon and Iceberg in a JVM in the time zone UTC: times are integers, timestamps are in UTC (also those
without a time zone, and each stripe records it). The metadata of fields becomes attributes of ORC's types: column ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import orc, types

from dv_maintenance.engine.bounds import BoundsCollector
from dv_maintenance.engine.faults import writing
from dv_maintenance.engine.orc.by_rows import RowWriter
from dv_maintenance.engine.orc.reader import range_is_checked
from dv_maintenance.engine.orc.skipping import Misleading
from dv_maintenance.engine.parquet.int96 import BYTES, UNITS, halves, nanoseconds, unmarked, with_leaves
from dv_maintenance.engine.sinks import close_sink
from dv_maintenance.errors import RefusedError
from dv_maintenance.files.map_entries import fields_of, is_entries, is_map, parts_of
from dv_maintenance.files.orc_library import is_there, library
from dv_maintenance.files.orc_shapes import NOT_ORC, holds, is_lossy
from dv_maintenance.files.orc_tail import without_row_indexes
from dv_maintenance.tables.work import OutputFile

if TYPE_CHECKING:
    from dv_maintenance.engine.protocols import Reader
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.work import RewriteTask, SourceFile

# A stripe is held encoded until it is full: this bounds a worker's memory.
_STRIPE_BYTES: Final = 64 << 20
_LEAST_STRIPE: Final = 64 << 10
_CODECS: Final = {
    "none": "uncompressed",
    "uncompressed": "uncompressed",
    "zlib": "zlib",
    "snappy": "snappy",
    "lz4": "lz4",
    "zstd": "zstd",
}
# Seconds that 64 bits of nanoseconds hold.
_MOST: Final = (1 << 63) // UNITS["ns"] - 1
# Before 1970, ORC's libraries add a second to the fraction if it has more than this. They then read that of the last
# second as one after 1970.
_LEAST_MILLI: Final = 999_999
# Metadata of fields that is for our own writers and readers. All other metadata becomes attributes of ORC's types.
_OWN: Final = (b"dvm:", b"PARQUET:")
# The maximum share of distinct values for which a dictionary is kept, as in ORC's Java writer.
_DICTIONARY: Final = 0.8


class OrcFiles:
    """See ``protocols.Format``.

    Raises
    ------
    RefusedError : the compression codec is unknown, or ORC files can't have a column's type.
    """

    suffix = ""

    def __init__(self, task: RewriteTask, schema: pa.Schema, storage: Storage, threads: Callable[[], int]) -> None:
        # Arrow's ORC writer encodes in one thread.
        del threads
        self.task, self.schema, self.storage = task, schema, storage
        codec = _CODECS.get(task.compression.lower())
        if codec is None:
            raise RefusedError(
                f"this release does not write ORC files with the compression {task.compression!r}",
                next_step=f"set the table's compression to one of {', '.join(sorted(_CODECS))}",
            )
        self.codec = codec
        plain = [*map(unmarked, schema)]
        self.stored = pa.schema([_stored(field) for field in plain])
        self.exact = pa.schema([_stored(field, exact=True) for field in plain])
        # Of a given number of rows in a file, none can go to another file when Arrow can't write a value.
        counted = bool(task.file_rows) and is_there() and any(holds(kind, _is_picky) for kind in self.exact.types)
        self.by_rows = counted or any(is_lossy(kind) for kind in self.exact.types)
        if self.by_rows:
            library()

    def examine(self, source: SourceFile, reader: Reader) -> None:
        """No part of an ORC file is copied."""
        del source, reader

    def begin(self, uri: str, footer: Any, origins: Mapping[str, int]) -> OrcFile:
        """The encodings of sources are ignored."""
        del footer, origins
        return OrcFile(self, uri)


class OrcFile:
    """See ``protocols.NewFile``."""

    def __init__(self, files: OrcFiles, uri: str) -> None:
        self.uri, self._files = uri, files
        self._rows = 0
        self._stats = BoundsCollector(files.schema, files.task.stats_columns)
        self._misleading = Misleading()
        self._sink = files.storage.open_output(uri)
        self._unowned = _UnownedSink(self._sink)
        self._writer: _ArrowWriter | RowWriter | None = None

    def accepts(self, footer: Any, origins: Mapping[str, int], batch: pa.RecordBatch | None = None) -> bool:
        """See ``protocols.NewFile``. Raises MissingSoftwareError: a value needs pyorc."""
        del footer, origins
        by_rows = self._files.by_rows or (batch is not None and any(map(_needs_rows, self._in_form(batch))))
        if self._writer is None:
            files = self._files
            kind, schema = (RowWriter, files.exact) if by_rows else (_ArrowWriter, files.stored)
            stripe = max(_LEAST_STRIPE, min(_STRIPE_BYTES, files.task.target_bytes // 4))
            self._writer = kind(self._unowned, schema, files.codec, stripe, _DICTIONARY)
        return isinstance(self._writer, RowWriter) or not by_rows

    def add(self, batch: pa.RecordBatch) -> bool:
        """See ``protocols.NewFile``.

        Raises
        ------
        RefusedError : no reader would read a timestamp as it is.
        """
        assert self._writer is not None, "it is chosen when the file accepts its first batch"
        self._stats.add(batch)
        columns = self._in_form(batch)
        for name, column in zip(batch.schema.names, columns, strict=True):
            _check_last_second(name, column)
        self._misleading.add(columns)
        with writing(self.uri):
            self._writer.write(columns)
        self._rows += batch.num_rows
        return bool(self._sink.tell() >= self._files.task.target_bytes)

    def _in_form(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The columns as they are stored: where Arrow has no type, timestamps as bytes and maps as lists of entries."""
        pairs = zip(batch.columns, self._files.exact.types, strict=True)
        return [array if array.type == kind else with_leaves(array, kind, _in_form) for array, kind in pairs]

    def finish(self) -> OutputFile:
        """See ``protocols.NewFile``."""
        storage = self._files.storage
        with writing(self.uri):
            if self._misleading.found:
                self._unowned.held = bytearray()
            if self._writer is not None:
                self._writer.close()
            if self._unowned.held is not None:
                self._sink.write(without_row_indexes(bytes(self._unowned.held)))
        info = close_sink(self._sink, storage, self.uri)
        return OutputFile(self.uri, info.size, self._rows, info.modified, self._stats.found())

    def abandon(self) -> None:
        """See ``protocols.NewFile``."""
        # In this order: Arrow's writer, left open, would write its footer into a closed sink when collected.
        with suppress(Exception):
            if self._writer is not None:
                self._writer.close()
        with suppress(Exception):
            self._sink.close()


class _ArrowWriter:
    """As :class:`RowWriter`, with Arrow's library."""

    def __init__(self, sink: Any, schema: pa.Schema, codec: str, stripe_size: int, dictionary: float) -> None:
        self.schema = schema
        self._writer: Any = orc.ORCWriter(
            pa.PythonFile(sink, mode="w"),
            stripe_size=stripe_size,
            compression=codec,
            dictionary_key_size_threshold=dictionary,
        )

    def write(self, columns: Sequence[pa.Array]) -> None:
        cast = [
            array if array.type == kind else array.cast(kind)
            for array, kind in zip(columns, self.schema.types, strict=True)
        ]
        self._writer.write(pa.Table.from_arrays([*map(_as_a_copy, cast)], schema=self.schema))

    def close(self) -> None:
        self._writer.close()


def _in_form(leaf: pa.Array, kind: pa.DataType) -> pa.Array:
    if leaf.type == BYTES and types.is_timestamp(kind):
        with suppress(OverflowError):
            return nanoseconds(leaf, kind.tz)
        return leaf
    return leaf if leaf.type == kind else leaf.cast(kind)


def _check_last_second(name: str, column: pa.Array) -> None:
    """Raise RefusedError for a timestamp that no library writes as it is."""
    for seconds, nanos in map(halves, _timestamps_in(column)):
        if ((seconds == -1) & (nanos > _LEAST_MILLI)).any():
            raise RefusedError(
                f"column {name} has a timestamp in the last second before 1970: in ORC files its fraction would be "
                "read as one after 1970",
                next_step=NOT_ORC,
            )


def _as_a_copy(array: pa.Array) -> pa.Array:
    """Arrow writes null structs of a slice as structs of nulls. A copy has the offset 0, also in its children."""
    return _null_below(array.take(np.arange(len(array)))) if holds(array.type, types.is_struct) else array


def _null_below(array: pa.Array) -> pa.Array:
    """The array with null fields in null structs. Of a struct in a struct, Arrow skips what is null in its place, and
    writes any other value that lies below a null one instead of the next row's.
    """
    if not types.is_struct(array.type):
        return array
    children = [_null_below(child) for child in array.flatten()]
    return pa.StructArray.from_arrays(children, fields=list(array.type), mask=array.is_null())


def _is_picky(kind: pa.DataType) -> bool:
    """Whether some values of the type, itself or in it, are not written by Arrow."""
    return bool(types.is_timestamp(kind) or types.is_map(kind))


def _needs_rows(column: pa.Array) -> bool:
    """Whether Arrow would not write a column: a map has a null key, or 64 bits of nanoseconds do not hold a timestamp,
    or one before 1970 has a fraction of a second, which Arrow rounds towards zero, so that the fraction is negative.
    """
    if holds(column.type, is_entries):
        return True
    for each in _timestamps_in(column):
        seconds, nanos = halves(each)
        if ((np.abs(seconds) > _MOST) | ((seconds < 0) & (nanos > 0))).any():
            return True
    return False


def _timestamps_in(column: pa.Array) -> Iterator[pa.Array]:
    """All arrays of timestamps in a column, and of their bytes. Columns of plain bytes have no fixed length here."""
    kind = column.type
    if types.is_timestamp(kind) or kind == BYTES:
        yield column
    elif is_map(kind):
        for each in parts_of(column):
            yield from _timestamps_in(each)
    elif types.is_struct(kind):
        for at in range(kind.num_fields):
            yield from _timestamps_in(column.field(at))
    elif types.is_list(kind):
        yield from _timestamps_in(column.values)


class _UnownedSink:
    """A sink that Arrow's writer cannot close: its size is needed afterwards.

    held : what is written, instead of passing it on; a stripe at most, and the end of the file.
    """

    closed = False

    def __init__(self, sink: pa.NativeFile) -> None:
        self._sink = sink
        self.held: bytearray | None = None

    def write(self, data: Any) -> int:
        if self.held is None:
            return int(self._sink.write(data))
        self.held += data
        return len(memoryview(data).cast("B"))

    def tell(self) -> int:
        return int(self._sink.tell()) + len(self.held or b"")

    def flush(self) -> None:
        self._sink.flush()

    def close(self) -> None:
        """Leaves the sink open: its owner closes it."""


def _stored(field: pa.Field, *, exact: bool = False) -> pa.Field:
    """The field as it is stored. Timestamps get the type that Arrow reads, unless they stay ``exact``."""
    kind = field.type
    if types.is_struct(kind):
        kind = pa.struct([_stored(child, exact=exact) for child in kind])
    elif is_map(kind):
        key, item = (_stored(each, exact=exact) for each in fields_of(kind))
        kind = pa.map_(key.with_nullable(False), item)
    elif types.is_list(kind):
        kind = pa.list_(_stored(kind.value_field, exact=exact))
    elif types.is_fixed_size_binary(kind):
        kind = pa.binary()
    elif types.is_time(kind):
        kind = pa.int32() if types.is_time32(kind) else pa.int64()
    elif types.is_timestamp(kind):
        if not range_is_checked():
            raise RefusedError(
                f"column {field.name} holds timestamps, which this release of pyarrow cannot read back",
                next_step=f"use pyarrow 26 or newer, or {NOT_ORC}",
            )
        kind = kind if exact else pa.timestamp("ns", kind.tz)
    attributes = {key: value for key, value in (field.metadata or {}).items() if not key.startswith(_OWN)}
    return pa.field(field.name, kind, field.nullable, attributes)

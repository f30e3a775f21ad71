"""A new ORC file, a stripe at a time.

Written as by Paimon and Iceberg in a JVM in the time zone UTC: times are integers, timestamps are in UTC (also those
without a time zone, and each stripe records it). The metadata of fields becomes attributes of ORC's types: column ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import orc, types

from dv_maintenance.engine.bounds import BoundsCollector
from dv_maintenance.engine.faults import writing
from dv_maintenance.engine.orc.reader import range_is_checked, timestamps_in
from dv_maintenance.engine.orc.skipping import Misleading
from dv_maintenance.engine.sinks import close_sink
from dv_maintenance.errors import RefusedError
from dv_maintenance.files.orc_shapes import NOT_ORC, inner, is_lossy
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
_SECOND: Final = 1_000_000_000
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
        self.stored = pa.schema([_stored(field) for field in schema])
        if lost := next((field.name for field in schema if is_lossy(field.type)), None):
            raise RefusedError(
                f"column {lost} nests rows in rows and in arrays or maps: Arrow's ORC writer loses such values next to "
                "nulls",
                next_step=NOT_ORC,
            )

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
        self._writer: Any = orc.ORCWriter(
            pa.PythonFile(self._unowned, mode="w"),
            stripe_size=max(_LEAST_STRIPE, min(_STRIPE_BYTES, files.task.target_bytes // 4)),
            compression=files.codec,
            dictionary_key_size_threshold=_DICTIONARY,
        )

    def accepts(self, footer: Any, origins: Mapping[str, int]) -> bool:
        """See ``protocols.NewFile``."""
        del footer, origins
        return True

    def add(self, batch: pa.RecordBatch) -> bool:
        """See ``protocols.NewFile``.

        Raises
        ------
        RefusedError : other readers would read a timestamp differently.
        """
        self._stats.add(batch)
        columns = [_cast(array, field) for array, field in zip(batch.columns, self._files.stored, strict=True)]
        self._misleading.add(columns)
        with writing(self.uri):
            self._writer.write(pa.Table.from_arrays(columns, schema=self._files.stored))
        self._rows += batch.num_rows
        return bool(self._sink.tell() >= self._files.task.target_bytes)

    def finish(self) -> OutputFile:
        """See ``protocols.NewFile``."""
        storage = self._files.storage
        with writing(self.uri):
            if self._misleading.found:
                self._unowned.held = bytearray()
            self._writer.close()
            if self._unowned.held is not None:
                self._sink.write(without_row_indexes(bytes(self._unowned.held)))
        info = close_sink(self._sink, storage, self.uri)
        return OutputFile(self.uri, info.size, self._rows, info.modified, self._stats.found())

    def abandon(self) -> None:
        """See ``protocols.NewFile``."""
        # In this order: Arrow's writer, left open, would write its footer into a closed sink when collected.
        with suppress(Exception):
            self._writer.close()
        with suppress(Exception):
            self._sink.close()


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    """The array as it is stored. Raises RefusedError for a timestamp that other readers would read differently."""
    try:
        found = array if array.type == field.type else array.cast(field.type)
    except pa.ArrowInvalid as error:
        raise _unwritten(field, "before 1677 or after 2262, which cannot be read from ORC files") from error
    # Arrow rounds seconds towards zero. Before 1970 the fraction is then negative, which Java takes for damage.
    if any(_is_broken(each) for each in timestamps_in(found)):
        raise _unwritten(field, "before 1970 with a fraction of a second, which Java would not read as Arrow writes it")
    if _has_struct(found.type):
        # Arrow writes null structs of a slice as structs of nulls. A copy has the offset 0, also in its children.
        found = _null_below(found.take(np.arange(len(found))))
    return found


def _null_below(array: pa.Array) -> pa.Array:
    """The array with null fields in null structs. Of a struct in a struct, Arrow skips what is null in its place, and
    writes any other value that lies below a null one instead of the next row's.
    """
    if not types.is_struct(array.type):
        return array
    children = [_null_below(child) for child in array.flatten()]
    return pa.StructArray.from_arrays(children, fields=list(array.type), mask=array.is_null())


def _has_struct(type: pa.DataType) -> bool:
    return types.is_struct(type) or any(map(_has_struct, inner(type)))


def _is_broken(array: pa.Array) -> bool:
    values = array.view(pa.int64())
    broken = pc.not_equal(pc.multiply(pc.divide(values, _SECOND), _SECOND), values)
    return bool(pc.any(pc.and_kleene(pc.less(values, 0), broken)).as_py())


def _unwritten(field: pa.Field, what: str) -> RefusedError:
    return RefusedError(
        f"column {field.name} has a timestamp {what}",
        next_step=NOT_ORC,
    )


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


def _stored(field: pa.Field) -> pa.Field:
    """The field as it is stored. Timestamps get the type that Arrow reads, so that it reports values out of range."""
    kind = field.type
    if types.is_struct(kind):
        if not kind.num_fields:
            raise RefusedError(
                f"column {field.name} holds rows without fields, which cannot be written to ORC files",
                next_step=NOT_ORC,
            )
        kind = pa.struct([_stored(child) for child in kind])
    elif types.is_list(kind):
        kind = pa.list_(_stored(kind.value_field))
    elif types.is_map(kind):
        kind = pa.map_(_stored(kind.key_field), _stored(kind.item_field))
    elif types.is_time(kind):
        kind = pa.int32() if types.is_time32(kind) else pa.int64()
    elif types.is_timestamp(kind):
        if not range_is_checked():
            raise RefusedError(
                f"column {field.name} holds timestamps, which this release of pyarrow cannot read back",
                next_step=f"use pyarrow 26 or newer, or {NOT_ORC}",
            )
        kind = pa.timestamp("ns", kind.tz)
    attributes = {key: value for key, value in (field.metadata or {}).items() if not key.startswith(_OWN)}
    return pa.field(field.name, kind, field.nullable, attributes)

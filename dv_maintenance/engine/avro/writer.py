"""A new Avro data file, a block at a time.

Format: Avro 1.11, with the schemas of Paimon's own data files (see ``files.avro.arrow_types``): every value except keys
may be null, and the name of a record is its path.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import types

from dv_maintenance.engine.bounds import BoundsCollector
from dv_maintenance.engine.faults import writing
from dv_maintenance.engine.sinks import close_sink
from dv_maintenance.errors import RefusedError
from dv_maintenance.files.avro.codecs import PACKERS
from dv_maintenance.files.avro.container import library
from dv_maintenance.files.avro.schema import parse_schema, spelled
from dv_maintenance.files.avro.writer import block_bytes, header_bytes
from dv_maintenance.tables.work import OutputFile

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.work import RewriteTask

__all__ = ["AvroFiles"]

# Uncompressed size, as in Avro's own writers: a block ends with the record that exceeds it.
_BLOCK_BYTES: Final = 64_000
# The largest block that readers accept, this tool's included.
_MOST_BYTES: Final = 256 << 20
# Rows and bytes of a batch that are Python objects at a time.
_ROWS: Final = 1024
_BYTES: Final = 1 << 20
_CODECS: Final = {"none": "null", "uncompressed": "null", "zstd": "zstandard"}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: Final = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.time32("ms"): {"type": "int", "logicalType": "time-millis"},
}
_UNITS: Final = {"ms": "millis", "us": "micros"}


class AvroFiles:
    """See ``protocols.Format``.

    Raises
    ------
    RefusedError : the compression codec is unknown, Avro files can't have a column's type or name, or fastavro is not
        installed.
    """

    suffix = ""

    def __init__(self, task: RewriteTask, schema: pa.Schema, storage: Storage) -> None:
        self.task, self.schema, self.storage = task, schema, storage
        asked = task.compression.lower()
        self.codec = _CODECS.get(asked, asked)
        if self.codec not in PACKERS:
            raise RefusedError(
                f"Avro files are not written here with the compression {task.compression!r}",
                next_step=f"set the table's compression to one of {', '.join(sorted({*_CODECS, *PACKERS}))}",
            )
        self.text = json.dumps(_Names().record(list(schema), "record", "org.apache.paimon.avro.generated"))
        self.fastavro = library()
        # Values are written without logical types: the text of the schema gives readers their meaning.
        self.encoded = self.fastavro.parse_schema(spelled(parse_schema(self.text.encode())))

    def begin(self, uri: str, footer: Any, origins: Mapping[str, int]) -> AvroFile:
        """The encodings of sources are ignored."""
        del footer, origins
        return AvroFile(self, uri)


class AvroFile:
    """See ``protocols.NewFile``."""

    def __init__(self, files: AvroFiles, uri: str) -> None:
        self.uri, self._files = uri, files
        self._rows = self._records = 0
        self._stats = BoundsCollector(files.schema, files.task.stats_columns)
        self._block = io.BytesIO()
        self._sync = os.urandom(16)
        self._sink = files.storage.open_output(uri)
        self._sink.write(header_bytes(files.text, files.codec, self._sync))

    def accepts(self, footer: Any, origins: Mapping[str, int]) -> bool:
        """See ``protocols.NewFile``."""
        del footer, origins
        return True

    def add(self, batch: pa.RecordBatch) -> bool:
        """See ``protocols.NewFile``.

        Raises
        ------
        RefusedError : a row is larger than a reader accepts.
        """
        self._stats.add(batch)
        rows = max(1, min(_ROWS, _BYTES * batch.num_rows // max(batch.nbytes, 1)))
        encode, schema = self._files.fastavro.schemaless_writer, self._files.encoded
        for start in range(0, batch.num_rows, rows):
            for record in _records(batch.slice(start, rows)):
                encode(self._block, schema, record)
                self._records += 1
                if self._block.tell() >= _BLOCK_BYTES:
                    self._flush()
        return bool(self._sink.tell() >= self._files.task.target_bytes)

    def finish(self) -> OutputFile:
        """See ``protocols.NewFile``."""
        self._flush()
        info = close_sink(self._sink, self._files.storage, self.uri)
        return OutputFile(self.uri, info.size, self._rows, info.modified, self._stats.found())

    def abandon(self) -> None:
        """See ``protocols.NewFile``."""
        with suppress(Exception):
            self._sink.close()

    def _flush(self) -> None:
        if not self._records:
            return
        if self._block.tell() > _MOST_BYTES:
            raise RefusedError(
                f"a row takes {self._block.tell()} bytes, but readers of Avro files accept blocks of {_MOST_BYTES}",
                next_step="let Paimon compact the table, or set its file.format to parquet",
            )
        with writing(self.uri):
            self._sink.write(block_bytes(self._block.getvalue(), self._records, self._files.codec, self._sync))
        self._rows += self._records
        self._records = 0
        self._block = io.BytesIO()


# -- schema -------------------------------------------------------------------------------------------------------


class _Names:
    """Schemas in which each record has a unique name, whatever its fields are called."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def record(self, fields: list[pa.Field], name: str, space: str = "") -> dict[str, Any]:
        """A record with nullable fields."""
        free = next(each for each in _numbered(name) if each not in self._taken)
        self._taken.add(free)
        found = [self._field(each, f"{name}_{each.name}") for each in fields]
        return {"type": "record", "name": free, **({"namespace": space} if space else {}), "fields": found}

    def _field(self, field: pa.Field, name: str) -> dict[str, Any]:
        if not _NAME.fullmatch(field.name):
            raise RefusedError(
                f"the name {field.name!r} of a column or field is not allowed in Avro files",
                next_step="rename it, or set the table's file.format to parquet",
            )
        if field.nullable:
            return {"name": field.name, "type": self._optional(field.type, name), "default": None}
        return {"name": field.name, "type": self._type(field.type, name)}

    def _optional(self, type: pa.DataType, name: str) -> Any:
        return ["null", self._type(type, name)]

    def _type(self, type: pa.DataType, name: str) -> Any:
        if type in _PLAIN:
            return _PLAIN[type]
        if types.is_decimal128(type):
            digits = {"precision": type.precision, "scale": type.scale}
            return {"type": "bytes", "logicalType": "decimal", **digits}
        if types.is_timestamp(type) and type.unit in _UNITS:
            # Paimon uses local- the other way round than Avro.
            local = "local-" if type.tz is not None else ""
            return {"type": "long", "logicalType": f"{local}timestamp-{_UNITS[type.unit]}"}
        if types.is_struct(type) and type.num_fields:
            return self.record(list(type), name)
        if types.is_list(type):
            return {"type": "array", "items": self._optional(type.value_type, name)}
        if types.is_map(type) and types.is_string(type.key_type):
            return {"type": "map", "values": self._optional(type.item_type, name)}
        if types.is_map(type):
            key = pa.field("key", type.key_type, nullable=False)
            entry = self.record([key, pa.field("value", type.item_type)], name)
            return {"type": "array", "items": entry, "logicalType": "map"}
        raise RefusedError(
            f"values of the type {type} are not written to Avro files here",
            next_step="let Paimon compact the table, or set its file.format to parquet",
        )


def _numbered(name: str) -> Any:
    yield name
    number = 1
    while True:
        number += 1
        yield f"{name}_{number}"


# -- values -------------------------------------------------------------------------------------------------------


def _records(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows in the form that fastavro writes with a schema without logical types."""
    names = batch.schema.names
    columns = [_values(column) for column in batch.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(array: pa.Array) -> list[Any]:
    kind = array.type
    if types.is_struct(kind):
        names = [field.name for field in kind]
        rows = zip(*map(_values, array.flatten()), strict=True)
        return [
            dict(zip(names, row, strict=True)) if there else None
            for row, there in zip(rows, array.is_valid().to_pylist(), strict=True)
        ]
    if types.is_map(kind):
        pairs = list(zip(*(_values(_within(array, part)) for part in (array.keys, array.items)), strict=True))
        if types.is_string(kind.key_type):
            return [None if each is None else dict(each) for each in _cut(array, pairs)]
        return _cut(array, [{"key": key, "value": item} for key, item in pairs])
    if types.is_list(kind):
        return _cut(array, _values(_within(array, array.values)))
    if types.is_decimal(kind):
        return _unscaled(array)
    if types.is_timestamp(kind):
        return list(array.cast(pa.int64()).to_pylist())
    if types.is_date32(kind) or types.is_time32(kind):
        return list(array.cast(pa.int32()).to_pylist())
    return list(array.to_pylist())


def _within(array: pa.Array, elements: pa.Array) -> pa.Array:
    """The elements of the lists of an array, which may be a slice."""
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return elements.slice(first, last - first)


def _cut(array: pa.Array, elements: list[Any]) -> list[Any]:
    """The lists of an array from the elements within it."""
    offsets = array.offsets.to_pylist()
    return [
        elements[begin - offsets[0] : end - offsets[0]] if there else None
        for begin, end, there in zip(offsets, offsets[1:], array.is_valid().to_pylist(), strict=False)
    ]


def _unscaled(array: pa.Decimal128Array) -> list[bytes | None]:
    """Big-endian bytes, as few as possible. Python's own decimals would round to the digits of their context."""
    raw = memoryview(array.buffers()[1])[16 * array.offset : 16 * (array.offset + len(array))]
    numbers = [int.from_bytes(raw[at : at + 16], "little", signed=True) for at in range(0, len(raw), 16)]
    return [
        number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)
        if there
        else None
        for number, there in zip(numbers, array.is_valid().to_pylist(), strict=True)
    ]

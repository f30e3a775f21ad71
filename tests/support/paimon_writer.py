"""Paimon tables for tests, written after the format's description by code that shares nothing with the reader but the
index files' codec: schemas, snapshots, manifests of an older and a newer writer, index files and Parquet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dv_maintenance.dv import DeletionVector, paimon
from dv_maintenance.tables.paimon.rows.types import arrow_type, parse_type
from support.avro_files import avro_file
from support.binary_rows import encode_row

OLD, NEW = "0.9", "2.1"
MAX_LONG = 2**63 - 1


def optional(type: Any) -> Any:
    return ["null", type]


def record(name: str, fields: Mapping[str, Any]) -> Any:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": value} for key, value in fields.items()]}


def stats(name: str) -> Any:
    counts = optional({"type": "array", "items": optional("long")})
    return record(name, {"_MIN_VALUES": "bytes", "_MAX_VALUES": "bytes", "_NULL_COUNTS": counts})


EMPTY_ROW = bytes(12)
NO_STATS = {"_MIN_VALUES": EMPTY_ROW, "_MAX_VALUES": EMPTY_ROW, "_NULL_COUNTS": []}


def list_schema(writer: str) -> Any:
    newer = dict.fromkeys(["_MIN_BUCKET", "_MAX_BUCKET", "_MIN_LEVEL", "_MAX_LEVEL"], optional("int"))
    return record(
        "list",
        {
            "_VERSION": "int",
            "_FILE_NAME": "string",
            "_FILE_SIZE": "long",
            "_NUM_ADDED_FILES": "long",
            "_NUM_DELETED_FILES": "long",
            "_PARTITION_STATS": stats("partition_stats"),
            "_SCHEMA_ID": "long",
            **(newer if writer == NEW else {}),
        },
    )


def entry_schema(writer: str) -> Any:
    newer = {
        "_VALUE_STATS_COLS": optional({"type": "array", "items": "string"}),
        "_EXTERNAL_PATH": optional("string"),
        "_FIRST_ROW_ID": optional("long"),
        "_WRITE_COLS": optional({"type": "array", "items": "string"}),
    }
    file = {
        "_FILE_NAME": "string",
        "_FILE_SIZE": "long",
        "_ROW_COUNT": "long",
        "_MIN_KEY": "bytes",
        "_MAX_KEY": "bytes",
        "_KEY_STATS": stats("key_stats"),
        "_VALUE_STATS": stats("value_stats"),
        "_MIN_SEQUENCE_NUMBER": "long",
        "_MAX_SEQUENCE_NUMBER": "long",
        "_SCHEMA_ID": "long",
        "_LEVEL": "int",
        "_EXTRA_FILES": {"type": "array", "items": "string"},
        "_CREATION_TIME": optional({"type": "long", "logicalType": "timestamp-millis"}),
        "_DELETE_ROW_COUNT": optional("long"),
        "_EMBEDDED_FILE_INDEX": optional("bytes"),
        "_FILE_SOURCE": optional("int"),
        **(newer if writer == NEW else {}),
    }
    outer = {"_VERSION": "int", "_KIND": "int", "_PARTITION": "bytes", "_BUCKET": "int", "_TOTAL_BUCKETS": "int"}
    return record("entry", {**outer, "_FILE": record("file", file)})


def index_schema(writer: str) -> Any:
    dv = {"f0": "string", "f1": "int", "f2": "int", **({"_CARDINALITY": optional("long")} if writer == NEW else {})}
    return record(
        "index",
        {
            "_VERSION": "int",
            "_KIND": "int",
            "_PARTITION": "bytes",
            "_BUCKET": "int",
            "_INDEX_TYPE": "string",
            "_FILE_NAME": "string",
            "_FILE_SIZE": "long",
            "_ROW_COUNT": "long",
            "_DELETIONS_VECTORS_RANGES": optional({"type": "array", "items": optional(record("dv", dv))}),
            **({"_EXTERNAL_PATH": optional("string")} if writer == NEW else {}),
        },
    )


@dataclass(frozen=True)
class DataFile:
    """A data file as its entries have it; ``entry``: what is written besides the defaults."""

    name: str
    rows: int
    partition: tuple[Any, ...] = ()
    bucket: int = 0
    level: int = 0
    size: int = 100
    entry: tuple[tuple[str, Any], ...] = field(default=(), hash=False)

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.partition, self.bucket, self.name)


@dataclass
class PaimonWriter:
    """Writes a table at ``path``. ``writer``: whose manifests, OLD or NEW. ``bits``: of index files."""

    path: Path
    columns: Mapping[str, str] = field(default_factory=lambda: {"id": "BIGINT", "v": "STRING"})
    partition_keys: Sequence[str] = ()
    primary_keys: Sequence[str] = ()
    options: Mapping[str, str] = field(default_factory=lambda: {"bucket": "-1", "deletion-vectors.enabled": "true"})
    writer: str = NEW
    bits: int = 32
    codec: str = "zstandard"
    every_entry: Mapping[str, Any] = field(default_factory=dict)
    files: dict[tuple[Any, ...], DataFile] = field(default_factory=dict)
    dvs: dict[tuple[Any, ...], DeletionVector] = field(default_factory=dict)
    version: int = 0
    schema_id: int = -1
    now: int = 1_700_000_000_000
    _names: int = 0
    _base: list[dict[str, Any]] = field(default_factory=list)
    _index: str | None = None

    def __post_init__(self) -> None:
        self.ids = {name: index for index, name in enumerate(self.columns)}
        self.write_schema()

    # -- schemas --------------------------------------------------------------------------------------------------

    def write_schema(self, **changes: Any) -> None:
        self.schema_id += 1
        body = {
            "version": 3,
            "id": self.schema_id,
            "fields": [{"id": self.ids[name], "name": name, "type": kind} for name, kind in self.columns.items()],
            "highestFieldId": max(self.ids.values()),
            "partitionKeys": list(self.partition_keys),
            "primaryKeys": list(self.primary_keys),
            "options": dict(self.options),
            "timeMillis": self.now,
            **changes,
        }
        self.put(f"schema/schema-{self.schema_id}", json.dumps(body).encode())

    def alter(self, columns: Mapping[str, str], renamed: Mapping[str, str] | None = None) -> None:
        """The next schema. ``renamed``: old name by new one; new columns get new ids."""
        highest = max(self.ids.values())
        renamed = renamed or {}
        ids = {}
        for name in columns:
            old = renamed.get(name, name)
            if old in self.ids:
                ids[name] = self.ids[old]
            else:
                highest += 1
                ids[name] = highest
        self.columns, self.ids = columns, ids
        self.write_schema(highestFieldId=highest)

    # -- commits --------------------------------------------------------------------------------------------------

    def append(self, rows: Sequence[Mapping[str, Any]], partition: tuple[Any, ...] = (), **entry: Any) -> DataFile:
        """One more file, and a snapshot."""
        file = self.data_file(rows, partition, **entry)
        self.commit("APPEND", add=[file])
        return file

    def data_file(self, rows: Sequence[Mapping[str, Any]], partition: tuple[Any, ...] = (), **entry: Any) -> DataFile:
        """``kinds``: of each row, for a file of keys and values; ``suffix``: of its name; ``write``: of its bytes;
        ``_WRITE_COLS``: which of the columns it has.
        """
        written = entry.get("_WRITE_COLS") or list(self.columns)
        schema = pa.schema([(name, arrow_type(parse_type(self.columns[name]))) for name in written])
        bucket, level = entry.pop("bucket", 0), entry.pop("level", 0)
        kinds, write = entry.pop("kinds", None), entry.pop("write", pq.write_table)
        name = self.name("data", entry.pop("suffix", ".parquet"))
        folder = "/".join(f"{key}={value}" for key, value in zip(self.partition_keys, partition, strict=False))
        path = "/".join(each for each in (folder, f"bucket-{bucket}", name) if each)
        (self.path / path).parent.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist(list(rows), schema=schema)
        write(table if kinds is None else self.with_keys(table, kinds), self.path / path)
        size = (self.path / path).stat().st_size
        values = {"_SCHEMA_ID": self.schema_id, **entry}
        return DataFile(name, len(rows), partition, bucket, level, size, tuple(values.items()))

    def with_keys(self, table: pa.Table, kinds: Sequence[int | None]) -> pa.Table:
        """Keys, sequence numbers and kinds in front of the values; no keys in a thin file."""
        thin = self.options.get("data-file.thin-mode") == "true"
        keys = {} if thin else {f"_KEY_{key}": table[key] for key in self.primary_keys}
        own = {"_SEQUENCE_NUMBER": pa.array(range(table.num_rows)), "_VALUE_KIND": pa.array(kinds, pa.int8())}
        return pa.table({**keys, **own, **{name: table[name] for name in table.column_names}})

    def delete(self, positions: Mapping[DataFile, Iterable[int]], kind: str = "OVERWRITE") -> None:
        """More positions of files are deleted: one new index file for all of the table's DVs."""
        for file, deleted in positions.items():
            known = self.dvs.get(file.key, DeletionVector.empty())
            self.dvs[file.key] = known | DeletionVector.from_positions(list(deleted))
        self.write_index()
        self.commit(kind)

    def commit(self, kind: str, add: Sequence[DataFile] = (), delete: Sequence[DataFile] = (), **body: Any) -> None:
        """A snapshot of what is live now."""
        for file in delete:
            self.files.pop(file.key, None)
        for file in add:
            self.files[file.key] = file
        self.version += 1
        self.now += 1000
        entries = [self.entry(0, file) for file in add] + [self.entry(1, file) for file in delete]
        base, delta = self.name("manifest-list"), self.name("manifest-list")
        self.put_avro(base, list_schema(self.writer), self._base)
        manifests = [self.manifest(entries)] if entries else []
        self.put_avro(delta, list_schema(self.writer), manifests)
        self._base = [*self._base, *manifests]
        snapshot = {
            "version": 3,
            "id": self.version,
            "schemaId": self.schema_id,
            "baseManifestList": base,
            "deltaManifestList": delta,
            "changelogManifestList": None,
            "commitUser": "tests",
            "commitIdentifier": MAX_LONG,
            "commitKind": kind,
            "timeMillis": self.now,
            "totalRecordCount": sum(file.rows for file in self.files.values()),
            "deltaRecordCount": sum(file.rows for file in add) - sum(file.rows for file in delete),
            **({"indexManifest": self._index} if self._index else {}),
            **body,
        }
        self.put(f"snapshot/snapshot-{self.version}", json.dumps(snapshot).encode())
        self.put("snapshot/LATEST", str(self.version).encode())
        if self.version == 1:
            self.put("snapshot/EARLIEST", b"1")

    def manifest(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        name = self.name("manifest")
        self.put_avro(name, entry_schema(self.writer), entries)
        return {
            "_VERSION": 2,
            "_FILE_NAME": name,
            "_FILE_SIZE": 1,
            "_NUM_ADDED_FILES": sum(each["_KIND"] == 0 for each in entries),
            "_NUM_DELETED_FILES": sum(each["_KIND"] == 1 for each in entries),
            "_PARTITION_STATS": NO_STATS,
            "_SCHEMA_ID": self.schema_id,
        }

    def entry(self, kind: int, file: DataFile) -> dict[str, Any]:
        own = {
            "_FILE_NAME": file.name,
            "_FILE_SIZE": file.size,
            "_ROW_COUNT": file.rows,
            "_MIN_KEY": EMPTY_ROW,
            "_MAX_KEY": EMPTY_ROW,
            "_KEY_STATS": NO_STATS,
            "_VALUE_STATS": NO_STATS,
            "_MIN_SEQUENCE_NUMBER": 0,
            "_MAX_SEQUENCE_NUMBER": 0,
            "_SCHEMA_ID": self.schema_id,
            "_LEVEL": file.level,
            "_EXTRA_FILES": [],
            "_CREATION_TIME": self.now,
            "_DELETE_ROW_COUNT": 0,
            "_FILE_SOURCE": 0,
            **dict(file.entry),
        }
        return {
            "_VERSION": 2,
            "_KIND": kind,
            "_PARTITION": self.row(file.partition),
            "_BUCKET": file.bucket,
            "_TOTAL_BUCKETS": -1,
            "_FILE": own,
            **self.every_entry,
        }

    def write_index(self, entries: Sequence[Mapping[str, Any]] = ()) -> None:
        """An index manifest of the DVs, one index file for each partition and bucket, and of other ``entries``."""
        found: list[Mapping[str, Any]] = list(entries)
        places = sorted({key[:2] for key in self.dvs}, key=repr)
        for partition, bucket in places:
            own = {key[2]: dv for key, dv in self.dvs.items() if key[:2] == (partition, bucket)}
            (file,) = paimon.pack(own.values(), self.bits)
            name = self.name("index")
            self.put(f"index/{name}", file.data)
            dvs = [
                {"f0": data, "f1": each.offset, "f2": each.length, "_CARDINALITY": each.cardinality}
                for data, each in zip(own, file.ranges, strict=True)
            ]
            found.append(self.index_entry(name, dvs, partition, bucket, len(file.data)))
        self._index = self.name("index-manifest")
        self.put_avro(self._index, index_schema(self.writer), found)

    def index_entry(
        self, name: str, dvs: Any, partition: tuple[Any, ...] = (), bucket: int = 0, size: int = 1, **other: Any
    ) -> dict[str, Any]:
        return {
            "_VERSION": 1,
            "_KIND": 0,
            "_PARTITION": self.row(partition),
            "_BUCKET": bucket,
            "_INDEX_TYPE": "DELETION_VECTORS",
            "_FILE_NAME": name,
            "_FILE_SIZE": size,
            "_ROW_COUNT": len(dvs or []),
            "_DELETIONS_VECTORS_RANGES": dvs,
            **other,
        }

    # -- files ----------------------------------------------------------------------------------------------------

    def row(self, partition: tuple[Any, ...]) -> bytes:
        return encode_row(partition, [parse_type(self.columns[key]) for key in self.partition_keys])

    def name(self, kind: str, suffix: str = "") -> str:
        self._names += 1
        return f"{kind}-{self._names:08d}{suffix}"

    def put_avro(self, name: str, schema: Any, records: Sequence[Mapping[str, Any]]) -> None:
        self.put(f"manifest/{name}", avro_file(schema, [dict(each) for each in records], self.codec))

    def put(self, path: str, data: bytes) -> None:
        (self.path / path).parent.mkdir(parents=True, exist_ok=True)
        (self.path / path).write_bytes(data)

    def body(self, path: str) -> dict[str, Any]:
        return dict(json.loads((self.path / path).read_bytes()))

    def change(self, path: str, **changes: Any) -> None:
        """Other values in a JSON file."""
        self.put(path, json.dumps({**self.body(path), **changes}).encode())

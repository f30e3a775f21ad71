"""Logs written by hand, byte for byte where a test wants that. Nothing of the package under test writes here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dv_maintenance.storage import Storage

Action = dict[str, Any]

SCHEMA = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
PROTOCOL: Action = {
    "protocol": {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors"],
    }
}

_TEXT, _MAP = pa.string(), pa.map_(pa.string(), pa.string())
DV = pa.struct(
    [
        ("storageType", _TEXT),
        ("pathOrInlineDv", _TEXT),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
        ("maxRowIndex", pa.int64()),
    ]
)
ADD = [
    ("path", _TEXT),
    ("partitionValues", _MAP),
    ("size", pa.int64()),
    ("modificationTime", pa.int64()),
    ("dataChange", pa.bool_()),
    ("tags", _MAP),
    ("deletionVector", DV),
    ("stats", _TEXT),
]
CHECKPOINT = {
    "txn": pa.struct([("appId", _TEXT), ("version", pa.int64()), ("lastUpdated", pa.int64())]),
    "add": pa.struct(ADD),
    "remove": pa.struct(
        [("path", _TEXT), ("deletionTimestamp", pa.int64()), ("dataChange", pa.bool_()), ("deletionVector", DV)]
    ),
    "metaData": pa.struct(
        [
            ("id", _TEXT),
            ("format", pa.struct([("provider", _TEXT), ("options", _MAP)])),
            ("schemaString", _TEXT),
            ("partitionColumns", pa.list_(_TEXT)),
            ("configuration", _MAP),
            ("createdTime", pa.int64()),
        ]
    ),
    "protocol": pa.struct(
        [
            ("minReaderVersion", pa.int32()),
            ("minWriterVersion", pa.int32()),
            ("readerFeatures", pa.list_(_TEXT)),
            ("writerFeatures", pa.list_(_TEXT)),
        ]
    ),
    "domainMetadata": pa.struct([("domain", _TEXT), ("configuration", _TEXT), ("removed", pa.bool_())]),
    "sidecar": pa.struct([("path", _TEXT), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64())]),
}


def metadata(schema: Action | None = None, partitions: tuple[str, ...] = (), **configuration: str) -> Action:
    return {
        "metaData": {
            "id": "an-id",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(schema or SCHEMA),
            "partitionColumns": list(partitions),
            "configuration": {key.replace("__", "."): value for key, value in configuration.items()},
            "createdTime": 5,
        }
    }


def dv(place: str = "0123456789abcdefghij", offset: int | None = 1, rows: int = 1, kind: str = "u") -> Action:
    body: Action = {"storageType": kind, "pathOrInlineDv": place, "sizeInBytes": 34, "cardinality": rows}
    return body if offset is None else {**body, "offset": offset}


def add(path: str, descriptor: Action | None = None, *, rows: int | None = 10, **more: Any) -> Action:
    body: Action = {"path": path, "partitionValues": {}, "size": 100, "modificationTime": 7, "dataChange": True}
    if rows is not None:
        body["stats"] = json.dumps({"numRecords": rows})
    if descriptor:
        body["deletionVector"] = descriptor
    return {"add": {**body, **more}}


def remove(path: str, descriptor: Action | None = None, **more: Any) -> Action:
    body: Action = {"path": path, "deletionTimestamp": 9, "dataChange": True, **more}
    return {"remove": {**body, "deletionVector": descriptor} if descriptor else body}


class RawLog:
    def __init__(self, path: Path) -> None:
        self.log = path / "_delta_log"
        self.log.mkdir(parents=True)
        self.storage = Storage(str(path))

    def put(self, name: str, text: str | bytes) -> Path:
        file = self.log / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    def commit(self, version: int, *actions: Action, at: int | None = None) -> Path:
        return self.json(f"{version:020d}.json", *actions, at=at)

    def json(self, name: str, *actions: Action, at: int | None = None) -> Path:
        file = self.put(name, "".join(json.dumps(action) + "\n" for action in actions))
        if at is not None:
            os.utime(file, ns=(at * 10**6, at * 10**6))
        return file

    def start(self, *actions: Action) -> None:
        """Version 0: protocol and metadata, then ``actions``."""
        self.commit(0, PROTOCOL, metadata(), *actions)

    def parquet(self, name: str, *actions: Action, types: dict[str, pa.DataType] | None = None) -> Path:
        """A checkpoint file or sidecar; objects become maps where the type says so."""
        schema = pa.schema(list({**CHECKPOINT, **(types or {})}.items()))
        rows = [{kind: _arrow(body, schema.field(kind).type) for kind, body in action.items()} for action in actions]
        file = self.log / name
        file.parent.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), file)
        return file

    def hint(self, version: int) -> None:
        self.put("_last_checkpoint", json.dumps({"version": version, "size": 1}))


def _arrow(value: Any, type: pa.DataType) -> Any:
    if isinstance(value, dict) and pa.types.is_map(type):
        return list(value.items())
    if isinstance(value, dict):
        return {name: _arrow(inner, type.field(name).type) for name, inner in value.items()}
    return value

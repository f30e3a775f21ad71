"""Delta logs written by hand, byte for byte where a test wants that. Nothing of the package under test writes here.

``LogWriter`` numbers its commits and has the data files too, of a few bytes, at times of one's choice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from dv_maintenance.dv import z85
from dv_maintenance.dv.descriptor import dv_file_path
from dv_maintenance.storage import RawName, Storage

HOUR = 3_600_000
NOW = 1_700_000_000_000  # epoch milliseconds
SIZE = 100

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
    body: Action = {"path": path, "partitionValues": {}, "size": SIZE, "modificationTime": 7, "dataChange": True}
    if rows is not None:
        body["stats"] = json.dumps({"numRecords": rows})
    if descriptor:
        body["deletionVector"] = descriptor
    return {"add": {**body, **more}}


def remove(path: str, descriptor: Action | None = None, *, at: int | None = 9, **more: Any) -> Action:
    body: Action = {"path": path, "dataChange": True, **more}
    if at is not None:
        body["deletionTimestamp"] = at
    return {"remove": {**body, "deletionVector": descriptor} if descriptor else body}


def encoded(path: str) -> str:
    return quote(path, safe="/=")


class RawLog:
    def __init__(self, path: Path) -> None:
        self.path = path
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
            _date(file, at)
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


class LogWriter(RawLog):
    """A table at ``path``. Times are epoch milliseconds; paths are decoded and relative."""

    def __init__(
        self,
        path: Path,
        *,
        partitions: tuple[str, ...] = (),
        configuration: Mapping[str, str] | None = None,
        schema: list[Action] | None = None,
        at: int = NOW - 1000 * HOUR,
        min_versions: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(path)
        self.version = -1
        self.started = at
        fields = schema or [
            {"name": name, "type": "string", "nullable": True, "metadata": {}} for name in ("id", *partitions)
        ]
        features = ["deletionVectors"] + (["columnMapping"] if schema else [])
        reader, writer = min_versions or (3, 7)
        protocol: Action = {"minReaderVersion": reader, "minWriterVersion": writer}
        if min_versions is None:
            protocol |= {"readerFeatures": features, "writerFeatures": features}
        # A checkpoint would drop tombstones by the real clock, which is not the one that tests play at.
        properties = {"delta.enableDeletionVectors": "true", "delta.checkpointInterval": "1000000"}
        about = metadata({"type": "struct", "fields": fields}, partitions, **properties, **(configuration or {}))
        about["metaData"]["id"] = str(uuid4())
        self.append({"protocol": protocol}, about, at=at)

    def append(self, *actions: Action, at: int, operation: str = "WRITE") -> int:
        """The next commit."""
        self.version += 1
        info = {"commitInfo": {"timestamp": at, "operation": operation, "operationParameters": {}}}
        self.commit(self.version, info, *actions, at=at)
        return self.version

    def touch(self, path: str, at: int, body: str = "x" * SIZE) -> str:
        file = self.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(body)
        _date(file, at)
        return path

    def data(self, at: int, folder: str = "") -> str:
        """A new data file; returns its path."""
        return self.touch(f"{folder}/part-0-{uuid4()}.parquet".lstrip("/"), at)

    def dv(self, at: int, kind: str = "u", prefix: str = "", uuid: UUID | None = None, offset: int = 1) -> Action:
        """A descriptor, and its file. With the ``uuid`` of an earlier one it is another DV of the same file."""
        if kind == "i":
            text, offset_field = z85.encode(os.urandom(32)), {}
        else:
            uuid = uuid or uuid4()
            path = self.touch(dv_file_path(prefix, uuid), at)
            text = prefix + z85.encode(uuid.bytes) if kind == "u" else self.storage.uri_of(path)
            offset_field = {"offset": offset}
        return {"storageType": kind, "pathOrInlineDv": text, **offset_field, "sizeInBytes": 30, "cardinality": 1}

    def dv_path(self, dv: Action) -> str | None:
        if dv["storageType"] == "i":
            return None
        text = dv["pathOrInlineDv"]
        if dv["storageType"] == "p":
            return self.storage.path_of(RawName(text))
        return dv_file_path(text[:-20], UUID(bytes=z85.decode(text[-20:])))

    def files(self) -> set[str]:
        """Everything outside the log."""
        found = (file.relative_to(self.path).as_posix() for file in self.path.rglob("*") if not file.is_dir())
        return {path for path in found if not path.startswith("_delta_log/")}

    def settle(self, at: int) -> None:
        """Give the commits that a vacuum wrote the time that the test plays at."""
        versions = {int(file.stem): file for file in self.log.glob("*.json") if file.stem.isdigit()}
        for version, file in versions.items():
            if version > self.version:
                _date(file, at)
        self.version = max(versions)


def _date(file: Path, at: int) -> None:
    os.utime(file, ns=(at * 10**6, at * 10**6))


def _arrow(value: Any, type: pa.DataType) -> Any:
    if isinstance(value, dict) and pa.types.is_map(type):
        return list(value.items())
    if isinstance(value, dict):
        return {name: _arrow(inner, type.field(name).type) for name, inner in value.items()}
    return value

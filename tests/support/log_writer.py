"""Delta tables for tests that never open a data file: real logs over files of a few bytes, at times of one's choice."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

from dv_maintenance.dv import z85
from dv_maintenance.dv.descriptor import dv_file_path
from dv_maintenance.storage import RawName, Storage

HOUR = 3_600_000
NOW = 1_700_000_000_000  # epoch milliseconds

Action = dict[str, Any]


class LogWriter:
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
        self.path = path
        self.storage = Storage(str(path))
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
        metadata = {
            "id": str(uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": list(partitions),
            "configuration": {
                "delta.enableDeletionVectors": "true",
                # A checkpoint would drop tombstones by the real clock, which is not the one that tests play at.
                "delta.checkpointInterval": "1000000",
                **(configuration or {}),
            },
        }
        self.commit({"protocol": protocol}, {"metaData": metadata}, at=at)

    def commit(self, *actions: Action, at: int, operation: str = "WRITE") -> int:
        self.version += 1
        info = {"commitInfo": {"timestamp": at, "operation": operation, "operationParameters": {}}}
        body = "\n".join(json.dumps(action) for action in (info, *actions))
        self.touch(f"_delta_log/{self.version:020d}.json", at, body)
        return self.version

    def touch(self, path: str, at: int, body: str = "x") -> str:
        file = self.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(body)
        os.utime(file, ns=(at * 1_000_000, at * 1_000_000))
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
        versions = [int(file.stem) for file in (self.path / "_delta_log").glob("*.json") if file.stem.isdigit()]
        for version in versions:
            if version > self.version:
                os.utime(self.path / f"_delta_log/{version:020d}.json", ns=(at * 1_000_000, at * 1_000_000))
        self.version = max(versions)


def add(path: str, dv: Action | None = None, partition: Mapping[str, str | None] | None = None) -> Action:
    """``path`` as the log spells it, or decoded where that is the same."""
    body = {
        "path": path,
        "partitionValues": partition or {},
        "size": 1,
        "modificationTime": NOW,
        "dataChange": True,
        "stats": '{"numRecords":100,"tightBounds":false}',
    }
    return {"add": body if dv is None else {**body, "deletionVector": dv}}


def remove(path: str, at: int | None, dv: Action | None = None) -> Action:
    body: Action = {"path": path, "dataChange": True}
    if at is not None:
        body["deletionTimestamp"] = at
    return {"remove": body if dv is None else {**body, "deletionVector": dv}}


def encoded(path: str) -> str:
    return quote(path, safe="/=")

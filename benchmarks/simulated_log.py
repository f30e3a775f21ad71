"""The log of a Delta table with millions of files that don't exist: for benchmarks that read logs only."""

from __future__ import annotations

import json
import os
import random
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_BATCH = 100_000
_TEXT, _PAIRS = pa.string(), pa.map_(pa.string(), pa.string())
_DV = pa.struct(
    [
        ("storageType", _TEXT),
        ("pathOrInlineDv", _TEXT),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_ADD = pa.struct(
    [
        ("path", _TEXT),
        ("partitionValues", _PAIRS),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("tags", _PAIRS),
        ("deletionVector", _DV),
        ("baseRowId", pa.int64()),
        ("defaultRowCommitVersion", pa.int64()),
        ("clusteringProvider", _TEXT),
        ("stats", _TEXT),
    ]
)
_CHECKPOINT = pa.schema(
    [
        ("txn", pa.struct([("appId", _TEXT), ("version", pa.int64()), ("lastUpdated", pa.int64())])),
        ("add", _ADD),
        ("remove", pa.struct([("path", _TEXT), ("deletionTimestamp", pa.int64()), ("dataChange", pa.bool_())])),
        (
            "metaData",
            pa.struct(
                [
                    ("id", _TEXT),
                    ("name", _TEXT),
                    ("description", _TEXT),
                    ("format", pa.struct([("provider", _TEXT), ("options", _PAIRS)])),
                    ("schemaString", _TEXT),
                    ("partitionColumns", pa.list_(_TEXT)),
                    ("configuration", _PAIRS),
                    ("createdTime", pa.int64()),
                ]
            ),
        ),
        (
            "protocol",
            pa.struct(
                [
                    ("minReaderVersion", pa.int32()),
                    ("minWriterVersion", pa.int32()),
                    ("readerFeatures", pa.list_(_TEXT)),
                    ("writerFeatures", pa.list_(_TEXT)),
                ]
            ),
        ),
    ]
)


class SimulatedLog:
    """A checkpoint at version 0 with ``files`` adds, then commits of :meth:`commit`.

    size : bytes of each file, roughly.
    deleted : at most so many of the thousand rows or more of a file are deleted.
    """

    def __init__(self, place: str, files: int, size: int = 1_000_000, deleted: int = 900) -> None:
        self.log = os.path.join(place, "_delta_log")
        os.makedirs(self.log)
        self.random = random.Random(7)
        self.size = size
        self.deleted = deleted
        self.files = files
        self.version = 0
        self._live: list[dict[str, Any]] = []
        fields = (("day", "date"), ("id", "long"), ("name", "string"))
        schema = {
            "type": "struct",
            "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields],
        }
        features = ["deletionVectors"]
        self.protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": features,
        }
        self.metadata: dict[str, Any] = {
            "id": str(uuid.UUID(int=1)),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(schema),
            "partitionColumns": ["day"],
            "configuration": {"delta.enableDeletionVectors": "true"},
            "createdTime": 1,
        }
        self._write(0, [{"protocol": self.protocol}, {"metaData": self.metadata}])
        self._checkpoint()

    def commit(self, actions: int) -> None:
        """Half of the actions put DVs on files of the checkpoint, half add files."""
        self.version += 1
        lines: list[dict[str, Any]] = [{"commitInfo": {"timestamp": self.version, "operation": "DELETE"}}]
        while len(lines) <= actions - 2:
            if self._live and self.random.random() < 0.5:
                body = self._live.pop()
                name = {
                    "storageType": "u",
                    "pathOrInlineDv": f"{self.random.getrandbits(60):020d}",
                    "offset": 1,
                    "sizeInBytes": 40,
                    "cardinality": self.random.randint(1, self.deleted),
                }
                lines.append({"remove": {"path": body["path"], "deletionTimestamp": self.version, "dataChange": True}})
                lines.append({"add": {**body, "deletionVector": name}})
            else:
                self.files += 1
                (added,) = self._adds(self.files - 1, 1).to_pylist()
                lines.append({"add": _plain(added)})
        self._write(self.version, lines)

    def _write(self, version: int, lines: list[dict[str, Any]]) -> None:
        with open(os.path.join(self.log, f"{version:020d}.json"), "w", encoding="utf-8") as out:
            out.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)

    def _checkpoint(self) -> None:
        options = {
            **self.metadata,
            "configuration": list(self.metadata["configuration"].items()),
            "format": {"provider": "parquet", "options": []},
        }
        with pq.ParquetWriter(os.path.join(self.log, f"{0:020d}.checkpoint.parquet"), _CHECKPOINT) as writer:
            rows = [{"protocol": self.protocol}, {"metaData": options}]
            writer.write_table(pa.Table.from_pylist(rows, schema=_CHECKPOINT))
            for batch in self._batches():
                chosen = self.random.sample(range(len(batch)), min(len(batch), 120_000 * _BATCH // max(self.files, 1)))
                self._live += [_plain(row) for row in batch.take(pa.array(chosen)).to_pylist()]
                columns = [batch if field.name == "add" else pa.nulls(len(batch), field.type) for field in _CHECKPOINT]
                writer.write_table(pa.Table.from_arrays(columns, schema=_CHECKPOINT))
        self.random.shuffle(self._live)
        with open(os.path.join(self.log, "_last_checkpoint"), "w", encoding="utf-8") as out:
            json.dump({"version": 0, "size": self.files + 2}, out)

    def _batches(self) -> Iterator[pa.StructArray]:
        for start in range(0, self.files, _BATCH):
            yield self._adds(start, min(_BATCH, self.files - start))

    def _adds(self, start: int, count: int) -> pa.StructArray:
        number = np.arange(start, start + count)
        ids = pa.array([str(uuid.UUID(int=self.random.getrandbits(128))) for _ in range(count)])
        days = _joined("2026-", _padded(number % 12 + 1), "-", _padded(number % 28 + 1))
        text = pc.cast(pa.array(number), _TEXT)
        stats = _joined(
            '{"numRecords":',
            pc.cast(pa.array(1000 + number % 977), _TEXT),
            ',"minValues":{"id":',
            text,
            ',"name":"alpha ',
            text,
            '"},"maxValues":{"id":',
            pc.cast(pa.array(number + 1000), _TEXT),
            ',"name":"omega ',
            text,
            '"},"nullCount":{"id":0,"name":',
            pc.cast(pa.array(number % 3), _TEXT),
            "}}",
        )
        names = pa.array(["day"]).take(pa.array(np.zeros(count, np.int64)))
        columns = {
            "path": _joined("day=", days, "/part-00000-", ids, "-c000.snappy.parquet"),
            "partitionValues": pa.MapArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32)), names, days),
            "size": pa.array(self.size + number),
            "modificationTime": pa.array(1_760_000_000_000 + number),
            "dataChange": pa.array(np.ones(count, bool)),
            "stats": stats,
        }
        arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in _ADD]
        return pa.StructArray.from_arrays(arrays, fields=list(_ADD))


def _joined(*parts: str | pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _padded(values: Any) -> pa.Array:
    return pc.utf8_lpad(pc.cast(pa.array(values), _TEXT), 2, "0")


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """An add as JSON has it."""
    found = {name: value for name, value in row.items() if value is not None}
    return {**found, "partitionValues": dict(found["partitionValues"])}

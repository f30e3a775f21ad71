"""Paimon append tables for tests and the demo, written the simplest way: every commit reads what is there, and every
delete rewrites the whole index. Deletion vectors aside, as Paimon's own writers do it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc
import pyarrow.parquet as pq

from dv_maintenance.dv import DeletionVector, paimon
from dv_maintenance.files.avro.writer import Template, write_records
from dv_maintenance.storage import Storage
from dv_maintenance.tables.paimon.commit.index_change import FIRST, load_dv
from dv_maintenance.tables.paimon.commit.value_stats import EMPTY_ROW, partition_stats
from dv_maintenance.tables.paimon.layout import table_layout
from dv_maintenance.tables.paimon.log.binary_row import encode_row
from dv_maintenance.tables.paimon.log.entries import FileId, added_entries, read_whole, removal
from dv_maintenance.tables.paimon.log.schema import newest_schema
from dv_maintenance.tables.paimon.rows.partitions import folder_name
from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot, load_snapshot
from dv_maintenance.units import epoch_millis

_STATS: Final = (
    '{"type":"record","name":"%s","fields":[{"name":"_MIN_VALUES","type":"bytes"},{"name":"_MAX_VALUES","type":"bytes"},'
    '{"name":"_NULL_COUNTS","type":["null",{"type":"array","items":["null","long"]}],"default":null}]}'
)
_LIST: Final = Template(
    '{"type":"record","name":"record","namespace":"org.apache.paimon.avro.generated","fields":['
    '{"name":"_VERSION","type":"int"},{"name":"_FILE_NAME","type":"string"},{"name":"_FILE_SIZE","type":"long"},'
    '{"name":"_NUM_ADDED_FILES","type":"long"},{"name":"_NUM_DELETED_FILES","type":"long"},'
    '{"name":"_PARTITION_STATS","type":'
    + _STATS % "record__PARTITION_STATS"
    + '},{"name":"_SCHEMA_ID","type":"long"}]}'
)
_MANIFEST: Final = Template(
    '{"type":"record","name":"record","namespace":"org.apache.paimon.avro.generated","fields":['
    '{"name":"_VERSION","type":"int"},{"name":"_KIND","type":"int"},{"name":"_PARTITION","type":"bytes"},'
    '{"name":"_BUCKET","type":"int"},{"name":"_TOTAL_BUCKETS","type":"int"},'
    '{"name":"_FILE","type":{"type":"record","name":"record__FILE","fields":['
    '{"name":"_FILE_NAME","type":"string"},{"name":"_FILE_SIZE","type":"long"},{"name":"_ROW_COUNT","type":"long"},'
    '{"name":"_MIN_KEY","type":"bytes"},{"name":"_MAX_KEY","type":"bytes"},'
    '{"name":"_KEY_STATS","type":' + _STATS % "record__FILE__KEY_STATS" + "},"
    '{"name":"_VALUE_STATS","type":' + _STATS % "record__FILE__VALUE_STATS" + "},"
    '{"name":"_MIN_SEQUENCE_NUMBER","type":"long"},{"name":"_MAX_SEQUENCE_NUMBER","type":"long"},'
    '{"name":"_SCHEMA_ID","type":"long"},{"name":"_LEVEL","type":"int"},'
    '{"name":"_EXTRA_FILES","type":{"type":"array","items":"string"}},'
    '{"name":"_CREATION_TIME","type":["null",{"type":"long","logicalType":"timestamp-millis"}],"default":null},'
    '{"name":"_DELETE_ROW_COUNT","type":["null","long"],"default":null},'
    '{"name":"_EMBEDDED_FILE_INDEX","type":["null","bytes"],"default":null},'
    '{"name":"_FILE_SOURCE","type":["null","int"],"default":null},'
    '{"name":"_VALUE_STATS_COLS","type":["null",{"type":"array","items":"string"}],"default":null},'
    '{"name":"_EXTERNAL_PATH","type":["null","string"],"default":null},'
    '{"name":"_FIRST_ROW_ID","type":["null","long"],"default":null}]}}]}'
)
_NO_STATS: Final = {"_MIN_VALUES": EMPTY_ROW, "_MAX_VALUES": EMPTY_ROW, "_NULL_COUNTS": []}
_OPTIONS: Final = {"bucket": "-1", "deletion-vectors.enabled": "true"}
_BATCH: Final = 2**63 - 1


class PaimonBuilder:
    """A table at a path or URI."""

    def __init__(self, place: str | Path, *, storage_options: Mapping[str, str] | None = None) -> None:
        self.storage = Storage(str(place), storage_options)
        self.layout = table_layout(self.storage)

    def create(
        self, columns: Mapping[str, str], partition_by: Sequence[str] = (), options: Mapping[str, str] | None = None
    ) -> int:
        """Write the first schema, and a snapshot without files. ``columns``: Paimon's types by name."""
        body = {
            "version": 3,
            "id": 0,
            "fields": [{"id": at, "name": name, "type": kind} for at, (name, kind) in enumerate(columns.items())],
            "highestFieldId": len(columns) - 1,
            "partitionKeys": list(partition_by),
            "primaryKeys": [],
            "options": {**_OPTIONS, **(options or {})},
            "timeMillis": epoch_millis(),
        }
        self.storage.create(self.layout.schema(0), orjson.dumps(body))
        return self.commit("APPEND", [])

    def append(self, rows: pa.Table, partition: Sequence[Any] = ()) -> int:
        """Append one file of rows of the partition with the values ``partition``. Returns the version."""
        schema = newest_schema(self.layout)
        fields = schema.partition_fields()
        folders = [
            f"{each.name}={'__DEFAULT_PARTITION__' if v is None else folder_name(str(v))}"
            for each, v in zip(fields, partition, strict=True)
        ]
        name = f"data-{uuid4()}-0.parquet"
        path = "/".join([*folders, "bucket-0", name])
        with self.storage.open_output(path) as sink:
            pq.write_table(rows.cast(schema.arrow()), sink)
        entry = {
            "_VERSION": 2,
            "_KIND": 0,
            "_PARTITION": encode_row(partition, [each.type for each in fields]),
            "_BUCKET": 0,
            "_TOTAL_BUCKETS": -1,
            "_FILE": {
                "_FILE_NAME": name,
                "_FILE_SIZE": self.storage.head(path).size,
                "_ROW_COUNT": rows.num_rows,
                "_MIN_KEY": EMPTY_ROW,
                "_MAX_KEY": EMPTY_ROW,
                "_KEY_STATS": _NO_STATS,
                "_VALUE_STATS": _NO_STATS,
                "_MIN_SEQUENCE_NUMBER": 0,
                "_MAX_SEQUENCE_NUMBER": rows.num_rows - 1,
                "_SCHEMA_ID": schema.id,
                "_LEVEL": 0,
                "_EXTRA_FILES": [],
                "_CREATION_TIME": epoch_millis(),
                "_DELETE_ROW_COUNT": 0,
                "_FILE_SOURCE": 0,
                "_VALUE_STATS_COLS": [],
            },
        }
        return self.commit("APPEND", [entry])

    def delete(
        self, matches: Callable[[pa.Table], pa.BooleanArray], *, bits: int = 32, keep_empty: bool = False
    ) -> int:
        """Delete the rows for which ``matches`` is true, with one commit. A file without live rows is removed, unless
        ``keep_empty``. Returns the version.
        """
        before = load_snapshot(self.storage)
        assert before.file is not None
        dvs = {dv.id: load_dv(self.layout, dv) for dv in before.index.dvs}
        wanted: dict[FileId, DeletionVector] = {}
        whole: dict[FileId, int] = {}
        for row in before.files.to_pylist():
            with self.storage.open_input(row["path"]) as stored:
                rows = orc.read_table(stored) if row["path"].endswith(".orc") else pq.read_table(stored)
            hits = pc.indices_nonzero(matches(rows)).to_numpy()
            deleted = dvs.get(row["dv_id"], DeletionVector.empty()) | DeletionVector.from_positions(hits)
            file = (before.partitions[row["partition_code"]].row, row["bucket"], row["file_name"])
            if deleted.cardinality == rows.num_rows and not keep_empty:
                whole[file] = row["manifest"]
            elif deleted:
                wanted[file] = deleted
        entries = added_entries(self.layout, before, whole)
        return self.commit(
            "OVERWRITE", [dict(removal(each).record) for each in entries.values()], self._index(wanted, bits)
        )

    def commit(self, kind: str, entries: Sequence[Mapping[str, Any]], index: str | None = "", **body: Any) -> int:
        """Commit a snapshot with ``entries``. ``index``: name of its index manifest, ``""``: unchanged."""
        newest: PaimonSnapshot = load_snapshot(self.storage)
        before = newest.file
        kept: list[dict[str, Any]] = []
        for name in () if before is None else (before.base_list, before.delta_list):
            kept += read_whole(self.layout, name, newest.version)[1]
        base = self._put("manifest-list", write_records(_LIST, kept))
        new = [self._manifest(newest, entries)] if entries else []
        delta = self._put("manifest-list", write_records(_LIST, new))
        rows = sum((1 - 2 * each["_KIND"]) * each["_FILE"]["_ROW_COUNT"] for each in entries)
        old = None if before is None else before.index_manifest
        snapshot = {
            "version": 3,
            "id": newest.version + 1,
            "schemaId": newest.table_schema.id,
            "baseManifestList": base,
            "deltaManifestList": delta,
            "indexManifest": old if index == "" else index,
            "commitUser": "builder",
            "commitIdentifier": _BATCH,
            "commitKind": kind,
            "timeMillis": max(epoch_millis(), 0 if before is None else before.timestamp),
            "totalRecordCount": rows + (0 if before is None else before.body["totalRecordCount"]),
            "deltaRecordCount": rows,
            **body,
        }
        self.storage.create(self.layout.snapshot(newest.version + 1), orjson.dumps(snapshot))
        self.storage.put("snapshot/LATEST", str(newest.version + 1).encode())
        if before is None:
            self.storage.put("snapshot/EARLIEST", b"1")
        return newest.version + 1

    def _manifest(self, newest: PaimonSnapshot, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        data = write_records(_MANIFEST, [dict(each) for each in entries])
        fields = newest.table_schema.partition_fields()
        return {
            "_VERSION": 2,
            "_FILE_NAME": self._put("manifest", data),
            "_FILE_SIZE": len(data),
            "_NUM_ADDED_FILES": sum(each["_KIND"] == 0 for each in entries),
            "_NUM_DELETED_FILES": sum(each["_KIND"] == 1 for each in entries),
            "_PARTITION_STATS": partition_stats([each["_PARTITION"] for each in entries], fields),
            "_SCHEMA_ID": newest.table_schema.id,
        }

    def _index(self, dvs: Mapping[FileId, DeletionVector], bits: int) -> str | None:
        records = []
        for row, bucket in sorted({file[:2] for file in dvs}):
            own = {file[2]: dv for file, dv in dvs.items() if file[:2] == (row, bucket)}
            (packed,) = paimon.pack(own.values(), bits)
            name = f"index-{uuid4()}-0"
            self.storage.put(f"index/{name}", packed.data)
            records.append(
                {
                    "_VERSION": 1,
                    "_KIND": 0,
                    "_PARTITION": row,
                    "_BUCKET": bucket,
                    "_INDEX_TYPE": "DELETION_VECTORS",
                    "_FILE_NAME": name,
                    "_FILE_SIZE": len(packed.data),
                    "_ROW_COUNT": len(own),
                    "_DELETIONS_VECTORS_RANGES": [
                        {"f0": data, "f1": each.offset, "f2": each.length, "_CARDINALITY": each.cardinality}
                        for data, each in zip(own, packed.ranges, strict=True)
                    ],
                }
            )
        return self._put("index-manifest", write_records(FIRST, records)) if records else None

    def _put(self, kind: str, data: bytes) -> str:
        name = f"{kind}-{uuid4()}-0"
        self.storage.create(self.layout.manifest(name), data)
        return name

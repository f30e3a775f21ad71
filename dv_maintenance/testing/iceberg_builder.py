"""Iceberg tables of format version 3 for tests and the demo, in the folder of Hadoop's catalog, written the simplest
way: a commit that removes anything writes every entry of that kind again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from secrets import randbits
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dv_maintenance.dv import DeletionVector, iceberg
from dv_maintenance.files.avro.container import read_records
from dv_maintenance.files.avro.writer import Template, write_records
from dv_maintenance.storage import Storage
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.iceberg.layout import Layout
from dv_maintenance.tables.iceberg.rows.tasks import stored_source
from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot, load_snapshot

_TYPES: Final = {"long": pa.int64(), "string": pa.string(), "int": pa.int32(), "double": pa.float64()}
_EXISTING, _ADDED, _DELETED = 0, 1, 2
_DATA, _DELETES = 0, 1


def _field(number: int, name: str, kind: Any, *, optional: bool = True) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind] if optional else kind, "field-id": number}


def _record(name: str, fields: Sequence[Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


_LIST: Final = json.dumps(
    _record(
        "manifest_file",
        [
            _field(500, "manifest_path", "string", optional=False),
            _field(501, "manifest_length", "long", optional=False),
            _field(502, "partition_spec_id", "int", optional=False),
            _field(517, "content", "int", optional=False),
            _field(515, "sequence_number", "long", optional=False),
            _field(516, "min_sequence_number", "long", optional=False),
            _field(503, "added_snapshot_id", "long", optional=False),
            _field(504, "added_files_count", "int", optional=False),
            _field(505, "existing_files_count", "int", optional=False),
            _field(506, "deleted_files_count", "int", optional=False),
            _field(512, "added_rows_count", "long", optional=False),
            _field(513, "existing_rows_count", "long", optional=False),
            _field(514, "deleted_rows_count", "long", optional=False),
            _field(520, "first_row_id", "long"),
        ],
    )
)
_FILE: Final = [
    _field(134, "content", "int", optional=False),
    _field(100, "file_path", "string", optional=False),
    _field(101, "file_format", "string", optional=False),
    _field(103, "record_count", "long", optional=False),
    _field(104, "file_size_in_bytes", "long", optional=False),
    _field(142, "first_row_id", "long"),
    _field(143, "referenced_data_file", "string"),
    _field(144, "content_offset", "long"),
    _field(145, "content_size_in_bytes", "long"),
]


class IcebergBuilder:
    """A table at a path or URI, partitioned by identity."""

    def __init__(self, place: str | Path, *, storage_options: Mapping[str, str] | None = None) -> None:
        self.location = str(place)
        self.storage = Storage(self.location, storage_options)
        self.layout = Layout(self.storage)

    def create(
        self, columns: Mapping[str, str], partition_by: Sequence[str] = (), properties: Mapping[str, str] | None = None
    ) -> int:
        """Write the first metadata, and a snapshot without files. ``columns``: Iceberg's types by name."""
        fields = [
            {"id": at, "name": name, "type": kind, "required": False}
            for at, (name, kind) in enumerate(columns.items(), 1)
        ]
        spec = [
            {"field-id": 1000 + at, "source-id": list(columns).index(name) + 1, "name": name, "transform": "identity"}
            for at, name in enumerate(partition_by)
        ]
        body = {
            "format-version": 3,
            "table-uuid": str(uuid4()),
            "location": self.location,
            "last-sequence-number": 0,
            "last-updated-ms": time.time_ns() // 1_000_000,
            "last-column-id": len(columns),
            "schemas": [{"type": "struct", "schema-id": 0, "fields": fields}],
            "current-schema-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": spec}],
            "default-spec-id": 0,
            "last-partition-id": 999 + len(spec),
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "properties": dict(properties or {}),
            "next-row-id": 0,
            "refs": {},
            "snapshots": [],
            "snapshot-log": [],
            "metadata-log": [],
        }
        self._put_metadata(1, body)
        return self.commit("append")

    def append(self, rows: pa.Table, partition: Sequence[Any] = ()) -> int:
        """Append one file of rows of the partition with the values ``partition``. Returns the version."""
        before = load_snapshot(self.layout)
        fields = before.metadata.specs[0]
        folders = [f"{each.name}={value}" for each, value in zip(fields, partition, strict=True)]
        path = "/".join(["data", *folders, f"{uuid4()}.parquet"])
        with self.storage.open_output(path) as sink:
            pq.write_table(rows.cast(before.table_schema.arrow), sink)
        file = {
            "134": 0,
            "100": f"{self.location}/{path}",
            "101": "PARQUET",
            "103": rows.num_rows,
            "104": self.storage.head(path).size,
            "102": {str(each.id): value for each, value in zip(fields, partition, strict=True)},
        }
        return self.commit("append", added=[file])

    def delete(self, matches: Callable[[pa.Table], pa.BooleanArray], *, keep_empty: bool = False) -> int:
        """Delete the rows for which ``matches`` is true, with one commit. A file without live rows is removed, unless
        ``keep_empty``. Returns the version.
        """
        before = load_snapshot(self.layout)
        dvs: dict[str, DeletionVector] = {}
        removed: set[str] = set()
        for row in before.files.to_pylist():
            with self.storage.open_input(self.layout.path(row["path"])) as stored:
                rows = pq.read_table(stored)
            hits = pc.indices_nonzero(matches(rows)).to_numpy()
            ref = stored_source(self.layout, before, row).dv
            known = DeletionVector.empty() if ref is None else load(ref, self.storage.get_range, rows=rows.num_rows)
            deleted = known | DeletionVector.from_positions(hits)
            if len(deleted) == rows.num_rows and not keep_empty:
                removed.add(row["path"])
            elif len(deleted) > len(known):
                dvs[row["path"]] = deleted
        return self.commit("delete", removed=removed, dvs=dvs)

    def commit(
        self,
        operation: str,
        *,
        added: Sequence[Mapping[str, Any]] = (),
        removed: set[str] | frozenset[str] = frozenset(),
        dvs: Mapping[str, DeletionVector] | None = None,
        per_manifest: int = 1 << 30,
    ) -> int:
        """Commit a snapshot: data files that come and go, and new deletion vectors by data file. ``per_manifest``:
        entries of a manifest.
        """
        before = load_snapshot(self.layout)
        body, number = dict(before.metadata.body), randbits(62) + 1
        sequence = body["last-sequence-number"] + 1
        old = [] if before.entry is None else self._listed(before)
        data = [self._entry(_ADDED, number, None, None, file) for file in added]
        if removed:
            data += [self._data(before, row, number, removed) for row in before.files.to_pylist()]
            old = [each for each in old if each["517"] != _DATA]
        changed = removed | set(dvs or {})
        deletes = self._new_dvs(before, dvs or {}, number)
        if changed & set(before.deletes.dvs["referenced"].to_pylist()):
            deletes += [self._dv(before, row, number, changed) for row in before.deletes.dvs.to_pylist()]
            old = [each for each in old if each["517"] != _DELETES]
        new = [
            self._manifest(before, content, some[at : at + per_manifest], number, sequence)
            for content, some in ((0, data), (1, deletes))
            for at in range(0, len(some), per_manifest)
        ]
        listed, first = new + [each for each in old if each["504"] or each["505"]], body["next-row-id"]
        taken = first
        for each in listed:
            if each["517"] == _DATA and each.get("520") is None:
                each["520"], taken = taken, taken + each["512"] + each["513"]
        path = f"{self.location}/metadata/snap-{number}-1-{uuid4()}.avro"
        self._put(path, Template(_LIST, "deflate", by_id=True), listed)
        now = max(time.time_ns() // 1_000_000, body["last-updated-ms"])
        snapshot = {
            "snapshot-id": number,
            **({} if before.entry is None else {"parent-snapshot-id": before.entry.id}),
            "sequence-number": sequence,
            "timestamp-ms": now,
            "manifest-list": path,
            "schema-id": 0,
            "summary": {"operation": operation},
            "first-row-id": first,
            "added-rows": taken - first,
        }
        version = int(before.metadata.path.rpartition("/")[2].split(".")[0][1:])
        body |= {
            "last-sequence-number": sequence,
            "last-updated-ms": now,
            "next-row-id": taken,
            "current-snapshot-id": number,
            "snapshots": [*body["snapshots"], snapshot],
            "snapshot-log": [*body["snapshot-log"], {"timestamp-ms": now, "snapshot-id": number}],
            "refs": {**body["refs"], "main": {"type": "branch", "snapshot-id": number}},
        }
        self._put_metadata(version + 1, body)
        return number

    def _listed(self, before: IcebergSnapshot) -> list[dict[str, Any]]:
        assert before.entry is not None
        raw = before.entry.manifest_list or ""
        return list(read_records(self.storage.get(self.layout.path(raw)), None, by_id=True))

    def _new_dvs(self, before: IcebergSnapshot, dvs: Mapping[str, DeletionVector], number: int) -> list[dict[str, Any]]:
        if not dvs:
            return []
        packed = iceberg.pack(dvs.items(), created_by="builder")
        path = f"data/{uuid4()}-deletes.puffin"
        self.storage.put(path, packed.data)
        codes = dict(zip(before.files["path"].to_pylist(), before.files["partition_code"].to_pylist(), strict=True))
        found = []
        for (data, dv), blob in zip(dvs.items(), packed.blobs, strict=True):
            file = {
                "134": 1,
                "100": f"{self.location}/{path}",
                "101": "PUFFIN",
                "103": len(dv),
                "104": len(packed.data),
                "143": data,
                "144": blob.offset,
                "145": blob.length,
                "102": self._partition(before, codes[data]),
            }
            found.append(self._entry(_ADDED, number, None, None, file))
        return found

    def _data(self, before: IcebergSnapshot, row: Mapping[str, Any], number: int, removed: Any) -> dict[str, Any]:
        gone = row["path"] in removed
        file = {
            "134": 0,
            "100": row["path"],
            "101": "PARQUET",
            "103": row["record_count"],
            "104": row["size"],
            "142": row["first_row_id"],
            "102": self._partition(before, row["partition_code"]),
        }
        return self._entry(_DELETED if gone else _EXISTING, number, row["data_sequence"], row["file_sequence"], file)

    def _dv(self, before: IcebergSnapshot, row: Mapping[str, Any], number: int, changed: Any) -> dict[str, Any]:
        gone = row["referenced"] in changed
        file = {
            "134": 1,
            "100": row["path"],
            "101": "PUFFIN",
            "103": row["record_count"],
            "104": row["size"],
            "143": row["referenced"],
            "144": row["content_offset"],
            "145": row["content_size"],
            "102": self._partition(before, row["partition_code"]),
        }
        return self._entry(
            _DELETED if gone else _EXISTING,
            number if gone else row["snapshot_id"],
            row["data_sequence"],
            row["file_sequence"],
            file,
        )

    @staticmethod
    def _entry(
        status: int, number: int, sequence: int | None, file_sequence: int | None, file: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {"0": status, "1": number, "3": sequence, "4": file_sequence, "2": dict(file)}

    @staticmethod
    def _partition(before: IcebergSnapshot, code: int) -> dict[str, Any]:
        fields = before.metadata.specs[0]
        return {str(each.id): v for each, v in zip(fields, before.partitions[code].values, strict=True)}

    def _manifest(
        self, before: IcebergSnapshot, content: int, entries: list[dict[str, Any]], number: int, sequence: int
    ) -> dict[str, Any]:
        body = before.metadata.body
        spec = body["partition-specs"][0]["fields"]
        types = {each["id"]: each["type"] for each in body["schemas"][0]["fields"]}
        partition = _record("r102", [_field(each["field-id"], each["name"], types[each["source-id"]]) for each in spec])
        file = _record("r2", [*_FILE, _field(102, "partition", partition, optional=False)])
        schema = _record(
            "manifest_entry",
            [
                _field(0, "status", "int", optional=False),
                _field(1, "snapshot_id", "long"),
                _field(3, "sequence_number", "long"),
                _field(4, "file_sequence_number", "long"),
                _field(2, "data_file", file, optional=False),
            ],
        )
        header = {
            "schema": json.dumps(body["schemas"][0]),
            "schema-id": "0",
            "partition-spec": json.dumps(spec),
            "partition-spec-id": "0",
            "format-version": "3",
            "content": "deletes" if content else "data",
        }
        path = f"{self.location}/metadata/{uuid4()}-m0.avro"
        pairs = tuple((key, value.encode()) for key, value in header.items())
        size = self._put(path, Template(json.dumps(schema), "deflate", pairs, by_id=True), entries)
        files = {status: [each["2"] for each in entries if each["0"] == status] for status in (0, 1, 2)}
        return {
            "500": path,
            "501": size,
            "502": 0,
            "517": content,
            "515": sequence,
            "516": min(sequence if each["3"] is None else each["3"] for each in entries),
            "503": number,
            **{key: len(files[status]) for key, status in (("504", 1), ("505", 0), ("506", 2))},
            **{key: sum(each["103"] for each in files[status]) for key, status in (("512", 1), ("513", 0), ("514", 2))},
            "520": None,
        }

    def _put(self, path: str, template: Template, records: Sequence[dict[str, Any]]) -> int:
        names, inner = template.fields(), template.fields("2") if "2" in template.fields() else {}
        full = []
        for each in records:
            record = {name: each.get(name) for name in names}
            if inner:
                record["2"] = {name: each["2"].get(name) for name in inner}
            full.append(record)
        data = write_records(template, full)
        self.storage.put(self.layout.path(path), data)
        return len(data)

    def _put_metadata(self, number: int, body: Mapping[str, Any]) -> None:
        self.storage.put(f"metadata/v{number}.metadata.json", json.dumps(body).encode())
        self.storage.put("metadata/version-hint.text", str(number).encode())

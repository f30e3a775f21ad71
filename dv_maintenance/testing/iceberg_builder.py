"""Iceberg tables of format versions 2 and 3 for tests and the demo, in the folder of Hadoop's catalog, written the
simplest way: a commit that removes anything writes every entry of that kind again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from secrets import randbits
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dv_maintenance.dv import DeletionVector, iceberg
from dv_maintenance.files.avro.container import read_records
from dv_maintenance.files.avro.writer import Template, write_records
from dv_maintenance.storage import Storage
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.iceberg.commit.schemas import for_lists, for_manifests
from dv_maintenance.tables.iceberg.commit.templates import NEW_LIST, new_manifest, partition_fields
from dv_maintenance.tables.iceberg.layout import Layout
from dv_maintenance.tables.iceberg.log.manifests import ADDED, DATA, DELETED, DELETES, EXISTING, PATH_ID
from dv_maintenance.tables.iceberg.rows.position_deletes import SCHEMA
from dv_maintenance.tables.iceberg.rows.tasks import stored_source
from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot, load_snapshot
from dv_maintenance.units import epoch_millis


def _deletes_of_one_file(snapshot: IcebergSnapshot) -> list[tuple[dict[str, Any], str]]:
    """Live deletion vectors and position delete files, with the data file that each names."""
    vectors = [(row, str(row["referenced"])) for row in snapshot.deletes.dvs.to_pylist()]
    files = [(row, snapshot.position_deletes[row["path"]].positions) for row in snapshot.deletes.positions.to_pylist()]
    return vectors + [(row, next(iter(named))) for row, named in files if len(named) == 1]


def _bounds(data: str) -> dict[str, Any]:
    """Bounds of the paths in a delete file of one data file."""
    return {
        "125": [{"126": PATH_ID, "127": data.encode()}],
        "128": [{"129": PATH_ID, "130": data.encode()}],
    }


class IcebergBuilder:
    """A table at a path or URI, partitioned by identity."""

    def __init__(self, place: str | Path, *, storage_options: Mapping[str, str] | None = None) -> None:
        self.location = str(place)
        self.storage = Storage(self.location, storage_options)
        self.layout = Layout(self.storage)

    def create(
        self, columns: Mapping[str, Any], partition_by: Sequence[str] = (), properties: Mapping[str, str] | None = None
    ) -> int:
        """Write the first metadata, and a snapshot without files.

        columns : Iceberg's types by name.
        properties : ``format-version`` is 3, unless they say 2.
        """
        properties = dict(properties or {})
        version = int(properties.pop("format-version", 3))
        fields = [
            {"id": at, "name": name, "type": kind, "required": False}
            for at, (name, kind) in enumerate(columns.items(), 1)
        ]
        spec = [
            {"field-id": 1000 + at, "source-id": list(columns).index(name) + 1, "name": name, "transform": "identity"}
            for at, name in enumerate(partition_by)
        ]
        body = {
            "format-version": version,
            "table-uuid": str(uuid4()),
            "location": self.location,
            "last-sequence-number": 0,
            "last-updated-ms": epoch_millis(),
            "last-column-id": len(columns),
            "schemas": [{"type": "struct", "schema-id": 0, "fields": fields}],
            "current-schema-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": spec}],
            "default-spec-id": 0,
            "last-partition-id": 999 + len(spec),
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "properties": properties,
            **({"next-row-id": 0} if version > 2 else {}),
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
        deletes: Sequence[Mapping[str, Any]] = (),
        per_manifest: int = 1 << 30,
    ) -> int:
        """Commit a snapshot: data files that come and go, new deletion vectors by data file, and other delete files.
        ``added``, ``deletes``: fields of ``data_file`` by id. ``per_manifest``: entries of a manifest.
        """
        before = load_snapshot(self.layout)
        body, number = dict(before.metadata.body), randbits(62) + 1
        sequence = body["last-sequence-number"] + 1
        old = [] if before.entry is None else self._listed(before)
        data = [self._entry(ADDED, number, None, None, file) for file in added]
        if removed:
            data += [self._data(before, row, number, row["path"] in removed) for row in before.files.to_pylist()]
            old = [each for each in old if each["517"] != DATA]
        changed = removed | set(dvs or {})
        new_deletes = self._new_dvs(before, dvs or {}, number)
        new_deletes += [self._entry(ADDED, number, None, None, file) for file in deletes]
        had = _deletes_of_one_file(before)
        if changed & {data for _, data in had}:
            new_deletes += [self._dv(before, row, number, data) for row, data in had if data not in changed]
            new_deletes += [self._dv(before, row, number, data, gone=True) for row, data in had if data in changed]
            old = [each for each in old if each["517"] != DELETES]
        new = [
            self._manifest(before, content, some[at : at + per_manifest], number, sequence)
            for content, some in ((0, data), (1, new_deletes))
            for at in range(0, len(some), per_manifest)
        ]
        listed = new + [each for each in old if each["504"] or each["505"]]
        first = taken = body.get("next-row-id")
        for each in listed if taken is not None else ():
            if each["517"] == DATA and each.get("520") is None:
                each["520"], taken = taken, taken + each["512"] + each["513"]
        path = f"{self.location}/metadata/snap-{number}-1-{uuid4()}.avro"
        now = max(epoch_millis(), body["last-updated-ms"])
        snapshot = {
            "snapshot-id": number,
            **({} if before.entry is None else {"parent-snapshot-id": before.entry.id}),
            "sequence-number": sequence,
            "timestamp-ms": now,
            "manifest-list": path,
            "schema-id": 0,
            "summary": {"operation": operation},
            **({} if first is None else {"first-row-id": first, "added-rows": taken - first}),
        }
        self._put(path, for_lists(NEW_LIST, body["format-version"], snapshot), listed)
        version = int(before.metadata.path.rpartition("/")[2].split(".")[0][1:])
        body |= {
            "last-sequence-number": sequence,
            "last-updated-ms": now,
            **({} if first is None else {"next-row-id": taken}),
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
        if before.metadata.format_version < 3:
            return [
                self._entry(ADDED, number, None, None, self._positions(before, data, dv)) for data, dv in dvs.items()
            ]
        packed = iceberg.pack(dvs.items(), created_by="builder")
        path = f"data/{uuid4()}-deletes.puffin"
        self.storage.put(path, packed.data)
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
                "102": self._partition_of(before, data),
            }
            found.append(self._entry(ADDED, number, None, None, file))
        return found

    def _positions(self, before: IcebergSnapshot, data: str, dv: DeletionVector) -> dict[str, Any]:
        """A new file with the position deletes of a data file."""
        path = f"data/{uuid4()}-deletes.parquet"
        with self.storage.open_output(path) as sink:
            pq.write_table(pa.table([[data] * len(dv), [*map(int, dv.positions())]], SCHEMA), sink)
        return {
            "134": 1,
            "100": f"{self.location}/{path}",
            "101": "PARQUET",
            "103": len(dv),
            "104": self.storage.head(path).size,
            "102": self._partition_of(before, data),
            **_bounds(data),
        }

    def _data(self, before: IcebergSnapshot, row: Mapping[str, Any], number: int, gone: bool) -> dict[str, Any]:
        file = {"134": 0, "101": "PARQUET", "142": row["first_row_id"]}
        return self._again(before, row, DELETED if gone else EXISTING, number, file)

    def _dv(
        self, before: IcebergSnapshot, row: Mapping[str, Any], number: int, data: str, *, gone: bool = False
    ) -> dict[str, Any]:
        place = {"143": data, "144": row["content_offset"], "145": row["content_size"]}
        file = {"134": 1, "101": row["format"].upper(), **(_bounds(data) if row["content_size"] is None else place)}
        return self._again(before, row, DELETED if gone else EXISTING, number if gone else row["snapshot_id"], file)

    def _again(
        self, before: IcebergSnapshot, row: Mapping[str, Any], status: int, number: int, file: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The entry of a file that had one."""
        partition = self._partition(before, row["partition_code"])
        counts = {"100": row["path"], "103": row["record_count"], "104": row["size"], "102": partition}
        return self._entry(status, number, row["data_sequence"], row["file_sequence"], {**file, **counts})

    @staticmethod
    def _entry(
        status: int, number: int, sequence: int | None, file_sequence: int | None, file: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {"0": status, "1": number, "3": sequence, "4": file_sequence, "2": dict(file)}

    def _partition_of(self, before: IcebergSnapshot, data: str) -> dict[str, Any]:
        return self._partition(before, before.files["partition_code"][before.files["path"].index(data).as_py()].as_py())

    @staticmethod
    def _partition(before: IcebergSnapshot, code: int) -> dict[str, Any]:
        fields = before.metadata.specs[0]
        return {str(each.id): v for each, v in zip(fields, before.partitions[code].values, strict=True)}

    def _manifest(
        self, before: IcebergSnapshot, content: int, entries: list[dict[str, Any]], number: int, sequence: int
    ) -> dict[str, Any]:
        metadata = before.metadata
        spec = 0, json.dumps(metadata.body["partition-specs"][0]["fields"])
        partition = json.dumps(partition_fields(metadata, 0))
        template = for_manifests(new_manifest(metadata, 0), content, metadata.format_version, spec, partition)
        path = f"{self.location}/metadata/{uuid4()}-m0.avro"
        size = self._put(path, template, entries)
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

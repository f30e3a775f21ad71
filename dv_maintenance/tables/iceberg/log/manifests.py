"""Manifest lists and manifests: which files a snapshot has, with what they inherit.

Format: Iceberg specification, Manifests and Manifest Lists. Fields are found by their ids; what a manifest leaves out
it gets from its entry in the list: sequence numbers, the snapshot, and row ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, UnsupportedFeatureError
from dv_maintenance.files.arrays import flags, int32s, int64s, strings
from dv_maintenance.files.avro.container import header_of, read_columns, read_records
from dv_maintenance.files.avro.schema import Wanted
from dv_maintenance.tables.iceberg.layout import Layout
from dv_maintenance.tables.iceberg.log.metadata import SnapshotEntry
from dv_maintenance.tables.iceberg.rows.partitions import Partitions
from dv_maintenance.tables.parallel import in_parallel

__all__ = [
    "ADDED",
    "DATA",
    "DELETED",
    "DELETES",
    "ENTRIES",
    "EQUALITY",
    "EXISTING",
    "POSITIONS",
    "Manifest",
    "ManifestEntries",
    "manifests_of",
    "placed",
    "read_entries",
]

EXISTING, ADDED, DELETED = 0, 1, 2
"""Status of an entry."""
DATA, DELETES = 0, 1
"""Content of a manifest."""
POSITIONS, EQUALITY = 1, 2
"""Content of a delete file; 0 is data. A deletion vector has positions, in the format ``puffin``."""

ENTRIES: Final = pa.schema(
    [
        pa.field("status", pa.int64(), nullable=False),
        pa.field("snapshot_id", pa.int64(), nullable=False),
        # Age of the rows, and of the file.
        pa.field("data_sequence", pa.int64(), nullable=False),
        pa.field("file_sequence", pa.int64(), nullable=False),
        pa.field("content", pa.int64(), nullable=False),
        # As the manifest spells it.
        pa.field("path", pa.string(), nullable=False),
        # Lower case.
        pa.field("format", pa.string(), nullable=False),
        pa.field("spec_id", pa.int64(), nullable=False),
        # The number of the partition in ``Partitions``.
        pa.field("partition_code", pa.int64(), nullable=False),
        pa.field("record_count", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("sort_order_id", pa.int64()),
        pa.field("first_row_id", pa.int64()),
        # Of a deletion vector, and of an old delete file of one data file.
        pa.field("referenced", pa.string()),
        pa.field("content_offset", pa.int64()),
        pa.field("content_size", pa.int64()),
        # Field ids of an equality delete, as text: ``2,3``.
        pa.field("equality_ids", pa.string()),
    ]
)

# Ids of the fields of a list's entry.
_LIST: Final = {
    "path": "500",
    "size": "501",
    "spec_id": "502",
    "content": "517",
    "sequence": "515",
    "min_sequence": "516",
    "snapshot_id": "503",
    "first_row_id": "520",
    "added_files": "504",
    "existing_files": "505",
    "deleted_files": "506",
    "added_rows": "512",
    "existing_rows": "513",
    "key": "519",
}
# Of the fields of a manifest's entry, and of the data file in it.
_ENTRY: Final = {"status": "0", "snapshot_id": "1", "data_sequence": "3", "file_sequence": "4"}
_FILE_ID: Final = "2"
_FILE: Final = {
    "content": "134",
    "path": "100",
    "format": "101",
    "record_count": "103",
    "size": "104",
    "sort_order_id": "140",
    "first_row_id": "142",
    "referenced": "143",
    "content_offset": "144",
    "content_size": "145",
}
_PARTITION, _KEY, _EQUALITY_IDS = "102", "131", "135"
_DATA_FILE: Final[Wanted] = {**dict.fromkeys(_FILE.values()), _PARTITION: None, _KEY: None}
_OUTER: Final = dict.fromkeys(_ENTRY.values())
_WANTED: Final[Wanted] = {**_OUTER, _FILE_ID: _DATA_FILE}
_WANTED_DELETES: Final[Wanted] = {**_OUTER, _FILE_ID: {**_DATA_FILE, _EQUALITY_IDS: None}}


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest as a list records it. It is never rewritten under its name.

    path : as the list spells it.
    spec_id : ``None`` where only the manifest itself has it.
    sequence, snapshot_id : of the commit that added it.
    first_row_id : of the first row without an id of its own; ``None`` for deletes, and before format version 3.
    """

    path: str
    content: int = DATA
    spec_id: int | None = None
    sequence: int = 0
    snapshot_id: int | None = None
    first_row_id: int | None = None
    size: int | None = None
    body: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ManifestEntries:
    """The entries of the manifests of a snapshot. Each table has schema ENTRIES, the deleted ones included.

    by_manifest : in the order of the list.
    """

    by_manifest: Mapping[Manifest, pa.Table]

    def live(self, content: int) -> pa.Table:
        """The live files that manifests of this content name, with the position of each manifest."""
        parts, numbers = [ENTRIES.empty_table()], [np.zeros(0, np.int32)]
        for number, (manifest, entries) in enumerate(self.by_manifest.items()):
            if manifest.content == content:
                parts.append(entries)
                numbers.append(np.full(entries.num_rows, number, np.int32))
        whole = pa.concat_tables(parts).append_column("manifest", int32s(np.concatenate(numbers)).cast(pa.int64()))
        return whole.filter(pc.not_equal(whole["status"], int64s([DELETED])[0]))


def manifests_of(layout: Layout, snapshot: SnapshotEntry | None) -> list[Manifest]:
    """The manifests of a snapshot, in the order of its list.

    Raises
    ------
    DamagedTableError : the list is damaged or missing; the message names it.
    UnsupportedFeatureError : the list or a manifest is encrypted.
    RefusedError : fastavro is not installed.
    """
    if snapshot is None:
        return []
    if snapshot.encrypted:
        raise _encrypted(layout, snapshot.id)
    if snapshot.manifest_list is None:
        return [Manifest(path) for path in snapshot.manifests]
    try:
        data = layout.storage.get(layout.path(snapshot.manifest_list))
        records = read_records(data, dict.fromkeys(_LIST.values()), by_id=True)
        found = [_manifest({name: record.get(number) for name, number in _LIST.items()}) for record in records]
    except (DvMaintenanceError, FileNotFoundError) as error:
        raise placed(layout, error, snapshot.id, snapshot.manifest_list) from error.__cause__
    if any(dict(each.body).get("key") is not None for each in found):
        raise _encrypted(layout, snapshot.id)
    return found


def _manifest(entry: Mapping[str, Any]) -> Manifest:
    numbers = {name: value for name, value in entry.items() if name not in {"path", "key"}}
    if not isinstance(entry["path"], str) or any(type(value) not in (int, type(None)) for value in numbers.values()):
        raise DamagedTableError("an entry has an invalid path or number")
    content, spec_id = entry["content"] or 0, entry["spec_id"]
    if content not in (DATA, DELETES) or spec_id is None:
        raise DamagedTableError(f"an entry has the content {content} and the specification {spec_id}")
    return Manifest(
        entry["path"],
        content,
        spec_id,
        entry["sequence"] or 0,
        entry["snapshot_id"],
        entry["first_row_id"] if content == DATA else None,
        entry["size"],
        tuple((name, value) for name, value in entry.items() if name not in {"path", "size"}),
    )


def read_entries(
    layout: Layout,
    snapshot: SnapshotEntry | None,
    partitions: Partitions,
    known: ManifestEntries | None = None,
    manifests: Sequence[Manifest] | None = None,
) -> ManifestEntries:
    """The entries of a snapshot's manifests.

    known : entries that were read before, with the same ``partitions``.
    manifests : those to read, by default all of the snapshot.

    Raises
    ------
    As :func:`manifests_of`, for manifests too.
    """
    wanted = manifests_of(layout, snapshot) if manifests is None else manifests
    have = {} if known is None else known.by_manifest
    fresh = [each for each in wanted if each not in have]
    version = 0 if snapshot is None else snapshot.id

    def read(manifest: Manifest) -> tuple[Manifest, _Columns]:
        try:
            data = layout.storage.get(layout.path(manifest.path))
            if manifest.spec_id is None:
                manifest = _from_header(manifest, data)
            return manifest, _columns(data, manifest)
        except (DvMaintenanceError, FileNotFoundError) as error:
            raise placed(layout, error, version, manifest.path) from error.__cause__

    new: dict[Manifest, pa.Table] = {}
    for asked, (manifest, columns) in zip(fresh, in_parallel(layout.storage, fresh, read), strict=True):
        try:
            # Only this thread gives numbers to partitions.
            new[asked] = _entries(columns, manifest, partitions)
        except (DvMaintenanceError, TypeError, OverflowError, pa.ArrowInvalid) as error:
            if not isinstance(error, DvMaintenanceError):
                error = DamagedTableError(f"an entry has missing or invalid values: {error}")
            raise placed(layout, error, version, manifest.path) from None
    return ManifestEntries({each: new[each] if each in new else have[each] for each in wanted})


def placed(
    layout: Layout, error: DvMaintenanceError | FileNotFoundError, version: int, raw: str = ""
) -> DvMaintenanceError:
    """Add file, table and version to an error."""
    if isinstance(error, FileNotFoundError) and not isinstance(error, DvMaintenanceError):
        error = DamagedTableError(
            "it does not exist",
            next_step="read a newer snapshot, as this one may have expired in the meantime; a table that was copied or "
            "moved still names the files of its old place",
        )
    if raw and not error.table:
        error.message = f"{layout.path(raw)}: {error.message}"
        error.args = (error.message,)
    error.table, error.version = layout.uri, version
    return error


def _from_header(manifest: Manifest, data: bytes) -> Manifest:
    """Of a snapshot without a list: the specification is in the manifest's header."""
    text = header_of(data).get("partition-spec-id", b"0")
    if not text.isdigit():
        raise DamagedTableError("the id of its partition specification is not a number")
    return Manifest(manifest.path, manifest.content, int(text))


# -- entries --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Columns:
    """The entries of one manifest by columns.

    values : arrays by name; what the manifest lacks is missing.
    partition : values of each entry's partition, by field id.
    """

    count: int
    values: Mapping[str, pa.Array]
    partition: Sequence[Mapping[int, Any]]


def _columns(data: bytes, manifest: Manifest) -> _Columns:
    first = {_ENTRY["status"]: {EXISTING, ADDED, DELETED}}
    found = read_columns(data, _WANTED, first, by_id=True)
    if found is not None and isinstance(found.get(_FILE_ID), dict):
        file = found[_FILE_ID]
        values = {name: found[number] for name, number in _ENTRY.items() if number in found}
        values |= {name: file[number] for name, number in _FILE.items() if number in file}
        content = values.get("content")
        equality = content is not None and pc.any(pc.equal(content, int64s([EQUALITY])[0])).as_py()
        _check_plain(file.get(_KEY))
        if not equality:
            count = len(found[_ENTRY["status"]])
            return _Columns(count, values, _of_rows(file.get(_PARTITION), count))
    return _of_records(data, manifest)


def _of_rows(partition: Any, count: int) -> Sequence[Mapping[int, Any]]:
    if not isinstance(partition, dict) or not partition:
        return [{}] * count
    ids = [int(name) for name in partition if name.isdigit()]
    columns = [partition[str(number)].to_pylist() for number in ids]
    return [dict(zip(ids, row, strict=True)) for row in zip(*columns, strict=True)] if ids else [{}] * count


def _of_records(data: bytes, manifest: Manifest) -> _Columns:
    wanted = _WANTED_DELETES if manifest.content == DELETES else _WANTED
    records = list(read_records(data, wanted, by_id=True))
    files = [each.get(_FILE_ID) or {} for each in records]
    if any(file.get(_KEY) is not None for file in files):
        raise DamagedTableError("it has an encrypted file in a table that is not encrypted")
    values: dict[str, pa.Array] = {}
    for names, rows in ((_ENTRY, records), (_FILE, files)):
        for name, number in names.items():
            if any(number in row for row in rows):
                make = strings if ENTRIES.field(name).type == pa.string() else int64s
                values[name] = make([row.get(number) for row in rows])
    ids = [file.get(_EQUALITY_IDS) for file in files]
    values["equality_ids"] = strings([None if each is None else ",".join(map(str, each)) for each in ids])
    tuples = [file.get(_PARTITION) or {} for file in files]
    partition = [{int(name): value for name, value in each.items() if name.isdigit()} for each in tuples]
    return _Columns(len(records), values, partition)


def _check_plain(keys: Any) -> None:
    if isinstance(keys, pa.Array) and keys.null_count < len(keys):
        raise DamagedTableError("it has an encrypted file in a table that is not encrypted")


def _entries(columns: _Columns, manifest: Manifest, partitions: Partitions) -> pa.Table:
    """The entries with what they inherit, schema ENTRIES. Raises DamagedTableError, TypeError, ArrowInvalid."""
    count, values = columns.count, dict(columns.values)
    status = values.get("status", pa.nulls(count, pa.int64()))
    if not set(pc.unique(status).to_pylist()) <= {EXISTING, ADDED, DELETED}:
        raise DamagedTableError("an entry is neither existing, added nor deleted")
    added = pc.equal(status, int64s([ADDED])[0])
    for name in ("data_sequence", "file_sequence"):
        own = values.get(name)
        # Manifests of format version 1 have no numbers: theirs is 0.
        inherits = added if own is not None and manifest.sequence else pc.is_valid(status)
        own = pa.nulls(count, pa.int64()) if own is None else own
        values[name] = pc.if_else(pc.and_(pc.is_null(own), inherits), int64s([manifest.sequence])[0], own)
    values["snapshot_id"] = pc.fill_null(
        values.get("snapshot_id", pa.nulls(count, pa.int64())), int64s([manifest.snapshot_id or 0])[0]
    )
    content = values.get("content", int64s([DATA] * count))
    deletes = pc.any(pc.not_equal(content, int64s([DATA])[0])).as_py()
    if not set(pc.unique(content).to_pylist()) <= {DATA, POSITIONS, EQUALITY} or (count and deletes is None):
        raise DamagedTableError("an entry has an unknown content")
    if count and (pc.any(pc.equal(content, int64s([DATA])[0])).as_py() if manifest.content == DELETES else deletes):
        raise DamagedTableError("it mixes data files and delete files")
    values["content"] = content
    values["format"] = pc.utf8_lower(values.get("format", pa.nulls(count, pa.string())))
    values["spec_id"] = int64s([manifest.spec_id or 0] * count)
    values["partition_code"] = int64s(partitions.codes(manifest.spec_id or 0, columns.partition))
    values["first_row_id"] = _row_ids(values, status, manifest)
    arrays = [values.get(each.name, pa.nulls(count, each.type)) for each in ENTRIES]
    for field, array in zip(ENTRIES, arrays, strict=True):
        if array.null_count and not field.nullable:
            raise DamagedTableError(f"an entry has no {field.name.replace('_', ' ')}")
    table = pa.Table.from_arrays(arrays, schema=ENTRIES)
    if count and (pc.min(table["record_count"]).as_py() < 0 or pc.min(table["size"]).as_py() < 0):
        raise DamagedTableError("an entry has a negative size or row count")
    return table


def _row_ids(values: Mapping[str, pa.Array], status: pa.Array, manifest: Manifest) -> pa.Array:
    """The id of the first row of each file. Files without one of their own follow each other from the manifest's."""
    count = len(status)
    own = values.get("first_row_id", pa.nulls(count, pa.int64()))
    if manifest.first_row_id is None:
        return pa.nulls(count, pa.int64())
    rows = values.get("record_count", pa.nulls(count, pa.int64()))
    without = flags(pc.and_(pc.is_null(own), pc.not_equal(status, int64s([DELETED])[0])))
    taken = np.where(without, np.array(pc.fill_null(rows, int64s([0])[0]).to_pylist(), np.int64), 0)
    begins = manifest.first_row_id + np.cumsum(taken) - taken
    return pc.coalesce(own, int64s(begins.tolist())) if count else own


def _encrypted(layout: Layout, version: int) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        "its manifests are encrypted",
        features=("encryption",),
        table=layout.uri,
        version=version,
        next_step="read and maintain it with its own engine",
    )

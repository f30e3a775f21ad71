"""Manifest lists and manifests: which files a snapshot has, with what they inherit.

Format: Iceberg specification, Manifests and Manifest Lists. Fields are found by their ids; what a manifest leaves out
it gets from its entry in the list: sequence numbers, the snapshot, and row ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError
from dv_maintenance.files.arrays import bools, combined, flags, int64s, integer, numbers, strings, text
from dv_maintenance.files.avro.container import header_of, read_columns, read_records
from dv_maintenance.files.avro.schema import Wanted
from dv_maintenance.tables.iceberg.layout import Layout
from dv_maintenance.tables.iceberg.log.metadata import SnapshotEntry, encrypted
from dv_maintenance.tables.iceberg.rows.partitions import Partitions
from dv_maintenance.tables.parallel import in_parallel

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
        # The data file of a deletion vector, and that of position deletes which are known to be of one data file only.
        pa.field("referenced", pa.string()),
        pa.field("content_offset", pa.int64()),
        pa.field("content_size", pa.int64()),
        # Field ids of an equality delete, as text: ``2,3``.
        pa.field("equality_ids", pa.string()),
    ]
)

# Ids of the fields of a list's entry.
_PLACE, _LIST_KEY = "500", "519"
_LIST: Final = {
    "size": "501",
    "spec_id": "502",
    "content": "517",
    "sequence": "515",
    "snapshot_id": "503",
    "first_row_id": "520",
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
# Lists of pairs, with the ids of key and value.
_LOWER, _UPPER = ("125", "126", "127"), ("128", "129", "130")
_DATA_FILE: Final[Wanted] = {**dict.fromkeys(_FILE.values()), _PARTITION: None, _KEY: None}
_OUTER: Final = dict.fromkeys(_ENTRY.values())
_WANTED: Final[Wanted] = {**_OUTER, _FILE_ID: _DATA_FILE}
_WANTED_DELETES: Final[Wanted] = {
    **_OUTER,
    _FILE_ID: {**_DATA_FILE, **dict.fromkeys([_EQUALITY_IDS, _LOWER[0], _UPPER[0]])},
}
PATH_ID: Final = 2147483546
"""Field id of the paths of data files in a position delete file."""


class Manifest(NamedTuple):
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


@dataclass(frozen=True, slots=True)
class ManifestEntries:
    """The entries of the manifests of a snapshot. Each table has schema ENTRIES, the deleted ones included.

    by_manifest : in the order of the list. One that is listed twice counts once, as in Iceberg's Java library.
    """

    by_manifest: Mapping[Manifest, pa.Table]

    def live(self, content: int) -> pa.Table:
        """The live files that manifests of this content name, with the position of each manifest."""
        chosen = [
            (at, entries) for at, (each, entries) in enumerate(self.by_manifest.items()) if each.content == content
        ]
        at = np.repeat([number for number, _ in chosen], [entries.num_rows for _, entries in chosen])
        whole = pa.concat_tables([ENTRIES.empty_table(), *(entries for _, entries in chosen)])
        whole = whole.append_column("manifest", int64s(at))
        live = pc.not_equal(whole["status"], integer(DELETED))
        return whole if pc.all(live).as_py() else whole.filter(live)


def counted(entries: pa.Table) -> dict[int, tuple[int, int]]:
    """How many files and rows have each status. ``entries``: schema ENTRIES."""
    status, rows = (numbers(combined(entries[name])) for name in ("status", "record_count"))
    return {
        each: (int(np.count_nonzero(status == each)), int(rows[status == each].sum()))
        for each in (ADDED, EXISTING, DELETED)
    }


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
        raise encrypted("its manifests are encrypted", layout, snapshot.id)
    if snapshot.manifest_list is None:
        return [Manifest(path) for path in snapshot.manifests]
    try:
        data = layout.storage.get(layout.path(snapshot.manifest_list))
        # All fields: fastavro takes longer to leave some out.
        records = list(read_records(data, None, by_id=True))
        found = [manifest_of(record) for record in records]
    except (DvMaintenanceError, FileNotFoundError) as error:
        raise placed(layout, error, snapshot.id, snapshot.manifest_list) from error.__cause__
    if any(each.get(_LIST_KEY) is not None for each in records):
        raise encrypted("its manifests are encrypted", layout, snapshot.id)
    return found


def manifest_of(record: Mapping[str, Any]) -> Manifest:
    """The manifest of an entry of a list. Raises DamagedTableError."""
    path = record.get(_PLACE)
    size, spec_id, content, sequence, snapshot_id, first_row_id = numbers = [*map(record.get, _LIST.values())]
    if not isinstance(path, str) or not {int, type(None)}.issuperset(map(type, numbers)):
        raise DamagedTableError("an entry has an invalid path or number")
    content = content or DATA
    if content not in (DATA, DELETES) or spec_id is None:
        raise DamagedTableError(f"an entry has the content {content} and the specification {spec_id}")
    rows = first_row_id if content == DATA else None
    return Manifest(path, content, spec_id, sequence or 0, snapshot_id, rows, size)


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

    pairs = list(in_parallel(layout.storage, fresh, read))
    # Only this thread gives numbers to partitions.
    try:
        new = dict(zip(fresh, _all_entries(pairs, partitions), strict=True))
    except (DvMaintenanceError, TypeError, OverflowError, pa.ArrowInvalid):
        new = {}
        for asked, (manifest, columns) in zip(fresh, pairs, strict=True):
            try:
                (new[asked],) = _all_entries([(manifest, columns)], partitions)
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

    values : arrays or lists by name; what the manifest lacks is missing.
    partition : values of each entry's partition, by field id.
    """

    count: int
    values: Mapping[str, Any]
    partition: Sequence[Mapping[int, Any]]


def _columns(data: bytes, manifest: Manifest) -> _Columns:
    first = {_ENTRY["status"]: {EXISTING, ADDED, DELETED}}
    found = read_columns(data, _WANTED, first, by_id=True)
    if found is not None and isinstance(found.get(_FILE_ID), dict):
        file = found[_FILE_ID]
        values = {name: found[number] for name, number in _ENTRY.items() if number in found}
        values |= {name: file[number] for name, number in _FILE.items() if number in file}
        _check_plain(file.get(_KEY))
        if manifest.content == DATA or _has_vectors_only(values):
            count = len(found[_ENTRY["status"]])
            return _Columns(count, values, _of_rows(file.get(_PARTITION), count))
    return _of_records(data, manifest)


def _has_vectors_only(values: Mapping[str, Any]) -> bool:
    """Whether a manifest of deletes has nothing but deletion vectors: of other deletes, more fields count."""
    formats = values.get("format")
    return isinstance(formats, pa.Array) and bool(pc.all(pc.equal(pc.utf8_lower(formats), text("puffin"))).as_py())


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
    values: dict[str, Any] = {}
    for names, rows in ((_ENTRY, records), (_FILE, files)):
        for name, number in names.items():
            column = [row.get(number) for row in rows]
            if any(each is not None for each in column):
                values[name] = column
    if manifest.content == DELETES:
        values["referenced"] = [_referenced(file) for file in files]
    ids = [file.get(_EQUALITY_IDS) for file in files]
    if any(ids):
        values["equality_ids"] = [None if each is None else ",".join(map(str, each)) for each in ids]
    tuples = [file.get(_PARTITION) or {} for file in files]
    partition = [{int(name): value for name, value in each.items() if name.isdigit()} for each in tuples]
    return _Columns(len(records), values, partition)


def _referenced(file: Mapping[str, Any]) -> str | None:
    """The only data file of position deletes. Iceberg's writers give it by equal bounds of the paths."""
    named = file.get(_FILE["referenced"])
    if named is not None or file.get(_FILE["content"]) != POSITIONS:
        return named
    lower, upper = (_bound(file.get(field), key, value) for field, key, value in (_LOWER, _UPPER))
    try:
        return lower.decode() if lower is not None and lower == upper else None
    except UnicodeDecodeError:  # cut off
        return None


def _bound(pairs: Any, key: str, value: str) -> bytes | None:
    found = (each.get(value) for each in pairs or () if isinstance(each, dict) and each.get(key) == PATH_ID)
    bound = next(found, None)
    return bound if isinstance(bound, bytes) else None


def _check_plain(keys: Any) -> None:
    if isinstance(keys, pa.Array) and keys.null_count < len(keys):
        raise DamagedTableError("it has an encrypted file in a table that is not encrypted")


def _all_entries(pairs: Sequence[tuple[Manifest, _Columns]], partitions: Partitions) -> list[pa.Table]:
    """The entries of each manifest with what they inherit, schema ENTRIES. All at once, since most manifests are small.

    Raises
    ------
    DamagedTableError, TypeError, OverflowError, ArrowInvalid
    """
    counts = np.array([columns.count for _, columns in pairs], np.int64)
    total = int(counts.sum())

    def of_manifests(numbers: Sequence[int]) -> pa.Array:
        return int64s(np.repeat(np.array(numbers, np.int64), counts))

    values = {
        field.name: _joined(field, [(each.count, each.values.get(field.name)) for _, each in pairs])
        for field in ENTRIES
    }
    status, content = values["status"], pc.fill_null(values["content"], integer(DATA))
    if not set(pc.unique(status).to_pylist()) <= {EXISTING, ADDED, DELETED}:
        raise DamagedTableError("an entry is neither existing, added nor deleted")
    if not set(pc.unique(content).to_pylist()) <= {DATA, POSITIONS, EQUALITY}:
        raise DamagedTableError("an entry has an unknown content")
    in_deletes = pc.equal(of_manifests([each.content for each, _ in pairs]), integer(DELETES))
    if pc.any(pc.equal(in_deletes, pc.equal(content, integer(DATA)))).as_py():
        raise DamagedTableError("it has data files among delete files, or the other way round")
    sequence = of_manifests([each.sequence for each, _ in pairs])
    # Only new files get the number of their commit. Manifests of format version 1 have no numbers: theirs is 0.
    inherits = pc.or_(pc.equal(status, integer(ADDED)), pc.equal(sequence, integer(0)))
    for name in ("data_sequence", "file_sequence"):
        own = values[name]
        values[name] = pc.if_else(pc.and_(pc.is_null(own), inherits), sequence, own)
    values["snapshot_id"] = pc.coalesce(
        values["snapshot_id"], of_manifests([each.snapshot_id or 0 for each, _ in pairs])
    )
    values["content"] = content
    values["format"] = pc.utf8_lower(values["format"])
    values["spec_id"] = of_manifests([each.spec_id or 0 for each, _ in pairs])
    codes = [code for each, columns in pairs for code in partitions.codes(each.spec_id or 0, columns.partition)]
    values["partition_code"] = int64s(codes)
    values["first_row_id"] = _row_ids(values, counts, [each.first_row_id for each, _ in pairs])
    for field in ENTRIES:
        if values[field.name].null_count and not field.nullable:
            raise DamagedTableError(f"an entry has no {field.name.replace('_', ' ')}")
    if total and min(pc.min(values[name]).as_py() for name in ("record_count", "size")) < 0:
        raise DamagedTableError("an entry has a negative size or row count")
    whole = pa.Table.from_arrays([values[name] for name in ENTRIES.names], schema=ENTRIES)
    ends = np.cumsum(counts).tolist()
    return [whole.slice(end - count, count) for end, count in zip(ends, counts.tolist(), strict=True)]


def _joined(field: pa.Field, parts: Sequence[tuple[int, Any]]) -> pa.Array:
    """A column of several manifests. Neighbours that are lists are converted together."""
    make = strings if field.type == pa.string() else int64s
    arrays: list[pa.Array] = []
    some: list[Any] = []
    for count, part in parts:
        if isinstance(part, pa.Array):
            arrays += [make(some), part]
            some = []
        else:
            some += [None] * count if part is None else part
    arrays.append(make(some))
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _row_ids(
    values: Mapping[str, pa.Array], counts: np.ndarray[Any, np.dtype[np.int64]], firsts: Sequence[int | None]
) -> pa.Array:
    """The id of the first row of each file. Files of a manifest without one of their own follow each other from its
    first one; without that, no file has one.
    """
    own, status = values["first_row_id"], values["status"]
    without = flags(pc.and_(pc.is_null(own), pc.not_equal(status, integer(DELETED))))
    rows = numbers(pc.fill_null(values["record_count"], integer(0)))
    taken = np.where(without, rows, 0)
    before = np.cumsum(taken) - taken
    starts = np.cumsum(counts) - counts
    # Rows that were taken in earlier manifests.
    of_earlier = (
        np.concatenate([before, [0]])[np.minimum(starts, len(before))] if len(before) else np.zeros(len(counts))
    )
    first = np.repeat(np.array([each or 0 for each in firsts], np.int64) - of_earlier.astype(np.int64), counts)
    known = bools(np.repeat(np.array([each is not None for each in firsts], bool), counts))
    return pc.if_else(known, pc.coalesce(own, int64s(before + first)), pa.nulls(1, pa.int64())[0])

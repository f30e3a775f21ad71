"""Manifest lists and manifests: the data files of a snapshot.

Format: manifest of Paimon's specification. A snapshot has a base list and a delta list. A file is live if these have an
ADD entry for it and no DELETE entry. Partition, bucket, level, name, extra files, embedded index and external path
identify a file. A file is added at most once and deleted at most once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, UnsupportedFeatureError
from dv_maintenance.files.arrays import bools, flags, int32s, int64s, integer, strings, text
from dv_maintenance.files.avro.columns import Columns
from dv_maintenance.files.avro.container import read_columns, read_records
from dv_maintenance.files.avro.schema import Wanted
from dv_maintenance.tables.paimon.layout import Layout
from dv_maintenance.tables.paimon.log.snapshots import SnapshotFile
from dv_maintenance.tables.paimon.rows.partitions import Partitions
from dv_maintenance.tables.parallel import in_parallel

ADD: Final = 0
DELETE: Final = 1

ENTRIES: Final = pa.schema(
    [
        pa.field("kind", pa.int64(), nullable=False),
        # Number of the partition, see Partitions.
        pa.field("partition", pa.int64(), nullable=False),
        pa.field("bucket", pa.int64(), nullable=False),
        pa.field("total_buckets", pa.int64()),
        pa.field("file_name", pa.string(), nullable=False),
        pa.field("external_path", pa.string()),
        # Digest of extra files and embedded index, which belong to the file's identity; "" if it has neither.
        pa.field("companions", pa.string(), nullable=False),
        pa.field("extra_files", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("level", pa.int64(), nullable=False),
        pa.field("schema_id", pa.int64(), nullable=False),
        pa.field("min_sequence", pa.int64()),
        pa.field("max_sequence", pa.int64()),
        # Epoch milliseconds.
        pa.field("created", pa.int64()),
        # Number of retractions (-D, -U), not of the rows that a deletion vector names.
        pa.field("retractions", pa.int64()),
        # 0: written, 1: compacted.
        pa.field("source", pa.int64()),
        pa.field("first_row_id", pa.int64()),
        # The columns in the file, as a JSON list; null: all columns of its schema.
        pa.field("write_cols", pa.string()),
        # The manifest of the entry: its position in ``Live.manifests``.
        pa.field("manifest", pa.int64(), nullable=False),
    ]
)

_LIST_VERSION: Final = 2
_ENTRY_VERSION: Final = 2
_LIST: Final[Wanted] = dict.fromkeys(("_VERSION", "_FILE_NAME", "_FILE_SIZE", "_NUM_ADDED_FILES", "_NUM_DELETED_FILES"))
_FILE: Final = {
    "_FILE_NAME": "file_name",
    "_EXTERNAL_PATH": "external_path",
    "_FILE_SIZE": "size",
    "_ROW_COUNT": "rows",
    "_LEVEL": "level",
    "_SCHEMA_ID": "schema_id",
    "_MIN_SEQUENCE_NUMBER": "min_sequence",
    "_MAX_SEQUENCE_NUMBER": "max_sequence",
    "_CREATION_TIME": "created",
    "_DELETE_ROW_COUNT": "retractions",
    "_FILE_SOURCE": "source",
    "_FIRST_ROW_ID": "first_row_id",
}
_OUTER: Final = {"_KIND": "kind", "_BUCKET": "bucket", "_TOTAL_BUCKETS": "total_buckets"}
_ENTRY: Final[Wanted] = {
    "_VERSION": None,
    "_KIND": None,
    "_PARTITION": None,
    "_BUCKET": None,
    "_TOTAL_BUCKETS": None,
    "_FILE": {**dict.fromkeys(_FILE), "_EXTRA_FILES": None, "_EMBEDDED_FILE_INDEX": None, "_WRITE_COLS": None},
}
_IDENTITY: Final = ("partition", "bucket", "level", "companions", "file_name", "external_path")


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One manifest as a manifest list records it. Its name contains a UUID, and it is never rewritten.

    added, deleted : number of ADD and of DELETE entries.
    size : bytes; ``None`` if the list does not record it.
    """

    name: str
    added: int
    deleted: int
    size: int | None


@dataclass(frozen=True, slots=True)
class Live:
    """The live files of a snapshot.

    entries : schema ENTRIES.
    unmatched : number of DELETE entries of files that were never added. Paimon's readers ignore them, but they are a
        sign of damage.
    manifests : names of the manifests that were read.
    read : the same manifests, as the lists record them.
    """

    entries: pa.Table
    unmatched: int
    manifests: tuple[str, ...] = ()
    read: frozenset[ManifestFile] = frozenset()


def live_entries(layout: Layout, snapshot: SnapshotFile, partitions: Partitions, known: Live | None = None) -> Live:
    """The live files of a snapshot. Reads its two lists and every manifest that they name.

    known : the live files of another snapshot with the same ``partitions``. If the lists still name all its manifests,
        only new manifests are read.

    Raises
    ------
    DamagedTableError : a file is damaged, or a data file was added twice; the message names it.
    UnsupportedFeatureError : a manifest or a list has a newer format version.
    """
    lists = [snapshot.base_list, snapshot.delta_list]
    manifests = [manifest for name in lists for manifest in manifest_files(layout, name, snapshot.id)]
    if known is None or not known.read <= set(manifests):
        known = Live(no_entries(), 0)
    fresh = [each for each in manifests if each not in known.read]
    try:
        new = _entries(layout, fresh, partitions, snapshot.id, first=len(known.manifests))
        live = _joined(known.entries, list(new)) if known.read else merged(new)
        names = (*known.manifests, *(each.name for each in fresh))
        return Live(live.entries, known.unmatched + live.unmatched, names, frozenset(manifests))
    except DamagedTableError as damage:
        raise damage if damage.table else placed(layout, damage, snapshot.id) from None


def delta_entries(layout: Layout, snapshot: SnapshotFile, partitions: Partitions) -> pa.Table:
    """The ADD and DELETE entries of a snapshot's delta list, schema ENTRIES. Raises as :func:`live_entries`."""
    manifests = manifest_files(layout, snapshot.delta_list, snapshot.id)
    return pa.concat_tables([no_entries(), *_entries(layout, manifests, partitions, snapshot.id)])


def no_entries() -> pa.Table:
    return _table({name: [] for name in ENTRIES.names})


def merged(parts: Iterable[pa.Table]) -> Live:
    """Merge entries of manifests into live files: each ADD without a DELETE.

    Raises
    ------
    DamagedTableError : a file was added twice.
    """
    entries = pa.concat_tables([no_entries(), *parts]).combine_chunks()
    if not entries.num_rows:
        return Live(entries, 0)
    adds = pc.equal(entries["kind"], integer(ADD))
    if pc.all(adds).as_py() and pc.count_distinct(entries["file_name"]).as_py() == entries.num_rows:
        return Live(entries, 0)
    keys = identities(entries)
    added, deleted = keys.filter(adds), keys.filter(pc.invert(adds))
    if len(pc.unique(added)) < len(added):
        counts = pc.value_counts(added)
        twice = counts.filter(pc.greater(counts.field("counts"), integer(1)))[0]["values"].as_py()
        raise DamagedTableError(f"the data file {twice.split('/', 4)[-1].split('/')[0]} was added twice")
    unmatched = len(deleted) - int(pc.sum(pc.is_in(deleted, value_set=added)).as_py() or 0)
    live = entries.filter(adds)
    return Live(live.filter(pc.invert(pc.is_in(added, value_set=deleted))), unmatched)


def _joined(live: pa.Table, new: list[pa.Table]) -> Live:
    """Merge new entries into files that are live. Compares only live files whose name occurs in a new entry."""
    names = [column for part in new for column in part["file_name"].chunks]
    if not names:
        return Live(live, 0)
    named = pc.is_in(live["file_name"], value_set=pa.concat_arrays(names))
    concerned = live.filter(named)
    small = merged([concerned, *new])
    if not concerned.num_rows:
        return Live(pa.concat_tables([live, small.entries]).combine_chunks(), small.unmatched)
    stay = pc.is_in(identities(concerned), value_set=identities(small.entries))
    rest = small.entries.slice(pc.sum(stay).as_py())
    rows = np.flatnonzero(flags(named))[~flags(stay)]
    keep = np.ones(live.num_rows, bool)
    keep[rows] = False
    return Live(pa.concat_tables([live.filter(bools(keep)), rest]).combine_chunks(), small.unmatched)


def identities(entries: pa.Table) -> pa.Array:
    """The identity of each entry's file, as text."""
    columns = [entries[name].cast(pa.string()).combine_chunks() for name in _IDENTITY]
    columns[-1] = pc.fill_null(columns[-1], text(""))
    return pc.binary_join_element_wise(*columns, text("/"))


# -- reading ------------------------------------------------------------------------------------------------------


def manifest_files(layout: Layout, name: str, version: int) -> list[ManifestFile]:
    """The manifests that a list names, in order. Raises as :func:`live_entries`."""
    found = []
    for record in avro_records(layout, name, _LIST, version):
        _check_version(record, _LIST_VERSION, layout, name, version)
        manifest = record.get("_FILE_NAME")
        added, deleted = record.get("_NUM_ADDED_FILES"), record.get("_NUM_DELETED_FILES")
        if not _is_name(manifest) or not isinstance(added, int) or not isinstance(deleted, int):
            raise placed(layout, DamagedTableError("an entry has an invalid file name or count"), version, name)
        size = record.get("_FILE_SIZE")
        found.append(ManifestFile(str(manifest), added, deleted, size if isinstance(size, int) else None))
    return found


def _entries(
    layout: Layout, manifests: Sequence[ManifestFile], partitions: Partitions, version: int, first: int = 0
) -> Iterable[pa.Table]:
    """The entries of manifests. ``first``: position of the first of them in ``Live.manifests``."""

    def read(manifest: ManifestFile) -> _Arrays | list[dict[str, Any]]:
        with _placed(layout, manifest.name, version):
            data = layout.storage.get(layout.manifest(manifest.name))
            columns = read_columns(data, _ENTRY, {"_VERSION": {_ENTRY_VERSION}, "_KIND": {ADD, DELETE}})
            if columns is not None and (arrays := _arrays(columns)) is not None:
                return arrays
            records = list(read_records(data, _ENTRY))
        for record in records:
            _check_version(record, _ENTRY_VERSION, layout, manifest.name, version)
        return records

    # Only this thread assigns numbers to partitions.
    found = zip(manifests, in_parallel(layout.storage, manifests, read), strict=True)
    for place, (manifest, records) in enumerate(found, start=first):
        try:
            if isinstance(records, dict):
                yield _numbered(records, place, partitions)
                continue
            columns = _columns(records, place)
            rows = [row if isinstance(row, bytes) else b"" for row in (each.get("_PARTITION") for each in records)]
            columns["partition"] = [partitions.code(row) for row in rows]
            yield _table(columns)
        except (TypeError, OverflowError, pa.ArrowInvalid, DvMaintenanceError) as error:
            if not isinstance(error, DamagedTableError | UnsupportedFeatureError):
                error = DamagedTableError(f"an entry has missing or invalid values: {error}")
            raise placed(layout, error, version, manifest.name) from None


_Arrays = dict[str, pa.Array]


def _arrays(columns: Columns) -> _Arrays | None:
    """The entries of a manifest as columns of ENTRIES, with partition rows in ``partition``. ``None`` if an entry has
    missing or invalid values: the caller then reads the manifest record by record to find that entry.
    """
    file = columns.get("_FILE")
    rows = columns.get("_PARTITION")
    if not isinstance(file, dict) or not isinstance(rows, pa.BinaryArray) or rows.null_count:
        return None
    count = len(rows)
    found = {column: columns.get(name) for name, column in _OUTER.items()}
    found |= {column: file.get(name) for name, column in _FILE.items()}
    extras = file.get("_EXTRA_FILES", _no_lists(count))
    index = file.get("_EMBEDDED_FILE_INDEX", pa.nulls(count, pa.binary()))
    write_cols = file.get("_WRITE_COLS", _no_lists(count))
    if not (
        isinstance(extras, pa.ListArray) and isinstance(index, pa.BinaryArray) and isinstance(write_cols, pa.ListArray)
    ):
        return None
    found["extra_files"] = pc.fill_null(pc.list_value_length(extras), int32s([0])[0]).cast(pa.int64())
    if len(extras.values) or index.null_count < count:
        pairs = zip(extras.to_pylist(), index.to_pylist(), strict=True)
        found["companions"] = strings(
            [_companions(extra or [], each) if extra or each else "" for extra, each in pairs]
        )
    else:
        found["companions"] = pa.repeat(text(""), count)
    if write_cols.null_count < count:
        found["write_cols"] = strings([_names(names) for names in write_cols.to_pylist()])
    for field in ENTRIES:
        array = found.get(field.name)
        if field.name in {"partition", "manifest"}:
            continue
        if array is None:
            array = found[field.name] = pa.nulls(count, field.type)
        if not isinstance(array, pa.Array) or array.type != field.type or (array.null_count and not field.nullable):
            return None
    names, kinds = found["file_name"], found["kind"]
    if names is None or kinds is None:
        return None
    wrong = [pc.match_substring(names, "/"), pc.is_in(names, value_set=strings(["", ".", ".."]))]
    if any(pc.any(each).as_py() for each in wrong) or not set(kinds.unique().to_pylist()) <= {ADD, DELETE}:
        return None
    return {**found, "partition": rows}


def _no_lists(count: int) -> pa.ListArray:
    return pa.nulls(count, pa.list_(pa.string()))


def _numbered(arrays: _Arrays, place: int, partitions: Partitions) -> pa.Table:
    """The entries as a table of schema ENTRIES. Raises DamagedTableError, UnsupportedFeatureError."""
    rows = arrays["partition"].dictionary_encode()
    codes = int64s([partitions.code(row) for row in rows.dictionary.to_pylist()])
    same = int32s(np.full(len(rows), place)).cast(pa.int64())
    full = {**arrays, "partition": codes.take(rows.indices), "manifest": same}
    return pa.Table.from_arrays([full[name] for name in ENTRIES.names], schema=ENTRIES)


def _columns(records: Sequence[dict[str, Any]], place: int) -> dict[str, list[Any]]:
    """The entries of the manifest at position ``place`` as columns, without their partitions."""
    files = [file if isinstance(file, dict) else {} for file in (each.get("_FILE") for each in records)]
    extras = [file.get("_EXTRA_FILES") or [] for file in files]
    indexes = [file.get("_EMBEDDED_FILE_INDEX") for file in files]
    return {
        **{column: [each.get(name) for each in records] for name, column in _OUTER.items()},
        **{column: [file.get(name) for file in files] for name, column in _FILE.items()},
        "companions": [
            _companions(extra, index) if extra or index else "" for extra, index in zip(extras, indexes, strict=True)
        ],
        "extra_files": [len(extra) for extra in extras],
        "write_cols": [_names(file.get("_WRITE_COLS")) for file in files],
        "manifest": [place] * len(records),
    }


def _names(columns: Any) -> str | None:
    """The column names as a JSON list. Raises TypeError."""
    if columns is None:
        return None
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        raise TypeError("_WRITE_COLS is not a list of names")
    return json.dumps(columns)


def _companions(extra: Any, index: Any) -> str:
    return blake2b(repr((extra, index)).encode(), digest_size=16).hexdigest()


def _table(columns: dict[str, list[Any]]) -> pa.Table:
    """A table of schema ENTRIES. Raises TypeError, OverflowError, DamagedTableError."""
    arrays = [(strings if each.type == pa.string() else int64s)(columns[each.name]) for each in ENTRIES]
    for each, array in zip(ENTRIES, arrays, strict=True):
        if array.null_count and not each.nullable:
            raise DamagedTableError(f"an entry has no {each.name}")
    if not set(columns["kind"]) <= {ADD, DELETE}:
        raise DamagedTableError("an entry is neither ADD nor DELETE")
    wrong = next((name for name in columns["file_name"] if not _is_name(name)), None)
    if wrong is not None:
        raise DamagedTableError(f"{wrong[:100]!r} is not the name of a data file")
    return pa.Table.from_arrays(arrays, schema=ENTRIES)


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and bool(name) and "/" not in name and name not in {".", ".."}


def avro_records(layout: Layout, name: str, wanted: Wanted | None, version: int) -> Iterator[dict[str, Any]]:
    """The records of a file in the manifest folder. ``version``: the snapshot that needs the file.

    Raises
    ------
    DamagedTableError : the file is damaged or missing; the message names it.
    RefusedError : fastavro is not installed.
    """
    with _placed(layout, name, version):
        yield from read_records(layout.storage.get(layout.manifest(name)), wanted)


@contextmanager
def _placed(layout: Layout, name: str, version: int) -> Iterator[None]:
    """Add the name of the file to errors."""
    try:
        yield
    except FileNotFoundError:
        damage = DamagedTableError(
            "it does not exist", next_step="read a newer snapshot: this one may have expired in the meantime"
        )
        raise placed(layout, damage, version, name) from None
    except DvMaintenanceError as error:
        raise placed(layout, error, version, name) from error.__cause__


def _check_version(record: dict[str, Any], known: int, layout: Layout, name: str, version: int) -> None:
    if record.get("_VERSION") != known:
        found = record.get("_VERSION")
        unknown = UnsupportedFeatureError(
            f"it has format version {found}; this release reads only version {known}",
            features=(f"manifest version {found}",),
            next_step="use a newer release of this tool, or let a newer Paimon rewrite the manifests",
        )
        raise placed(layout, unknown, version, name)


def placed(layout: Layout, error: DvMaintenanceError, version: int, name: str = "") -> DvMaintenanceError:
    """Add file, table and version to an error."""
    if name:
        error.message = f"{layout.manifest(name)}: {error.message}"
        error.args = (error.message,)
    error.table, error.version = layout.uri, version
    return error

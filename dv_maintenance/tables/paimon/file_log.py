"""How each snapshot of a Paimon table changed the live files (``FileLogTable.file_log``).

Walks backwards from a snapshot with known live files. Undoing the delta of each commit gives the live files of its
predecessor. Changes of deletion vectors (DVs) follow from comparing index manifests, which hold the whole state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.arrays import bools, flags, int64s, numbers, strings, text
from dv_maintenance.tables.file_log import FILE_CHANGES, FileCommit, FileLog
from dv_maintenance.tables.paimon.layout import Layout, table_layout
from dv_maintenance.tables.paimon.log.history import DvDifference, Dvs, SnapshotReader
from dv_maintenance.tables.paimon.log.index_manifest import DvEntry
from dv_maintenance.tables.paimon.log.manifests import ADD, delta_entries, identities, no_entries, placed
from dv_maintenance.tables.paimon.log.snapshots import USER, SnapshotFile, read_snapshot_file
from dv_maintenance.tables.paimon.rows.evolution import anchors
from dv_maintenance.tables.paimon.rows.files import counted, paths, visible
from dv_maintenance.tables.paimon.rows.partitions import Partitions
from dv_maintenance.tables.parallel import in_parallel

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot

# Number of snapshots in memory at once, with all their DVs.
_BATCH: Final = 16

# Partition, bucket and name of a data file.
_Key = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class _Version:
    """A commit.

    delta : its entries.
    dvs : DVs before and after the commit, for each file that it changed and each file whose DV it changed.
    """

    file: SnapshotFile
    commit: FileCommit
    delta: pa.Table
    dvs: Mapping[_Key, tuple[DvEntry | None, DvEntry | None]]


def file_log(storage: Storage, snapshot: PaimonSnapshot, since: int) -> FileLog:
    """See ``FileLogTable.file_log``. Omits a snapshot if its predecessor has expired: its new deletion vectors are
    unknown.
    """
    layout = table_layout(storage)
    partitions = Partitions(snapshot.table_schema.partition_fields(), snapshot.properties, list(snapshot.partitions))
    reader = SnapshotReader(layout, partitions, snapshot.options)
    versions: list[_Version] = []  # newest first
    after = snapshot.file
    while after is not None and after.timestamp >= since:
        chain = _chain(layout, after, since)
        if len(chain) == 1:
            break
        versions += _versions(reader, chain)
        after = chain[-1]
    changes = _Walk(layout, partitions, snapshot, versions).changes()
    created = after is None
    return FileLog(
        tuple(version.commit for version in reversed(versions)),
        changes,
        base=(None if versions else snapshot.version) if after is None else after.id,
        complete=created or (after is not None and after.timestamp < since),
    )


def _chain(layout: Layout, newest: SnapshotFile, since: int) -> list[SnapshotFile | None]:
    """The snapshot and some of its predecessors without a gap, newest first. The chain ends at the first one found that
    is older than ``since``. ``None`` stands for the state before the first snapshot.
    """

    def read(version: int) -> SnapshotFile | None:
        try:
            return read_snapshot_file(layout, version)
        except FileNotFoundError:
            return None
        except DamagedTableError as damage:
            damage.version = version
            raise

    found: list[SnapshotFile | None] = [newest]
    ids = range(newest.id - 1, max(newest.id - 1 - _BATCH, 0), -1)
    for file in in_parallel(layout.storage, ids, read):
        if file is None:
            return found
        found.append(file)
        if file.timestamp < since:
            return found
    last = found[-1]
    return [*found, None] if last is not None and last.id == 1 else found


def _versions(reader: SnapshotReader, chain: Sequence[SnapshotFile | None]) -> list[_Version]:
    """The commits of a chain, except its last element, which only serves for comparison."""
    layout, partitions, options = reader.layout, reader.partitions, reader.options
    files = [file for file in chain if file is not None]
    indices = {file.index_manifest: file for file in files}

    # Threads read side by side, each with its own numbers of partitions. Only this thread translates them.
    def delta(file: SnapshotFile) -> tuple[pa.Table, Partitions]:
        own = Partitions(partitions.fields, partitions.options)
        return delta_entries(layout, file, own), own

    def dvs(file: SnapshotFile) -> tuple[Dvs, Partitions]:
        own = SnapshotReader(layout, Partitions(partitions.fields, partitions.options), options)
        return own.dvs(file), own.partitions

    states: dict[str | None, Dvs] = {None: {}}
    for name, (found, own) in zip(indices, in_parallel(layout.storage, [*indices.values()], dvs), strict=True):
        codes = [partitions.code(each.row) for each in own.found]
        states[name] = {(codes[partition], bucket, file): dv for (partition, bucket, file), dv in found.items()}
    read = in_parallel(layout.storage, files[: len(chain) - 1], delta)
    versions = []
    for file, before, (entries, own) in zip(chain, chain[1:], read, strict=False):
        assert file is not None  # only the last one may be None
        codes = int64s([partitions.code(each.row) for each in own.found])
        at = entries.schema.get_field_index("partition")
        entries = entries.set_column(at, entries.schema.field(at), codes.take(entries["partition"].combine_chunks()))
        olds = states[None if before is None else before.index_manifest]
        news = states[file.index_manifest]
        difference = DvDifference() if olds is news else reader.difference(file, olds, news, entries)
        commit = FileCommit(
            file.id,
            file.timestamp,
            file.kind,
            reader.changed(file, entries, difference),
            file.commit_user.startswith(USER),
        )
        versions.append(_Version(file, commit, entries, _concerned(entries, olds, news, options.data_evolution)))
    return versions


def _concerned(
    entries: pa.Table, olds: Dvs, news: Dvs, together: bool
) -> dict[_Key, tuple[DvEntry | None, DvEntry | None]]:
    """The DVs before and after a commit, for each file that it changed and each file whose DV it changed.

    together : whether several files of a bucket may hold the same rows. Then all files of these buckets are included.
    """
    keys = set(zip(*(entries[name].to_pylist() for name in ("partition", "bucket", "file_name")), strict=True))
    if olds is not news:
        keys |= {key for key, dv in olds.items() if _place(dv) != _place(news.get(key))} | (news.keys() - olds.keys())
    if together:
        places = {key[:2] for key in keys}
        keys |= {key for key in (*olds, *news) if key[:2] in places}
    return {key: (olds.get(key), news.get(key)) for key in keys}


def _place(dv: DvEntry | None) -> tuple[str, int] | None:
    return None if dv is None else (dv.path, dv.offset)


# -- rows ------------------------------------------------------------------------------------------------------------

# Number of a name -> its file, and the total bytes of all files that hold its rows.
_Logical = dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of a log.

    version : version of the commit.
    file : number of the file.
    """

    version: int
    added: bool
    file: int
    size: int
    dv: DvEntry | None


class _Walk:
    """The live files, walking backwards from those of the snapshot.

    The entries of all commits are in one table. Files have numbers. Their names (partition, bucket and name) have
    numbers of their own: a file that changes its level becomes another file of the same name.
    """

    def __init__(
        self, layout: Layout, partitions: Partitions, snapshot: PaimonSnapshot, versions: Sequence[_Version]
    ) -> None:
        self.layout, self.partitions, self.versions = layout, partitions, versions
        self.options = snapshot.options
        live = snapshot.live.entries
        if not self.options.data_evolution:
            touched = strings(sorted({name for version in versions for *_, name in version.dvs}))
            live = live.filter(pc.is_in(live["file_name"], value_set=touched))
        parts = [no_entries(), live, *(version.delta for version in versions)]
        self.entries = pa.concat_tables(parts).combine_chunks()
        self.begin = live.num_rows
        names = _names(self.entries).dictionary_encode()
        # For each entry its file. For each file one of its entries, and its name.
        self.files = numbers(identities(self.entries).dictionary_encode().indices)
        _, self.entry_of = np.unique(self.files, return_index=True)
        self.name_of = numbers(names.indices)[self.entry_of]
        self.sizes = _column(self.entries, "size")[self.entry_of]
        self.seen = flags(visible(self.entries, self.options))[self.entry_of]
        # For each name its live file, or -1; and its partition and bucket.
        self.live = np.full(len(names.dictionary), -1)
        self.live[self.name_of[self.files[: live.num_rows]]] = self.files[: live.num_rows]
        self.place_of = np.zeros(len(names.dictionary), np.int64)
        places = (_column(self.entries, "partition") << 32) + _column(self.entries, "bucket")
        self.place_of[self.name_of] = places[self.entry_of]
        keys = list(dict.fromkeys(key for version in versions for key in version.dvs))
        found = pc.index_in(strings(["/".join(map(str, key)) for key in keys]), value_set=names.dictionary)
        self.name_of_key = dict(zip(keys, found.to_pylist(), strict=True))

    def changes(self) -> pa.Table:
        """Rows of FILE_CHANGES."""
        kinds = _column(self.entries, "kind")
        rows: list[_Row] = []
        at = self.begin
        for version in self.versions:
            files = self.files[at : at + version.delta.num_rows]
            adds = kinds[at : at + version.delta.num_rows] == ADD
            at += version.delta.num_rows
            try:
                rows += self._taken_back(version, set(files[adds].tolist()), set(files[~adds].tolist()))
            except DamagedTableError as damage:
                raise placed(self.layout, damage, version.file.id) from None
        return self._table(rows)

    def _taken_back(self, version: _Version, added: set[int], deleted: set[int]) -> Iterator[_Row]:
        """Undo a commit. Yields its rows of the log."""
        dvs = {name: both for key, both in version.dvs.items() if (name := self.name_of_key[key]) is not None}
        after = self._logical(dvs)
        # A file that one commit both adds and deletes was never live.
        for file in added - deleted:
            if self.live[self.name_of[file]] == file:
                self.live[self.name_of[file]] = -1
        for file in deleted - added:
            self.live[self.name_of[file]] = file
        before = self._logical(dvs)
        for name in before.keys() | after.keys():
            old, new = dvs.get(name, (None, None))
            if self._alike(before.get(name), after.get(name)) and _place(old) == _place(new):
                continue
            if name in before:
                yield _Row(version.file.id, False, *before[name], old)
            if name in after:
                yield _Row(version.file.id, True, *after[name], new)

    def _alike(self, old: tuple[int, int] | None, new: tuple[int, int] | None) -> bool:
        """Whether two files of one name are the same file, even if their levels differ."""
        if old is None or new is None or old == new:
            return old == new
        places = self.entries["external_path"]
        was, now = (places[int(self.entry_of[file])] for file, _ in (old, new))
        return old[1] == new[1] and was.equals(now)

    def _logical(self, names: Collection[int]) -> _Logical:
        """The live files that have these names; with data evolution, all live files of their buckets."""
        if not self.options.data_evolution:
            files = [(name, file) for name in names if (file := int(self.live[name])) >= 0]
            return {name: (file, int(self.sizes[file])) for name, file in files if self.seen[file]}
        near = np.isin(self.place_of, self.place_of[[*names]]) & (self.live >= 0)
        members = self.live[near]
        anchor = numbers(anchors(self.entries.take(int64s(self.entry_of[members].tolist()))))
        sizes = np.zeros(len(members), np.int64)
        np.add.at(sizes, anchor, self.sizes[members])
        return {
            int(self.name_of[file]): (file, size)
            for place, (file, size) in enumerate(zip(members.tolist(), sizes.tolist(), strict=True))
            if anchor[place] == place and self.seen[file]
        }

    def _table(self, rows: list[_Row]) -> pa.Table:
        rows = self._counted(rows)
        entries = self.entries.take(int64s(self.entry_of[[row.file for row in rows]].tolist()))
        first = self.versions[-1].file.id if self.versions else 0
        codes = entries["partition"].combine_chunks().cast(pa.int32())
        names = strings([each.name for each in self.partitions.found] or [""])
        columns = {
            "commit": int64s([row.version - first for row in rows]),
            "added": bools(np.array([row.added for row in rows], bool)),
            "path": paths(self.layout, entries, self.partitions, self.options.data_folder),
            "dv_id": strings([row.dv.id if row.dv else None for row in rows]),
            "partition": pa.DictionaryArray.from_arrays(codes, names),
            "size": int64s([row.size for row in rows]),
            "physical_rows": entries["rows"],
            "deleted_rows": int64s([(row.dv.cardinality or 0) if row.dv else 0 for row in rows]),
        }
        table = pa.Table.from_arrays(list(columns.values()), schema=FILE_CHANGES)
        table = table.take(pc.sort_indices(table, [(name, "ascending") for name in ("commit", "added", "path")]))
        wrong = pc.greater(table["deleted_rows"], table["physical_rows"])
        if pc.any(wrong).as_py():
            row = table.filter(wrong).slice(0, 1).to_pylist()[0]
            message = (
                f"{row['path']} has {row['physical_rows']} rows, but its deletion vector names {row['deleted_rows']}"
            )
            raise placed(self.layout, DamagedTableError(message), first + row["commit"])
        return table

    def _counted(self, rows: list[_Row]) -> list[_Row]:
        """Add cardinalities that the index manifest lacks (writers before 1.0), counted from the index files."""
        unknown: dict[int, list[DvEntry]] = defaultdict(list)
        for row in rows:
            if row.dv is not None and row.dv.cardinality is None:
                unknown[row.version].append(row.dv)
        if not unknown:
            return rows
        known = {(version, dv.id): dv for version, dvs in unknown.items() for dv in counted(self.layout, dvs, version)}
        return [replace(row, dv=known.get((row.version, row.dv.id), row.dv)) if row.dv else row for row in rows]


def _names(entries: pa.Table) -> pa.StringArray:
    """Partition, bucket and name of each entry as one text. They identify a DV's data file."""
    columns = [entries[name].cast(pa.string()).combine_chunks() for name in ("partition", "bucket", "file_name")]
    return pc.binary_join_element_wise(*columns, text("/"))


def _column(entries: pa.Table, name: str) -> Any:
    """A column without nulls, as NumPy numbers."""
    return numbers(entries[name].combine_chunks())

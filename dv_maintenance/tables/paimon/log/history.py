"""The history of a Paimon table, snapshot by snapshot.

The delta list of a snapshot records how its files changed. How its deletion vectors changed follows from comparing its
index manifest with that of the previous snapshot: an index manifest holds the whole state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedDeletionVectorError, UsageError
from dv_maintenance.files.arrays import integer
from dv_maintenance.storage import Storage
from dv_maintenance.tables.model import Change, Changes, HistoryEntry, OldestDv
from dv_maintenance.tables.paimon.features import Options
from dv_maintenance.tables.paimon.layout import Layout, table_layout
from dv_maintenance.tables.paimon.log.index_manifest import DvEntry, read_index_manifest
from dv_maintenance.tables.paimon.log.manifests import ADD, DELETE, delta_entries
from dv_maintenance.tables.paimon.log.schema import newest_schema
from dv_maintenance.tables.paimon.log.snapshots import SnapshotFile, all_versions, read_snapshot_file
from dv_maintenance.tables.paimon.rows.files import counted
from dv_maintenance.tables.paimon.rows.partitions import Partitions
from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot
from dv_maintenance.tables.versions import numbered_changes

_APPEND: Final = "APPEND"
_COMPACT: Final = "COMPACT"
_ANALYZE: Final = "ANALYZE"

# Fields of a snapshot file that a history reports as parameters and as metrics.
_PARAMETERS: Final = {"commitUser": "commit_user", "commitIdentifier": "commit_identifier", "operation": "operation"}
_METRICS: Final = {
    "totalRecordCount": "total_records",
    "deltaRecordCount": "delta_records",
    "changelogRecordCount": "changelog_records",
}

# By partition, bucket and name of the data file.
Dvs = dict[tuple[int, int, str], DvEntry]


def history(storage: Storage, limit: int | None = None) -> list[HistoryEntry]:
    """The existing snapshots, newest first, at most ``limit``.

    ``operation`` is Paimon's commit kind. If the predecessor of a snapshot has expired, the snapshot's new deletion
    vectors are unknown, and its DV numbers are 0.

    Reads the file, the delta and the index manifest of each snapshot. Reads index files only if a DV from a writer
    before 1.0 was added or removed.

    Raises
    ------
    UsageError : ``limit`` is negative.
    TableNotFoundError, DamagedTableError, UnsupportedFeatureError, RefusedError : as ``snapshot.load_snapshot``.
    """
    if limit is not None and limit < 0:
        raise UsageError(f"the limit is negative: {limit}", next_step="give 0 or more")
    reader = SnapshotReader.of(storage)
    versions = all_versions(reader.layout)[::-1]
    wanted = versions if limit is None else versions[:limit]
    found: list[HistoryEntry] = []
    after: SnapshotFile | None = None
    for file in reader.files(versions[: len(wanted) + 1] if wanted else []):
        if after is not None:
            found.append(reader.entry(after, file if file.id == after.id - 1 else None))
        after = file
    # The oldest one has no predecessor here: it has none at all, or the predecessor is not requested.
    if after is not None and len(found) < len(wanted):
        found.append(reader.entry(after, None))
    return found


def changes_since(storage: Storage, version: int | None) -> Changes:
    """The snapshots after ``version``. Expired ones are not in ``commits``. They count as data-changing, because their
    changes are unknown.

    Raises
    ------
    UsageError : the table has no such snapshot.
    TableNotFoundError, DamagedTableError, UnsupportedFeatureError, RefusedError : as :func:`history`.
    """
    reader = SnapshotReader.of(storage)
    versions = all_versions(reader.layout)
    newest = versions[-1] if versions else 0
    if version is not None and not -1 <= version <= newest:
        raise UsageError(
            f"there is no snapshot {version}",
            table=storage.uri,
            next_step=f"the newest is {newest}: check whether the table was replaced or rolled back",
        )
    commits = []
    before: SnapshotFile | None = None
    # The first snapshot is compared with its predecessor, so that is read, too.
    after = 0 if version is None else version
    for file in reader.files([each for each in versions if each >= after]):
        if file.id > after:
            known = before if before is not None and before.id == file.id - 1 else None
            commits.append(Change(file.id, file.timestamp, file.kind, reader.data_changed(file, known)))
        before = file
    return numbered_changes(version, newest, commits, first=1)


def oldest_dv(storage: Storage, snapshot: PaimonSnapshot, limit: int = 1000) -> OldestDv | None:
    """When the oldest DV of a live file was committed.

    Walks back for as long as any of these files has a DV. DV ids can't be compared: a delete that changes the DV of one
    file also moves those of other files.

    Raises
    ------
    DamagedTableError, UnsupportedFeatureError, RefusedError : as :func:`history`.
    """
    gone = {dv.id for dv in snapshot.dangling}
    live = {dv.data_file for dv in snapshot.index.dvs if dv.id not in gone}
    if not live or snapshot.file is None:
        return None
    reader = SnapshotReader.of(storage)
    versions = [each for each in all_versions(reader.layout) if each < snapshot.version][::-1]
    newest_without, oldest_with = snapshot.version + 1, snapshot.file
    same = snapshot.file.index_manifest
    for file in reader.files(versions[:limit]):
        if file.index_manifest != same:
            same = file.index_manifest
            if not live & {dv.data_file for dv in reader.dvs(file).values()}:
                newest_without = file.id
                break
        oldest_with = file
    # If snapshots between the two have expired, one of them may have added the DV.
    exact = newest_without == oldest_with.id - 1 or oldest_with.id == 1
    return OldestDv(oldest_with.timestamp, exact=exact)


# -- one snapshot -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DvDifference:
    """How the DVs of two snapshots differ.

    added, removed : number of DVs.
    rows : number of rows that the new DVs name beyond the previous DVs of the same files.
    of_staying : whether the DV of a file that stays live has changed.
    """

    added: int = 0
    removed: int = 0
    rows: int = 0
    of_staying: bool = False


@dataclass(slots=True)
class SnapshotReader:
    """Compares consecutive snapshots of a table."""

    layout: Layout
    partitions: Partitions
    options: Options

    @classmethod
    def of(cls, storage: Storage) -> SnapshotReader:
        layout = table_layout(storage)
        schema = newest_schema(layout)
        options = Options(schema.options, bool(schema.primary_keys))
        return cls(layout, Partitions(schema.partition_fields(), schema.options), options)

    def files(self, versions: Sequence[int]) -> Iterator[SnapshotFile]:
        """The snapshot files in the given order. Skips those that expire during the read."""
        for version in versions:
            try:
                yield read_snapshot_file(self.layout, version)
            except FileNotFoundError:
                continue

    def entry(self, file: SnapshotFile, before: SnapshotFile | None) -> HistoryEntry:
        delta = delta_entries(self.layout, file, self.partitions)
        known = before is not None or file.id == 1
        difference = self._dv_difference(file, before, delta) if known else DvDifference()
        kinds = delta["kind"]
        body: dict[str, Any] = dict(file.body)
        writer = body.get("writerVersion")
        return HistoryEntry(
            version=file.id,
            timestamp=file.timestamp,
            operation=file.kind,
            parameters={name: body[key] for key, name in _PARAMETERS.items() if body.get(key) is not None},
            metrics={name: body[key] for key, name in _METRICS.items() if body.get(key) is not None},
            engine=writer if isinstance(writer, str) else None,
            files_added=_count(pc.equal(kinds, integer(ADD))),
            files_removed=_count(pc.equal(kinds, integer(DELETE))),
            dvs_added=difference.added,
            dvs_removed=difference.removed,
            rows_deleted_by_dvs=difference.rows,
            data_changed=self.changed(file, delta, difference if known else None),
        )

    def data_changed(self, file: SnapshotFile, before: SnapshotFile | None) -> bool:
        if file.kind == _ANALYZE:
            return False
        delta = delta_entries(self.layout, file, self.partitions)
        if before is None and file.id > 1:
            return self.changed(file, delta, None)
        return self.changed(file, delta, self._dv_difference(file, before, delta))

    def changed(self, file: SnapshotFile, delta: pa.Table, dvs: DvDifference | None) -> bool:
        """Whether a query returns other rows than before. ``dvs``: ``None`` if the difference is unknown."""
        if file.kind == _ANALYZE:
            return False
        touched = bool(delta.num_rows) or dvs is None or bool(dvs.added or dvs.removed)
        if self.options.hides_level_0:
            # Readers skip level 0: rows become visible when a compaction moves them up.
            only_level_0 = not _count(pc.greater(delta["level"], integer(0)))
            if file.kind == _APPEND and only_level_0 and dvs is not None and not dvs.of_staying:
                return False
            if file.kind == _COMPACT:
                return dvs is None or dvs.of_staying or bool(_count(pc.equal(delta["level"], integer(0))))
            return touched
        if file.kind != _COMPACT:
            return touched
        if self.options.primary_key:
            return False
        # Writers before 1.0 record even a DELETE that only writes deletion vectors as COMPACT. Without a predecessor
        # to compare with, a snapshot that changes no files may be such a DELETE.
        if dvs is None:
            return not delta.num_rows
        return dvs.of_staying

    # -- deletion vectors -----------------------------------------------------------------------------------------

    def dvs(self, file: SnapshotFile) -> Dvs:
        manifest = read_index_manifest(self.layout, file.index_manifest, self.partitions, self.options.values, file.id)
        return {(dv.partition, dv.bucket, dv.data_file): dv for dv in manifest.dvs}

    def _dv_difference(self, file: SnapshotFile, before: SnapshotFile | None, delta: pa.Table) -> DvDifference:
        earlier = before.index_manifest if before is not None else None
        if file.index_manifest == earlier:
            return DvDifference()
        return self.difference(file, self.dvs(before) if before is not None else {}, self.dvs(file), delta)

    def difference(self, file: SnapshotFile, olds: Dvs, news: Dvs, delta: pa.Table) -> DvDifference:
        """How the DVs of a snapshot differ from those of its predecessor.

        olds, news : DVs of the predecessor and of the snapshot.
        delta : entries of the snapshot's delta list.
        """
        kept = {dv.id for dv in olds.values()} & {dv.id for dv in news.values()}
        gone = {key: dv for key, dv in olds.items() if dv.id not in kept}
        came = {key: dv for key, dv in news.items() if dv.id not in kept}
        counts_gone, counts_came = self._counts(gone, file.id), self._counts(came, file.id)
        # If one DV of an index file changes, the whole file is rewritten. Its other DVs move, but name the same rows.
        moved = {
            key
            for key in gone.keys() & came.keys()
            if counts_gone[key] is not None and counts_gone[key] == counts_came[key]
        }
        others = self._removed(delta) | self._added(delta)
        rows = sum((counts_came[key] or 0) - (counts_gone.get(key) or 0) for key in came.keys() - moved)
        return DvDifference(
            added=len(came.keys() - moved),
            removed=len(gone.keys() - moved),
            rows=rows,
            of_staying=bool(((came.keys() | gone.keys()) - moved) - others),
        )

    def _removed(self, delta: pa.Table) -> set[tuple[int, int, str]]:
        """The data files that a snapshot removes. Excludes files that only change their level."""
        return _files(delta, DELETE) - _files(delta, ADD)

    def _added(self, delta: pa.Table) -> set[tuple[int, int, str]]:
        """The data files that a snapshot adds. They have DVs if deletes were carried over to them."""
        return _files(delta, ADD) - _files(delta, DELETE)

    def _counts(self, dvs: Dvs, version: int) -> dict[tuple[int, int, str], int | None]:
        """Cardinality of each DV; ``None`` if the manifest lacks it and an index file can't be read."""
        try:
            whole = counted(self.layout, list(dvs.values()), version)
            return {key: dv.cardinality for key, dv in zip(dvs, whole, strict=True)}
        except DamagedDeletionVectorError:
            return {key: dv.cardinality for key, dv in dvs.items()}


def _files(delta: pa.Table, kind: int) -> set[tuple[int, int, str]]:
    """Partition, bucket and name of the files that a delta adds or deletes."""
    rows = delta.filter(pc.equal(delta["kind"], integer(kind)))
    return set(zip(*(rows[name].to_pylist() for name in ("partition", "bucket", "file_name")), strict=True))


def _count(values: pa.ChunkedArray) -> int:
    return int(pc.sum(values).as_py() or 0)

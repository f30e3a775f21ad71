"""The history of a table: the snapshots of a branch, each with what its own manifests added and removed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError, UsageError
from dv_maintenance.files.arrays import integer
from dv_maintenance.tables.iceberg.layout import Layout
from dv_maintenance.tables.iceberg.log.manifests import (
    ADDED,
    DATA,
    DELETED,
    DELETES,
    ENTRIES,
    POSITIONS,
    ManifestEntries,
    manifests_of,
    placed,
    read_entries,
)
from dv_maintenance.tables.iceberg.log.metadata import NO_SNAPSHOT, Metadata, SnapshotEntry, load_metadata
from dv_maintenance.tables.iceberg.rows.partitions import Partitions
from dv_maintenance.tables.model import Change, Changes, HistoryEntry, OldestDv

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot

OURS: Final = "dv-maintenance-version"
"""In the summary of a snapshot, the release of this package that committed it."""
_REPLACE: Final = "replace"


def data_changed(entry: SnapshotEntry) -> bool:
    """Whether a query returns other rows than before. Format: a ``replace`` adds and removes files without changing the
    table's data.
    """
    return entry.operation != _REPLACE


def history(layout: Layout, limit: int | None = None) -> list[HistoryEntry]:
    """The snapshots of the branch that still exist, newest first, at most ``limit``.

    Reads the manifest list of each, and the manifests that it added.

    Raises
    ------
    UsageError : ``limit`` is negative.
    TableNotFoundError, DamagedTableError, UnsupportedFeatureError, RefusedError : as ``snapshot.load_snapshot``.
    """
    if limit is not None and limit < 0:
        raise UsageError(f"the limit is negative: {limit}", next_step="give 0 or more")
    metadata = load_metadata(layout)
    reader = _OwnEntries(layout, metadata)
    found: list[HistoryEntry] = []
    for entry in metadata.ancestors(metadata.current):
        if limit is not None and len(found) >= limit:
            break
        found.append(reader.described(entry))
    return found


def changes_since(layout: Layout, version: int | None) -> Changes:
    """The snapshots after ``version``. If ``version`` has expired, those that expired with it count as data-changing.

    Raises
    ------
    UsageError : the newest snapshot does not follow from ``version``.
    TableNotFoundError, DamagedTableError, UnsupportedFeatureError, RefusedError : as ``metadata.load_metadata``.
    """
    metadata = load_metadata(layout)
    chain = list(metadata.ancestors(metadata.current))
    ids = [each.id for each in chain]
    start = NO_SNAPSHOT if version is None else version
    first = NO_SNAPSHOT if not chain or chain[-1].parent is None else chain[-1].parent
    if start in ids:
        chain = chain[: ids.index(start)]
    elif start != first and (first == NO_SNAPSHOT or start in metadata.snapshots):
        raise UsageError(
            f"the newest snapshot does not follow from {start}",
            table=layout.uri,
            next_step="check whether the table was replaced or rolled back",
        )
    commits = tuple(Change(each.id, each.timestamp, each.operation, data_changed(each)) for each in chain[::-1])
    changing = [change.version for change in commits if change.data_changed]
    # Between an expired snapshot and the oldest one there may have been others.
    unseen = start not in ids and start != first
    data_version = changing[-1] if changing else commits[0].version if unseen and commits else None
    return Changes(version, metadata.version, data_version, commits)


def oldest_dv(layout: Layout, snapshot: IcebergSnapshot, limit: int = 1000) -> OldestDv | None:
    """When the oldest of the files with deleted rows got its first ones. Reads manifests of delete files only.

    Raises
    ------
    DamagedTableError, UnsupportedFeatureError, RefusedError : as ``snapshot.load_snapshot``.
    """
    bearing = set(snapshot.files["path"].filter(pc.is_valid(snapshot.files["dv_file"])).to_pylist())
    own = snapshot.of_one_file
    bearing |= {path for path, files in snapshot.matched.position_files.items() if not own.keys().isdisjoint(files)}
    found = _oldest_positions(snapshot, own)
    partitions, known = Partitions.of(snapshot.metadata, snapshot.partitions), snapshot.entries
    oldest: SnapshotEntry | None = None
    exact = True
    for number, entry in enumerate(snapshot.metadata.ancestors(snapshot.version)):
        if not bearing or number > limit:
            exact = not bearing
            break
        wanted = [each for each in manifests_of(layout, entry) if each.content == DELETES]
        known = read_entries(layout, entry, partitions, known, wanted)
        bearing &= set(known.live(DELETES)["referenced"].to_pylist())
        if bearing:
            oldest, exact = entry, entry.parent is None
    if oldest is None:
        return found
    dv = OldestDv(oldest.timestamp, exact=exact or not bearing)
    return dv if found is None or dv.timestamp <= found.timestamp else found


def _oldest_positions(snapshot: IcebergSnapshot, own: Collection[str]) -> OldestDv | None:
    """When the oldest position delete file was committed. ``own``: those that replace others, and are left out."""
    used = {path for some in snapshot.matched.position_files.values() for path in some}.difference(own)
    columns = (snapshot.deletes.positions[name].to_pylist() for name in ("path", "file_sequence"))
    sequences = [sequence for path, sequence in zip(*columns, strict=True) if path in used]
    if not sequences:
        return None
    times = {each.sequence: each.timestamp for each in snapshot.metadata.snapshots.values()}
    first = min(sequences)
    later = min((number for number in times if number >= first), default=None)
    return None if later is None else OldestDv(times[later], exact=later == first)


# -- one snapshot ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _OwnEntries:
    """Reads what each snapshot itself added and removed."""

    layout: Layout
    metadata: Metadata

    def of(self, entry: SnapshotEntry) -> ManifestEntries:
        partitions = Partitions.of(self.metadata)
        own = [each for each in manifests_of(self.layout, entry) if each.snapshot_id in {entry.id, None}]
        return read_entries(self.layout, entry, partitions, None, own)

    def described(self, entry: SnapshotEntry) -> HistoryEntry:
        try:
            own = self.of(entry)
        except DamagedTableError as damage:
            raise damage if damage.table else placed(self.layout, damage, entry.id) from None
        data, deletes = (self._changed(own, entry, content) for content in (DATA, DELETES))
        dvs = deletes.filter(pc.equal(deletes["content"], integer(POSITIONS)))
        added, removed = (dict(_cardinalities(dvs, status)) for status in (ADDED, DELETED))
        summary = dict(entry.summary)
        engine = " ".join(filter(None, (summary.get("engine-name"), summary.get("engine-version"))))
        metrics = {name: int(text) for name, text in summary.items() if text.isdigit()}
        return HistoryEntry(
            version=entry.id,
            timestamp=entry.timestamp,
            operation=entry.operation,
            parameters={
                name: text for name, text in summary.items() if name not in metrics and name not in _NOT_PARAMETERS
            },
            metrics=metrics,
            engine=engine or summary.get("iceberg-version"),
            files_added=_count(data, ADDED),
            files_removed=_count(data, DELETED),
            dvs_added=len(added),
            dvs_removed=len(removed),
            rows_deleted_by_dvs=sum(rows - removed.get(file, 0) for file, rows in added.items()),
            data_changed=data_changed(entry),
        )

    def _changed(self, own: ManifestEntries, entry: SnapshotEntry, content: int) -> pa.Table:
        parts = [each for manifest, each in own.by_manifest.items() if manifest.content == content]
        whole = pa.concat_tables([ENTRIES.empty_table(), *parts])
        return whole.filter(pc.equal(whole["snapshot_id"], integer(entry.id)))


_NOT_PARAMETERS: Final = {"operation", "engine-name", "engine-version", "iceberg-version"}


def _count(entries: pa.Table, status: int) -> int:
    return int(pc.sum(pc.equal(entries["status"], integer(status))).as_py() or 0)


def _cardinalities(dvs: pa.Table, status: int) -> Iterator[tuple[str, int]]:
    """Rows by data file, those of position deletes of several data files by the path of their own file."""
    chosen = dvs.filter(pc.equal(dvs["status"], integer(status)))
    names = pc.coalesce(chosen["referenced"], chosen["path"])
    return zip(names.to_pylist(), chosen["record_count"].to_pylist(), strict=True)

"""What keeps files of a Delta table: its current state, and on request pinned versions, streams and shallow clones.

A file is needed if any of these names it, in this order:

1. a live logical file, as its data file or as the file of its deletion vector (DV), whatever its age;
2. a tombstone inside the retention, in the same way (``deletionTimestamp >= cutoff``), so that every version inside the
   retention stays readable (protocol: Remove File; the time is the writer's, which may be the start of a long job);
3. one of them by an absolute path with the same base name, see ``Named``;
4. a pinned version, a stream or a clone.

DV files are decided as a whole: one file holds many DVs, and is kept while any of them is needed. A replaced DV leaves
the tombstone (data path, old DV): the data path is still live, and only the DV file expires.

The state of a version never names change data (``_change_data``), so only its age protects it, as in the reference
implementation. The log records neither pins nor streams nor clones: without being named, their readers depend on a long
enough retention.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DvMaintenanceError, RefusedError
from dv_maintenance.files.arrays import integer, strings
from dv_maintenance.remedies import Remedy, setting
from dv_maintenance.storage import RawName, Storage
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.replay import tombstones
from dv_maintenance.tables.delta.log.segment import commit_files, read_commits
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.delta.vacuum.names import Named, named_by, named_in, paths_of
from dv_maintenance.tables.delta.vacuum.streams import stream_offset
from dv_maintenance.tables.reach.needed import Needed, pinned
from dv_maintenance.units import count

if TYPE_CHECKING:
    from dv_maintenance.tables.guard import VacuumRequest

LIVE: Final = "in the current version"
RECENT: Final = "removed inside the retention"
ELSEWHERE: Final = "of the same name as a file that the log places outside the table"


def add_state(
    needed: Needed,
    storage: Storage,
    snapshot: DeltaSnapshot,
    removed: pa.Table,
    cutoff: int,
    forgotten: Iterable[str] = (),
) -> None:
    """Add the files that a snapshot and its tombstones (see ``replay.tombstones``) name.

    forgotten : paths removed inside the retention whose tombstones the log may have dropped.

    Raises
    ------
    DamagedTableError : the file of a live or unexpired DV can't be determined; deleting would be guessing.
    """
    live, recent = named_in(storage, snapshot.files), named_in(storage, removed.filter(inside(removed, cutoff)))
    needed.add(live.paths, LIVE)
    needed.add(recent.paths, RECENT)
    needed.add(forgotten, RECENT)
    needed.add(live.elsewhere | recent.elsewhere, ELSEWHERE, anywhere=True)


def inside(removed: pa.Table, cutoff: int) -> pa.ChunkedArray:
    """Which tombstones are inside the retention."""
    return pc.greater_equal(removed["deletion_timestamp"], integer(cutoff))


@dataclass(frozen=True, slots=True)
class Protected:
    """Files that the caller wants to keep.

    needed : each file, with the first item that names it.
    reasons : one for each item, in the order of reports.
    """

    needed: Needed
    reasons: tuple[str, ...]

    def summary(self, gone: Iterable[str]) -> tuple[str, ...]:
        """Each reason with its number of files. ``gone``: protected paths that no longer exist."""
        counts, lost = self.needed.count(), Counter(map(self.needed.why, gone))
        return tuple(
            f"{reason}: {count(counts[reason], 'file')}"
            + (f", {lost[reason]:,} of them gone already" if lost[reason] else "")
            for reason in self.reasons
        )


def protected_files(storage: Storage, snapshot: DeltaSnapshot, request: VacuumRequest) -> Protected:
    """Every file that the guard and the clones of ``request`` protect.

    Raises
    ------
    RefusedError : a version, checkpoint or clone can't be read, or a stream does not read this table.
    StorageError : reading failed.
    """
    needed, reasons = Needed(), []
    for reason, named in _protected(storage, snapshot, request):
        needed.add(named.paths, reason)
        needed.add(named.elsewhere, reason, anywhere=True)
        reasons.append(reason)
    return Protected(needed, tuple(reasons))


def _protected(storage: Storage, snapshot: DeltaSnapshot, request: VacuumRequest) -> Iterator[tuple[str, Named]]:
    for version in dict.fromkeys(request.guard.versions):
        yield pinned(version), _version(storage, snapshot, version)
    for place in dict.fromkeys(request.guard.streams):
        yield _stream(storage, snapshot, place)
    for place in dict.fromkeys(request.clones):
        yield f"of the clone {place}", _clone(storage, snapshot, place)


def _refused(snapshot: DeltaSnapshot, problem: str, next_step: str | Remedy) -> RefusedError:
    return RefusedError(problem, at=snapshot, next_step=next_step)


def _version(storage: Storage, snapshot: DeltaSnapshot, version: int) -> Named:
    try:
        old = snapshot if version == snapshot.version else load_snapshot(storage, version)
    except DvMaintenanceError as error:
        raise _refused(
            snapshot,
            f"version {version} is to be protected, but can't be read: {error.message}",
            Remedy("remove it from {} if it is no longer needed", (setting("protected_versions"),)),
        ) from error
    return named_in(storage, old.files)


def _stream(storage: Storage, snapshot: DeltaSnapshot, place: str) -> tuple[str, Named]:
    """The reason, and the files that the stream may read; a change feed also reads removed files."""
    at = stream_offset(Storage(place, storage.options), snapshot.metadata.id)
    if at is None:
        return f"for the stream {place}, which has not started", Named(set(), set())
    files = [file for file in commit_files(storage)[0] if file.end >= at.version]
    wanted = at.version + 1 if at.initial else max(at.version, 0)
    if at.version >= 0 and wanted <= snapshot.version and (not files or min(file.start for file in files) > wanted):
        raise _refused(
            snapshot,
            f"the stream {place} continues at version {at.version}, whose commit is no longer in the log",
            Remedy(
                "start that stream with a new checkpoint, and remove the old one from {}",
                (setting("protected_streams"),),
            ),
        )
    found = _version(storage, snapshot, at.version) if at.initial else Named(set(), set())
    for _, actions in read_commits(storage, files):
        for known, more in zip(found, named_by(storage, actions), strict=True):
            known.update(more)
    where = f"continues at version {at.version}" if at.version >= 0 else "has not finished a batch yet"
    return f"for the stream {place}, which {where}", found


def _clone(storage: Storage, snapshot: DeltaSnapshot, place: str) -> Named:
    """Files of this table that the clone names, in its newest version or in a tombstone."""
    clone = Storage(place, storage.options)
    if clone.uri == storage.uri:
        raise _refused(snapshot, f"{place} is the table itself, not a clone of it", "name its clones only")
    try:
        absolute = _absolute_names(clone)
    except DvMaintenanceError as error:
        raise _refused(
            snapshot,
            f"the clone {place} can't be read: {error.message}",
            Remedy("correct its path in {}, or leave it out if the clone was deleted", (setting("clones"),)),
        ) from error
    return paths_of(storage, strings(absolute))


def is_clone(place: Storage) -> bool:
    """Whether the table at ``place`` names files by absolute path, as shallow clones do. Does not check which table
    owns the files, since a location may have several spellings. Raises as ``load_snapshot``.
    """
    return bool(_absolute_names(place))


def _absolute_names(clone: Storage) -> list[str]:
    """The absolute names in a clone's log. Relative names are files of the clone itself."""
    newest = load_snapshot(clone)
    tables = (newest.files, tombstones(clone, newest))
    names = {name for table in tables for name in table["path"].to_pylist()}
    for table in tables:
        for dv in table["dv"].combine_chunks().drop_null().to_pylist():
            if dv["storage_type"] == "p":
                names.add(dv["path_or_inline"])
    return [name for name in names if "://" in clone.path_of(RawName(name))]

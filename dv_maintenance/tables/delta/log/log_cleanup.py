"""Delete the beginning of a log: the files that no version from a given checkpoint on needs.

A log may begin at any checkpoint. If the feature ``checkpointProtection`` guards the log before a version, that part is
deleted as a whole or not at all. (protocol: Checkpoint Protection; the cutoff is that of delta-spark's own clean-up)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import DamagedTableError, RefusedError, StorageError
from dv_maintenance.storage import staged_for
from dv_maintenance.storage.rehearsal import Rehearsal
from dv_maintenance.tables.delta.features import check_writable
from dv_maintenance.tables.delta.load import load_snapshot, passed_over
from dv_maintenance.tables.delta.log.checkpoint_writer import write_checkpoint
from dv_maintenance.tables.delta.log.pointer import POINTER, described, point_to, problem
from dv_maintenance.tables.delta.log.ratified import STAGED, RatifiedStorage
from dv_maintenance.tables.delta.log.replay import replay
from dv_maintenance.tables.delta.log.segment import LOG, CommitFile, checkpoint_path, segment
from dv_maintenance.tables.delta.log.timeline import modified_times
from dv_maintenance.tables.delta.permissions import check_permitted
from dv_maintenance.tables.delta.same_table import check_same_table
from dv_maintenance.tables.delta.vacuum.retention import interval_millis
from dv_maintenance.tables.reports import CheckpointReport
from dv_maintenance.units import DAY, epoch_millis, parse_count

if TYPE_CHECKING:
    from dv_maintenance.storage import FileInfo, Storage
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot

_RETENTION: Final = "delta.logRetentionDuration"
_ALL_VERSIONS: Final = 2**63 - 1
_DEFAULT_RETENTION: Final = "interval 30 days"
_CLEANS: Final = "delta.enableExpiredLogCleanup"
_PROTECTED_BEFORE: Final = "delta.requireCheckpointProtectionBeforeVersion"

# Commits, compacted commits, checksums and checkpoints of every kind, plus Hadoop's local checksums of these and files
# staged for these on local disk.
_VERSIONED: Final = re.compile(rf"{LOG}/\.?(\d{{20}})\.(?:json|crc|checkpoint|\d{{20}}\.compacted\.json)(?:\.|#|$)")
_COMMIT: Final = re.compile(rf"{LOG}/(\d{{20}})\.json")
_CHECKPOINT: Final = re.compile(
    rf"{LOG}/(\d{{20}})\.checkpoint\.(?:\d{{10}}\.(?P<parts>\d{{10}})\.|[0-9a-fA-F-]{{36}}\.)?(?:parquet|json)"
)
_BATCH: Final = 1000


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The versioned files of a log.

    files : version and path of each file, sorted.
    commits : the commit files, by version.
    checkpoints : versions that have a complete checkpoint.
    """

    files: tuple[tuple[int, str], ...]
    commits: Mapping[int, FileInfo]
    checkpoints: frozenset[int]

    @property
    def oldest(self) -> int:
        """The lowest version that has a file. Staged files do not count: their version may be long gone."""
        names = (version for version, path in self.files if staged_for(path) is None and not path.startswith(STAGED))
        return min(names, default=0)

    def modified(self, version: int) -> int:
        """Modification time of the version's commit file, in epoch milliseconds; 0 if the file is gone."""
        found = self.commits.get(version)
        return 0 if found is None else found.modified


def log_files(storage: Storage) -> LogFiles:
    """The files that ``_delta_log`` holds now. Raises StorageError."""
    everything = storage.list(LOG, staged=True)
    listed = [info for info in everything if staged_for(info.path) is None]
    files = [(int(match[1]), info.path) for info in everything if (match := _VERSIONED.match(info.path))]
    if isinstance(storage, RatifiedStorage):
        files += storage.staged()
    commits = {int(match[1]): info for info in listed if (match := _COMMIT.fullmatch(info.path))}
    parts = Counter(
        (int(match[1]), int(match["parts"] or 1)) for info in listed if (match := _CHECKPOINT.fullmatch(info.path))
    )
    complete = frozenset(version for (version, needed), found in parts.items() if found >= needed)
    return LogFiles(tuple(sorted(files)), commits, complete)


def delete_before(storage: Storage, listed: LogFiles, version: int, newest: DeltaSnapshot) -> int:
    """Delete the log files of versions before ``version``, and return how many there were.

    newest : the newest version.

    Deletes oldest first, so an interrupted run leaves a valid log that begins later. A compacted file is deleted with
    its first commit, since it repeats that commit.

    Raises
    ------
    DamagedTableError : the checkpoint of ``version`` can't be read to its end, so nothing was deleted.
    ConflictError : another table was created there since ``newest`` was read.
    StorageError : a deletion failed; some older files may be gone.
    """
    replay(storage, segment(storage, version), adds=("path",))
    doomed = [path for at, path in listed.files if at < version]
    try:
        for start in range(0, len(doomed), _BATCH):
            check_same_table(storage, newest)
            storage.delete(doomed[start : start + _BATCH])
    except StorageError as error:
        error.table = storage.uri
        error.done = f"the log's files of versions before {version} may be partly deleted; newer ones are unchanged"
        raise
    return len(doomed)


def protected_before(snapshot: DeltaSnapshot) -> int:
    """The version before which checkpoints are protected; 0 if none are, and beyond every version if it is unclear."""
    if "checkpointProtection" not in snapshot.protocol.features("writer"):
        return 0
    before = parse_count(snapshot.metadata.configuration.get(_PROTECTED_BEFORE, "0"))
    return _ALL_VERSIONS if before is None else before


def checkpoint(
    storage: Storage, *, clean_log: bool = False, dry_run: bool = False, now: int | None = None
) -> CheckpointReport:
    """Write the checkpoint of the newest version, unless there is one. With ``clean_log``, then delete log files older
    than ``delta.logRetentionDuration`` (30 days), counted from the last midnight (UTC). ``now``: epoch milliseconds.

    The newest checkpoint before that moment stays, and so does every version from it on. Sidecar files of v2
    checkpoints stay too.

    Raises
    ------
    RefusedError : log cleanup is off (``delta.enableExpiredLogCleanup``), or the retention is not a valid interval.
    UnsupportedFeatureError : the table's features forbid it. StorageError.
    """
    snapshot = load_snapshot(storage)
    check_writable(storage, snapshot, "log")
    if clean_log:
        check_permitted(storage, "clean_log")
    cutoff = _cutoff(snapshot, epoch_millis(now)) if clean_log else None
    before = log_files(storage).checkpoints
    damaged = _damaged(storage, snapshot)
    present = snapshot.version in before and not damaged
    pointer = problem(storage, before)
    target = Rehearsal.of(storage) if dry_run else storage
    if not present:
        write_checkpoint(target, snapshot, replace=damaged)
    elif pointer is not None:
        _renew_pointer(target, snapshot)
    last = max((version for version in before if version <= snapshot.version), default=None)
    listed = log_files(storage)
    # A dry run has not written it.
    listed = replace(listed, checkpoints=listed.checkpoints | {snapshot.version})
    first = None if cutoff is None else _first_kept(listed, cutoff, protected_before(snapshot), storage)
    doomed = [] if first is None else [path for at, path in listed.files if at < first]
    if first is not None:
        check_permitted(storage, "clean_log", ask=True)
        delete_before(target, listed, first, snapshot)
    return CheckpointReport(
        version=snapshot.version,
        written=not present and not dry_run,
        present=present,
        last=last,
        replayed=snapshot.version - (-1 if last is None else last),
        live_files=snapshot.files.num_rows,
        dry_run=dry_run,
        cutoff=cutoff,
        first_version=listed.oldest if first is None else max(first, listed.oldest),
        log_files_deleted=0 if dry_run else len(doomed),
        log_files_expired=len(doomed),
        pointer=pointer,
    )


def _damaged(storage: Storage, snapshot: DeltaSnapshot) -> bool:
    """Whether the checkpoint of the newest version is damaged, so that another must take its place. Raises
    DamagedTableError: readers would still prefer the damaged one.
    """
    found = passed_over(storage, snapshot)
    if found is None or found.checkpoint != snapshot.version:
        return False
    if found.paths == (checkpoint_path(snapshot.version),):
        return True
    raise DamagedTableError(
        found.damage,
        table=storage.uri,
        version=snapshot.version,
        next_step=f"move {' and '.join(found.paths)} out of the log, then run this again: no version needs the file",
    )


def _renew_pointer(storage: Storage, snapshot: DeltaSnapshot) -> None:
    """The newest version has a checkpoint. A table without a pointer can be read, too."""
    body = described(storage, snapshot.version, segment(storage, snapshot.version).checkpoint_files)
    if body is None:
        storage.delete([POINTER])
    else:
        point_to(storage, {snapshot.version}, body)


def _cutoff(snapshot: DeltaSnapshot, now: int) -> int:
    configuration = snapshot.metadata.configuration
    if configuration.get(_CLEANS, "true").lower() != "true":
        raise RefusedError(
            f"the table keeps its log ({_CLEANS} is {configuration[_CLEANS]})",
            at=snapshot,
            next_step=f"set {_CLEANS} to true if its history may be deleted",
        )
    try:
        return (now - interval_millis(configuration.get(_RETENTION, _DEFAULT_RETENTION))) // DAY * DAY
    except ValueError as error:
        raise RefusedError(
            f"{_RETENTION}: {error}",
            at=snapshot,
            next_step=f"set the table property to a value such as '{_DEFAULT_RETENTION}'",
        ) from None


def _first_kept(listed: LogFiles, cutoff: int, protected: int, storage: Storage) -> int | None:
    """The version that the log will begin with; ``None`` if nothing may be deleted."""
    unpublished = storage.known.unpublished if isinstance(storage, RatifiedStorage) else ()
    commits = [CommitFile(info.path, at, at, info.modified) for at, info in sorted(listed.commits.items())]
    # Without its commit file, the time of a version is unknown. It precedes every version that has one.
    times = modified_times(commits)
    old = [at for at in listed.checkpoints if at >= protected and times.get(at, 0) < cutoff]
    # A catalog still names the files of what it holds.
    return max((at for at in old if not unpublished or at <= min(unpublished)), default=None)

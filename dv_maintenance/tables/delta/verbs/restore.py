"""RESTORE: one commit that makes an older version the newest, also across changes of deletion vectors (DVs).

No data moves. The commit adds logical files (path, DV) of the old version that are not live now, and removes live ones
that the old version did not have. So the same Parquet file may be added with another DV, which brings deleted rows
back. Each attempt takes concurrent commits into account: a restore sets the table's state, whatever it was before.

**A concurrent vacuum** deletes exactly the files that a restore adds. A vacuum of this package can't leave a table
without its files, for these reasons:

* Each attempt checks all files *after* it read the version it builds on, and only if no vacuum is open there: every
  START up to it has its END, which follows the last delete. The commit is put-if-absent on the next version.
* If a vacuum's START is committed first, that put fails. The next attempt finds the START and refuses, or finds an END
  and checks every file again.
* If a vacuum's START is committed later, the vacuum reads the log after it, and finds the files live.

Vacuums that write no START, or do not read the log again after it (delta-spark's), can't be detected. So all files are
checked again after the commit. If one is missing, a second commit reverts the first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import ConflictError, DamagedTableError, DvMaintenanceError, RefusedError, UsageError
from dv_maintenance.remedies import Remedy, setting
from dv_maintenance.storage import RawName
from dv_maintenance.storage.rehearsal import Rehearsal
from dv_maintenance.tables.delta.commit.conflicts import Since
from dv_maintenance.tables.delta.commit.live_file import LiveFile
from dv_maintenance.tables.delta.commit.presence import listed, presence_of
from dv_maintenance.tables.delta.commit.publish import Draft, operation_info, publish
from dv_maintenance.tables.delta.features import check_single, check_writable, lacks_stamp
from dv_maintenance.tables.delta.load import load_snapshot, load_to_leave
from dv_maintenance.tables.delta.log.actions import Action, Metadata, Protocol
from dv_maintenance.tables.delta.log.bulk import dv_ids
from dv_maintenance.tables.delta.log.replay import full_state
from dv_maintenance.tables.delta.log.timeline import version_at
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.delta.vacuum.running import VacuumMark, marks_before, running_vacuums
from dv_maintenance.tables.delta.verbs.restored_state import (
    restored_domains,
    restored_metadata,
    restored_protocol,
    same_schema,
    unrestorable,
)
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.reports import RestoreReport
from dv_maintenance.units import epoch_millis

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

_OPERATION: Final = "RESTORE"


def restore(
    storage: Storage,
    *,
    version: int | None = None,
    timestamp: int | None = None,
    dry_run: bool = False,
    max_attempts: int = 10,
    vacuums_over: Collection[int] = (),
) -> RestoreReport:
    """Commit the state of ``version``, or of the newest version at ``timestamp`` (epoch milliseconds).

    Every data file and every DV file to restore is checked before the commit, and once more after it. Nothing is
    committed if the table is in that state already. ``vacuums_over``: versions of ``VACUUM START`` whose vacuums are
    known to have ended, though the log has no END for them.

    Raises
    ------
    UsageError : no such version or time, both, or neither.
    RefusedError : files are missing (names some), a vacuum is running, the table is append-only, or its features
        require something that the old files lack; nothing was committed. Or files were deleted during the commit, and a
        second commit reverted it: says so.
    UnsupportedFeatureError : the table may not be written.
    DamagedTableError : the size of a file to restore differs from the log; or files were deleted during the commit, and
        it could not be reverted.
    ConflictError, StorageError : see ``publish``.
    """
    if (version is None) == (timestamp is None):
        raise UsageError("give either a version or a time", table=storage.uri)
    now = _left(storage)
    check_writable(storage, now, "restore")
    wanted = version if version is not None else version_at(storage, now, timestamp or 0)
    old = now if wanted == now.version else load_snapshot(storage, wanted)
    check_writable(storage, old, "restore")
    check_single(old)
    if dry_run:
        storage = Rehearsal.of(storage)
    work = _Restore(storage, old, now, {"version": version, "timestamp": _sql_time(timestamp)}, vacuums_over)
    published = publish(storage, now, work.compose, writes="restore", max_attempts=max_attempts)
    before = work.now.version
    if dry_run:
        return work.result(before, before, attempts=0, dry_run=True)
    if published.version is not None:
        _check_presence_after(work, published.version)
    return work.result(before, before if published.version is None else published.version, attempts=published.attempts)


def _left(storage: Storage) -> DeltaSnapshot:
    """The version that a restore replaces: only its log must be readable."""
    try:
        return load_to_leave(storage)
    except DamagedTableError as damage:
        raise DamagedTableError(
            "no version can be restored: a restore adds a commit to the log, and the log can't be read: "
            f"{damage.message}",
            table=storage.uri,
            version=damage.version,
            next_step=damage.next_step,
        ) from damage


@dataclass(frozen=True, slots=True)
class _Plan:
    """The actions to commit to the table in its current state."""

    adds: Sequence[Action]
    removes: Sequence[LiveFile]
    protocol: Protocol
    metadata: Metadata
    domains: Sequence[Action]


@dataclass(slots=True)
class _Restore:
    """A restore of ``old``, planned again whenever the table changes. ``now``: the version that the plan is for."""

    storage: Storage
    old: DeltaSnapshot
    now: DeltaSnapshot
    parameters: Mapping[str, Any]
    vacuums_over: Collection[int] = ()
    takes_back: bool = False  # whether this reverts a restore of our own
    deleted_at: int = field(default_factory=epoch_millis)
    planned: _Plan | None = None
    _adds: pa.Table | None = None
    _marks: Sequence[VacuumMark] = field(init=False)  # up to the version that the restore began with

    def __post_init__(self) -> None:
        self._marks = marks_before(self.storage, self.now.version)

    def compose(self, since: Since) -> Draft | None:
        if since.version != self.now.version:
            # A vacuum may have started and ended since then, so earlier checks of files are no longer valid.
            self.planned = None
            self.now = _left(self.storage)
        self.refuse_beside_vacuums(since.vacuums)
        plan = self.plan(self.now)
        return self.draft(plan)

    def draft(self, plan: _Plan) -> Draft | None:
        actions: list[Action] = []
        if plan.protocol != self.now.protocol:
            actions.append({"protocol": plan.protocol.to_json()})
        if plan.metadata != self.now.metadata:
            actions.append({"metaData": plan.metadata.to_json()})
        actions += plan.domains
        actions += (file.remove(self.deleted_at, data_change=True) for file in plan.removes)
        actions += plan.adds
        if not actions and not lacks_stamp(self.now):
            return None
        info = operation_info(self.now, _OPERATION, {}, self._metrics(plan), blind=False)
        # With null for the parameter that was not given, as in delta-spark's commits.
        return Draft({**info, "operationParameters": self.parameters}, actions, protected=True)

    def plan(self, now: DeltaSnapshot) -> _Plan:
        if self.planned is None:
            self.planned = self._decide(now)
        return self.planned

    def _decide(self, now: DeltaSnapshot) -> _Plan:
        check_writable(self.storage, now, "restore")
        if problem := unrestorable(self.old.protocol, now.protocol):
            raise self._refused(problem, "restore it with the engine that wrote the table")
        adds, removes = self._difference(now)
        append_only = now.metadata.configuration.get("delta.appendOnly", "").lower() == "true"
        if removes and append_only and not self.takes_back:
            raise self._refused(
                "the table is append-only, and a restore would remove rows that were added since",
                "set delta.appendOnly to false if these rows may be removed",
            )
        if "rowTracking" in now.protocol.features("writer") and any("baseRowId" not in add["add"] for add in adds):
            raise self._refused("its rows have no ids", "restore it with the engine that wrote the table")
        self._check_presence(adds)
        return _Plan(
            adds,
            removes,
            restored_protocol(self.old.protocol, now.protocol),
            restored_metadata(self.old.metadata, now.metadata),
            restored_domains(self.old.domains, now.domains),
        )

    def _difference(self, now: DeltaSnapshot) -> tuple[list[Action], list[LiveFile]]:
        """Adds of the old version's files that are not live now, and live files that the old version does not have."""
        if self._adds is None:
            self._adds = full_state(self.storage, self.old).adds
        then, live = (
            _keys(self._adds["path"], dv_ids(self._adds["deletionVector"])),
            _keys(now.files["path"], now.files["dv_id"]),
        )
        back = self._adds.filter(pc.invert(pc.is_in(then, live)))
        gone = now.files.filter(pc.invert(pc.is_in(live, then)))
        adds = {self._identity(key, row["path"]): _add(row) for key, row in zip(_ids(back), _rows(back), strict=True)}
        removes = {self._identity(row["dv_id"], row["path"]): LiveFile.from_row(row) for row in _rows(gone)}
        # Writers may percent-encode a path differently: the same file in another spelling is not a difference.
        same = adds.keys() & removes.keys()
        return (
            [add for key, add in adds.items() if key not in same],
            [file for key, file in removes.items() if key not in same],
        )

    def _identity(self, dv_id: str | None, path: str) -> FileKey:
        return FileKey(self.storage.path_of(RawName(path)), dv_id)

    # -- files that must exist ----------------------------------------------------------------------------------

    def refuse_beside_vacuums(self, since: Sequence[VacuumMark]) -> None:
        """``since``: marks of the versions after the one that the restore began with."""
        found = [mark for mark in running_vacuums([*self._marks, *since]) if mark.version not in self.vacuums_over]
        if found:
            first = found[0]
            raise self._refused(
                f"a running vacuum may be deleting its files: VACUUM START at version {first.version} (by "
                f"{first.engine}) has no VACUUM END",
                Remedy(
                    "restore after that vacuum ends; if it was killed before its end, add {}",
                    (setting("vacuums_over", first.version),),
                ),
            )

    def _check_presence(self, adds: Sequence[Action]) -> None:
        found = presence_of(self.storage, (LiveFile.from_add(add["add"]) for add in adds))
        if found.missing:
            raise self._refused(
                f"{len(found.missing)} of the files to restore no longer exist: {listed(found.missing)}",
                "restore a newer version, or copy the files that a vacuum deleted back from a backup first",
            )
        if found.wrong:
            raise DamagedTableError(
                next(iter(found.wrong.values())),
                table=self.storage.uri,
                version=self.old.version,
                next_step="copy the file back from a backup first, or restore another version",
            )

    def _refused(self, problem: str, next_step: str | Remedy) -> RefusedError:
        return RefusedError(
            f"version {self.old.version} can't be restored: {problem}",
            table=self.storage.uri,
            version=self.now.version,
            next_step=next_step,
        )

    # -- reports ---------------------------------------------------------------------------------------------------

    def _metrics(self, plan: _Plan) -> dict[str, int]:
        """As delta-spark records a RESTORE."""
        return {
            "tableSizeAfterRestore": _total(self.old.files["size"]),
            "numOfFilesAfterRestore": self.old.files.num_rows,
            "numRemovedFiles": len(plan.removes),
            "numRestoredFiles": len(plan.adds),
            "removedFilesSize": sum(file.size for file in plan.removes),
            "restoredFilesSize": sum(add["add"]["size"] for add in plan.adds),
        }

    def result(self, before: int, after: int, *, attempts: int, dry_run: bool = False) -> RestoreReport:
        plan, now = self.plan(self.now), self.now
        metrics = self._metrics(plan)
        configurations = plan.metadata.configuration, now.metadata.configuration
        changed = {key for key, _ in configurations[0].items() ^ configurations[1].items()}
        features = (self.old.protocol.features("writer") | self.old.protocol.features("reader")) - (
            now.protocol.features("writer") | now.protocol.features("reader")
        )
        return RestoreReport(
            restored=self.old.version,
            version_before=before,
            version_after=after,
            dry_run=dry_run,
            files_restored=metrics["numRestoredFiles"],
            bytes_restored=metrics["restoredFilesSize"],
            files_removed=metrics["numRemovedFiles"],
            bytes_removed=metrics["removedFilesSize"],
            files_after=metrics["numOfFilesAfterRestore"],
            bytes_after=metrics["tableSizeAfterRestore"],
            dvs_restored=sum("deletionVector" in add["add"] for add in plan.adds),
            schema_changed=not same_schema(plan.metadata, now.metadata),
            properties=tuple(sorted(changed)),
            features=tuple(sorted(features)),
            attempts=attempts,
        )


# -- after the commit ----------------------------------------------------------------------------------------------


def _check_presence_after(work: _Restore, version: int) -> None:
    """Check the files that ``version`` restored, and revert the version if one is missing."""
    adds = work.plan(work.now).adds
    committed = f"version {version} restored version {work.old.version}"
    try:
        found = presence_of(work.storage, (LiveFile.from_add(add["add"]) for add in adds))
    except DvMaintenanceError as error:
        error.table, error.version = work.storage.uri, version
        error.done = f"{committed}, but it could not be checked whether its files still exist"
        raise
    if not found.unusable:
        return
    before = work.now.version
    problem = (
        f"{len(found.unusable)} of the files that version {version} restored were deleted during the commit: "
        f"{listed(found.unusable)}; the vacuum that deleted them is not in the log, or did not read the log again"
    )
    try:
        undone = _take_back(work, version)
    except DvMaintenanceError as error:
        raise DamagedTableError(
            f"{problem}. The version could not be reverted: {error.message}",
            table=work.storage.uri,
            version=version,
            done=committed,
            next_step=f"stop every vacuum of the table, then restore version {before}, or a version newer than "
            f"{work.old.version} that still has its files",
        ) from error
    raise RefusedError(
        problem,
        table=work.storage.uri,
        version=version,
        done=f"{committed}, version {undone} reverted that: the table is as it was at version {before}",
        next_step="stop every vacuum of the table; then restore a newer version, or copy the files back from a backup "
        "first",
    )


def _take_back(work: _Restore, version: int) -> int:
    """Commit the reverse of ``version``, which ``work`` committed, on top of later commits by other writers.

    Raises
    ------
    ConflictError : another writer changed the restored or removed files, or the table's protocol or metadata.
    RefusedError, StorageError.
    """
    done = load_snapshot(work.storage, version)
    before = {"version": work.now.version, "timestamp": None}
    back = _Restore(work.storage, work.now, done, before, takes_back=True)
    plan = back.plan(done)
    gone = {FileKey(work.storage.path_of(RawName(file.path)), file.key.dv_id) for file in plan.removes}
    paths = {work.storage.path_of(RawName(add["add"]["path"])) for add in plan.adds} | {key.path for key in gone}

    def compose(since: Since) -> Draft | None:
        if since.protocol or since.metadata or gone & since.gone or paths & since.added:
            raise ConflictError(f"another writer changed the table after version {version}", table=work.storage.uri)
        return back.draft(plan)

    undone = publish(work.storage, done, compose, writes="restore").version
    assert undone is not None  # there is at least one file to remove
    return undone


def _keys(path: pa.ChunkedArray, ids: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(path, pc.fill_null(ids, ""), "\0")


def _ids(adds: pa.Table) -> list[str | None]:
    ids: list[str | None] = dv_ids(adds["deletionVector"]).to_pylist()
    return ids


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches():
        yield from batch.to_pylist()


def _add(row: Mapping[str, Any]) -> Action:
    """The ``add`` action of a row of ``FullState.adds``."""
    body = _present({**row, "dataChange": True})
    body["partitionValues"] = dict(row["partitionValues"] or ())
    if row["tags"] is not None:
        body["tags"] = dict(row["tags"])
    if row["deletionVector"] is not None:
        body["deletionVector"] = _present(row["deletionVector"])
    return {"add": body}


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _total(sizes: pa.ChunkedArray) -> int:
    return int(pc.sum(sizes).as_py() or 0)


def _sql_time(timestamp: int | None) -> str | None:
    """As Spark spells a timestamp, in UTC."""
    if timestamp is None:
        return None
    from datetime import UTC, datetime

    return datetime.fromtimestamp(timestamp / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f").rstrip("0").rstrip(".")

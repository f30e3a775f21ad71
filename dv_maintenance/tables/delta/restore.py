"""RESTORE: one commit that makes an older version the newest, across deletion vectors (DVs) or not.

No data moves. Logical files (path, DV) of the old version that are not live now come back, live ones that it did not
have go: so the same Parquet file may come back with another DV, and deleted rows with it. What other writers commit
meanwhile is looked at anew: a restore says what the table shall be, whatever it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError, RefusedError, UsageError
from dv_maintenance.tables.capabilities import RestoreResult
from dv_maintenance.tables.delta.actions import Action, Metadata, Protocol
from dv_maintenance.tables.delta.bulk import dv_ids
from dv_maintenance.tables.delta.conflicts import Since
from dv_maintenance.tables.delta.features import check_writable
from dv_maintenance.tables.delta.live_file import LiveFile
from dv_maintenance.tables.delta.publish import Draft, operation_info, publish
from dv_maintenance.tables.delta.replay import full_state
from dv_maintenance.tables.delta.restored import restored_domains, restored_metadata, restored_protocol, unrestorable
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot, load_snapshot
from dv_maintenance.tables.delta.tasks import dv_ref
from dv_maintenance.tables.delta.timeline import version_at
from dv_maintenance.tables.model import FileKey

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

__all__ = ["restore"]

_HEAD_THREADS: Final = 16
_SHOWN: Final = 5
_DV_FRAME: Final = 8  # bytes around a bitmap in its file: size word and checksum


def restore(
    storage: Storage,
    *,
    version: int | None = None,
    timestamp: int | None = None,
    dry_run: bool = False,
    max_attempts: int = 10,
) -> RestoreResult:
    """Commit the state of ``version``, or of the newest version at ``timestamp`` (epoch milliseconds).

    Every data file and every DV file to bring back is looked for before the commit. Nothing is committed where the
    table is in that state already.

    Raises
    ------
    UsageError : no such version or time, both, or neither.
    RefusedError : files are missing (names some), the table is append-only, or its features demand what the old files
        lack; nothing was committed.
    UnsupportedFeatureError : the table may not be written.
    DamagedTableError : a file to bring back has another size than the log says.
    ConflictError, StorageError : see ``publish``.
    """
    if (version is None) == (timestamp is None):
        raise UsageError("give either a version or a time", table=storage.uri)
    now = load_snapshot(storage)
    check_writable(now, "restore")
    wanted = version if version is not None else version_at(storage, now, timestamp or 0)
    old = now if wanted == now.version else load_snapshot(storage, wanted)
    check_writable(old, "restore")
    work = _Restore(storage, old, now, {"version": version, "timestamp": _sql_time(timestamp)})
    if dry_run:
        work.plan(now)
        return work.result(now.version, now.version, attempts=0, dry_run=True)
    published = publish(storage, now, work.compose, writes="restore", max_attempts=max_attempts)
    before = work.now.version
    return work.result(
        before, before if published.version is None else published.version, attempts=max(1, published.attempts)
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to commit to a table as it is now."""

    adds: Sequence[Action]
    removes: Sequence[LiveFile]
    protocol: Protocol
    metadata: Metadata
    domains: Sequence[Action]


@dataclass(slots=True)
class _Restore:
    """A restore of ``old``, decided anew whenever the table moves on. ``now``: what it was decided for."""

    storage: Storage
    old: DeltaSnapshot
    now: DeltaSnapshot
    parameters: Mapping[str, Any]
    deleted_at: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    planned: _Plan | None = None
    found: set[FileKey] = field(default_factory=set)  # files that were looked for and are there
    _adds: pa.Table | None = None

    def compose(self, since: Since) -> Draft | None:
        if since.version != self.now.version:
            self.planned = None
            self.now = load_snapshot(self.storage, since.version)
        plan = self.plan(self.now)
        actions: list[Action] = []
        if plan.protocol != self.now.protocol:
            actions.append({"protocol": plan.protocol.to_json()})
        if plan.metadata != self.now.metadata:
            actions.append({"metaData": plan.metadata.to_json()})
        actions += plan.domains
        actions += (file.remove(self.deleted_at, data_change=True) for file in plan.removes)
        actions += plan.adds
        if not actions:
            return None
        info = operation_info(self.now, "RESTORE", {}, self._metrics(plan), blind=False)
        # With a null for the one that was not given, as delta-spark has it.
        return Draft({**info, "operationParameters": self.parameters}, actions)

    def plan(self, now: DeltaSnapshot) -> _Plan:
        if self.planned is None:
            self.planned = self._decide(now)
        return self.planned

    def _decide(self, now: DeltaSnapshot) -> _Plan:
        check_writable(now, "restore")
        if problem := unrestorable(self.old.protocol, now.protocol):
            raise self._refused(problem, "restore it with the engine that wrote the table")
        adds, removes = self._difference(now)
        if removes and now.metadata.configuration.get("delta.appendOnly", "").lower() == "true":
            raise self._refused(
                "the table is append-only, and what was added since would have to go",
                "set delta.appendOnly to false if that is meant",
            )
        if "rowTracking" in now.protocol.features("writer") and any("baseRowId" not in add["add"] for add in adds):
            raise self._refused("its rows have no ids", "restore it with the engine that wrote the table")
        self._look_for(adds)
        return _Plan(
            adds,
            removes,
            restored_protocol(self.old.protocol, now.protocol),
            restored_metadata(self.old.metadata, now.metadata),
            restored_domains(self.old.domains, now.domains),
        )

    def _difference(self, now: DeltaSnapshot) -> tuple[list[Action], list[LiveFile]]:
        """Adds of the old version's files that are not live now, and live files that it does not have."""
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
        # Writers need not percent-encode a path alike: the same file under another spelling is no difference.
        same = adds.keys() & removes.keys()
        return (
            [add for key, add in adds.items() if key not in same],
            [file for key, file in removes.items() if key not in same],
        )

    def _identity(self, dv_id: str | None, path: str) -> FileKey:
        return FileKey(self.storage.path_of(path), dv_id)

    # -- files that must be there ----------------------------------------------------------------------------------

    def _look_for(self, adds: Sequence[Action]) -> None:
        files = [LiveFile.from_add(add["add"]) for add in adds]
        fresh = [file for file in files if file.key not in self.found]
        # Path -> least size in bytes, exact for data files. Many DVs share a file.
        data = {self.storage.path_of(file.path): file.size for file in fresh}
        dvs: dict[str, int] = {}
        for file in fresh:
            ref = None if file.dv is None else dv_ref(self.storage, file.dv)
            if ref is not None and ref.uri is not None:
                path = self.storage.path_of(ref.uri)
                dvs[path] = max(dvs.get(path, 0), (ref.offset or 0) + ref.size + _DV_FRAME)
        with ThreadPoolExecutor(_HEAD_THREADS) as pool:
            sizes = dict(zip([*data, *dvs], pool.map(self._size, [*data, *dvs]), strict=True))
        missing = [path for path, size in sizes.items() if size is None]
        if missing:
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            raise self._refused(
                f"{len(missing)} of the files to bring back are gone: {', '.join(missing[:_SHOWN])}{more}",
                "a vacuum took them: restore a newer version, or bring the files back from a backup first",
            )
        for path, size in sizes.items():
            wanted = data.get(path, dvs.get(path, 0))
            if size is not None and (size != wanted if path in data else size < wanted):
                raise DamagedTableError(
                    f"{path} has {size} bytes, where the log says {'' if path in data else 'at least '}{wanted}",
                    table=self.storage.uri,
                    version=self.old.version,
                    next_step="bring the file back from a backup first, or restore another version",
                )
        self.found.update(file.key for file in fresh)

    def _size(self, path: str) -> int | None:
        try:
            return self.storage.head(path).size
        except FileNotFoundError:
            return None

    def _refused(self, problem: str, next_step: str) -> RefusedError:
        return RefusedError(
            f"version {self.old.version} can't be restored: {problem}",
            table=self.storage.uri,
            version=self.now.version,
            next_step=next_step,
        )

    # -- telling ---------------------------------------------------------------------------------------------------

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

    def result(self, before: int, after: int, *, attempts: int, dry_run: bool = False) -> RestoreResult:
        plan, now = self.plan(self.now), self.now
        metrics = self._metrics(plan)
        configurations = plan.metadata.configuration, now.metadata.configuration
        changed = {key for key, _ in configurations[0].items() ^ configurations[1].items()}
        features = (self.old.protocol.features("writer") | self.old.protocol.features("reader")) - (
            now.protocol.features("writer") | now.protocol.features("reader")
        )
        return RestoreResult(
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
            schema_changed=orjson.loads(plan.metadata.schema_string) != orjson.loads(now.metadata.schema_string),
            properties=tuple(sorted(changed)),
            features=tuple(sorted(features)),
            attempts=attempts,
        )


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

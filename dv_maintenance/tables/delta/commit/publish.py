"""Delta's part of publishing a commit: the commits since the base, the next version's bytes, its transaction id.

In each attempt the caller's ``compose`` decides what to commit. ``tables/publish.py`` runs the attempts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final
from uuid import uuid4

import orjson

from dv_maintenance.errors import ConflictError, StorageError
from dv_maintenance.storage import FileExistsAlreadyError, RawName, Storage
from dv_maintenance.storage.rehearsal import Rehearsal
from dv_maintenance.tables import publish as frame
from dv_maintenance.tables.delta.commit.conflicts import Since
from dv_maintenance.tables.delta.commit.ratification import check_actions
from dv_maintenance.tables.delta.commit.unvacuumed import check_unvacuumed
from dv_maintenance.tables.delta.features import check_writable
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.actions import Action, Metadata, Protocol
from dv_maintenance.tables.delta.log.commit_info import ENGINE
from dv_maintenance.tables.delta.log.segment import commit_path, latest_version, read_commit
from dv_maintenance.tables.delta.permissions import check_permitted
from dv_maintenance.tables.delta.rows.row_tracking import PRESERVED, stored_columns
from dv_maintenance.tables.delta.same_table import check_same_table
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.publish import Overtaken, Published, Rules
from dv_maintenance.units import epoch_millis, parse_count

_log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.05  # seconds, doubled each time
_LONGEST_PAUSE: Final = 3.0
_CHECKPOINT_INTERVAL: Final = 10
_NOTHING: Final = "new files may have been written, nothing was committed"


@dataclass(frozen=True, slots=True)
class Draft:
    """A commit without the parts that depend on one attempt.

    info : its commitInfo, as :func:`operation_info` makes it.
    protected : whether the caller makes sure that no vacuum deletes its files, because they are old ones.
    """

    info: Mapping[str, Any]
    actions: Sequence[Action] = ()
    protected: bool = False


# Makes the draft, given the commits since the base; None if nothing is left to commit.
Compose = Callable[[Since], Draft | None]


def publish(
    storage: Storage,
    base: DeltaSnapshot,
    compose: Compose,
    *,
    writes: str,
    max_attempts: int = 10,
) -> Published[Draft]:
    """Commit what ``compose`` returns, on top of everything committed since ``base``.

    ``compose`` must be deterministic: the same history gives the same draft. ``writes``: the operation that the table's
    features must allow, now and after each change of protocol or metadata by another writer.

    Raises
    ------
    ConflictError : other writers committed first in every attempt, or commits since ``base`` were cleaned up; or a
        vacuum began since then with so short a retention that it may delete the commit's new files.
    StorageError : the storage kept failing; says so if the commit may still have happened.
    UnsupportedFeatureError, RefusedError : the table may not, or may no longer, be written.
    """
    with frame.before_the_commit():
        check_writable(storage, base, writes)
    rules = _Rules(storage, base, compose, writes)
    published = frame.publish(rules, max_attempts=max_attempts, first_pause=_FIRST_PAUSE, longest_pause=_LONGEST_PAUSE)
    if published.version is not None and not isinstance(storage, Rehearsal):
        _checkpoint_if_due(storage, published.version, rules.metadata)
    return published


@dataclass(slots=True)
class _Rules(Rules[Draft]):
    """One commit in progress. Its transaction id identifies the commit if the answer to a put was lost."""

    recognises: ClassVar[bool] = True
    storage: Storage
    base: DeltaSnapshot
    compose: Compose
    writes: str
    transaction: str = field(default_factory=lambda: str(uuid4()))
    since: Since = field(init=False)
    checked: tuple[Protocol | None, Metadata | None] = (None, None)

    def __post_init__(self) -> None:
        self.since = Since(
            self.base.version,
            lambda name: self.storage.path_of(RawName(name)),
            in_commit_timestamp=self.base.in_commit_timestamp,
        )

    @property
    def table(self) -> str:
        return self.storage.uri

    @property
    def protocol(self) -> Protocol:
        return self.since.protocol or self.base.protocol

    @property
    def metadata(self) -> Metadata:
        return self.since.metadata or self.base.metadata

    def catch_up(self) -> int | None:
        newest = latest_version(self.storage, known=self.since.version)
        if newest < self.since.version:
            raise self._history_gone(f"its newest version is {newest}, before {self.since.version}")
        for version in range(self.since.version + 1, newest + 1):
            try:
                actions = read_commit(self.storage, version)
            except FileNotFoundError:
                raise self._history_gone(f"commit {version} was cleaned up") from None
            if _transaction(actions) == self.transaction:
                return version
            self.since.absorb(actions, where=commit_path(version))
        return None

    def draft(self) -> Draft | None:
        if (self.since.protocol, self.since.metadata) != self.checked:
            check_writable(self.storage, load_snapshot(self.storage, self.since.version), self.writes)
            self.checked = (self.since.protocol, self.since.metadata)
        check_permitted(self.storage, self.writes)
        draft = self.compose(self.since)
        if draft is not None:
            check_actions(self.storage, draft.actions)
        if draft is not None and not draft.protected and any(mark.started for mark in self.since.vacuums):
            check_unvacuumed(self.storage, self.since, draft.actions)
        if draft is not None:
            check_same_table(self.storage, self.base)
        return draft

    def create(self, draft: Draft) -> int:
        now = epoch_millis()
        times = commit_times(self.protocol, self.metadata, self.since.in_commit_timestamp, now)
        body = commit_body({**times, **draft.info, "txnId": self.transaction}, draft.actions)
        version = self.since.version + 1
        try:
            self.storage.create(commit_path(version), body)
        except FileExistsAlreadyError:
            # Another writer's commit, or this one: storage clients repeat a request if its answer was lost. `catch_up`
            # finds out which.
            raise Overtaken(f"version {version} is taken, looking at what it changed") from None
        return version

    def defeat(self, attempts: int) -> ConflictError:
        return ConflictError(
            f"other writers committed first in all {attempts} attempts, the last one for version"
            f" {self.since.version + 1}",
            table=self.storage.uri,
            version=self.since.version,
            done=_NOTHING,
            next_step="run again when the table is less busy; vacuum deletes the files that no commit names",
        )

    def failed(self, failure: StorageError, *, unknown: bool) -> StorageError:
        version = self.since.version + 1
        failure.table, failure.version, failure.done = self.storage.uri, self.since.version, _NOTHING
        if unknown:
            failure.done = f"it is not known whether version {version} was committed"
            failure.next_step = f"check whether {commit_path(version)} has the transaction id {self.transaction}"
        return failure

    def _history_gone(self, what: str) -> ConflictError:
        return ConflictError(
            f"the commits since version {self.base.version} can't be checked: {what}",
            table=self.storage.uri,
            version=self.base.version,
            done=_NOTHING,
            next_step="plan again on the newest version",
        )


def operation_info(
    base: DeltaSnapshot | None,
    operation: str,
    parameters: Mapping[str, Any],
    metrics: Mapping[str, int],
    *,
    blind: bool,
) -> dict[str, Any]:
    """The parts of a commitInfo that are the same in every attempt, spelled as Delta's own history expects: metrics are
    strings, structured parameters are JSON text. ``base``: the snapshot that was read, ``None`` for the first commit.
    """
    return {
        "operation": operation,
        "operationParameters": {
            key: value if isinstance(value, str | bool | int) else orjson.dumps(value).decode()
            for key, value in parameters.items()
        },
        **({} if base is None else {"readVersion": base.version}),
        "isolationLevel": "SnapshotIsolation",
        "isBlindAppend": blind,
        "operationMetrics": {key: str(value) for key, value in metrics.items()},
        **({"tags": PRESERVED} if base is not None and _tracks_rows(base) else {}),
        "engineInfo": ENGINE,
    }


def _tracks_rows(base: DeltaSnapshot) -> bool:
    # No commit of this package changes the id of a row.
    return stored_columns(base.protocol, base.metadata) is not None


def commit_body(info: Mapping[str, Any], actions: Sequence[Action]) -> bytes:
    """The bytes of a commit file. commitInfo comes first, as in-commit timestamps require."""
    return b"".join(orjson.dumps(action) + b"\n" for action in ({"commitInfo": info}, *actions))


def commit_times(protocol: Protocol, metadata: Metadata, before: int | None, now: int) -> dict[str, int]:
    """The times of a commit that directly follows one with the in-commit timestamp ``before``, in epoch milliseconds:
    later than ``before``, whatever the clock says (protocol: In-Commit Timestamps).
    """
    enabled = metadata.configuration.get("delta.enableInCommitTimestamps", "false").lower() == "true"
    if not (enabled and "inCommitTimestamp" in protocol.features("writer")):
        return {"timestamp": now}
    stamp = now if before is None else max(now, before + 1)
    return {"inCommitTimestamp": stamp, "timestamp": stamp}


def _transaction(actions: Sequence[Action]) -> str | None:
    infos = (action["commitInfo"] for action in actions if isinstance(action.get("commitInfo"), dict))
    return next((info.get("txnId") for info in infos), None)


def _checkpoint_if_due(storage: Storage, version: int, metadata: Metadata) -> None:
    """Write a checkpoint at the table's interval. A failure is only logged: without the checkpoint the commit is still
    valid, and readers replay a longer log.
    """
    interval = parse_count(metadata.configuration.get("delta.checkpointInterval", "")) or _CHECKPOINT_INTERVAL
    if version % interval:
        return
    from dv_maintenance.tables.delta.log.checkpoint_writer import write_checkpoint

    try:
        write_checkpoint(storage, load_snapshot(storage, version))
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not turn a commit into a failure
        _log.warning("no checkpoint of %s at version %d could be written: %s", storage.uri, version, error)

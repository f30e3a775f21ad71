"""Publish one commit: read concurrent commits, put-if-absent, and retry if another writer was faster.

In each attempt the caller's ``compose`` decides what to commit. This module handles versions, timestamps and storage
failures.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import orjson

from dv_maintenance import __version__
from dv_maintenance.errors import ConflictError, DvMaintenanceError, StorageError
from dv_maintenance.storage import FileExistsAlreadyError, RawName, Storage
from dv_maintenance.tables.delta.commit.conflicts import Since
from dv_maintenance.tables.delta.commit.unvacuumed import check_unvacuumed
from dv_maintenance.tables.delta.features import check_writable
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.actions import Action, Metadata, Protocol
from dv_maintenance.tables.delta.log.segment import commit_path, latest_version, read_commit
from dv_maintenance.tables.delta.rows.row_tracking import PRESERVED, stored_columns
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot

__all__ = ["Compose", "Draft", "Published", "commit_body", "commit_times", "operation_info", "publish"]

_log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.05  # seconds, doubled each time
_LONGEST_PAUSE: Final = 3.0
_CHECKPOINT_INTERVAL: Final = 10
_NOTHING: Final = "new files may have been written, nothing was committed"


@dataclass(frozen=True, slots=True)
class Draft:
    """A commit without the parts that depend on one attempt.

    info : its commitInfo, as :func:`operation_info` makes it.
    looked : its files are old ones, and the caller makes sure that no vacuum deletes them.
    """

    info: Mapping[str, Any]
    actions: Sequence[Action] = ()
    looked: bool = False


# What to commit, given what happened since the base; None if nothing is left.
Compose = Callable[[Since], Draft | None]


@dataclass(frozen=True, slots=True)
class Published:
    """A published commit. ``version``: ``None`` if nothing was left to commit; ``attempts``: put-if-absent attempts."""

    version: int | None
    attempts: int


def publish(
    storage: Storage,
    base: DeltaSnapshot,
    compose: Compose,
    *,
    writes: str,
    max_attempts: int = 10,
) -> Published:
    """Commit what ``compose`` returns, on top of everything committed since ``base``.

    ``compose`` must be deterministic: the same history gives the same draft. ``writes``: the operation that the table's
    features are checked for, now and after each change of protocol or metadata by another writer.

    Raises
    ------
    ConflictError : other writers were faster in every attempt, or commits since ``base`` were cleaned up; or a vacuum
        began since then with so short a retention that it may delete the commit's new files.
    StorageError : the storage kept failing; says so if the commit may still have happened.
    UnsupportedFeatureError, RefusedError : the table may not be written, or no longer.
    """
    check_writable(base, writes)
    race = _Race(storage, base, compose, writes)
    published = race.run(max_attempts)
    if published.version is not None:
        _checkpoint_if_due(storage, published.version, race.metadata)
    return published


@dataclass(slots=True)
class _Race:
    """One commit in progress. Its transaction id identifies the commit if the answer to a put got lost."""

    storage: Storage
    base: DeltaSnapshot
    compose: Compose
    writes: str
    transaction: str = field(default_factory=lambda: str(uuid4()))
    since: Since = field(init=False)
    checked: tuple[Protocol | None, Metadata | None] = (None, None)
    tries: int = 0
    unsure: bool = False  # the last put failed in a way that may have left its file behind

    def __post_init__(self) -> None:
        self.since = Since(
            self.base.version,
            lambda name: self.storage.path_of(RawName(name)),
            in_commit_timestamp=self.base.in_commit_timestamp,
        )

    def run(self, attempts: int) -> Published:
        published: Published | None = None
        failure: StorageError | None = None
        for number in range(attempts):
            if number:
                _pause(number)
            try:
                published, failure = self.attempt(), None
            except StorageError as error:
                _log.warning("%s: try %d of %d to commit failed: %s", self.storage.uri, number + 1, attempts, error)
                published, failure = None, error
            if published is not None:
                return published
        try:
            published = self.look()  # the last put may have made it
        except StorageError as error:
            failure = failure or error
        if published is not None:
            return published
        raise self.defeat(attempts, failure)

    @property
    def protocol(self) -> Protocol:
        return self.since.protocol or self.base.protocol

    @property
    def metadata(self) -> Metadata:
        return self.since.metadata or self.base.metadata

    def attempt(self) -> Published | None:
        """Try to commit the next version. ``None``: another writer committed it first."""
        if (published := self.look()) is not None:
            return published
        if (self.since.protocol, self.since.metadata) != self.checked:
            check_writable(load_snapshot(self.storage, self.since.version), self.writes)
            self.checked = (self.since.protocol, self.since.metadata)
        draft = self.compose(self.since)
        if draft is None:
            return Published(None, self.tries)
        if not draft.looked and any(mark.started for mark in self.since.vacuums):
            check_unvacuumed(self.storage, self.since, draft.actions)
        now = time.time_ns() // 1_000_000
        times = commit_times(self.protocol, self.metadata, self.since.in_commit_timestamp, now)
        body = commit_body({**times, **draft.info, "txnId": self.transaction}, draft.actions)
        self.tries += 1
        try:
            self.storage.create(commit_path(self.since.version + 1), body)
        except FileExistsAlreadyError:
            # Another writer's, or this one: storage clients repeat a request whose answer got lost. `look` finds out.
            _log.info("%s: version %d is taken, looking at what it changed", self.storage.uri, self.since.version + 1)
            return None
        except StorageError:
            self.unsure = True
            raise
        _log.info("%s: committed version %d", self.storage.uri, self.since.version + 1)
        return Published(self.since.version + 1, self.tries)

    def look(self) -> Published | None:
        """Absorb what was committed since the last call; ``Published`` if one of these commits is this one."""
        newest = latest_version(self.storage, known=self.since.version)
        if newest < self.since.version:
            raise self._history_gone(f"its newest version is {newest}, before {self.since.version}")
        for version in range(self.since.version + 1, newest + 1):
            try:
                actions = read_commit(self.storage, version)
            except FileNotFoundError:
                raise self._history_gone(f"commit {version} was cleaned up") from None
            if _transaction(actions) == self.transaction:
                return Published(version, self.tries)
            self.since.absorb(actions, where=commit_path(version))
        self.unsure = False
        return None

    def defeat(self, attempts: int, failure: StorageError | None) -> DvMaintenanceError:
        version = self.since.version + 1
        if failure is None:
            return ConflictError(
                f"other writers were faster in all of {attempts} attempts, the last one for version {version}",
                table=self.storage.uri,
                version=self.since.version,
                done=_NOTHING,
                next_step="run again when the table is less busy; vacuum deletes the files that no commit names",
            )
        failure.table, failure.version, failure.done = self.storage.uri, self.since.version, _NOTHING
        if self.unsure:
            failure.done = f"it is not known whether version {version} was committed"
            failure.next_step = f"check whether {commit_path(version)} has the transaction id {self.transaction}"
        return failure

    def _history_gone(self, what: str) -> ConflictError:
        return ConflictError(
            f"what was committed since version {self.base.version} can't be checked: {what}",
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
    """The parts of a commitInfo that are the same in every attempt, spelt as Delta's own history expects: metrics are
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
        "engineInfo": f"dv-maintenance/{__version__}",
    }


def _tracks_rows(base: DeltaSnapshot) -> bool:
    # No commit of this package changes the id of a row.
    return stored_columns(base.protocol, base.metadata) is not None


def commit_body(info: Mapping[str, Any], actions: Sequence[Action]) -> bytes:
    """A commit file; commitInfo first, as in-commit timestamps demand."""
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


def _pause(number: int) -> None:
    # Full jitter: losers of one race must not meet again in the next.
    time.sleep(random.uniform(0, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**number)))  # noqa: S311 - no secret


def _checkpoint_if_due(storage: Storage, version: int, metadata: Metadata) -> None:
    """Best effort: without the checkpoint the commit is still valid, and readers only replay a longer log."""
    text = metadata.configuration.get("delta.checkpointInterval", "")
    interval = int(text) if text.isdecimal() and int(text) else _CHECKPOINT_INTERVAL
    if version % interval:
        return
    from dv_maintenance.tables.delta.log.checkpoint_writer import write_checkpoint

    try:
        write_checkpoint(storage, load_snapshot(storage, version))
    except Exception:  # noqa: BLE001 - whatever it is, it must not turn a commit into a failure
        _log.warning("no checkpoint of %s at version %d could be written", storage.uri, version, exc_info=True)

"""Remove the feature ``deletionVectors`` from a table, step by step, so that readers without it can read the table.

The next step follows from the table alone, never from the memory of an earlier run. So the next run continues an
interrupted one, and repeats steps that another writer undid. The steps are those of delta-spark's DROP FEATURE.

A state without deletion vectors (DVs) is easy to reach. The history needs care, since readers without the feature must
never replay it. There are two ways. Either three checkpoints fence it off, and the feature ``checkpointProtection``,
which old *writers* do not know, keeps these checkpoints (protocol: Checkpoint Protection). Or the history before such a
checkpoint is deleted, once no job can still be working on it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from dv_maintenance.errors import RefusedError
from dv_maintenance.storage import RawName
from dv_maintenance.tables.capabilities import DowngradeStep
from dv_maintenance.tables.delta.commit.conflicts import Since
from dv_maintenance.tables.delta.commit.publish import Draft, operation_info, publish
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.actions import FEATURE_READER, FEATURE_WRITER, Action, Metadata, Protocol
from dv_maintenance.tables.delta.log.bulk import dv_id
from dv_maintenance.tables.delta.log.checkpoint_writer import write_checkpoint
from dv_maintenance.tables.delta.log.log_cleanup import LogFiles, delete_before, log_files, protected_before
from dv_maintenance.tables.delta.log.replay import tombstones
from dv_maintenance.tables.delta.log.segment import read_commit
from dv_maintenance.tables.delta.permissions import check_permitted
from dv_maintenance.tables.delta.rows.change_feed import has_feed
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.delta.vacuum.names import path_of
from dv_maintenance.tables.delta.vacuum.retention import DEFAULT_RETENTION, RETENTION, interval_millis
from dv_maintenance.units import epoch_millis, format_duration

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

_FEATURE: Final = "deletionVectors"
_PROTECTION: Final = "checkpointProtection"
_ENABLED: Final = "delta.enableDeletionVectors"
_PROTECTED_BEFORE: Final = "delta.requireCheckpointProtectionBeforeVersion"
_WAIT: Final = "delta.dropFeatureTruncateHistory.retentionDuration"
_DEFAULT_WAIT: Final = "interval 24 hours"

_FEED: Final = "from then on, Spark misreads the change data feed of older versions with deletion vectors"

# delta-spark gives up on a checkpoint that it can't read after trying two older ones.
_FENCE: Final = 3

# Features of the legacy versions, each including those before it (protocol: Valid Feature Names in Table Features).
_LEGACY: Final[dict[int, frozenset[str]]] = {
    1: frozenset(),
    2: frozenset({"appendOnly", "invariants"}),
    3: frozenset({"appendOnly", "invariants", "checkConstraints"}),
    4: frozenset({"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"}),
}


def downgrade_steps(storage: Storage, *, truncate_history: bool, now: int | None = None) -> tuple[DowngradeStep, ...]:
    """The steps of a downgrade, in order, each with its state. ``now``: epoch milliseconds.

    Raises
    ------
    RefusedError : a table property is not a valid interval.
    UnsupportedFeatureError, DamagedTableError : as for a snapshot.
    """
    check_permitted(storage, "downgrade")
    state = _State(storage, load_snapshot(storage), truncate_history, epoch_millis(now))
    return tuple(state.steps())


def take_downgrade_step(storage: Storage, name: str, *, truncate_history: bool, now: int | None = None) -> None:
    """Take the named step, which must be the first one due. Does not purge: that needs an engine.

    Raises
    ------
    As ``publish``; StorageError.
    """
    check_permitted(storage, "downgrade")
    state = _State(storage, load_snapshot(storage), truncate_history, epoch_millis(now))
    match name:
        case "disable":
            _disable(state)
        case "protect":
            _protect(state)
        case "fence":
            _fence(state)
        case "truncate":
            delete_before(storage, state.listed, state.fence or 0, state.snapshot)
        case "drop":
            _drop(state)
        case "seal":
            write_checkpoint(storage, state.snapshot)


# -- the state of a table ------------------------------------------------------------------------------------------


@dataclass
class _State:
    storage: Storage
    snapshot: DeltaSnapshot
    truncate: bool
    now: int

    def steps(self) -> Iterator[DowngradeStep]:
        """The steps in order. Evaluation ends at the first step not done: the state of later ones is unknown."""
        self._interval(RETENTION, DEFAULT_RETENTION)  # a step needs it once others are done
        undone = False
        for name, explanation, is_done in self._plan():
            if undone:
                yield DowngradeStep(name, "later", explanation)
                continue
            undone = not is_done()
            waits_until = self.ready_at if undone and name == "wait" else None
            yield DowngradeStep(
                name, "done" if not undone else "due" if waits_until is None else "waiting", explanation, waits_until
            )

    def _plan(self) -> list[tuple[str, str, Callable[[], bool]]]:
        gone = not self.to_drop
        steps: list[tuple[str, str, Callable[[], bool]]] = [
            ("disable", f"unset {_ENABLED}, so that no writer adds deletion vectors", lambda: gone or self.disabled),
            ("purge", "rewrite every file with a deletion vector", lambda: gone or self.purged),
            (
                "protect",
                "list the deletion vector files of older versions as removed, for vacuums that do not know such files",
                lambda: gone or not self.unlisted,
            ),
        ]
        # Without the feature in the newest protocol, delta-spark takes a file that got a DV for one that was deleted.
        feed = f"; {_FEED}" if has_feed(self.snapshot.metadata) else ""
        if self.truncate:
            wait = format_duration(self.wait)
            return [
                *steps,
                (
                    "fence",
                    "write a checkpoint after the last trace of deletion vectors",
                    lambda: gone or self.fence is not None,
                ),
                (
                    "wait",
                    f"wait until that checkpoint is {wait} old ({_WAIT}): jobs from before it have ended by then",
                    lambda: gone or self.now >= self.ready_at,
                ),
                (
                    "truncate",
                    "delete the history before it: time travel ends there",
                    lambda: gone or self.listed.oldest >= (self.fence or 0),
                ),
                ("drop", f"remove {' and '.join(sorted(self.to_drop)) or _FEATURE} from the protocol", lambda: gone),
            ]
        return [
            *steps,
            (
                "fence",
                f"write {_FENCE} checkpoints, so that no reader replays the history before them",
                lambda: gone or self.fence is not None,
            ),
            (
                "drop",
                f"remove {_FEATURE} from the protocol; {_PROTECTION}, which writers must know, keeps the checkpoints"
                + feed,
                lambda: gone,
            ),
            ("seal", "write the first checkpoint under the new protocol", lambda: self.sealed),
        ]

    @property
    def to_drop(self) -> frozenset[str]:
        """The features to remove. Without its history, a table needs no protection of it either."""
        features = self.snapshot.protocol.features("writer") | self.snapshot.protocol.features("reader")
        return features & {_FEATURE, *((_PROTECTION,) if self.truncate else ())}

    @property
    def disabled(self) -> bool:
        return not _enables(self.snapshot.metadata)

    @property
    def purged(self) -> bool:
        return not len(self.snapshot.files["dv_id"].drop_null())

    @cached_property
    def unlisted(self) -> tuple[str, ...]:
        """Paths of DV files that tombstones inside the retention name, but that have no tombstones of their own."""
        removed = tombstones(self.storage, self.snapshot)
        cutoff = self.now - self._interval(RETENTION, DEFAULT_RETENTION)
        fresh = removed.filter(pc.greater_equal(removed["deletion_timestamp"], cutoff))
        plain = {
            path_of(self.storage, RawName(path)) for path in fresh.filter(fresh["dv_id"].is_null())["path"].to_pylist()
        }
        named = {self._dv_path(dv) for dv in fresh.filter(fresh["dv_id"].is_valid())["dv"].to_pylist()}
        return tuple(sorted(path for path in named - plain if path))

    def _dv_path(self, dv: Mapping[str, Any]) -> str:
        from dv_maintenance.dv import DvDescriptor

        found = DvDescriptor(dv["storage_type"], dv["path_or_inline"], dv["offset"], dv["size"], dv["cardinality"])
        match found.storage_type:
            case "u":
                return posixpath.normpath(found.relative_path())
            case "p":
                return path_of(self.storage, RawName(found.path_or_inline))
            case _:
                return ""

    @cached_property
    def listed(self) -> LogFiles:
        return log_files(self.storage)

    @cached_property
    def fence(self) -> int | None:
        """The version of the checkpoint that keeps readers from the history; ``None`` if there is none yet. No commit
        from that version on may have traces of DVs. It is the oldest of the newest three such checkpoints. To truncate,
        it is the one at which the log can soonest begin.
        """
        newest = self.snapshot.version
        clean = [version for version in sorted(self.listed.checkpoints, reverse=True) if version <= newest]
        # Backwards from the newest version to the last commit with a trace of DVs.
        first = newest + 1
        least = min(clean, default=newest + 1) if self.truncate else min(clean[:_FENCE], default=newest + 1)
        for version in range(newest, least - 1, -1):
            if version not in self.listed.commits or _has_traces(read_commit(self.storage, version)):
                break
            first = version
        if self.truncate:  # the protected part must be deleted as a whole or not at all
            first = max(first, protected_before(self.snapshot))
        fences = [version for version in clean if version >= first]
        if not self.truncate:
            return fences[_FENCE - 1] if len(fences) >= _FENCE else None
        ready = [version for version in fences if self.listed.modified(version) + self.wait <= self.now]
        return max(ready, default=min(fences, default=None))

    @property
    def ready_at(self) -> int:
        return self.listed.modified(self.fence) + self.wait if self.fence is not None else 0

    @property
    def wait(self) -> int:
        return self._interval(_WAIT, _DEFAULT_WAIT)

    @property
    def sealed(self) -> bool:
        return _PROTECTION not in self.snapshot.protocol.features("writer") or any(
            version >= protected_before(self.snapshot) for version in self.listed.checkpoints
        )

    def _interval(self, name: str, default: str) -> int:
        try:
            return interval_millis(self.snapshot.metadata.configuration.get(name, default))
        except ValueError as error:
            raise RefusedError(
                f"{name}: {error}",
                table=self.storage.uri,
                version=self.snapshot.version,
                next_step=f"set the table property to a value such as '{default}'",
            ) from None


def _enables(metadata: Metadata) -> bool:
    return metadata.configuration.get(_ENABLED, "false").lower() == "true"


def _has_traces(actions: Iterable[Action]) -> bool:
    """Whether a reader that knows no DVs would misread the commit."""
    return any(
        dv_id(body.get("deletionVector")) is not None
        if kind in {"add", "remove"}
        else kind == "metaData" and (body.get("configuration") or {}).get(_ENABLED, "").lower() == "true"
        for action in actions
        for kind, body in action.items()
    )


# -- steps ---------------------------------------------------------------------------------------------------------


def _publish(
    state: _State,
    operation: str,
    parameters: Mapping[str, Any],
    actions: Callable[[Since], list[Action] | None],
) -> int | None:
    """Publish one commit. ``actions`` makes its actions, given the commits since; ``None`` if it is too late."""
    base = state.snapshot
    info = operation_info(base, operation, parameters, {}, blind=False)

    def compose(since: Since) -> Draft | None:
        made = actions(since)
        return None if made is None else Draft(info, made)

    return publish(state.storage, base, compose, writes="vacuum").version


def _disable(state: _State) -> None:
    def actions(since: Since) -> list[Action]:
        metadata = since.metadata or state.snapshot.metadata
        configuration = {key: value for key, value in metadata.configuration.items() if key != _ENABLED}
        return [{"metaData": replace(metadata, configuration=configuration).to_json()}]

    _publish(state, "UNSET TBLPROPERTIES", {"properties": [_ENABLED], "ifExists": True}, actions)


def _protect(state: _State) -> None:
    storage = state.storage
    removes = [
        {
            "remove": {
                "path": storage.uri_of(path).removeprefix(f"{storage.uri}/"),
                "deletionTimestamp": state.now,
                "dataChange": False,
            }
        }
        for path in state.unlisted
    ]
    _publish(state, "Deletion Vector Tombstones", {}, lambda _: removes)


def _fence(state: _State) -> None:
    # Each checkpoint follows a commit of its own, so that no version with traces has one.
    for _ in range(1 if state.truncate else _FENCE):
        version = _publish(state, "Empty Commit", {}, lambda _: [])
        write_checkpoint(state.storage, load_snapshot(state.storage, version))


def _drop(state: _State) -> None:
    base = state.snapshot

    def actions(since: Since) -> list[Action] | None:
        protocol, metadata = since.protocol or base.protocol, since.metadata or base.metadata
        came = any(add.get("deletionVector") is not None for add in since.current.values())
        if _enables(metadata) or came or any(key.dv_id is not None for key in since.gone):
            return None  # by now, commits after the fence contain traces: the steps start over
        configuration = {key: value for key, value in metadata.configuration.items() if key != _PROTECTED_BEFORE}
        if not state.truncate:
            configuration[_PROTECTED_BEFORE] = str(since.version + 1)
        added = frozenset() if state.truncate else frozenset({_PROTECTION})
        return [
            {"protocol": _without(protocol, state.to_drop, added).to_json()},
            {"metaData": replace(metadata, configuration=configuration).to_json()},
        ]

    if state.to_drop:
        # One commit removes both features, and is named after the main one.
        named = max(state.to_drop, key=(_PROTECTION, _FEATURE).index)
        _publish(state, "DROP FEATURE", {"featureName": named, "truncateHistory": state.truncate}, actions)


def _without(protocol: Protocol, dropped: frozenset[str], added: frozenset[str]) -> Protocol:
    """The protocol with the lowest versions that can express the remaining features."""
    readers = protocol.features("reader") - dropped
    writers = (protocol.features("writer") | added) - dropped
    for version, features in _LEGACY.items():
        if writers == features and not readers:
            return Protocol(1, version)
    if not readers:
        return Protocol(1, FEATURE_WRITER, None, writers)
    if readers == {"columnMapping"}:
        return Protocol(2, FEATURE_WRITER, None, writers)
    return Protocol(FEATURE_READER, FEATURE_WRITER, readers, writers)

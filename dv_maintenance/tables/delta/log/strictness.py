"""What is read here although the protocol forbids it: other readers can't open the table, or return other rows.

Protocol: Actions, Action Reconciliation, Per-file Statistics, Table Features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.arrays import combined, flags, numbers
from dv_maintenance.remedies import run
from dv_maintenance.tables.delta.features import NO_SCHEMA, stamps
from dv_maintenance.tables.delta.log.bulk import dv_id
from dv_maintenance.tables.delta.log.checksum import contradicted, read_checksum
from dv_maintenance.tables.delta.log.pointer import POINTER
from dv_maintenance.tables.delta.log.segment import LOG, commit_path, read_commits
from dv_maintenance.tables.delta.rows.partitions import partition_columns, spelling_of
from dv_maintenance.tables.delta.rows.row_tracking import DOMAIN, assigns_row_ids, high_water_mark, highest_row_id
from dv_maintenance.tables.fsck import LogFault, Repair
from dv_maintenance.tables.model import NULL_PARTITION
from dv_maintenance.tables.partition_values import sql_type
from dv_maintenance.units import count, parse_count

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.log.actions import Action
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot

_CANT_OPEN: Final = "Readers that follow the protocol, such as deltalake, polars and DuckDB, can't open the table."
_REQUIRED: Final[Mapping[str, Mapping[str, type]]] = {
    "add": {"partitionValues": dict, "dataChange": bool, "size": int, "modificationTime": int},
    "metaData": {"format": dict, "configuration": dict, "partitionColumns": list},
}
_OF_FORMAT: Final[Mapping[str, type]] = {"provider": str, "options": dict}
_OF_VECTORS: Final = ("sizeInBytes", "cardinality")
_UNSTAMPED: Final = "has no in-commit timestamp, though the table has them"
_DVS: Final = "deletionVectors"


class _Commits:
    """What the commits after the checkpoint say.

    incomplete : by name of a missing field, the first commit without it.
    repeated : by name of a partition column that the last ``metaData`` has twice, its commit.
    unstamped : the last commit without an in-commit timestamp, and its version; ``None`` if all have one.
    statistics : by file, the commit with its last statistics if they are not a JSON object.
    uncountable : by file, the commit with its last statistics if their row count is beyond 64 bits.
    changed : the last commit with a ``metaData`` and with a ``protocol``.
    empty : commits without any action.
    added : by file, the last commit that adds it. ``removed``: by file, the last commit that removes a logical file
        of it that was not live, and adds none.
    """

    def __init__(self, storage: Storage, snapshot: DeltaSnapshot) -> None:
        self.incomplete: dict[str, str] = {}
        self.repeated: dict[str, str] = {}
        self.unstamped: tuple[str, int] | None = None
        self.statistics: dict[str, str] = {}
        self.uncountable: dict[str, str] = {}
        self.changed: dict[str, int] = {}
        self.empty: list[str] = []
        self.added: dict[str, int] = {}
        self.removed: dict[str, int] = {}
        self._live: dict[str, set[str | None]] = {}  # vectors of each file that these commits add
        for file, actions in read_commits(storage, snapshot.segment.commits):
            self._take(file.path, file.end, actions)
            if not actions and file.start == file.end:
                self.empty.append(file.path)

    def _take(self, where: str, version: int, actions: list[Action]) -> None:
        for kind, fields in _REQUIRED.items():
            for body in _bodies(actions, kind):
                for name in (name for name, wanted in fields.items() if not isinstance(body.get(name), wanted)):
                    self.incomplete.setdefault(f"{kind}.{name}", where)
                source: Any = body.get("format") if kind == "metaData" else None
                if isinstance(source, dict):
                    for name in (
                        name for name, wanted in _OF_FORMAT.items() if not isinstance(source.get(name), wanted)
                    ):
                        self.incomplete.setdefault(f"{kind}.format.{name}", where)
                vector = body.get("deletionVector")
                for name in (name for name in _OF_VECTORS if vector and vector.get(name) is None):
                    self.incomplete.setdefault(f"{kind}.deletionVector.{name}", where)
        for body in _bodies(actions, "metaData"):
            names = body.get("partitionColumns")
            self.repeated = {name: where for name in names if names.count(name) > 1} if isinstance(names, list) else {}
        self.changed |= {kind: version for each in actions for kind in each if kind in {"metaData", "protocol"}}
        first = actions[0].get("commitInfo") if actions else None
        if not (isinstance(first, dict) and type(first.get("inCommitTimestamp")) is int):
            self.unstamped = where, version
        for body in _bodies(actions, "remove"):
            vectors, vector = self._live.get(path := str(body.get("path")), set()), dv_id(body.get("deletionVector"))
            if vector in vectors:
                vectors.remove(vector)
            else:
                self.removed[path] = version
        for body in _bodies(actions, "add"):
            path = str(body.get("path"))
            self.added[path] = version
            self._live.setdefault(path, set()).add(dv_id(body.get("deletionVector")))
            self.removed.pop(path, None)
            self.statistics.pop(path, None)
            self.uncountable.pop(path, None)
            if not is_object(body.get("stats")):
                self.statistics[path] = where
            elif _is_uncountable(body.get("stats")):
                self.uncountable[path] = where


def _bodies(actions: list[Action], kind: str) -> Iterator[dict[str, Any]]:
    return (each[kind] for each in actions if isinstance(each.get(kind), dict))


def is_object(statistics: Any) -> bool:
    """Whether statistics are a JSON object, or left out."""
    if statistics is None:
        return True
    try:
        return isinstance(statistics, str) and isinstance(orjson.loads(statistics), dict)
    except orjson.JSONDecodeError:
        return False


def _is_uncountable(statistics: str | None) -> bool:
    """Whether the row count of statistics that are an object does not fit 64 bits."""
    rows = None if statistics is None else orjson.loads(statistics).get("numRecords")
    return isinstance(rows, int | float) and not -(1 << 63) <= rows < 1 << 63


def strict_faults(storage: Storage, snapshot: DeltaSnapshot, name: str) -> Iterator[LogFault]:
    """Faults of the version's log. ``name``: of the table, for commands."""
    if not snapshot.metadata.schema_string:
        again = Repair("Restore the commit or the checkpoint with the schema from a backup.", None, "Nothing.")
        yield LogFault("", NO_SCHEMA, "Its files can be counted, but nobody can read the table.", again)
    commits = _Commits(storage, snapshot)
    concerned = commits.statistics or commits.uncountable or commits.removed
    live = set(snapshot.files["path"].to_pylist() if concerned else ())
    repair = Repair("Write a checkpoint, from which readers then begin.", run("checkpoint", name), "Nothing.")
    for what, where in commits.incomplete.items():
        yield LogFault(where, f"{what} is missing", _CANT_OPEN, repair)
    for column, where in commits.repeated.items():
        yield LogFault(where, f"metaData.partitionColumns names {column} more than once", _CANT_OPEN, repair)
    if unreadable := {path: where for path, where in commits.statistics.items() if path in live}:
        path, where = next(iter(unreadable.items()))
        yield LogFault(
            where,
            f"the statistics of {count(len(unreadable), 'file')} are not a JSON object, the first those of {path}",
            _CANT_OPEN,
            repair,
        )
    for path in live & commits.uncountable.keys():
        again = Repair("Correct the numbers in the log.", run("recount", name), "Nothing.")
        yield LogFault(commits.uncountable[path], f"{path} has more rows than 64 bits can count", _CANT_OPEN, again)
        break
    for where in commits.empty:
        how = "Put it back from a backup before a vacuum deletes its files. If it did nothing, write a checkpoint."
        yield LogFault(
            where,
            "holds no action, as after a power failure",
            "Readers take it for a commit that changed nothing: if it added rows, they don't see them.",
            Repair(how, run("checkpoint", name), "What that commit did, if it is not put back."),
        )
    yield from _spellings(snapshot, name)
    yield from _left_out(snapshot, commits, name)
    for path in snapshot.duplicate_paths:
        yield LogFault(
            path,
            "is live more than once, with different deletion vectors: a commit removed it without naming the old one",
            "Spark returns its rows once for each of them, other readers may return other rows.",
            _back(name, commits.added.get(path)),
        )
    for path, version in commits.removed.items():
        if path in live:
            yield LogFault(
                path,
                f"is still live: version {version} removes it without naming its deletion vector",
                "Readers return its rows, although that version deleted them or moved them to other files.",
                _back(name, version),
            )
    yield from _in_the_way(storage, commit_path(snapshot.version + 1))
    yield from _checksum(storage, snapshot, commits)
    yield from _stamps(snapshot, commits)
    yield from _row_ids(snapshot)
    yield from _protocol(snapshot, name)
    yield from _schema(snapshot)


def _in_the_way(storage: Storage, following: str) -> Iterator[LogFault]:
    """Names on local disk that no writer can take. ``following``: the commit after the newest version."""
    away = Repair("Move the folder to another place.", None, "Nothing.")
    if storage.is_folder(following):
        yield LogFault(following, "is a folder", "Spark can't read the table, and nobody can write to it.", away)
    elif storage.is_dangling(following):
        back = Repair("Put back the file that it names, or remove the link.", None, "Nothing.")
        effect = "Readers take the version before it for the newest one, and nobody can write to the table."
        yield LogFault(following, "is a link to a file that does not exist", effect, back)
    if storage.is_folder(POINTER):
        yield LogFault(POINTER, "is a folder", "No checkpoint can be named in it.", away)


def _back(name: str, since: int | None) -> Repair:
    if not since:
        return Repair("Restore a version from before that commit.", None, "Everything committed since.")
    how = f"Restore version {since - 1}, which is older than the fault; then repeat what was committed since."
    return Repair(how, run("restore", name, version=since - 1), f"Everything committed after version {since - 1}.")


def _spellings(snapshot: DeltaSnapshot, name: str) -> Iterator[LogFault]:
    """Partition values that are spelled otherwise than the protocol says (Partition Value Serialization)."""
    if not snapshot.files.num_rows:
        return
    for column in partition_columns(snapshot.metadata):
        spelled = spelling_of(column.type)
        if spelled is None:
            continue
        values = pc.map_lookup(snapshot.files["partition_values"].combine_chunks(), column.key, "last")
        for text in values.unique().drop_null().to_pylist():
            if text and not spelled(text):
                path = snapshot.files["path"][values.index(text).as_py()].as_py()
                kind = sql_type(column.type)
                what = f"{path} has the value {text!r} in partition column {column.name} ({kind}), which Spark reads"
                how = "Write the rows of that partition again: their new files have the usual spelling."
                again = run("update", name, set=f"{column.name}={column.name}")
                yield LogFault(LOG, what, "deltalake and polars can't read the table.", Repair(how, again, "Nothing."))
                break


def _left_out(snapshot: DeltaSnapshot, commits: _Commits, name: str) -> Iterator[LogFault]:
    """Files without a value of a partition column, although their folder has one. Where the folder has none either, a
    writer may have left out a null.
    """
    maps = combined(snapshot.files["partition_values"])
    ends = numbers(maps.offsets)
    keys, files = maps.keys.slice(ends[0]), np.repeat(np.arange(len(maps)), np.diff(ends))
    for column in partition_columns(snapshot.metadata):
        has = np.zeros(len(maps), bool)
        has[files[flags(pc.equal(keys.slice(0, len(files)), column.key))]] = True
        for at in np.flatnonzero(~has).tolist():
            path = str(snapshot.files["path"][at].as_py())
            said = next((each for each in path.split("/")[:-1] if each.startswith(f"{column.name}=")), None)
            if said is None or said.endswith(f"={NULL_PARTITION}"):
                continue
            lost = f"{count(int((~has).sum()), 'file')}, the first is {path}"
            yield LogFault(
                LOG,
                f"the partition column {column.name} has no value in {lost}",
                f"Readers take it for null there, and filters on {column.name} do not find the rows.",
                _back(name, commits.added.get(path)),
            )
            break


def _checksum(storage: Storage, snapshot: DeltaSnapshot, commits: _Commits) -> Iterator[LogFault]:
    """Protocol: Version Checksum File."""
    version, path = snapshot.segment.last_checksum or (0, None)
    for what in contradicted(read_checksum(storage, path), snapshot.metadata, snapshot.protocol):
        if commits.changed.get("metaData" if what == "metadata" else what, -1) <= version:
            yield LogFault(
                path or "",
                f"contradicts the {what} of the log",
                "Readers that go by it, such as deltalake and polars, may return other columns, or deleted rows.",
                Repair("Move the file to another place: no reader needs it.", None, "Nothing."),
            )


def _stamps(snapshot: DeltaSnapshot, commits: _Commits) -> Iterator[LogFault]:
    """Protocol: In-Commit Timestamps. Compacted files and checkpoints hold none."""
    since = parse_count(snapshot.metadata.configuration.get("delta.inCommitTimestampEnablementVersion", "0")) or 0
    if not stamps(snapshot.metadata) or commits.unstamped is None or snapshot.segment.compacted:
        return
    where, version = commits.unstamped
    if version == snapshot.version and snapshot.in_commit_timestamp is None:
        effect = "Its rows can be read, but nobody can write to the table, or find a version by its time."
        yield LogFault(where, _UNSTAMPED, effect, _back(snapshot.table, version))
    elif since <= version < snapshot.version:
        effect = "Spark can't show the table's history, or find a version by its time."
        how = "Write a checkpoint; it ends when the commit is old enough to be cleaned up."
        again = Repair(how, run("checkpoint", snapshot.table), "Nothing.")
        yield LogFault(where, _UNSTAMPED, effect, again)


def _row_ids(snapshot: DeltaSnapshot) -> Iterator[LogFault]:
    """Protocol: Row Tracking, "Writer Requirements"."""
    if not assigns_row_ids(snapshot.protocol, snapshot.metadata):
        return
    used = highest_row_id(snapshot.files)
    try:
        mark = high_water_mark(snapshot.domains.get(DOMAIN))
    except DamagedTableError as damage:
        said = damage.message
    else:
        if mark >= used:
            return
        said = f"the domain {DOMAIN} {'is missing' if mark < 0 else f'ends at the row id {mark}'}"
    how = "Run a purge or an update that writes a file: the domain in its commit covers all row ids."
    yield LogFault(
        LOG,
        f"{said}, although row ids up to {used} are in use",
        "New rows get the ids of others: row tracking no longer tells them apart.",
        Repair(how, None, "Nothing. Rows that were added since keep ids that others have."),
    )


def _protocol(snapshot: DeltaSnapshot, name: str) -> Iterator[LogFault]:
    if _DVS in snapshot.protocol.features("reader"):
        return
    if pc.any(snapshot.files["dv_id"].is_valid()).as_py():
        yield LogFault(
            LOG,
            f"has deletion vectors, but the protocol lacks the feature {_DVS}",
            "Readers that go by the protocol, such as polars, return deleted rows.",
            Repair("Rewrite the files without them.", run("purge", name), "Nothing."),
        )


def _schema(snapshot: DeltaSnapshot) -> Iterator[LogFault]:
    names = snapshot.schema.names
    seen: dict[str, str] = {}
    for each in names:
        other = seen.setdefault(each.lower(), each)
        if other is not each:
            yield LogFault(
                LOG,
                f"the schema has the columns {other} and {each}, which differ only in case",
                "Spark, deltalake and DuckDB can't read the table.",
                Repair("Write the rows to a new table, with other names.", None, "Nothing."),
            )

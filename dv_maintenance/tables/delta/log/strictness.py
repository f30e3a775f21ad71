"""What is read here although the protocol forbids it: other readers can't open the table, or return other rows.

Protocol: Actions, Action Reconciliation, Per-file Statistics, Table Features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow.compute as pc

from dv_maintenance.remedies import run
from dv_maintenance.tables.delta.features import NO_SCHEMA
from dv_maintenance.tables.delta.log.bulk import dv_id
from dv_maintenance.tables.delta.log.segment import LOG, read_commits
from dv_maintenance.tables.fsck import LogFault, Repair
from dv_maintenance.units import count

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.log.actions import Action
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot

_CANT_OPEN: Final = "Readers that follow the protocol, such as deltalake, polars and DuckDB, can't open the table."
_REQUIRED: Final[Mapping[str, Mapping[str, type]]] = {
    "add": {"partitionValues": dict, "dataChange": bool},
    "metaData": {"format": dict, "configuration": dict, "partitionColumns": list},
}
_DVS: Final = "deletionVectors"


class _Commits:
    """What the commits after the checkpoint say.

    incomplete : by name of a missing field, the first commit without it.
    statistics : by file, the commit with its last statistics if they are not a JSON object.
    added : by file, the last commit that adds it. ``removed``: by file, the last commit that removes a logical file
        of it that was not live, and adds none.
    """

    def __init__(self, storage: Storage, snapshot: DeltaSnapshot) -> None:
        self.incomplete: dict[str, str] = {}
        self.statistics: dict[str, str] = {}
        self.added: dict[str, int] = {}
        self.removed: dict[str, int] = {}
        self._live: dict[str, set[str | None]] = {}  # vectors of each file that these commits add
        for file, actions in read_commits(storage, snapshot.segment.commits):
            self._take(file.path, file.end, actions)

    def _take(self, where: str, version: int, actions: list[Action]) -> None:
        for kind, fields in _REQUIRED.items():
            for body in _bodies(actions, kind):
                for name, wanted in fields.items():
                    if not isinstance(body.get(name), wanted):
                        self.incomplete.setdefault(f"{kind}.{name}", where)
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
            if not is_object(body.get("stats")):
                self.statistics[path] = where


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


def strict_faults(storage: Storage, snapshot: DeltaSnapshot, name: str) -> Iterator[LogFault]:
    """Faults of the version's log. ``name``: of the table, for commands."""
    if not snapshot.metadata.schema_string:
        again = Repair("Restore the commit or the checkpoint with the schema from a backup.", None, "Nothing.")
        yield LogFault("", NO_SCHEMA, "Its files can be counted, but nobody can read the table.", again)
    commits = _Commits(storage, snapshot)
    live = set(snapshot.files["path"].to_pylist() if commits.statistics or commits.removed else ())
    repair = Repair("Write a checkpoint, from which readers then begin.", run("checkpoint", name), "Nothing.")
    for what, where in commits.incomplete.items():
        yield LogFault(where, f"{what} is missing", _CANT_OPEN, repair)
    if unreadable := {path: where for path, where in commits.statistics.items() if path in live}:
        path, where = next(iter(unreadable.items()))
        yield LogFault(
            where,
            f"the statistics of {count(len(unreadable), 'file')} are not a JSON object, the first those of {path}",
            _CANT_OPEN,
            repair,
        )
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
    yield from _protocol(snapshot, name)
    yield from _schema(snapshot)


def _back(name: str, since: int | None) -> Repair:
    if not since:
        return Repair("Restore a version from before that commit.", None, "Everything committed since.")
    how = f"Restore version {since - 1}, which is older than the fault; then repeat what was committed since."
    return Repair(how, run("restore", name, version=since - 1), f"Everything committed after version {since - 1}.")


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

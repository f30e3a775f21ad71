"""Every verb of every format, small enough to disturb each of its calls: its initial table, how it runs, and the rows
that the table must hold afterwards. No JVM: the rows of a DELETE, UPDATE or MERGE are found here; the product writes
and commits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from dv_maintenance.dml import operation
from dv_maintenance.dml.new_rows import scanned
from dv_maintenance.dml.operation import Work, deleted_rows
from dv_maintenance.dml.rows import numbered_rows
from dv_maintenance.dml.write import write_changes
from dv_maintenance.dv import DeletionVector
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.checkpoint import checkpoint
from dv_maintenance.maintenance.convert import convert
from dv_maintenance.maintenance.downgrade import downgrade
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.manifest import write_manifests
from dv_maintenance.maintenance.rename_manifests import rename_manifests
from dv_maintenance.maintenance.restore import restore
from dv_maintenance.maintenance.undelete import undelete
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.maintenance.zorder import zorder
from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest
from dv_maintenance.tables.rows import RowChanges, row_id_name
from dv_maintenance.testing.backends import Row, TableBackend
from dv_maintenance.testing.history import TableHistory
from dv_maintenance.units import DAY

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.rows import RowLevelTable
    from dv_maintenance.tables.work import ScanTask

# Rows by id, as ``TableHistory.rows``.
Rows = Mapping[int, Row]
# Ids to delete, and rows to write: an id in both is an update.
Change = Callable[[Rows], tuple[set[int], list[Row]]]

_DELETED: Final = frozenset({1, 8, 13})
_CHANGED: Final = frozenset({2, 9, 14})


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb under test.

    run : carries out the verb at a time in epoch milliseconds at which the retention of all earlier changes has just
        passed. A second run changes nothing.
    needs : the ability that a backend needs; "" for none.
    prepare : changes a table of three files and two DVs so that there is something to do.
    rows : the rows of the table after the verb.
    left : whether anything is left to do.
    unreadable : the table can't be read while the verb runs.
    """

    name: str
    run: Callable[[TableBackend, int], object]
    needs: str = ""
    prepare: Callable[[TableHistory], object] = lambda _: None
    rows: Callable[[TableHistory], Rows] = lambda history: history.rows
    left: Callable[[TableHistory], bool] = lambda _: False
    unreadable: bool = False


def verbs_of(backend: TableBackend) -> list[Verb]:
    """The verbs that the backend's format has."""
    can = backend.supports | _CAPABILITIES[type(backend).__name__]
    return [verb for verb in VERBS if not verb.needs or verb.needs in can]


_CAPABILITIES: Final = {
    "DeltaBackend": frozenset({"lite", "quarantine", "rows", "order", "restore", "downgrade", "convert"}),
    "LanceBackend": frozenset({"positions", "quarantine", "rename"}),
    "PaimonBackend": frozenset({"positions", "quarantine"}),
    "IcebergBackend": frozenset({"rows"}),
}


# -- maintenance -------------------------------------------------------------------------------------------------------


_Run = Callable[[TableBackend, int], object]
# One thread, so that every run makes the same calls in the same order.
_ENGINE: Final = LocalEngine(1)


def _runs(verb: Callable[..., object], *args: Any, **options: Any) -> _Run:
    return lambda backend, _: verb(backend.open(), *args, **options)


def _runs_at(verb: Callable[..., object], *args: Any, ahead: int = 0, **options: Any) -> _Run:
    """With the time, or one ``ahead`` of it, as ``now``."""
    return lambda backend, now: verb(backend.open(), *args, now=now + ahead, **options)


def _vacuums(**request: Any) -> _Run:
    return lambda backend, now: vacuum(backend.open(), VacuumRequest(now=now, **request))


_purge = _runs(purge, _ENGINE)
_vacuum = _vacuums()
_vacuum_aside = _vacuums(guard=VacuumGuard(quarantine=True))

_RESTORED: Final = 4
_LOG_RETENTION: Final = 32 * DAY


def _purged(history: TableHistory) -> None:
    _purge(history.backend, 0)
    history.sync()


def _purged_and_summed_up(history: TableHistory) -> None:
    _purged(history)
    checkpoint(history.backend.open())


def _set_aside(history: TableHistory) -> None:
    _purged(history)
    _vacuum_aside(history.backend, history.backend.moment() + history.backend.retention)


def _is_aside(history: TableHistory) -> bool:
    return undelete(history.table, dry_run=True).files > 0


def _unlogged(history: TableHistory) -> None:
    """A folder of Parquet files, as another tool would leave it."""
    _purged(history)
    _vacuum(history.backend, history.backend.moment() + history.backend.retention)
    storage = history.table.storage
    storage.delete([info.path for info in storage.list("_delta_log")])
    history.versions.clear()


# -- rows --------------------------------------------------------------------------------------------------------------


def _changing(name: str, change: Change) -> Callable[[TableBackend, int], object]:
    """An operation that deletes and writes rows, through the product's own path from found rows to a commit."""

    def run(backend: TableBackend, _: int) -> object:
        table = operation.row_level(backend.open())
        return operation.run(table, name, lambda snapshot: row_work(table, snapshot, change), max_attempts=3)

    return run


def row_work(table: RowLevelTable, snapshot: Snapshot, change: Change) -> Work:
    """What an operation that makes this change of a snapshot has to commit. New files are written."""
    rules = table.row_rules(snapshot)
    tasks = table.scan_tasks(snapshot, scanned(snapshot.schema, rules).names)
    id_name = row_id_name(snapshot.schema) if rules.row_ids else ""
    places = {row[0]: (row, file, position, own) for row, file, position, own in _rows(table, tasks, id_name)}
    rows = {number: row for number, (row, *_) in places.items()}
    gone, new = change(rows)
    after = {row[0]: row for row in new}
    changed = [number for number in sorted(gone | after.keys()) if number in rows]
    if not after:
        found: dict[int, list[int]] = {}
        for number in changed:
            found.setdefault(places[number][1], []).append(places[number][2])
        positions = {file: DeletionVector.from_positions(each) for file, each in found.items()}
        return Work(RowChanges(deleted_rows(table, tasks, positions)), _anything)
    stay = {number: row for number, row in after.items() if rows.get(number) != row}
    inserted = [number for number in stay if number not in rows]
    changed = [number for number in changed if number in gone or number in stay]
    if not changed and not inserted:
        return Work(RowChanges(), _anything)
    frame: Any = _Frame(
        [("update" if number in stay else "delete", *places[number][1:3]) for number in changed]
        + [("insert", None, None)] * len(inserted),
        [stay.get(number) or rows[number] for number in changed] + [stay[number] for number in inserted],
        [places[number][3] for number in changed] + [None] * len(inserted) if rules.row_ids else None,
    )
    written = write_changes(
        frame,
        snapshot.schema,
        snapshot.partition_columns,
        table.row_write_tasks(snapshot, _TARGET),
        change_data=False,
        options=table.storage.options,
    )
    changes = RowChanges(deleted_rows(table, tasks, written.positions), written.added, written.change_files)
    return Work(changes, _anything)


def _anything(added: Snapshot) -> bool:
    return bool(added.files.num_rows)


def _rows(table: RowLevelTable, tasks: Sequence[ScanTask], id_name: str) -> Iterator[tuple[Row, int, int, int | None]]:
    """Live rows, the number of their task, where they are in their file, and their id if they have one."""
    for number, task in enumerate(tasks):
        for batch in numbered_rows(number, task, table.storage.options):
            for row in batch.to_pylist():
                yield (row["id"], row["p"], row["v"]), row["file"], row["row"], row.get(id_name)


_CAST: Final = re.compile(r"CAST\((\w+) AS STRING\) AS (\w+)")


class _Frame:
    """The part of a DataFrame that writing needs."""

    def __init__(
        self, actions: list[tuple[str, int | None, int | None]], rows: list[Row], ids: list[int | None] | None
    ) -> None:
        kinds, files, positions = zip(*actions, strict=True)
        numbers, partitions, values = zip(*rows, strict=True)
        self._batch = pa.RecordBatch.from_pydict(
            {
                "action": pa.array(kinds, pa.string()),
                "file": pa.array(files, pa.int32()),
                "row": pa.array(positions, pa.int64()),
                "id": pa.array(numbers, pa.int64()),
                "p": pa.array(partitions, pa.string()),
                "v": pa.array(values, pa.string()),
                **({} if ids is None else {"row id": pa.array(ids, pa.int64())}),
            }
        )
        self._found: list[SimpleNamespace] = []

    @property
    def columns(self) -> list[str]:
        return list(self._batch.schema.names)

    def toDF(self, *names: str) -> _Frame:  # noqa: N802
        self._batch = self._batch.rename_columns(list(names))
        return self

    def selectExpr(self, *expressions: str) -> _Frame:  # noqa: N802
        """All columns, and copies as strings of those that are cast: they are strings already."""
        for source, name in _CAST.findall(" ".join(expressions)):
            self._batch = self._batch.append_column(name, self._batch.column(source))
        return self

    def mapInArrow(self, work: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], _: str) -> _Frame:  # noqa: N802
        self._found = [SimpleNamespace(**row) for batch in work([self._batch]) for row in batch.to_pylist()]
        return self

    def collect(self) -> list[SimpleNamespace]:
        return self._found


_TARGET: Final = 128 << 20


def deletion(ids: Collection[int]) -> Callable[[TableBackend, int], object]:
    """A DELETE of the rows with these ids."""
    return _changing("DELETE", lambda _: (set(ids), []))


def _delete(_: Rows) -> tuple[set[int], list[Row]]:
    return set(_DELETED), []


def _update(rows: Rows) -> tuple[set[int], list[Row]]:
    return set(), [(number, partition, "new") for number, partition, _ in rows.values() if number in _CHANGED]


def _merge(rows: Rows) -> tuple[set[int], list[Row]]:
    """Delete and update rows, and insert one row into an existing partition and one into a new partition."""
    _, updated = _update(rows)
    return set(_DELETED), [*updated, (100, "a", "merged"), (101, "c", "merged")]


def _changed(change: Change) -> Callable[[TableHistory], Rows]:
    def rows(history: TableHistory) -> Rows:
        gone, new = change(history.rows)
        left = {number: row for number, row in history.rows.items() if number not in gone}
        return left | {row[0]: row for row in new}

    return rows


def _has_dvs(history: TableHistory) -> bool:
    return history.live_dvs() > 0


VERBS: Final = (
    Verb("purge", _purge, left=_has_dvs),
    Verb("optimize", _runs(maintain, _ENGINE), left=_has_dvs),
    Verb("vacuum", _vacuum, prepare=_purged),
    Verb("delete", _changing("DELETE", _delete), needs="positions", rows=_changed(_delete)),
    Verb("delete", _changing("DELETE", _delete), needs="rows", rows=_changed(_delete)),
    Verb("update", _changing("UPDATE", _update), needs="rows", rows=_changed(_update)),
    Verb("merge", _changing("MERGE", _merge), needs="rows", rows=_changed(_merge)),
    Verb("zorder", _runs(zorder, _ENGINE, ["id", "v"]), needs="order", left=_has_dvs),
    Verb("vacuum --lite", _vacuums(lite=True), needs="lite", prepare=_purged),
    Verb("vacuum --quarantine", _vacuum_aside, needs="quarantine", prepare=_purged),
    Verb("undelete", _runs(undelete), needs="quarantine", prepare=_set_aside, left=_is_aside),
    Verb(
        "restore",
        _runs(restore, version=_RESTORED),
        needs="restore",
        prepare=_purged,
        rows=lambda history: history.versions[_RESTORED],
    ),
    Verb("manifest", _runs(write_manifests, _ENGINE), needs="manifests", prepare=_purged),
    Verb("manifest --purge-first", _runs(write_manifests, _ENGINE, True), needs="manifests", left=_has_dvs),
    Verb("checkpoint", _runs(checkpoint), needs="checkpoints"),
    Verb(
        "checkpoint --clean-log",
        _runs_at(checkpoint, ahead=_LOG_RETENTION, clean_log=True),
        needs="checkpoints",
        prepare=_purged_and_summed_up,
    ),
    Verb("downgrade", _runs_at(downgrade, _ENGINE), needs="downgrade", left=_has_dvs),
    Verb(
        "downgrade --truncate-history",
        _runs_at(downgrade, _ENGINE, truncate_history=True),
        needs="downgrade",
        left=_has_dvs,
    ),
    Verb("rename-manifests", _runs_at(rename_manifests), needs="rename", unreadable=True),
    Verb("convert", _runs(convert, {"p": pa.string()}), needs="convert", prepare=_unlogged),
)

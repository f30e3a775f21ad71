"""A table whose versions are names: large numbers in no order, as Iceberg's snapshots have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.service.cursor import Cursor, TableState
from dv_maintenance.service.observe import Observer
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.tables import registry
from dv_maintenance.testing.memory import MemoryTable
from dv_maintenance.testing.memory_engine import MemoryEngine
from dv_maintenance.testing.memory_log import MemoryLog

# The later, the smaller.
IDS = [9_100_000_000_000_000_000, 7_000_000_000_000_000_001, 5_000_000_000_000_000_003, 77, 12, 3, 2]


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MemoryTable]:
    table = MemoryTable(tmp_path / "t", log=MemoryLog(iter(IDS)))
    path = table.append("", list(range(100)))
    table.delete(path, range(50))
    known = {each.name: each for each in registry.formats()}
    opener = {table.uri: table}
    registry.register(
        registry.TableFormat(name="memory", title="Memory", marker="_m", open=lambda at: opener[at.storage.uri])
    )
    yield table
    registry._known.clear()
    registry._known.update(known)


@pytest.fixture
def watched(table: MemoryTable) -> TableSettings:
    return TableSettings(name="t", path=table.uri, format="memory", jobs=("optimize",))


def test_a_sensor_follows_it(table: MemoryTable, watched: TableSettings) -> None:
    observer = Observer(data_versions=True, checks=True)
    first = observer.observe(watched, None, observer.probe(watched, None), busy=False)
    assert (first.inspection.version, first.data_version, first.inspection.due) == (IDS[2], IDS[2], ("optimize",))
    stored = Cursor({"t": TableState(first.inspection, first.data_version)}).to_json()
    state = Cursor.from_json(stored).tables["t"]
    assert purge(table, MemoryEngine()).version_after == IDS[3]
    second = observer.observe(watched, state, observer.probe(watched, state), busy=False)
    assert (second.inspection.version, second.inspection.changed, second.inspection.due) == (IDS[3], True, ())
    assert second.data_version == IDS[2], "maintenance wakes no consumer"
    state = TableState(second.inspection, second.data_version)
    third = observer.observe(watched, state, observer.probe(watched, state), busy=False)
    assert (third.inspection.changed, third.data_version) == (False, IDS[2])


@pytest.mark.parametrize(
    ("recorded", "since"),
    [
        ((IDS[3], IDS[2]), IDS[3]),  # a run observed the table after the last tick
        ((IDS[1], IDS[1]), IDS[2]),  # an older observation
        ((4711, 4711), IDS[2]),  # another table had this version
        (None, IDS[2]),
    ],
)
def test_the_newer_observation_counts(
    table: MemoryTable,
    watched: TableSettings,
    recorded: tuple[int, int] | None,
    since: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    observer = Observer(data_versions=True)
    first = observer.observe(watched, None, observer.probe(watched, None), busy=False)
    state = TableState(first.inspection, first.data_version)
    purge(table, MemoryEngine())
    table.append("", ["new"])
    asked: list[int | None] = []
    whole = table.changes_since
    monkeypatch.setattr(table, "changes_since", lambda version: (asked.append(version), whole(version))[1])
    found = observer.observe(watched, state, observer.probe(watched, state), busy=False, observed=lambda: recorded)
    assert (found.data_version, asked) == (IDS[4], [since])

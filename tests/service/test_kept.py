"""What inspections keep between two ticks: it is bounded, dropped in doubt, and read in full once a day."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dv_maintenance.errors import StorageError, UsageError
from dv_maintenance.service.cursor import TableState
from dv_maintenance.service.inspection import Inspection
from dv_maintenance.service.kept import KeptSnapshots, kept_snapshots
from dv_maintenance.service.observe import Observer
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.delta.table import DeltaTable
from dv_maintenance.testing.delta_builder import DeltaBuilder


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The places of tables that were read in full, in order."""
    found: list[str] = []
    read = DeltaTable.snapshot

    def snapshot(self: DeltaTable, version: int | None = None) -> DeltaSnapshot:
        found.append(Path(self.uri).name)
        return read(self, version)

    monkeypatch.setattr(DeltaTable, "snapshot", snapshot)
    return found


def table(place: Path) -> tuple[DeltaBuilder, DeltaTable]:
    builder = DeltaBuilder(str(place)).create(pa.schema([("id", pa.int64())]))
    builder.append(pa.table({"id": range(10)}), files=2)
    return builder, DeltaTable(builder.storage)


def test_a_changed_table_is_not_read_again(tmp_path: Path, reads: list[str]) -> None:
    builder, opened = table(tmp_path / "a")
    kept = KeptSnapshots()
    kept.snapshot(opened, 1)
    builder.append(pa.table({"id": [11]}))
    assert kept.snapshot(opened, 2).files.num_rows == 3
    assert reads == ["a"]


def test_once_a_day_it_is(tmp_path: Path, reads: list[str]) -> None:
    now = [0.0]
    kept = KeptSnapshots(clock=lambda: now[0])
    _, opened = table(tmp_path / "a")
    for now[0] in (0, 86_000, 87_000, 88_000):
        kept.snapshot(opened, 1)
    assert reads == ["a", "a"]


def test_memory_is_bounded(tmp_path: Path, reads: list[str]) -> None:
    first, second, third = (table(tmp_path / name)[1] for name in "abc")
    kept = KeptSnapshots()
    kept.snapshot(first, 1)
    one = kept.bytes
    kept = KeptSnapshots(2 * one + one // 2)
    for each in (first, second, first, third, first, second):
        kept.snapshot(each, 1)
    assert kept.bytes <= kept.limit
    assert reads[1:] == ["a", "b", "c", "b"]
    reads.clear()
    for limit in (2 * one - 2, 0):
        kept = KeptSnapshots(limit)
        kept.snapshot(first, 1)
        kept.snapshot(first, 1)
    assert reads == ["a"] * 4


def test_after_a_failure_the_table_is_read_in_full(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, opened = table(tmp_path / "a")
    kept = KeptSnapshots()
    kept.snapshot(opened, 1)
    with monkeypatch.context() as patch:

        def fail(*_: object) -> None:
            raise StorageError("away")

        patch.setattr(DeltaTable, "advanced", fail)
        with pytest.raises(StorageError):
            kept.snapshot(opened, 1)
    kept.snapshot(opened, 1)
    assert reads == ["a", "a"]


def test_the_limit_is_a_variable_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    kept_snapshots.cache_clear()
    monkeypatch.setenv("DVM_KEPT_MEMORY", "64MiB")
    assert kept_snapshots().limit == 64 << 20
    kept_snapshots.cache_clear()
    monkeypatch.setenv("DVM_KEPT_MEMORY", "much")
    with pytest.raises(UsageError, match="DVM_KEPT_MEMORY"):
        kept_snapshots()
    monkeypatch.undo()
    kept_snapshots.cache_clear()


def test_ticks_build_on_each_other(tmp_path: Path, reads: list[str]) -> None:
    builder, _ = table(tmp_path / "a")
    watched = TableSettings(path=str(tmp_path / "a"), name="a", jobs=("optimize",))
    last, rows = TableState(Inspection("a")), []
    for number in range(3):
        # Another sensor of the same process has the same snapshots.
        observer = Observer(data_versions=True, checks=True)
        found = observer.observe(watched, last, observer.probe(watched, last), busy=False)
        last = TableState(found.inspection, found.data_version, True)
        assert found.inspection.health is not None
        rows.append(found.inspection.health.counts.live_rows)
        builder.append(pa.table({"id": [number]}))
    assert rows == [10, 11, 12]
    assert reads == ["a"]

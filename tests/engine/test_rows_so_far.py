"""Rows that running tasks have read so far."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dv_maintenance.engine import rows_read_of, rows_so_far
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.rows_so_far import RowCounts, counting_in
from dv_maintenance.tables import open_table


def test_processes_share_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_so_far, "_SECONDS_BETWEEN", 0)
    counts = RowCounts(3)
    first, last = counting_in(counts.path, 0), counting_in(counts.path, 2)
    first(10)
    last(5)
    first(20)
    assert counts.total() == 25
    counts.set(2, 7)
    assert counts.total() == 27
    counts.close()
    assert not os.path.exists(counts.path)
    first(30)  # the driver is gone: the task goes on


def test_a_task_writes_its_number_twice_a_second_at_most() -> None:
    counts = RowCounts(1)
    on_rows = counting_in(counts.path, 0)
    for rows in range(1, 1000):
        on_rows(rows)
    assert counts.total() == 1
    counts.close()


def test_the_local_engine_counts_the_rows_of_all_runs(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    from dv_maintenance.service import verbs
    from dv_maintenance.testing.delta_builder import DeltaBuilder

    builder = DeltaBuilder(str(tmp_path / "t")).create(pa.schema([("id", pa.int64())]))
    builder.append(pa.table({"id": range(100)}), files=2)
    builder.delete(lambda rows: pc.less(rows["id"], 10))
    engine = LocalEngine()
    assert rows_read_of(engine) == 0
    verbs.rewrite(open_table(str(tmp_path / "t")), lambda: engine, verbs.PURGE)
    assert rows_read_of(engine) == 40  # of the file with a deletion vector


def test_progress_does_not_wait_for_a_session_that_starts() -> None:
    from dv_maintenance.engine.spark import SparkEngine

    engine = SparkEngine()
    with engine._lock:
        assert rows_read_of(engine) is None

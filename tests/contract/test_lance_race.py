"""Purges of a Lance table while others delete from it: no row is lost or reappears, no rewrite is wasted."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.tables.lance.commit import rewrites as commit
from dv_maintenance.tables.table import CommitOutcome

ROWS = 40_000
WEEK = 8 * 86_400_000


@pytest.mark.parametrize("turns", [10, pytest.param(30, marks=pytest.mark.deep)])
@pytest.mark.parametrize("stable", [False, True], ids=["address", "stable"])
def test_purges_in_the_middle_of_deletes(
    pylance: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stable: bool, turns: int
) -> None:
    """Each of two threads deletes so many times."""
    place = str(tmp_path / "table")
    data = pa.table({"id": range(ROWS), "name": [f"name {n}" for n in range(ROWS)]})
    pylance.write_dataset(data, place, max_rows_per_file=5000, enable_stable_row_ids=stable)
    outcomes: list[CommitOutcome] = []
    commits = commit.commit
    monkeypatch.setattr(
        commit, "commit", lambda *args, **options: outcomes.append(commits(*args, **options)) or outcomes[-1]
    )

    def deletes(number: int) -> set[int]:
        draw, gone = random.Random(number), set[int]()
        for _ in range(turns):
            start = draw.randrange(ROWS)
            pylance.dataset(place).delete(f"id >= {start} and id < {start + 60} and id % 2 = {number}")
            gone |= {n for n in range(start, min(start + 60, ROWS)) if n % 2 == number}
        return gone

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(deletes, number) for number in (0, 1)]
        while not all(job.done() for job in jobs):
            assert purge(open_table(place), LocalEngine()).verified
            assert vacuum(open_table(place)).deleted == 0
        gone = jobs[0].result() | jobs[1].result()
    left = sorted(set(range(ROWS)) - gone)
    assert sorted(pylance.dataset(place).to_table()["id"].to_pylist()) == left
    assert outcomes, "nothing was purged in the meantime: this tested nothing"
    assert not [outcome.reason for outcome in outcomes if outcome.lost]
    assert any(outcome.rebased for outcome in outcomes)

    purge(open_table(place), LocalEngine())
    # A week later: deletion files of deletes that had to try again are nobody's by then.
    now = time.time_ns() // 1_000_000 + WEEK
    vacuum(open_table(place), VacuumRequest(retention=0, allow_short_retention=True, now=now))
    assert sorted(pylance.dataset(place).to_table()["id"].to_pylist()) == left
    named = set(open_table(place).snapshot().files["path"].to_pylist())
    stored = (path for path in Path(place).rglob("*") if path.is_file())
    stored_names = {path.relative_to(place).as_posix() for path in stored}
    assert {name for name in stored_names if name.startswith(("data/", "_deletions/"))} == named

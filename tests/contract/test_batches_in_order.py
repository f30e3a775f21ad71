"""Plans stay valid while their own batches are committed: positions shift in Lance, deletion vectors move in Paimon."""

from __future__ import annotations

from pathlib import Path

from killed_run import purge_file_by_file

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import apply
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.tables.model import SEQUENCE
from dv_maintenance.testing.backends import LanceBackend, PaimonBackend

STEPS = 10


def test_lance_joins_the_fragments_that_the_plan_joined(tmp_path: Path) -> None:
    """Three adjacent fragments become one at the end, ten times. Those of later steps move forward, together."""
    backend = LanceBackend(str(tmp_path / "table"))
    backend.create()
    for number in range(STEPS * 4):
        rows = 2000 if number % 4 == 3 else 100
        backend.append("p", [(number * 10_000 + row, "p", f"value {row}") for row in range(rows)])
    backend.delete([number * 10_000 + 50 for number in range(STEPS * 4) if number % 4 != 3])
    table, rows = backend.open(), backend.rows()
    plan = build_plan(table.snapshot(), Policy(), purge=True)
    assert [len(step.inputs) for step in plan.steps] == [3] * STEPS
    report = apply(table, LocalEngine(), plan)
    assert report.verified, report.problems
    assert {step.id for step in report.steps} == {step.id for step in plan.steps}
    assert {step.attempts for step in report.steps} == {1}
    assert sorted(backend.rows()) == sorted(rows)
    for first in range(0, STEPS * 4, 4):
        group = [row[0] for row in rows if first <= row[0] // 10_000 < first + 3]
        assert [row[0] for row in backend.rows() if first <= row[0] // 10_000 < first + 3] == group
    files = table.snapshot().files
    assert files[SEQUENCE.name].to_pylist() == list(range(STEPS * 2))
    assert files["dv_id"].null_count == STEPS * 2


def test_paimon_moves_vectors_that_later_batches_read(tmp_path: Path) -> None:
    """All vectors are in one index file. Each commit rewrites it, so those of the later batches have new places."""
    backend = PaimonBackend(str(tmp_path / "table"))
    backend.create()
    for number in range(STEPS):
        backend.append("p", [(number * 1000 + row, "p", f"value {row}") for row in range(200)])
    backend.delete([number * 1000 + row for number in range(STEPS) for row in range(5)])
    table, rows = backend.open(), sorted(backend.rows())
    plan = purge_file_by_file(table)
    places = {each.path: each.dv_id for step in plan.steps for each in step.inputs}
    moved: set[str] = set()

    def look(done: int, _: int) -> None:
        live = table.snapshot().files.select(["path", "dv_id"]).to_pylist()
        moved.update(row["path"] for row in live if row["dv_id"] not in (None, places.get(row["path"])))

    report = apply(table, LocalEngine(), plan, on_progress=look)
    assert report.verified, report.problems
    assert len(moved) == STEPS - 2
    assert {step.id for step in report.steps} == {step.id for step in plan.steps}
    assert {(step.attempts, step.rows_carried, step.rows_purged) for step in report.steps} == {(1, 0, 5)}
    assert sorted(backend.rows()) == rows
    assert table.snapshot().files["dv_id"].null_count == STEPS

"""A run that is killed keeps what it has done, and the next one does only the rest."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from killed_run import KILLED_AT, purge_file_by_file, run_and_die

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import apply
from dv_maintenance.testing.backends import DeltaBackend, LanceBackend, PaimonBackend, TableBackend

FILES, ROWS = 10, 500

Make = Callable[[str], TableBackend]


@pytest.mark.parametrize("make", [DeltaBackend, LanceBackend, PaimonBackend])
def test_most_of_a_killed_run_stays_done(make: Make, tmp_path: Path) -> None:
    backend = make(str(tmp_path / "table"))
    fill(backend)
    table = backend.open()
    before, rows = table.version(), sorted(backend.rows())
    plan = purge_file_by_file(table)
    assert len(plan.steps) == FILES

    # A fork of this process would lose the threads of Lance's library.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(
        ["dv_maintenance.testing.backends", "dv_maintenance.maintenance.execution.apply", "obstore"]
    )
    process = processes.Process(target=run_and_die, args=(make, backend.place))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL

    assert sorted(backend.rows()) == rows
    sizes = {each.path: each.size for step in plan.steps for each in step.inputs}
    live = set(table.snapshot().files["path"].to_pylist())
    kept = {path for path in sizes if path not in live}
    rewritten = sum(sorted(sizes.values(), reverse=True)[:KILLED_AT])
    assert sum(sizes[path] for path in kept) >= 0.8 * rewritten, f"{len(kept)} of {KILLED_AT} rewrites were kept"
    if make is not LanceBackend:  # which commits each rewrite, and reserves an id for it
        assert table.version() - before == 4

    rest = purge_file_by_file(table)
    assert {each.path for step in rest.steps for each in step.inputs} == sizes.keys() - kept
    report = apply(table, LocalEngine(), rest)
    assert report.verified, report.problems
    assert sum(step.files_removed for step in report.steps) == FILES - len(kept)
    assert table.snapshot().files["dv_id"].null_count == FILES
    assert sorted(backend.rows()) == rows
    assert purge_file_by_file(table).steps == ()


def fill(backend: TableBackend) -> None:
    """Files of equal size, each in a partition of its own, with a few deleted rows."""
    backend.create()
    for file in range(FILES):
        backend.append(f"p{file}", [(file * ROWS + row, f"p{file}", f"value {row}") for row in range(ROWS)])
    backend.delete([file * ROWS + row for file in range(FILES) for row in range(20)])

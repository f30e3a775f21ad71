"""Maintenance against writers that never wait for it: no row is lost, none reappears, and no file is left."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import race_writer
from support.readers import with_deltalake

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import ConflictError
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.execution.report import ApplyReport
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.tables.table import Table
from dv_maintenance.testing.backends import DeltaBackend

THREADS = 2
RUNS = 100  # of maintenance, at most


@pytest.mark.parametrize("turns", [2, pytest.param(20, marks=pytest.mark.deep)])
def test_maintenance_in_the_middle_of_writers(tmp_path: Path, turns: int) -> None:
    """Each writer takes so many turns."""
    place = str(tmp_path / "table")
    DeltaBackend(place).create()
    script = [sys.executable, race_writer.__file__, place, "1000000", str(turns)]
    with (
        subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as process,
        ThreadPoolExecutor(THREADS + 2) as pool,
    ):
        writers = [pool.submit(race_writer.write, place, 1000 * number, turns) for number in range(THREADS)]

        def busy() -> bool:
            return process.poll() is None or not all(writer.done() for writer in writers)

        runs = [pool.submit(maintained, DeltaBackend(place).open(), run, busy) for run in (purge, maintain)]
        try:
            printed = process.communicate(timeout=120)[0]
        finally:
            process.kill()
        left = [number for writer in writers for number in writer.result()]
        reports = [report for run in runs for report in run.result()]
    assert process.returncode == 0
    left = sorted(left + json.loads(printed))

    assert reports, "maintenance lost every race: this tested nothing"
    assert all(report.verified for report in reports), [report.problems for report in reports]
    table = DeltaBackend(place).open()
    assert sorted(row[0] for row in DeltaBackend(place).rows()) == left
    assert sorted(with_deltalake(Path(place))["id"].to_pylist()) == left
    purge(table, LocalEngine())
    assert sorted(row[0] for row in DeltaBackend(place).rows()) == left
    only_what_is_live_stays(DeltaBackend(place))
    assert sorted(with_deltalake(Path(place))["id"].to_pylist()) == left


def maintained(table: Table, run: Callable[..., ApplyReport], busy: Callable[[], bool]) -> list[ApplyReport]:
    """What was done in the meantime. To lose a race is all that may happen."""
    reports = []
    for _ in range(RUNS):
        if not busy():
            break
        try:
            report = run(table, LocalEngine())
        except ConflictError:
            continue
        if report.steps:
            reports.append(report)
        # Has nothing to do inside the retention, and must not touch files that are about to be committed.
        assert vacuum(table).deleted == 0
    return reports


def only_what_is_live_stays(backend: DeltaBackend) -> None:
    table = backend.open()
    vacuum(table, VacuumRequest(now=backend.moment() + backend.retention))
    sources = [source for task in table.scan_tasks(table.snapshot()) for source in task.sources]
    live = {table.storage.path_of_uri(source.uri) for source in sources}
    assert all(source.dv is None for source in sources)
    assert {info.path for info in table.storage.walk(skip=lambda path, _: path.startswith("_"))} == live

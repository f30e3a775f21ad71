"""A face is a folder: this one is this file. It reads the file of Dagster's component and needs the service only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.service import verbs
from dv_maintenance.service.checks import Finding, check, check_names
from dv_maintenance.service.evaluation import Limits, evaluate
from dv_maintenance.service.observe import Observation, Observer
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.tables_file import Job, TableSettings, WatchConfig
from dv_maintenance.service.verbs.like_sensor import NoOrchestrator
from dv_maintenance.testing.delta_builder import DeltaBuilder

JOBS: dict[Job, Callable[[TableSettings], Outcome]] = {
    "optimize": lambda table: verbs.optimize(table, verbs.opened(table), LocalEngine),
    "vacuum": lambda table: verbs.vacuum_by_policy(table, verbs.opened(table))[0],
    "manifest": lambda table: verbs.manifest(verbs.opened(table), LocalEngine),
}


@dataclass
class Face(NoOrchestrator):
    """An orchestrator that starts each run itself, at once, and keeps what it was told."""

    config: WatchConfig
    cursor: str | None = None
    runs: list[tuple[str, Job, str]] = field(default_factory=list)
    observed: dict[str, Observation] = field(default_factory=dict)
    checked: dict[str, Finding] = field(default_factory=dict)
    observer: Observer = field(default_factory=lambda: Observer(data_versions=True))

    def tick(self) -> str:
        found = evaluate(self.config.tables, self.cursor, self, self.observer, Limits(30, 10, 10))
        self.cursor = found.cursor.to_json()
        tables = {table.name: table for table in self.config.tables}
        for request in found.requests:
            for job in request.jobs:
                outcome = JOBS[job](tables[request.table])
                assert not outcome.problems
                self.runs.append((request.table, job, outcome.reason))
        return found.reason

    def record(self, table: TableSettings, observation: Observation) -> None:
        self.observed[table.name] = observation

    def check(self, table: TableSettings, finding: Finding) -> None:
        self.checked[table.name] = finding


def test_it_maintains_the_tables_of_the_component_s_file(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    for name in ("orders", "clean"):
        properties = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
        builder = DeltaBuilder(str(tmp_path / name)).create(schema, properties=properties)
        builder.append(pa.table({"id": range(100)}, schema))
        if name == "orders":
            builder.delete(lambda rows: pc.less(rows["id"], 40))
    file = tmp_path / "defs.yaml"
    file.write_text(
        "type: dv_maintenance.DvMaintainedTablesComponent\n"
        "attributes:\n"
        "  defaults:\n"
        "    jobs: [optimize, vacuum, manifest]\n"
        "    policy: {vacuum_every: 1ms, checks: {retention: {warn: 0s, error: 0s}}}\n"
        "  tables: [{path: orders}, {path: clean, jobs: [optimize]}]\n"
    )
    face = Face(WatchConfig.load(str(file)))
    while face.tick() != "nothing is due in 2 tables":
        assert len(face.runs) < 10, face.runs
    done = {(table, job): reason for table, job, reason in face.runs}
    assert done.keys() == {("orders", "optimize"), ("orders", "vacuum"), ("orders", "manifest")}
    assert "more than 5 % of the rows deleted" in done["orders", "optimize"]
    assert "were deleted: 1 data, 1 DV" in done["orders", "vacuum"]
    assert done["orders", "manifest"].startswith("1 manifest lists the 1 data file of version")

    orders, clean = face.config.tables
    assert face.observed["orders"].data_version == 2, "maintenance is not a new data version"
    assert face.checked["clean"].severity is None
    assert "manifest_lag" in check_names(orders)
    assert "manifest_lag" not in check_names(clean)
    assert [each.severity for each in check(orders, check_names(orders))] == [None] * len(check_names(orders))

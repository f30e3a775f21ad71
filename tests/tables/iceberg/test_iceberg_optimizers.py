"""Tables that another optimizer maintains: said, and left to it unless the policy says otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.iceberg_edits import edit

from dv_maintenance import cli
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.service.inspection import inspect_table
from dv_maintenance.tables import open_table
from dv_maintenance.tables.iceberg.log.metadata import parse_metadata
from dv_maintenance.tables.iceberg.log.optimizers import optimizer_of
from dv_maintenance.tables.iceberg.table import IcebergTable
from dv_maintenance.testing.backends import IcebergBackend

FAR = 4_102_444_800_000  # 2100
BESIDE = Policy(beside_optimizer=True)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Half of the rows are deleted."""
    backend = IcebergBackend(str(tmp_path / "t"))
    backend.create()
    backend.append("a", [(at, "a", "v") for at in range(10)])
    backend.delete(range(5))
    return tmp_path / "t"


def amoro(body: dict[str, Any]) -> None:
    body["properties"]["self-optimizing.enabled"] = "true"


def test_it_is_said_and_left_alone(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = open_table(str(place))
    assert inspect_table(table, now=FAR).due == ("optimize", "vacuum")
    edit(place, amoro)
    table = open_table(str(place))
    plan = build_plan(table.snapshot())
    assert not plan.steps
    assert "left to Amoro (self-optimizing.enabled is true)" in plan.left_alone[0].reason
    found = inspect_table(table, now=FAR)
    assert found.due == ()
    assert any("maintained by Amoro" in each for each in found.warnings)
    assert cli.main(["health", str(place)]) == 0
    assert "maintained by Amoro" in capsys.readouterr().out
    # Unless told otherwise: by the policy, or by name.
    assert inspect_table(table, BESIDE, now=FAR).due == ("optimize", "vacuum")
    before = table.version()
    maintain(table, LocalEngine())
    assert table.version() == before
    assert purge(table, LocalEngine()).version_after != before
    assert build_plan(table.snapshot(before), BESIDE).steps


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, ""),
        ({"properties": {"self-optimizing.enabled": "false"}}, ""),
        ({"properties": {"self-optimizing.enabled": "TRUE"}}, "Amoro"),
        ({"summary": {"snapshot.producer": "OPTIMIZE"}}, "Amoro"),
        ({"summary": {"snapshot.producer": "INGESTION"}}, ""),
        ({"summary": {"snapshot.producer": "OPTIMIZE"}, "properties": {"self-optimizing.enabled": "false"}}, ""),
        ({"location": "s3://63a8e430-6e0b-46f5--table-s3"}, "S3 Tables"),
        ({"location": "s3://63a8e430-6e0b-46f5--table-s3/db/t"}, "S3 Tables"),
        ({"location": "s3://lake/x--table-s3"}, ""),
    ],
)
def test_the_signs(place: Path, change: dict[str, Any], found: str) -> None:
    table = open_table(str(place))
    assert isinstance(table, IcebergTable)
    metadata = table.snapshot().metadata
    body = dict(metadata.body)
    body["snapshots"][-1]["summary"] |= change.get("summary", {})
    body |= {name: each for name, each in change.items() if name != "summary"}
    parsed = parse_metadata(table.layout, metadata.path, json.dumps(body).encode())
    assert optimizer_of(parsed).partition(" (")[0] == found


def test_rewrites_by_others_are_said(place: Path) -> None:
    def rewritten(body: dict[str, Any]) -> None:
        for each in body["snapshots"][-2:]:
            each["summary"] = {"operation": "replace", "engine-name": "spark"}

    edit(place, rewritten)
    snapshot = open_table(str(place)).snapshot()
    assert snapshot.optimizer == ""
    assert any("rewrites by others, the newest by spark" in each for each in snapshot.notes)
    assert build_plan(snapshot).steps

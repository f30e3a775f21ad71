"""From which day on a vacuum may delete unneeded files: grouped by day, and true for the vacuum of that day."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.checks import check_table
from dv_maintenance.maintenance.execution.apply import maintain
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.service.verbs import vacuum
from dv_maintenance.tables import open_table
from dv_maintenance.tables.expiring import by_day
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.tables.model import ExpiringFiles
from dv_maintenance.testing.delta_builder import DeltaBuilder

DAY = 86_400_000


def test_files_are_counted_by_day() -> None:
    assert by_day([], []) == ()
    assert by_day([3 * DAY + 9, DAY, 3 * DAY + 5], [1, 2, 4]) == (
        ExpiringFiles(DAY, 1, 2),
        ExpiringFiles(3 * DAY + 5, 2, 5),
    )


@pytest.fixture
def path(tmp_path: Path) -> str:
    """2 files of 1000 rows, of which one was purged."""
    path = str(tmp_path / "t")
    builder = DeltaBuilder(path).create(pa.schema([("id", pa.int64())]))
    builder.append(pa.table({"id": range(2000)}), files=2)
    builder.delete(lambda rows: pc.less(rows["id"], 500))
    maintain(open_table(path), LocalEngine(), Policy.from_mapping({"max_deleted_ratio": 0, "min_file_size": 0}))
    return path


def test_what_is_announced_goes_then(path: str) -> None:
    table = open_table(path)
    snapshot = table.snapshot()
    now = snapshot.timestamp + 1000
    expired = table.vacuum(VacuumRequest(dry_run=True, now=now)).expired
    assert expired.files == ()
    assert expired.expiring is not None
    (announced,) = expired.expiring
    assert announced.files == 1
    assert abs(announced.at - (snapshot.timestamp + 7 * DAY)) < 10_000
    before = table.vacuum(VacuumRequest(dry_run=True, now=announced.at - 1)).expired
    after = table.vacuum(VacuumRequest(dry_run=True, now=announced.at + 1)).expired
    data = [file for file in after.files if file.kind == "data"]
    assert [file for file in before.files if file.kind == "data"] == []
    assert (len(data), sum(file.size for file in data)) == (announced.files, announced.bytes)
    assert after.expiring == ()


def test_vacuum_and_check_name_the_day(path: str) -> None:
    outcome = vacuum(open_table(path), VacuumRequest(dry_run=True))
    (row,) = outcome.tables["can_go_later"]
    assert outcome.reason.startswith("No file has expired. 1 more file (")
    assert outcome.reason.endswith(f") can go from {row['from']} on.")
    assert outcome.moments["more_can_go_from"] > outcome.moments["cutoff"]
    (each,) = outcome.report["expiring"]
    assert (each["files"], each["bytes"]) == (1, outcome.numbers["expiring_bytes"])
    (found,) = check_table(lambda: open_table(path), checks=["retention"])
    assert found.reason.endswith(f" more can go from {row['from']} on")
    assert found.rows == [dict(row)]


def test_files_that_are_protected_are_not_announced(path: str) -> None:
    guard = Policy.from_mapping({"protected_versions": [1]}).guard
    assert open_table(path).vacuum(VacuumRequest(dry_run=True, guard=guard)).expired.expiring == ()

"""Rows of the golden Lance tables, at every version, and what becomes of the damaged ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from effort import sampled
from golden_tables import names_in
from support.places import GOLDEN

from dv_maintenance.cli import main
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import DamagedDeletionVectorError
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.execution.report import ApplyReport
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.tables.file_log import FileLogTable
from dv_maintenance.testing.file_logs import check_windows

EXPECTED: dict[str, dict[str, Any]] = {
    path.parent.name: json.loads(path.read_text()) for path in sorted((GOLDEN / "lance").glob("*/expected.json"))
}
SOUND = names_in("lance", (name for name, facts in EXPECTED.items() if "versions" in facts))
DAMAGED = {
    "bad_arrow_schema": "its columns are",
    "bad_count_mismatch": "it holds 5990 positions, the log says 6000",
    "bad_garbage_arrow": "not an Arrow IPC file",
    "bad_missing_deletion": "does not exist",
    "bad_offset_out_of_range": "position 1000000 is beyond",
    "bad_truncated_bitmap": "truncated",
}

pytestmark = pytest.mark.usefixtures("golden", "pylance")


def hashed(place: Path, version: int) -> tuple[int, str]:
    """How many rows there are, and the hash that the golden README defines: rows in scan order."""
    digest, count = hashlib.sha256(), 0
    _, batches = read(open_table(str(place)), version)
    for batch in batches:
        count += batch.num_rows
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            digest.update(json.dumps(row, separators=(",", ":")).encode() + b"\n")
    return count, digest.hexdigest()


@pytest.mark.parametrize("name", sampled(SOUND, 7))
def test_the_file_log_leads_from_version_to_version(golden: Path, name: str) -> None:
    table = open_table(str(golden / "lance" / name))
    assert isinstance(table, FileLogTable)
    check_windows(table, [entry.version for entry in table.history()][::-1])


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.deep)])
@pytest.mark.parametrize("name", SOUND)
def test_rows_of_every_version(golden: Path, name: str, every: int) -> None:
    """Or of so many, the newest among them."""
    versions = dict(sorted(EXPECTED[name]["versions"].items(), key=lambda item: -int(item[0]))[::every])
    assert {number: hashed(golden / "lance" / name, int(number)) for number in versions} == {
        number: (facts["live_rows"], facts["live_hash"]) for number, facts in versions.items()
    }


def rows_by_lance(pylance: ModuleType, place: Path) -> list[str]:
    """Every row, with its id where ids are stable, in no order."""
    dataset = pylance.dataset(str(place))
    rows = dataset.to_table(with_row_id=dataset.has_stable_row_ids).to_pylist()
    return sorted(json.dumps(row, default=repr) for row in rows)


@pytest.mark.parametrize(("name", "job"), sampled(product(SOUND, [purge, maintain]), 5))
def test_maintenance_keeps_rows_and_stable_row_ids(
    golden_copy: Callable[[str], Path], pylance: ModuleType, name: str, job: Callable[..., ApplyReport]
) -> None:
    place = golden_copy(f"lance/{name}")
    before = rows_by_lance(pylance, place)
    report = job(open_table(str(place)), LocalEngine())
    assert report.verified, report.problems
    assert rows_by_lance(pylance, place) == before
    if report.steps:
        pylance.dataset(str(place)).validate()
    left = health(open_table(str(place)).snapshot()).counts
    assert left.files_with_dv == 0 or job is maintain
    if job is purge:
        assert bool(report.steps) == bool(sum(step.dvs_removed for step in report.steps))
    again = job(open_table(str(place)), LocalEngine())
    assert (again.steps, again.version_after) == ((), again.version_before)


def test_every_damaged_table_is_known() -> None:
    assert set(DAMAGED) == set(EXPECTED) - set(SOUND)


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_tables_are_not_read(golden: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = golden / "lance" / name
    with pytest.raises(DamagedDeletionVectorError) as caught:
        list(read(open_table(str(place)))[1])
    damage = caught.value
    assert DAMAGED[name] in damage.reason
    assert "_deletions/0-1-" in str(damage.file)
    assert (damage.table, damage.version) == (f"file://{place}", 2)
    assert "fragment 0" in str(damage.next_step)
    assert main(["read", str(place), "--json"]) == 5
    assert json.loads(capsys.readouterr().out)["error"] == "DamagedDeletionVectorError"


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_tables_are_not_rewritten(
    golden_copy: Callable[[str], Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = golden_copy(f"lance/{name}")
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert main(["purge", str(place), "--engine", "local", "--json"]) == 5
    assert "fragment 0" in json.loads(capsys.readouterr().out)["message"]
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before

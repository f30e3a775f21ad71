"""What a vacuum reports, whatever the format of the table."""

from __future__ import annotations

from typing import cast

import pytest

from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.tables.model import ExpiredFile, ExpiredFiles
from dv_maintenance.tables.reports import VacuumReport
from dv_maintenance.tables.table import Table

FILES = (
    ExpiredFile("a.parquet", "data", 100, 1),
    ExpiredFile("b.parquet", "data", 10, 2),
    ExpiredFile("d.bin", "dv", 5, 3),
    ExpiredFile("_change_data/c.parquet", "change", 7, 4),
    ExpiredFile("odd", "other", 1, 5),
    ExpiredFile("i", "index", 1, 5),
    ExpiredFile("v", "manifest", 1, 5),
    ExpiredFile("t1", "transaction", 1, 5),
    ExpiredFile("t2", "transaction", 1, 5),
)


class FakeTable:
    uri = "file:///t"
    format = "delta"

    def __init__(self) -> None:
        self.asked: VacuumRequest | None = None

    def vacuum(self, request: VacuumRequest) -> VacuumReport:
        self.asked = request
        expired = ExpiredFiles(7, 1000, 60_000, FILES, {"in the current version": 3})
        dry_run = request.dry_run
        return VacuumReport(expired, 0 if dry_run else 5, dry_run, 7, 7 if dry_run else 9)


def test_files_are_counted_by_kind() -> None:
    table = FakeTable()
    report = vacuum(
        cast("Table", table), VacuumRequest(retention=60_000, lite=True, allow_short_retention=True, now=61_000)
    )
    assert table.asked == VacuumRequest(retention=60_000, lite=True, allow_short_retention=True, now=61_000)
    assert report.to_json() == {
        "table": "file:///t",
        "format": "delta",
        "version_before": 7,
        "version_after": 9,
        "dry_run": False,
        "cutoff": 1000,
        "retention": 60_000,
        "data_files": 2,
        "dv_files": 1,
        "change_files": 1,
        "index_files": 1,
        "transaction_files": 2,
        "version_files": 1,
        "other_files": 1,
        "bytes": 127,
        "deleted": 5,
        "kept": {"in the current version": 3},
    }


def test_clones_are_of_formats_that_have_them() -> None:
    table = FakeTable()
    with pytest.raises(UsageError, match="Delta tables have no clones"):
        vacuum(cast("Table", table), VacuumRequest(clones=("file:///c",)))
    assert table.asked is None


def test_a_dry_run_names_the_paths() -> None:
    body = vacuum(cast("Table", FakeTable()), VacuumRequest(dry_run=True)).to_json()
    assert body["paths"] == [file.path for file in FILES]
    assert (body["dry_run"], body["deleted"], body["version_after"]) == (True, 0, 7)

"""Many tables side by side: every table is a row, the worst comes first, and one that can't be read stops no other."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dv_maintenance.errors import StorageError, UsageError
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.service import lake as service_lake
from dv_maintenance.service.lake import ORDERS, LakeTable, in_folder, rank, scan
from dv_maintenance.service.reports.lake import of_lake
from dv_maintenance.storage import Storage
from dv_maintenance.testing.delta_builder import DeltaBuilder
from dv_maintenance.units import day_of, format_size

SCHEMA = pa.schema([("id", pa.int64())])
DAY = 86_400_000


def build(place: Path, deleted: int = 0) -> DeltaBuilder:
    builder = DeltaBuilder(str(place)).create(SCHEMA)
    builder.append(pa.table({"id": range(100)}, schema=SCHEMA), files=2)
    if deleted:
        builder.delete(lambda rows: pc.less(rows["id"], deleted))
    return builder


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    root = tmp_path / "lake"
    build(root / "clean")
    build(root / "sales" / "orders", deleted=10)
    build(root / "sales" / "visits", deleted=40)
    build(root / "broken")
    (root / "broken" / "_delta_log" / f"{1:020}.json").write_text("not a commit\n")
    build(tmp_path / "elsewhere", deleted=90)
    (root / "link").symlink_to(tmp_path / "elsewhere")
    return root


def test_every_table_is_a_row_and_the_worst_comes_first(lake: Path) -> None:
    entries, unlisted = in_folder(str(lake), Policy(), {})
    steps: list[tuple[int, int]] = []
    rows = rank(scan(entries, on_progress=lambda done, total: steps.append((done, total))))
    assert not unlisted
    assert [each.name for each in rows] == ["broken", "sales/visits", "sales/orders", "clean"]
    broken, visits, orders, clean = rows
    assert broken.error is not None
    assert "00000000000000000001.json" in broken.error
    assert (visits.files_with_dv, visits.deleted_rows, visits.deleted_ratio) == (1, 40, 0.4)
    assert (visits.due, list(visits.reasons)) == (("optimize",), ["optimize"])
    assert visits.oldest_dv is not None
    assert (orders.deleted_rows, clean.files_with_dv, clean.oldest_dv) == (10, 0, None)
    assert (clean.small_files, clean.expired_bytes) == (2, 0)
    assert steps[-1] == (4, 4)


def test_unneeded_files_can_go_later_and_then_now(tmp_path: Path) -> None:
    builder = build(tmp_path / "lake" / "orders", deleted=10)
    builder.delete(lambda rows: pc.greater_equal(rows["id"], 0))  # every row: both files are removed
    (entry,), _ = in_folder(str(tmp_path / "lake"), Policy(), {})
    (now,) = scan([entry])
    assert (now.expired_bytes, now.files) == (0, 0)
    assert now.expiring_bytes
    assert now.expiring_from is not None
    (later,) = scan([entry], now=now.expiring_from + DAY)
    assert later.expired_bytes
    assert later.due == ("vacuum",)
    assert of_lake([now]).tables["tables"][0]["later"] == (
        f"{format_size(now.expiring_bytes)} from {day_of(now.expiring_from)}"
    )


def test_a_folder_that_cannot_be_listed_is_a_row(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = Storage.folders

    def refused(self: Storage, path: str = "") -> tuple[str, ...]:
        if path == "sales":
            raise StorageError("listing sales failed: permission denied")
        return folders(self, path)

    monkeypatch.setattr(Storage, "folders", refused)
    entries, unlisted = in_folder(str(lake), Policy(), {})
    assert [each.name for each in entries] == ["broken", "clean"]
    assert [(each.name, "permission denied" in (each.error or "")) for each in unlisted] == [("sales", True)]


def test_an_interrupt_does_not_wait_for_the_other_tables(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries, _ = in_folder(str(lake), Policy(), {})
    begun: list[str] = []

    def slow(row: LakeTable, *_: object) -> LakeTable:
        begun.append(row.name)
        time.sleep(0.01)
        return row

    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(service_lake, "_read", slow)
    with pytest.raises(KeyboardInterrupt):
        scan(entries * 100, on_progress=stop)
    assert len(begun) < 100


def test_a_root_without_tables_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains no table"):
        in_folder(str(tmp_path), Policy(), {})


def test_options_are_literal(lake: Path) -> None:
    entries, _ = in_folder(str(lake), Policy(), {"secret": "${HOME}"})
    assert {each.storage_options["secret"] for each in entries} == {"${HOME}"}


def test_orders() -> None:
    rows = [
        LakeTable("unknown", "u"),
        LakeTable("failed", "f", error="no"),
        LakeTable("due", "d", deleted_ratio=0.1, due=("optimize",), files_with_dv=1, oldest_dv=5, expired_bytes=0),
        LakeTable("old", "o", deleted_ratio=0.2, files_with_dv=3, oldest_dv=3, small_files=9, expired_bytes=7),
        LakeTable("new", "n", deleted_ratio=0.2, files_with_dv=3, oldest_dv=4, small_files=1, expired_bytes=8),
    ]
    random.Random(1).shuffle(rows)
    expected = {
        "worst": ["failed", "due", "old", "new", "unknown"],
        "dvs": ["new", "old", "due", "failed", "unknown"],
        "deleted": ["new", "old", "due", "failed", "unknown"],
        "oldest": ["old", "new", "due", "failed", "unknown"],
        "small": ["old", "new", "due", "failed", "unknown"],
        "expired": ["new", "old", "due", "failed", "unknown"],
        "name": ["due", "failed", "new", "old", "unknown"],
    }
    assert {order: [each.name for each in rank(rows, order)] for order in ORDERS} == expected


def test_totals_count_tables_that_are_not_shown(lake: Path) -> None:
    entries, _ = in_folder(str(lake), Policy(), {})
    outcome = of_lake(rank(scan(entries)), limit=1)
    assert outcome.reason.startswith("4 tables: 2 have deletion vectors, ")
    assert "1 can't be read" in outcome.reason
    assert outcome.details == ("3 more tables not shown",)
    assert (outcome.numbers["deleted_rows"], len(outcome.report["tables"]), outcome.report["not_shown"]) == (50, 1, 3)
    assert outcome.picture is not None
    assert [(bar.label, bar.share) for bar in outcome.picture.bars] == [("sales/visits", 0.4), ("sales/orders", 0.1)]

"""Deadlines of erasures: the arithmetic, configurations that can't keep them, and what a table has still to erase."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.checks import check_table
from dv_maintenance.maintenance.deadlines import to_erase
from dv_maintenance.maintenance.execution.apply import maintain
from dv_maintenance.maintenance.meter.of_table import decide_for
from dv_maintenance.maintenance.planning.deadlines import NEVER, Erasure
from dv_maintenance.maintenance.planning.limits import Severity
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.service.inspection import inspect_table
from dv_maintenance.service.verbs.state import health, plan
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.testing.delta_builder import DeltaBuilder
from dv_maintenance.testing.memory import MemoryTable
from dv_maintenance.testing.memory_engine import MemoryEngine
from dv_maintenance.units import iso_timestamp

DAY = 86_400_000
MONTH = Erasure(30 * DAY, 7 * DAY, DAY)


def test_the_arithmetic() -> None:
    deleted = np.array([0, 5 * DAY], np.int64)
    assert MONTH.purge_by(deleted).tolist() == [22 * DAY, 27 * DAY]
    assert MONTH.vacuum_by(deleted).tolist() == MONTH.gone_by(deleted).tolist() == [30 * DAY, 35 * DAY]
    due = MONTH.of_files(deleted, np.array([True, False]))
    assert (due.purge_by.tolist(), due.since.tolist()) == ([22 * DAY, NEVER], deleted.tolist())


def test_a_quarantine_needs_its_time_and_another_vacuum() -> None:
    policy = Policy.from_mapping({"erase_within": "30d", "quarantine": True, "quarantine_retention": "5d"})
    erasure = policy.erasure(7 * DAY)
    assert erasure is not None
    deleted = np.zeros(1, np.int64)
    assert erasure.purge_by(deleted).tolist() == [(30 - 7 - 1 - 5 - 1) * DAY]
    assert erasure.vacuum_by(deleted).tolist() == [(30 - 5 - 1) * DAY]
    assert erasure.sentence(0) == (
        "must go by 17 Jan 1970: rows deleted on 1 Jan 1970; 30d - 7d retention - 1d vacuum - 6d quarantine"
    )


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ("retention: 60d\nerase_within: 30d", "retention 60d, vacuum_every 1d and a margin of 2d take 63d"),
        ("retention: 60d\nerase_within: 30d", "^policy: erase_within: erase_within 30d can't be kept"),
        ("retention: 60d\nerase_within: 30d", r"shorten the retention .* above 63d \(.*policy\.yaml line 2\)"),
        ("retention: 27d\nerase_within: 30d", "take 30d"),
        ("retention: 20d\nvacuum_every: 8d\nerase_within: 30d", "vacuum_every 8d"),
        ("erase_within: 3d", "vacuum_every 1d and a margin of 2d take 3d, even .* shorten vacuum_every, or set"),
        ("retention: 14d\nquarantine: true\nquarantine_retention: 13d\nerase_within: 30d", "quarantine 14d"),
        ("erase_within: 0", "erase_within: .*greater than 0"),
    ],
)
def test_a_policy_that_can_not_keep_its_deadline(tmp_path: Path, values: str, complaint: str) -> None:
    (tmp_path / "policy.yaml").write_text(values)
    with pytest.raises(UsageError, match=complaint):
        Policy.load(str(tmp_path / "policy.yaml"))


def test_a_policy_that_can() -> None:
    policy = Policy.from_mapping({"retention": "26d", "erase_within": "30d"})
    assert policy.erase_within == 30 * DAY
    assert Policy.model_validate(policy.model_dump(mode="json")) == policy


def test_the_tables_retention_breaks_the_deadline(tmp_path: Path) -> None:
    """A table that keeps old files for 60 days failed as unreadable, and nothing was done about it any more."""
    builder = DeltaBuilder(str(tmp_path / "t"))
    builder.create(
        pa.schema([("id", pa.int64())]), properties={"delta.deletedFileRetentionDuration": "interval 60 days"}
    )
    table = open_table(str(tmp_path / "t"))
    policy = Policy.from_mapping({"erase_within": "30d"})
    builder.append(pa.table({"id": range(100)}))
    builder.delete(lambda rows: pc.equal(rows["id"], 1))
    problem = "retention 60d, vacuum_every 1d and a margin of 2d take 63d"
    found = inspect_table(table, policy)
    assert (found.due, [problem in each for each in found.warnings]) == (("optimize",), [True])
    planned = plan(table, policy)
    assert [len(planned.report["steps"]), problem in planned.lines["deadlines"][0]] == [1, True]
    assert problem in health(table, policy=policy).report["erasure"]["problem"]
    assert not inspect_table(table, policy.with_overrides(["erase_within=64d"])).warnings


@pytest.mark.parametrize(("erase_within", "due"), [(None, ()), ("30d", ("vacuum",))])
def test_a_deadline_does_not_wait_for_bytes(tmp_path: Path, erase_within: str | None, due: tuple[str, ...]) -> None:
    """With ``vacuum_min_bytes`` a purged file stayed for ever."""
    table = MemoryTable(tmp_path / "t")
    table.append("", [1])
    table.delete_where(lambda _, row: row == 1)
    policy = Policy.from_mapping({"vacuum_min_bytes": 1 << 30, "erase_within": erase_within})
    assert inspect_table(table, policy, now=table.now + 8 * DAY).due == due


def test_a_plan_keeps_the_deadline(tmp_path: Path) -> None:
    """One row of a hundred is below every threshold: it stayed for ever."""
    table = MemoryTable(tmp_path / "t")
    path = table.append("", list(range(100)))
    table.now += 100 * DAY
    table.delete(path, [1])
    deleted = table.snapshot().timestamp
    table.now += 10 * DAY
    table.delete(path, [2])
    policy = Policy.from_mapping({"erase_within": "30d", "min_file_size": 0})
    # 30 d - 7 d retention - 1 d vacuum - 2 d margin
    early = inspect_table(table, policy, now=deleted + 19 * DAY)
    assert (early.due, early.next_due_at) == ((), deleted + 20 * DAY)
    assert inspect_table(table, policy, early, now=deleted + 20 * DAY).due == ("optimize",)
    made = decide_for(table, table.snapshot(), policy, now=deleted + 20 * DAY)
    assert [step.reason for step in made.steps] == [
        "1 file that must go by 9 Jan 2002, with rows deleted on 18 Dec 2001: rewrite into one new file"
    ]
    assert not decide_for(table, table.snapshot(), Policy(min_file_size=0), now=deleted + 99 * DAY).steps


def test_rows_are_gone_only_after_the_vacuum(tmp_path: Path) -> None:
    table = MemoryTable(tmp_path / "t")
    path = table.append("", list(range(100)))
    policy = Policy.from_mapping({"erase_within": "30d"})

    def found(after: float) -> tuple[Severity | None, str]:
        now = int(deleted + after * DAY)
        (finding,) = check_table(lambda: table, policy, checks=["erase_within"], now=now)
        return finding.severity, finding.reason

    deleted = table.now
    assert found(0) == (None, "no deleted rows are left in storage")
    table.now += 100 * DAY
    table.delete(path, [1])
    deleted = table.snapshot().timestamp
    purge_by = "1 file must go by 9 Jan 2002: rows deleted on 18 Dec 2001; 30d - 7d retention - 1d vacuum"
    assert found(19.9) == (None, purge_by)
    limit = "; the limit is 30d (erase_within)"
    assert found(20.1) == ("warn", purge_by + limit)
    assert found(22.1) == ("error", purge_by + limit)

    table.now += 15 * DAY
    maintain(table, MemoryEngine(), Policy(max_deleted_ratio=0))
    vacuum_by = "1 file that nothing needs must be vacuumed by 17 Jan 2002: rows deleted on 18 Dec 2001"
    assert found(15.1) == (None, vacuum_by)
    # Nobody vacuums.
    assert found(28.1) == ("warn", vacuum_by + limit)
    assert found(30.1) == ("error", vacuum_by + limit)
    forgotten = "1 file unneeded for more than 60d, with only rows deleted before that, must be vacuumed"
    assert found(90) == ("error", forgotten + limit)
    table.now += 14 * DAY
    table.vacuum()
    assert found(30.1) == (None, "no deleted rows are left in storage")


def test_health_and_plan_name_the_day(tmp_path: Path) -> None:
    table = MemoryTable(tmp_path / "t")
    table.now = time.time_ns() // 1_000_000 - DAY
    table.delete(table.append("", list(range(100))), [1])
    policy = Policy.from_mapping({"erase_within": "30d"})
    deleted = table.snapshot().timestamp
    for outcome in (health(table, None, policy), plan(table, policy)):
        assert outcome.moments["deleted_rows_must_go_by"] == deleted + 22 * DAY
        assert outcome.lines["deadlines"] == (f"1 file {MONTH.sentence(deleted)}",)
    found = health(table, None, policy).report["erasure"]
    by, since = iso_timestamp(deleted + 22 * DAY), iso_timestamp(deleted)
    assert found["erase_by"] == by
    assert found["deadlines"] == [{"step": "purge", "by": by, "files": 1, "oldest_delete": since, "exact": True}]
    assert "deadlines" not in health(table).lines


def test_rows_deleted_before_the_log_begins_are_late(tmp_path: Path) -> None:
    table = MemoryTable(tmp_path / "t")
    table.delete(table.append("", list(range(100))), [1])
    table.now += 100 * DAY
    table.append("", [1])
    policy = Policy.from_mapping({"erase_within": "30d"})
    found = to_erase(table, table.snapshot(), policy, now=table.now)
    assert found is not None
    assert found.live is not None
    assert (found.live.oldest, found.live.exact) == (table.now - 60 * DAY, False)
    assert " or earlier; " in found.sentences()[0]
    (finding,) = check_table(lambda: table, policy, checks=["erase_within"], now=table.now)
    assert finding.severity == "error"
    assert decide_for(table, table.snapshot(), policy, now=table.now).steps


def test_a_quarantine_is_emptied_although_nothing_else_expires(tmp_path: Path) -> None:
    """Files that were quarantined stayed until some other file expired."""
    builder = DeltaBuilder(str(tmp_path / "t")).create(
        pa.schema([("id", pa.int64())]), properties={"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    )
    builder.append(pa.table({"id": range(10)}))
    builder.delete(lambda rows: pc.less(rows["id"], 5))
    table, policy = open_table(str(tmp_path / "t")), Policy(quarantine=True)
    maintain(table, LocalEngine(), Policy(max_deleted_ratio=0))
    now = time.time_ns() // 1_000_000 + 1000
    vacuum(table, VacuumRequest(now=now, guard=policy.guard))
    aside = tmp_path / "t" / "_dvm_quarantine"
    legal = Policy.from_mapping({"quarantine": True, "erase_within": "30d"})
    found = to_erase(table, table.snapshot(), legal, now=now)
    assert found is not None
    assert found.aside is not None
    deleted = table.snapshot(2).timestamp
    assert (found.unneeded, found.aside.files, found.by) == (None, 1, deleted + 30 * DAY)
    (sentence,) = found.sentences()
    assert sentence.startswith("1 file in quarantine must be deleted there by ")
    (finding,) = check_table(lambda: table, legal, checks=["erase_within"], now=now + 29 * DAY)
    assert (finding.severity, finding.numbers["quarantine_emptied_by"]) == ("warn", iso_timestamp(deleted + 30 * DAY))
    assert inspect_table(table, policy, now=now + 6 * DAY).due == ()
    late = inspect_table(table, policy, now=now + 8 * DAY)
    assert late.reasons == {"vacuum": ("files have been in quarantine for more than 7d",)}
    assert any(aside.rglob("*.parquet"))
    vacuum(table, VacuumRequest(now=now + 8 * DAY, guard=policy.guard))
    assert not any(aside.rglob("*.parquet"))
    (finding,) = check_table(lambda: table, legal, checks=["erase_within"], now=now + 29 * DAY)
    assert finding.reason == "no deleted rows are left in storage"
    assert inspect_table(table, policy, now=now + 9 * DAY).due == ()

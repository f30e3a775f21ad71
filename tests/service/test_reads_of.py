"""Which source of reads decides, and what is warned of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.spark_log import START, SparkLog, node

from dv_maintenance.config import Document
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.service import reads as service
from dv_maintenance.service import verbs
from dv_maintenance.service.inspection import inspect_table
from dv_maintenance.service.reads import EventLogs, Materialization, Reads, downstream_reads, reads_of
from dv_maintenance.service.tables_file import TableSettings, WatchConfig
from dv_maintenance.testing.delta_builder import DeltaBuilder
from dv_maintenance.testing.memory import MemoryTable
from dv_maintenance.units import minute_of

DAY = 86_400_000
TABLE = "s3://lake/orders"


def watched(**settings: Any) -> TableSettings:
    return WatchConfig.model_validate({"tables": [{"path": TABLE, **settings}]}).tables[0]


def logs(folder: Path, *, days: int = 10, each: int = 4, location: str = "s3a://lake/orders") -> dict[str, str]:
    log = SparkLog()
    for day in range(days):
        log.time = START + day * DAY
        for _ in range(each):
            log.read(location)
    log.time = START + days * DAY
    log.end(log.start(node("BatchScan dv_delta")))
    folder.mkdir()
    (folder / "app-1").write_bytes(log.bytes())
    return {"spark_events": str(folder)}


def assets(per_day: int, days: int = 7) -> Reads | None:
    return downstream_reads(
        Materialization("report", f"run {at}", START + at * DAY // per_day) for at in range(days * per_day + 1)
    )


def ask(table: TableSettings, declared: float | None, downstream: Reads | None, now: int = START + 10 * DAY) -> Any:
    reads, warnings = reads_of(table, declared, downstream, now, logs=EventLogs())
    return None if reads is None else (reads.source, round(reads.per_day(now), 1)), warnings


def test_event_logs_come_first_then_assets_then_the_declared_rate(tmp_path: Path) -> None:
    table = watched(reads=logs(tmp_path / "logs"))
    assert ask(table, 6, assets(2)) == (("spark event logs", 4.0), ())
    assert ask(watched(), 6, assets(2)) == (("downstream assets", 2.1), ())
    assert ask(watched(), 6, None) == (("declared", 6.0), ())
    assert ask(watched(), None, None) == (None, ())
    assert ask(watched(), 0.5, None) == (("declared", 0.5), ())


def test_a_declared_rate_that_is_contradicted_is_warned_of(tmp_path: Path) -> None:
    table = watched(reads=logs(tmp_path / "logs"))
    assert ask(table, 40, assets(2))[1] == (
        "reads_per_day is 40, but spark event logs show 4 reads a day",
        "reads_per_day is 40, but downstream assets show 2.06 reads a day",
    )
    assert len(ask(table, 1, assets(2))[1]) == 1


def test_less_than_a_day_of_logs_counts_only_if_nothing_else_is_known(tmp_path: Path) -> None:
    log = SparkLog()
    for _ in range(3):
        log.read("s3a://lake/orders")
    (tmp_path / "app-1").write_bytes(log.bytes())
    table, now = watched(reads={"spark_events": str(tmp_path)}), START + 20_000
    assert ask(table, 40, None, now) == (("declared", 40.0), ())
    assert ask(table, 40, assets(2), now)[0][0] == "downstream assets"
    assert ask(table, None, None, now) == (("spark event logs", 3.0 + 0.4), ())


def test_logs_without_the_table_are_not_taken_for_no_reads(tmp_path: Path) -> None:
    table = watched(reads=logs(tmp_path / "logs", location="s3a://lake/other"))
    said = "event logs: no scans of this table; the plans of 1 scan do not show where their tables are (dv_delta)"
    assert ask(table, 6, None) == (("declared", 6.0), (said,))


def test_logs_that_end_or_are_empty_are_said(tmp_path: Path) -> None:
    settings = logs(tmp_path / "logs")
    last = minute_of(START + 10 * DAY)
    said = f"event logs: the last event is of {last}; the mean rate before that is assumed since then"
    (reads, _), warnings = ask(watched(reads=settings), None, None, START + 30 * DAY + 3000)
    assert (reads, warnings) == ("spark event logs", (said,))
    assert ask(watched(reads={"spark_events": str(tmp_path / "none")}), 3, None) == (
        ("declared", 3.0),
        ("event logs: they contain no events",),
    )


def test_logs_that_cannot_be_read_leave_the_next_source() -> None:
    table = watched(reads={"spark_events": "nope://bucket/logs"})
    found, warnings = ask(table, 3, None)
    assert found == ("declared", 3.0)
    assert [said.split(":")[0] for said in warnings] == ["event logs"]


def test_tables_that_share_logs_look_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    real = service.spark_reads
    monkeypatch.setattr(service, "spark_reads", lambda *args, **more: looks.append(args[0]) or real(*args, **more))
    table, shared = watched(reads=logs(tmp_path / "logs")), EventLogs()
    now = START + 10 * DAY
    for at in (now, now + 59_000, now + 61_000):
        reads_of(table, None, None, at, logs=shared)
        reads_of(table.model_copy(update={"path": "s3://lake/other"}), None, None, at, logs=shared)
    assert len(looks) == 2


def test_a_run_of_an_asset_is_one_read_however_many_partitions_it_made() -> None:
    made = [Materialization(asset, run, START + at) for asset in ("a", "b") for run in ("x", "y") for at in range(50)]
    reads = downstream_reads(made)
    assert reads is not None
    assert (len(reads.times), reads.source) == (4, "downstream assets")
    assert reads.count(np.array([START - 1]), np.array([START]), [""], np.array([0])).tolist() == [4.0]
    assert downstream_reads([]) is None
    reported = downstream_reads(Materialization("a", "", START + at) for at in range(3))
    assert reported is not None
    assert len(reported.times) == 3


def test_settings_of_the_file(tmp_path: Path) -> None:
    text = """\
defaults:
  reads: {spark_events: s3://lake/logs, state: reads.json}
tables:
  - {path: a}
  - {path: b, reads: {spark_events: ../logs}}
  - {path: c, reads: null}
"""
    (tmp_path / "tables.yaml").write_text(text)
    a, b, c = WatchConfig.load(str(tmp_path / "tables.yaml")).tables
    assert a.reads is not None
    assert b.reads is not None
    assert (a.reads.spark_events, a.reads.state) == ("s3://lake/logs", str(tmp_path / "reads.json"))
    assert (b.reads.spark_events, b.reads.state) == (str(tmp_path.parent / "logs"), str(tmp_path / "reads.json"))
    assert c.reads is None
    with pytest.raises(UsageError, match="unknown key"):
        WatchConfig.of(Document({"tables": [{"path": "a", "reads": {"events": "x"}}]}, "t.yaml"))


# -- decisions ---------------------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> MemoryTable:
    table = MemoryTable(tmp_path / "orders")
    table.delete(table.append("", list(range(10))), [0, 1])
    return table


def test_an_inspection_decides_by_observed_reads(table: MemoryTable) -> None:
    policy, now = Policy.from_mapping({"prices": {"start": 0}}), table.now
    asked: list[int] = []
    times = np.arange(now - DAY, now, 1000)

    def reads(now: int) -> tuple[Reads, tuple[str, ...]]:
        asked.append(now)
        return Reads.observed("spark event logs", times, now - DAY, now), ("event logs: app-1 is damaged",)

    first = inspect_table(table, policy, jobs=["optimize"], now=now, reads=reads)
    assert (first.due, asked) == ((), [now])
    assert first.warnings == ("reads: event logs: app-1 is damaged",)
    assert first.next_due_at is not None
    assert now < first.next_due_at <= now + DAY
    # Nothing changed, and it is not time yet.
    inspect_table(table, policy, first, jobs=["optimize"], now=now + 1, reads=reads)
    assert asked == [now]
    later = inspect_table(table, policy, first, jobs=["optimize"], now=now + 90 * DAY, reads=reads)
    assert later.reasons["optimize"][-1].endswith(" reads a day (spark event logs)")


def test_a_table_that_is_hardly_read_is_looked_at_once_a_day(table: MemoryTable) -> None:
    policy, now = Policy.from_mapping({"prices": {"storage": 0}}), table.now
    rare = Reads.observed("downstream assets", np.array([now - DAY]), now - 30 * DAY, now)
    found = inspect_table(table, policy, jobs=["optimize"], now=now, reads=lambda _: (rare, ()))
    assert (found.due, found.next_due_at) == ((), now + DAY)


def test_a_run_decides_by_event_logs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "orders"
    builder = DeltaBuilder(str(place)).create(pa.schema([("id", pa.int64())]))
    builder.append(pa.table({"id": range(100)}))
    settings = logs(tmp_path / "logs", location=str(place))
    watched = WatchConfig.model_validate(
        {"tables": [{"path": str(place), "reads": settings, "policy": {"reads_per_day": 1000}}]}
    ).tables[0]
    with caplog.at_level("INFO"):
        verbs.optimize(watched, verbs.opened(watched), LocalEngine)
    assert "reads a day (spark event logs)" in caplog.text
    assert "reads_per_day is 1000, but spark event logs show" in caplog.text

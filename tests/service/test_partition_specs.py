"""Partitions by transforms, and a specification that has changed: what a user chooses, and sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dv_maintenance.dagster.partitions import missing_partitions, partitions_def
from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.health import health
from dv_maintenance.service import verbs
from dv_maintenance.service.partitions import column_keys, live_keys
from dv_maintenance.service.reports.health import columns_of
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.tables.model import partition_name
from dv_maintenance.tables.partition_spec import PartitionField, PartitionSpec
from dv_maintenance.testing.memory import MemoryTable
from dv_maintenance.testing.memory_engine import MemoryEngine
from dv_maintenance.testing.memory_log import MemoryLog

SCHEMA = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
BY_MONTH = PartitionSpec(0, (PartitionField("ts_month", "ts", "month"),))
DAYS = {"name": "ts_day", "every": "day", "start": "2026-11-01"}


@pytest.fixture
def table(tmp_path: Path) -> MemoryTable:
    """Ten rows of October 2026 in a file by month, then ten for each of two days of November; some rows of each file
    are deleted.
    """
    table = MemoryTable(tmp_path / "t", schema=SCHEMA, log=MemoryLog(specs=(BY_MONTH,)))
    table.append(BY_MONTH.partition(["2026-10"]), [[number, "2026-10-31"] for number in range(10)])
    by_day = table.evolve(PartitionField("ts_day", "ts", "day"))
    for day in ("2026-11-20", "2026-11-21"):
        table.append(by_day.partition([day]), [[number, day] for number in range(10)])
    table.delete_where(lambda _, row: row[0] < 4)
    return table


def watched(table: MemoryTable, partitions: Any) -> TableSettings:
    settings = {"name": "t", "path": table.uri, "partitions": partitions, "policy": {"min_file_size": 0}}
    return TableSettings.model_validate(settings)


def with_dvs(table: MemoryTable) -> set[str]:
    found = health(table.snapshot()).partitions
    return {partition_name(each.partition) for each in found if each.counts.files_with_dv}


def test_what_a_user_sees(table: MemoryTable) -> None:
    assert with_dvs(table) == {"ts_month=2026-10", "spec_id=1/ts_day=2026-11-20", "spec_id=1/ts_day=2026-11-21"}
    _, ts = columns_of(table.snapshot())
    assert ts.description == "Partitioned by ts_month: month(ts). Partitioned by ts_day: day(ts)."


def test_the_key_of_a_day(table: MemoryTable) -> None:
    of_table = watched(table, DAYS)
    assert of_table.partitions is not None
    definition = partitions_def(of_table)
    assert definition is not None
    assert "2026-11-20" in definition.get_partition_keys()
    # The file by month belongs to no day.
    assert live_keys(of_table.partitions, table.snapshot()) == {None, "2026-11-20", "2026-11-21"}
    before = table.rows()
    outcome = verbs.optimize(of_table, table, MemoryEngine, ["2026-11-20"], request=verbs.PURGE)
    assert outcome.partitions["2026-11-20"].numbers["rows_purged"] == 4
    assert with_dvs(table) == {"ts_month=2026-10", "spec_id=1/ts_day=2026-11-21"}
    assert table.rows() == before
    again = verbs.optimize(of_table, table, MemoryEngine, ["2026-11-22"])
    assert again.partitions["2026-11-22"].reason == "Nothing to do: this partition has no live file."


def test_a_backfill_of_months_takes_both_specifications(table: MemoryTable) -> None:
    of_table = watched(table, {"name": "ts_day", "every": "month", "start": "2026-10-01"})
    assert of_table.partitions is not None
    assert live_keys(of_table.partitions, table.snapshot()) == {None, "2026-11-01"}
    of_table = watched(table, {"name": "ts_month", "every": "month", "start": "2026-10-01"})
    assert of_table.partitions is not None
    assert live_keys(of_table.partitions, table.snapshot()) == {None, "2026-10-01"}
    verbs.optimize(of_table, table, MemoryEngine, ["2026-10-01"], request=verbs.PURGE)
    assert with_dvs(table) == {"spec_id=1/ts_day=2026-11-20", "spec_id=1/ts_day=2026-11-21"}


def test_keys_as_found(table: MemoryTable) -> None:
    of_table = watched(table, "ts_day")
    assert of_table.partitions is not None
    assert column_keys(of_table.partitions, table.snapshot()) == {"ts_day": {"2026-11-20", "2026-11-21"}}
    with dg.DagsterInstance.ephemeral() as instance:
        (request,) = missing_partitions(of_table, table.snapshot(), instance)
    assert list(request.partition_keys) == ["2026-11-20", "2026-11-21"]


@pytest.mark.parametrize(
    ("partitions", "key", "message", "next_step"),
    [
        ("ts", "2026-11-20", "'ts' is not a partition column", "use spec_id, ts_month: month(ts), ts_day: day(ts)"),
        (
            "ts_day",
            "2026-13-45",
            "'2026-13-45' is not a value of partition column 'ts_day', of type DATE",
            "2026-11-21",
        ),
        ("ts_month", "2026-13", "'2026-13' is not a value of partition column 'ts_month', of type MONTH", "2026-10"),
        (DAYS, "20 November", "is not a key of the table's partitions", "write the start of a day"),
    ],
)
def test_what_can_not_be_chosen(table: MemoryTable, partitions: Any, key: str, message: str, next_step: str) -> None:
    with pytest.raises(UsageError, match=message) as refusal:
        verbs.optimize(watched(table, partitions), table, MemoryEngine, [key])
    assert next_step in (refusal.value.next_step or "")


def test_a_day_without_files_of_its_own(table: MemoryTable) -> None:
    """A filter of a person, not of a backfill: mistyped, it would look like success."""
    changes = {"partitions": [{"ts_day": "2026-10-31"}]}
    with pytest.raises(UsageError, match="no live file is in ts_day=2026-10-31") as refusal:
        verbs.optimize(watched(table, DAYS), table, MemoryEngine, changes=changes)
    assert "from ts_day=2026-11-20 to ts_day=2026-11-21" in str(refusal.value.next_step)

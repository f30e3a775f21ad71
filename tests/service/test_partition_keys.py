"""Keys of partitions that a run was given: those without rows are fine, those that can't exist are refused."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.planning.partitioning import Partitioning
from dv_maintenance.service import verbs
from dv_maintenance.service.partitions import chosen_policy, listed_keys
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.tables import open_table
from dv_maintenance.tables.model import NULL_PARTITION
from dv_maintenance.tables.table import Table
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("shop", pa.string()), ("n", pa.int32())])
DAYS = {"name": "day", "every": "day", "start": "2026-11-01"}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    builder = DeltaBuilder(str(tmp_path / "t")).create(SCHEMA, partition_by=["day", "shop", "n"])
    days = [date(2026, 11, 1) + timedelta(days=at) for at in (0, 1)]
    builder.append(pa.table({"id": [1, 2], "day": days, "shop": ["a|b", None], "n": [1, 2]}, SCHEMA))
    return open_table(str(tmp_path / "t"))


def watched(table: Table, *columns: Any) -> TableSettings:
    return TableSettings(name="t", path=table.uri, partitions=Partitioning.model_validate({"columns": columns}))


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        ([DAYS], "2030-01-01"),
        (["shop"], "nowhere"),
        (["shop"], NULL_PARTITION),
        (["n"], "7"),
        (["shop", DAYS], "2026-11-09|a%7Cb"),
        (["n", "shop", "day"], "n=1/shop=x/day=2026-11-01"),
        ([{"name": "n", "values": [1, 2, 3]}], "3"),
    ],
)
def test_a_key_without_a_live_file_is_a_success_that_says_so(table: Table, columns: list[Any], key: str) -> None:
    outcome = verbs.optimize(watched(table, *columns), table, LocalEngine, [key])
    if key != NULL_PARTITION:
        assert outcome.partitions[key].reason == "Nothing to do: this partition has no live file."


@pytest.mark.parametrize(
    ("columns", "key", "message"),
    [
        ([DAYS], "2026-13-45", "write the start of a day, such as 2026-11-01"),
        (["day"], "2026-13-45", "partition column 'day', of type DATE"),
        (["n"], "two", "write it like n=2"),
        (["shop", DAYS], "2026-11-01", r"write <day>\|<shop>"),
        (["n", "shop", "day"], "1/x/2026-11-01", "write n=<n>/shop=<shop>/day=<day>"),
        ([{"name": "n", "values": [1, 2]}], "3", "write one of 1, 2 for n"),
        ([{"name": "n", "values": ["1", "x"]}], "x", "of type INT"),
    ],
)
def test_a_key_that_can_not_exist_is_refused(table: Table, columns: list[Any], key: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        verbs.optimize(watched(table, *columns), table, LocalEngine, [key])


def test_the_policys_own_partitions_may_be_written_in_another_way(table: Table) -> None:
    of_table = watched(table, "shop")
    policy = of_table.policy.with_overrides(["partitions=[{day: 2026-11-1}]"])
    chosen = chosen_policy(TableSettings(**{**_fields(of_table), "policy": policy}), table.snapshot(), ["a%7Cb"])
    assert chosen is not None
    assert chosen.partitions == ({"day": "2026-11-01", "shop": "a|b", "n": "1"},)


def _fields(of_table: TableSettings) -> dict[str, Any]:
    return {"name": of_table.name, "path": of_table.path, "partitions": of_table.partitions}


def test_partitions_of_a_runs_own_config_must_exist(table: Table) -> None:
    of_table = watched(table, "shop")
    with pytest.raises(UsageError, match="no live file is in day=2030-01-01"):
        verbs.optimize(of_table, table, LocalEngine, changes={"partitions": [{"day": "2030-01-01"}]})
    with pytest.raises(UsageError, match="of type DATE"):
        verbs.optimize(
            of_table,
            table,
            LocalEngine,
            changes={"partitions": [{"day": "x"}]},
            request=verbs.RewriteRequest(missing_ok=True),
        )
    verbs.optimize(
        of_table,
        table,
        LocalEngine,
        changes={"partitions": [{"day": "2030-01-01"}]},
        request=verbs.RewriteRequest(missing_ok=True),
    )
    verbs.optimize(of_table, table, LocalEngine, changes={"partitions": [{"day": "2026-11-1"}]})


def test_null_and_the_text_of_its_name_have_different_keys() -> None:
    assert listed_keys([NULL_PARTITION, "x"]) == [NULL_PARTITION, "x"]

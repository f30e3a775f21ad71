"""Append tables of ORC and Avro files maintained by us: new files are of the table's own format, and Paimon's own
engine reads the same rows in them, whatever the time zone of its Java, finds what it looks for, and goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from paimon_engine import DV, DV64, PaimonEngine
from paimon_judging import in_order, judge_files, judge_rows, opened
from test_paimon_maintenance import go_on, gone_too, no_dvs, simple
from test_paimon_reading import NESTED, VALUES

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.apply import maintain, purge
from dv_maintenance.maintenance.policy import Policy
from dv_maintenance.testing.history import InterferingEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ["orc", "avro"]
EVERY = {name: kind for name, (kind, _) in NESTED.items()}


def kinds(path: Path) -> set[str]:
    """Of the live files."""
    return {name.rsplit(".", 1)[1] for name in opened(path).snapshot().files["file_name"].to_pylist()}


@contextmanager
def time_zone(spark: SparkSession, name: str) -> Iterator[None]:
    """Of the JVM."""
    zones: Any = spark._jvm.java.util.TimeZone  # type: ignore[union-attr]
    before = zones.getDefault()
    zones.setDefault(zones.getTimeZone(name))
    try:
        yield
    finally:
        zones.setDefault(before)


@pytest.mark.parametrize(
    ("kind", "options", "parted"),
    [
        pytest.param("orc", DV, True, id="orc-32-partitioned"),
        pytest.param("avro", DV64, False, id="avro-64"),
        pytest.param("orc", DV64, False, id="orc-64", marks=pytest.mark.deep),
        pytest.param("avro", DV, True, id="avro-32-partitioned", marks=pytest.mark.deep),
    ],
)
def test_a_purge(paimon_engine: PaimonEngine, tmp_path: Path, kind: str, options: dict[str, str], parted: bool) -> None:
    engine, path = paimon_engine, tmp_path / "table"
    simple(engine, path, options={**options, "file.format": kind}, partition=["pt"][:parted])
    expected = in_order([row for row in engine.rows(path) if not gone_too(row)])
    # Paimon's own delete comes between our plan and our commit.
    report = purge(opened(path), InterferingEngine(LocalEngine(), lambda: engine.delete(path, gone_too)))
    assert report.verified, report.problems
    assert sum(step.rows_carried for step in report.steps) > 0
    assert kinds(path) == {kind}
    assert in_order(judge_rows(engine, path)) == expected
    assert purge(opened(path), LocalEngine()).verified
    assert no_dvs(path)
    assert in_order(judge_rows(engine, path)) == expected
    go_on(engine, path, [1000, "a", "new"])


@pytest.mark.parametrize("kind", FORMATS)
def test_every_type_and_changed_schemas(
    paimon_engine: PaimonEngine, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    engine, path = paimon_engine, tmp_path / "table"
    columns = {"id": "INT", **{f"c{number}": kind for number, kind in enumerate(VALUES)}, **EVERY, "n": "INT NOT NULL"}
    values = [*VALUES.values(), *(examples for _, examples in NESTED.values())]
    if kind == "orc":
        values[list(VALUES).index("DATE")] = [date(1582, 10, 15), date(1969, 12, 31), date(9999, 12, 31)]
    rows = [[number, *(each[number % len(each)] for each in values), number] for number in range(12)]
    rows += [[number, *(None for _ in values), number] for number in (12, 13)]
    engine.create(path, columns, options={**DV, "file.format": kind})
    engine.append(path, rows)
    engine.delete(path, lambda row: row["id"] in {0, 5, 13})
    engine.alter(
        path,
        *(("rename", "c0", "flag"), ("drop", "c1"), ("add", "later", "DECIMAL(20, 5)")),
        *(("retype", "c2", "INT"), ("retype", "c3", "BIGINT"), ("retype", "c5", "DOUBLE")),
    )
    engine.append(path, [[20, True, *(None for _ in values[2:]), 20, "123456789012345.12345"]])

    def everywhere() -> list[list[str]]:
        found = [in_order(judge_rows(engine, path))]
        for zone in ("America/New_York", "Asia/Kolkata"):
            with time_zone(spark, zone):
                found.append(in_order(engine.rows(path)))
        return found

    before = everywhere()
    assert purge(opened(path), LocalEngine()).verified
    assert everywhere() == before
    assert maintain(opened(path), LocalEngine(), Policy(min_input_files=2)).verified
    assert everywhere() == before
    assert kinds(path) == {kind}
    go_on(engine, path, [30, *(None for _ in values[1:]), 30, None])

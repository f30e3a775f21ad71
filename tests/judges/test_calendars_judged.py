"""Dates and timestamps from before the calendars agree, in tables that Spark wrote as Spark 2 did and as it does now,
and in tables of others: what Spark answers before and after each verb, in every mode of reading them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.sessions import cheap

from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.merge import merge
from dv_maintenance.dml.update import update
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.parquet import calendars
from dv_maintenance.engine.parquet.calendars import dates_to_proleptic, timestamps_to_proleptic
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.zorder import zorder
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.table import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARQUET: Final = "spark.sql.parquet."
ZONE: Final = "spark.sql.session.timeZone"
ANSI: Final = "spark.sql.ansi.enabled"
MODES: Final = ("EXCEPTION", "CORRECTED", "LEGACY")

# Zone of the session that writes, how timestamps are stored, and the mode of writing.
WRITERS: Final = (
    ("America/New_York", "TIMESTAMP_MICROS", "LEGACY"),
    ("Asia/Kolkata", "INT96", "LEGACY"),
    ("Europe/Amsterdam", "TIMESTAMP_MILLIS", "LEGACY"),
    ("UTC", "INT96", "LEGACY"),
    ("America/New_York", "TIMESTAMP_MICROS", "CORRECTED"),
)
DAYS: Final = (
    *("0001-01-01", "0100-03-01", "1500-02-28", "1500-03-01", "1582-10-04", "1582-10-15", "1850-01-01"),
    *("1883-11-18", "1899-12-31", "1900-01-01", "1970-01-01", "2024-02-29"),
)
FILTERS: Final = (
    "d = DATE '0001-01-01'",
    "d IN (DATE '1500-03-01', DATE '1582-10-04')",
    "d < DATE '1582-10-05'",
    "d BETWEEN DATE '1500-03-01' AND DATE '1850-01-01'",
    "NOT (d > DATE '1500-03-01')",
    "d = DATE '1500-03-11'",
    "d = DATE '0000-12-30'",
    "t < TIMESTAMP '1582-10-05 00:00:00'",
    "t >= TIMESTAMP '1883-11-18 00:00:00'",
    "t = TIMESTAMP '1850-01-01 00:00:00'",
    "n.d = DATE '0001-01-01'",
    "n.t < TIMESTAMP '1600-01-01 00:00:00'",
    "array_contains(l, DATE '1500-03-01')",
    "p = DATE '0001-01-01'",
)


@contextmanager
def settings(spark: SparkSession, **values: str) -> Iterator[None]:
    """``read``, ``write``: modes; ``stored``: how timestamps are; ``zone``; ``ansi``."""
    names = {
        "read": [f"{PARQUET}datetimeRebaseModeInRead", f"{PARQUET}int96RebaseModeInRead"],
        "write": [f"{PARQUET}datetimeRebaseModeInWrite", f"{PARQUET}int96RebaseModeInWrite"],
        "stored": [f"{PARQUET}outputTimestampType"],
        "zone": [ZONE],
        "ansi": [ANSI],
    }
    changed = {name: value for key, value in values.items() for name in names[key]}
    before = {name: spark.conf.get(name) for name in changed}
    for name, value in changed.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, str(value))


def make(spark: SparkSession, path: Path, writers: Sequence[tuple[str, str, str]] = WRITERS) -> None:
    """A file by each of the writers, in a partition of its own."""
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id INT, d DATE, t TIMESTAMP, n STRUCT<d: DATE, t: TIMESTAMP>, l ARRAY<DATE>, "
        "m MAP<DATE, TIMESTAMP>, w INT, p DATE) USING delta PARTITIONED BY (w, p) "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    days = ", ".join(f"({number}, '{day}')" for number, day in enumerate(DAYS))
    for writer, (zone, stored, mode) in enumerate(writers):
        with settings(spark, zone=zone, stored=stored, write=mode):
            spark.sql(
                f"INSERT INTO delta.`{path}` SELECT /*+ COALESCE(1) */ id, d, t, named_struct('d', d, 't', t), "
                f"array(d), map(d, t), {writer}, DATE '0001-01-01' "
                f"FROM (SELECT id, DATE(v) d, TIMESTAMP(concat(v, ' 00:00:00')) t FROM VALUES {days} AS s(id, v))"
            )


def answers(
    spark: SparkSession, path: Path, mode: str, zone: str, ansi: str = "true", filters: Sequence[str] = FILTERS
) -> list[tuple[Any, ...]]:
    """All rows as text, and what each filter finds."""
    spark.sql(f"REFRESH TABLE delta.`{path}`")
    with settings(spark, read=mode, zone=zone, ansi=ansi):
        table = f"delta.`{path}`"
        found = [
            f"SELECT {number} q, CAST(count(*) AS STRING) a, string(sum(id * 10 + w)) b FROM {table} WHERE {condition}"
            for number, condition in enumerate(filters)
        ]
        rows = f"SELECT -1, string(struct(id, w, p, d, t)), string(struct(n, l, m)) FROM {table}"
        return sorted(tuple(row) for row in spark.sql(" UNION ALL ".join([rows, *found])).collect())


@pytest.fixture(scope="module")
def made(delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calendars") / "made"
    make(delta_spark, path)
    delta_spark.sql(f"DELETE FROM delta.`{path}` WHERE id = {len(DAYS) - 1}")
    return path


@pytest.mark.deep
def test_spark_answers_the_same_after_a_purge(delta_spark: SparkSession, tmp_path: Path) -> None:
    """In short what is below at length. What is deleted is what the condition means."""
    path, zone, filters = tmp_path / "table", "America/New_York", (FILTERS[1],)
    make(delta_spark, path, WRITERS[:2])
    before = answers(delta_spark, path, "CORRECTED", zone, filters=filters)
    with settings(delta_spark, zone=zone):
        assert delete(DeltaTable(Storage(str(path))), delta_spark, FILTERS[0]).rows_deleted == 2
    assert purge(open_table(str(path)), LocalEngine()).verified
    after = [answers(delta_spark, path, mode, zone, filters=filters) for mode in MODES]
    assert after[0] == after[1] == after[2]
    lost = [row for row in before if row not in after[0]]
    assert [row[1] for row in lost if row[0] < 0 and not row[1].startswith("{0, ")] == []
    assert len(after[0]) == len(before) - 2
    assert [row for row in after[0] if row[0] == 0] == [row for row in before if row[0] == 0]


@pytest.mark.deep
def test_spark_answers_the_same_after_each_verb(delta_spark: SparkSession, made: Path, tmp_path: Path) -> None:
    zone = "America/New_York"
    before = answers(delta_spark, made, "CORRECTED", zone)
    assert len(before) == len(WRITERS) * (len(DAYS) - 1) + len(FILTERS)
    ours = tmp_path / "ours"
    shutil.copytree(made, ours)
    assert purge(open_table(str(ours)), LocalEngine()).verified
    for number, mode in enumerate(MODES):
        assert answers(delta_spark, ours, mode, zone, ansi=str(number != 1).lower()) == before
    ours = tmp_path / "ordered"
    shutil.copytree(made, ours)
    assert zorder(open_table(str(ours)), LocalEngine(), ["d", "id"]).verified
    assert answers(delta_spark, ours, "EXCEPTION", zone) == before


@pytest.mark.deep
def test_changed_rows_are_those_that_spark_changes(delta_spark: SparkSession, made: Path, tmp_path: Path) -> None:
    """The same on two copies, by delta-spark and by us."""
    zone = "Europe/Amsterdam"
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    shutil.copytree(made, theirs)
    shutil.copytree(made, ours)
    table = DeltaTable(Storage(str(ours)))
    with settings(delta_spark, zone=zone):
        for condition in ("d = DATE '0001-01-01'", "n.d = DATE '1582-10-04' AND w < 3"):
            delta_spark.sql(f"DELETE FROM delta.`{theirs}` WHERE {condition}")
            assert delete(table, delta_spark, condition).rows_deleted
        delta_spark.sql(f"UPDATE delta.`{theirs}` SET d = d + INTERVAL 1 DAY WHERE t < TIMESTAMP '1850-01-02'")
        assert update(table, delta_spark, {"d": "d + INTERVAL 1 DAY"}, "t < TIMESTAMP '1850-01-02'").rows_updated
        keys = "SELECT DATE '1883-11-18' d, TIMESTAMP '0044-03-15 12:00:00' t"
        delta_spark.sql(
            f"MERGE INTO delta.`{theirs}` target USING ({keys}) source ON target.d = source.d "
            "WHEN MATCHED THEN UPDATE SET t = source.t"
        )
        begun = merge(table, delta_spark, delta_spark.sql(keys), "target.d = source.d")
        begun.when_matched_update({"t": "source.t"}).execute()
    wanted = answers(delta_spark, theirs, "CORRECTED", zone)
    assert answers(delta_spark, ours, "EXCEPTION", zone) == wanted
    assert purge(open_table(str(ours)), LocalEngine()).verified
    assert answers(delta_spark, ours, "LEGACY", zone) == wanted


def outcome(spark: SparkSession, path: Path, mode: str) -> list[tuple[Any, ...]] | str:
    from pyspark.errors import PySparkException

    with settings(spark, read=mode):
        try:
            return sorted(tuple(row) for row in spark.sql(f"SELECT id, string(d) FROM delta.`{path}`").collect())
        except PySparkException as error:
            return str(error).partition("READ_ANCIENT_DATETIME")[1]


@pytest.mark.deep
def test_files_that_say_nothing_go_on_to_say_nothing(delta_spark: SparkSession, tmp_path: Path) -> None:
    """As deltalake writes them. Each session takes their dates as it is set to, before and after."""
    import deltalake

    path = tmp_path / "table"
    days = pa.array([-719_162, -171_605, 0, 1], pa.int32()).view(pa.date32())
    deltalake.write_deltalake(
        str(path),
        pa.table({"id": [0, 1, 2, 3], "d": days}),
        configuration={"delta.enableDeletionVectors": "true"},
    )
    spark = cheap(delta_spark)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 3")
    before = {mode: outcome(spark, path, mode) for mode in MODES}
    assert before["EXCEPTION"] == "READ_ANCIENT_DATETIME"
    assert before["CORRECTED"] != before["LEGACY"]
    assert purge(open_table(str(path)), LocalEngine()).verified
    assert {mode: outcome(spark, path, mode) for mode in MODES} == before


@pytest.mark.deep
def test_every_value_in_every_zone_is_what_spark_makes_of_it(delta_spark: SparkSession, tmp_path: Path) -> None:
    """Two thousand times in each of 611 zones, and 200,000 dates."""
    rng = np.random.default_rng(15)
    zones = [*calendars._zones(), "+05:30", "Z", "GMT+5", "GMT-08:30", "GMT+0530", "UTC+5", "UT+01:00", "GMT+14"]
    drawn = rng.integers(-62_135_800_000_000_000, calendars.FIRST_MICRO + 10**15, 1_900)
    for number, zone in enumerate(zones):
        table = calendars._zone_table(zone)
        assert table is not None
        edges = (table.switches[-25:, None] * 1_000_000 + np.array([-1, 0, 1, 86_400_000_000])).ravel()
        values = np.concatenate([drawn, edges, [calendars.FIRST_MICRO - 1, calendars.FIRST_MICRO]])
        values = values[values >= max(int(table.switches[0]), -9_000_000_000_000) * 1_000_000]
        raw = pa.array(values, pa.int64())
        stored = {"zone": pa.repeat(zone, len(raw)), "raw": raw, "t": raw.view(pa.timestamp("us", "UTC"))}
        write_legacy(tmp_path / "times" / f"{number}.parquet", pa.table(stored), zone)
    found = delta_spark.read.parquet(str(tmp_path / "times")).selectExpr("zone", "raw", "unix_micros(t) t").toArrow()
    assert found.num_rows > 1_000_000
    for zone in zones:
        of_zone = found.filter(pa.compute.equal(found["zone"], zone)).combine_chunks()
        moved = timestamps_to_proleptic(of_zone["raw"].chunk(0).view(pa.timestamp("us", "UTC")), zone, "f")
        assert moved.view(pa.int64()).equals(of_zone["t"].chunk(0)), zone
    days = pa.array(rng.integers(-1_500_000, -140_000, 200_000), pa.int32())
    write_legacy(tmp_path / "days.parquet", pa.table({"raw": days, "d": days.view(pa.date32())}), "UTC")
    found = delta_spark.read.parquet(str(tmp_path / "days.parquet")).selectExpr("raw", "unix_date(d) d").toArrow()
    found = found.combine_chunks()
    moved = dates_to_proleptic(found["raw"].chunk(0).view(pa.date32()), "f")
    assert moved.view(pa.int32()).equals(found["d"].chunk(0))


def write_legacy(path: Path, table: pa.Table, zone: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        keys = {"version": "4.1.4", "legacyDateTime": "", "timeZone": zone}
        writer.add_key_value_metadata({f"org.apache.spark.{key}": value for key, value in keys.items()})

"""Tables whose values are what engines disagree about, by delta-spark. Column ``k`` is negative in rows that
statements of the tests may touch.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.sessions import CHEAP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "CURRENT",
    "DV",
    "KEY",
    "LAYOUT",
    "LEGACY",
    "LEGACY_MICROS",
    "LISTS",
    "MAPPED",
    "PARTITIONS",
    "SPARK",
    "V2_PAGES",
    "VALUES",
    "WHOLE",
    "Make",
    "at_random",
    "flat",
    "live_files",
    "partitioned",
    "run",
    "value_of",
    "valued",
]

Make = Callable[["SparkSession", Path], None]

DV = "'delta.enableDeletionVectors' = 'true'"
MAPPED = f"{DV}, 'delta.columnMapping.mode' = 'name'"
LAYOUT = {"parquet.block.row.count.limit": "25", "parquet.page.row.count.limit": "6"}
LEGACY = LAYOUT | {
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.writeLegacyFormat": "true",
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.session.timeZone": "America/New_York",
}
LEGACY_MICROS = LEGACY | {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.session.timeZone": "Europe/Amsterdam",
}
CURRENT = LAYOUT | {
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
}
INT96 = CURRENT | {"spark.sql.parquet.outputTimestampType": "INT96"}
MILLIS = CURRENT | {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"}
V2_PAGES = CURRENT | {
    "parquet.writer.version": "PARQUET_2_0",
    "parquet.enable.dictionary": "false",
    "parquet.bloom.filter.enabled": "true",
    "parquet.columnindex.truncate.length": "2",
    "parquet.statistics.truncate.length": "3",
}

# The text of a partition's time is then one of the session's zone, as before Delta 4.
UNZONED = CURRENT | {"spark.databricks.delta.write.utcTimestampPartitionValues": "false"}

# The values of each type, in SQL; every row takes the next one of each list, so that lists of different lengths meet.
DATES = (
    "DATE'0001-01-01'",
    "DATE'1500-03-01'",
    "NULL",
    "DATE'1582-10-04'",
    "DATE'1582-10-15'",
    "DATE'1850-01-01'",
    "DATE'1970-01-01'",
    "DATE'2026-01-05'",
    "DATE'9999-12-31'",
)
TIMES = (
    *("0001-01-01 00:00:00", "1500-03-01 12:00:00", "1582-10-04 23:59:59.999999", "1582-10-15 00:00:00"),
    *("1850-01-01 00:00:00", "1883-11-18 12:03:58", "1899-12-31 23:59:59.999999", "1900-01-01 00:00:00"),
    *("1937-07-01 00:19:32", "1970-01-01 00:00:00", "2026-03-08 02:30:00", "2026-03-29 02:30:00.000001"),
    *("2026-10-25 02:30:00", "9999-12-31 12:59:59.999999"),
)
LISTS: Mapping[str, tuple[str, ...]] = {
    "b BOOLEAN": ("TRUE", "FALSE", "NULL"),
    "i8 TINYINT": ("-128Y", "127Y", "0Y", "NULL", "7Y"),
    "i16 SMALLINT": ("-32768S", "0S", "32767S", "7S", "NULL"),
    "i32 INT": ("-2147483648", "2147483647", "7", "NULL", "0", "16777217"),
    "i64 BIGINT": ("CAST(9007199254740993 AS BIGINT)", "-9223372036854775807L", "7L", "0L", "NULL", "10L", "100L"),
    "f32 FLOAT": ("float('NaN')", "float(1.5)", "float(-0.0)", "float(0.1)", "float(16777216)", "NULL", "float(7)"),
    "f64 DOUBLE": ("1.5D", "double('NaN')", "-0.0D", "7.25D", "NULL", "50D", "0.1D", "0.0D", "-1e300D"),
    "dn DOUBLE": ("double('NaN')", "NULL"),
    "inf DOUBLE": ("double('Infinity')", "double('-Infinity')", "double('NaN')", "3D", "NULL"),
    "d9 DECIMAL(9, 2)": ("1.00BD", "-9999999.99BD", "NULL", "0.01BD", "0.00BD"),
    "d18 DECIMAL(18, 4)": ("1.0001BD", "99999999999999.9999BD", "-0.0001BD", "NULL"),
    "d38 DECIMAL(38, 10)": ("1.0BD", "-1234567890123456789012345678.0123456789BD", "NULL", "12345678901234567890.1BD"),
    "s STRING": (
        *("'a'", "''", "NULL", "'007'", "'ab'", "'ab '", "'b'", "'é'", r"'\ud7ff'", r"'\uffff'", r"'\U0001f600'"),
        *(r"concat(repeat('x', 40), 'y')", r"concat(repeat('x', 40), '\U0001f600')", r"'50%_\\'", "'7'", "'NaN'"),
    ),
    "bin BINARY": ("X'00'", "X'FF00'", "X''", "NULL", "X'7F'", "X'80'", "CAST(repeat('z', 70) AS BINARY)"),
    "d DATE": DATES,
    "ts TIMESTAMP": (*(f"TIMESTAMP'{each}'" for each in TIMES), "NULL"),
    "ntz TIMESTAMP_NTZ": (*(f"TIMESTAMP_NTZ'{each}'" for each in TIMES), "NULL"),
    "c4 CHAR(4)": ("'ab'", "'b'", "''", "NULL", "'abcd'"),
    "v6 VARCHAR(6)": ("'ab'", "'ab '", "'b'", "NULL", "'abcdef'"),
}
NESTED = {
    "st STRUCT<x: DOUBLE, y: STRUCT<z: DATE, s: STRING>>": (
        "IF(id % 13 = 5, NULL, named_struct('x', {f64}, 'y', IF(id % 7 = 3, NULL, named_struct('z', {d}, 's', {s}))))"
    ),
    "arr ARRAY<DOUBLE>": "IF(id % 11 = 2, NULL, array({f64}, {inf}))",
    "m MAP<STRING, TIMESTAMP>": "IF(id % 10 = 4, NULL, map('a', {ts}, 'b', NULL))",
    "ad ARRAY<STRUCT<d: DATE, f: FLOAT>>": "array(named_struct('d', {d}, 'f', {f32}), NULL)",
}


def value_of(values: tuple[str, ...]) -> str:
    return f"get(array({', '.join(values)}), CAST(id % {len(values)} AS INT))"


def valued(lists: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """An expression over ``id`` for each column."""
    return {column.split()[0]: value_of(values) for column, values in lists.items()}


VALUES = valued(LISTS)
KEY = "CAST(IF(id % 12 = 6, -1 - id, id) AS INT)"
COLUMNS = {"k INT": KEY} | dict(zip(LISTS, VALUES.values(), strict=True))
COLUMNS |= {column: sql.format(**VALUES) for column, sql in NESTED.items()}


def run(spark: SparkSession, settings: dict[str, str], place: Path, *statements: str) -> None:
    """In a session of its own."""
    session = spark.newSession()
    for key, value in (CHEAP | settings).items():
        session.conf.set(key, value)
    for statement in statements:
        session.sql(statement.replace("{t}", f"delta.`{place}`"))


def flat(
    settings: dict[str, str],
    properties: str = DV,
    rows: int = 60,
    delete: str = "k % 10 = 3",
    more: Sequence[str] = (),
    columns: Mapping[str, str] = COLUMNS,
    clauses: str = "",
) -> Make:
    """Two files of every type, a deletion vector on each. ``columns``: expressions over ``id`` by declaration."""

    def make(spark: SparkSession, place: Path) -> None:
        names = ", ".join(column.split()[0] for column in columns)
        insert = f"INSERT INTO {{t}} ({names}) SELECT /*+ COALESCE(1) */ {', '.join(columns.values())} FROM range"
        run(
            spark,
            settings,
            place,
            f"CREATE TABLE {{t}} ({', '.join(columns)}) USING delta {clauses} TBLPROPERTIES ({properties})",
            f"{insert}(0, {rows})",
            f"{insert}({rows}, {2 * rows})",
            f"DELETE FROM {{t}} WHERE {delete}",
            *more,
        )

    return make


PARTITIONS: Mapping[str, tuple[str, ...]] = {
    "pd DATE": ("DATE'0001-01-01'", "DATE'1500-03-01'", "NULL", "DATE'2026-01-05'"),
    "pts TIMESTAMP": ("TIMESTAMP'1850-01-01 00:00:00'", "NULL", "TIMESTAMP'2026-01-01 00:00:00'"),
    "pntz TIMESTAMP_NTZ": ("TIMESTAMP_NTZ'1500-03-01 12:00:00.5'", "TIMESTAMP_NTZ'2026-03-08 02:30:00'", "NULL"),
    "ps STRING": ("'a b'", "'x/y=z%'", "NULL", "'é:#?*'", "'007'"),
    "pc CHAR(4)": ("'ab'", "'abcd'", "NULL"),
    "pdec DECIMAL(20, 3)": ("1.500BD", "-12345678901234567.001BD", "NULL"),
    "pf DOUBLE": ("double('NaN')", "-0.0D", "1e300D", "NULL", "double('-Infinity')"),
    "pi BIGINT": ("7L", "-9223372036854775807L", "NULL"),
    "pb BOOLEAN": ("TRUE", "FALSE", "NULL"),
    "pi8 TINYINT": ("-128Y", "127Y", "NULL"),
    "pi16 SMALLINT": ("-32768S", "NULL", "0S"),
    "pi32 INT": ("2147483647", "-2147483648", "NULL"),
    "pf32 FLOAT": ("float(16777216)", "float('NaN')", "float(0.1)", "NULL"),
    "pv VARCHAR(6)": ("'ab '", "''", "'ab'", "NULL", "'__HIVE'"),
    "pu STRING": (
        r"'\u00e9'",
        r"'e\u0301'",
        "'__HIVE_DEFAULT_PARTITION__'",
        "''",
        r"'\U0001f600 /?'",
        "NULL",
        "'NULL'",
    ),
    "pbin BINARY": ("X'61'", "X'6262'", "NULL"),
}


def partitioned(
    *columns: str, zones: tuple[str, ...] = ("UTC",), settings: dict[str, str] = CURRENT, delete: str = "k % 10 = 3"
) -> Make:
    """By these, appended to in sessions of these zones."""

    def make(spark: SparkSession, place: Path) -> None:
        parts = ", ".join(value_of(PARTITIONS[column]) for column in columns)
        names = ", ".join(column.split()[0] for column in columns)
        for number, zone in enumerate(zones * 2 if len(zones) == 1 else zones):
            run(
                spark,
                settings | {"spark.sql.session.timeZone": zone},
                place,
                f"CREATE TABLE IF NOT EXISTS {{t}} (k INT, f64 DOUBLE, {', '.join(columns)}) USING delta "
                f"PARTITIONED BY ({names}) TBLPROPERTIES ({DV})",
                f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ CAST(IF(id % 5 = 4, -1 - id, id) AS INT), "
                f"{VALUES['f64']}, {parts} FROM range({number * 30}, {number * 30 + 30})",
            )
        run(spark, settings, place, f"DELETE FROM {{t}} WHERE {delete}")

    return make


GENERATED = (
    "CREATE TABLE {t} (k INT, d DATE, y INT GENERATED ALWAYS AS (year(d)), ts TIMESTAMP, "
    f"day DATE GENERATED ALWAYS AS (CAST(ts AS DATE))) USING delta PARTITIONED BY (day) TBLPROPERTIES ({MAPPED})"
)


def generated(spark: SparkSession, place: Path) -> None:
    rows = "INSERT INTO {t} (k, d, ts) SELECT /*+ COALESCE(1) */ CAST(id AS INT), %s, %s FROM range(%d, %d)"
    run(
        spark,
        CURRENT,
        place,
        GENERATED,
        rows % (VALUES["d"], VALUES["ts"], 0, 30),
        rows % (VALUES["d"], VALUES["ts"], 30, 60),
        "ALTER TABLE {t} RENAME COLUMN y TO `the year.of it`",
        "DELETE FROM {t} WHERE k % 10 = 3",
    )


def at_random(seed: int) -> Make:
    """Some columns with some of their values, in some layout, by some writer's settings, partitioned or not."""
    draw = random.Random(seed)

    def some(values: tuple[str, ...]) -> str:
        kept = draw.sample(values, draw.randint(1, len(values)))
        return f"get(array({', '.join(kept)}), CAST(pmod(hash(id, {draw.randint(0, 999)}), {len(kept)}) AS INT))"

    def make(spark: SparkSession, place: Path) -> None:
        columns = draw.sample(list(LISTS), 5)
        part = draw.choice([None, *PARTITIONS])
        everything = LISTS | ({part: PARTITIONS[part]} if part else {})
        columns += [part] if part else []
        settings = draw.choice([LEGACY, LEGACY_MICROS, CURRENT, INT96, V2_PAGES]) | {
            "parquet.block.row.count.limit": str(draw.choice([7, 30, 1000])),
            "spark.sql.session.timeZone": draw.choice(["UTC", "America/New_York", "Asia/Kolkata", "Europe/Amsterdam"]),
        }
        partitioned_by = f"PARTITIONED BY ({part.split()[0]})" if part else ""
        create = (
            f"CREATE TABLE {{t}} (k INT, {', '.join(columns)}, st STRUCT<x: DOUBLE, t: TIMESTAMP>) USING delta "
            f"{partitioned_by} TBLPROPERTIES ({draw.choice([DV, MAPPED])})"
        )
        statements = [create]
        for number in range(draw.randint(1, 3)):
            nested = [some(LISTS["f64 DOUBLE"]), some(LISTS["ts TIMESTAMP"])]
            values = ["CAST(id AS INT)", *(some(everything[column]) for column in columns)]
            values.append(f"named_struct('x', {nested[0]}, 't', {nested[1]})")
            rows = draw.randint(5, 60)
            statements.append(
                f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ {', '.join(values)} "
                f"FROM range({number * 100}, {number * 100 + rows})"
            )
        run(spark, settings, place, *statements, f"DELETE FROM {{t}} WHERE k % {draw.randint(2, 9)} = 1")

    return make


ZONED = ("UTC", "America/New_York", "Asia/Kolkata")
SPARK: Mapping[str, Make] = {
    "legacy": flat(LEGACY),
    "legacy-micros": flat(LEGACY_MICROS),
    "current": flat(CURRENT, MAPPED, more=["ALTER TABLE {t} RENAME COLUMN s TO `s.o``dd name`"]),
    "int96": flat(INT96),
    "millis": flat(MILLIS),
    "pages": flat(V2_PAGES, rows=120),
    "generated": generated,
    "by date and escaped text": partitioned("pd DATE", "ps STRING"),
    "by time": partitioned("pts TIMESTAMP", zones=ZONED),
    "by time without a zone": partitioned("pts TIMESTAMP", zones=ZONED, settings=UNZONED),
    "by char and decimal": partitioned("pc CHAR(4)", "pdec DECIMAL(20, 3)"),
    "by float and number": partitioned("pf DOUBLE", "pi BIGINT"),
    "by small numbers": partitioned("pi8 TINYINT", "pi16 SMALLINT"),
    "by text and float": partitioned("pu STRING", "pf32 FLOAT"),
    "by number and short text": partitioned("pi32 INT", "pv VARCHAR(6)"),
    "by local time, flag, bytes": partitioned("pntz TIMESTAMP_NTZ", "pb BOOLEAN", "pbin BINARY"),
}
"""Made by delta-spark."""


WHOLE: Mapping[str, Make] = {
    "legacy, whole": flat(LEGACY, delete="FALSE"),
    "legacy-micros, whole": flat(LEGACY_MICROS, delete="FALSE"),
    "current, whole": flat(CURRENT, delete="FALSE"),
    "by date and escaped text, whole": partitioned("pd DATE", "ps STRING", delete="FALSE"),
    "by time, whole": partitioned("pts TIMESTAMP", zones=ZONED, settings=UNZONED, delete="FALSE"),
}
"""The same without deletion vectors."""


def live_files(place: Path) -> dict[str, dict[str, Any]]:
    """The add actions of the newest version by path, from the JSON commits alone."""
    live: dict[str, dict[str, Any]] = {}
    for commit in sorted((place / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()] if commit.stem.isdigit() else []
        for action in actions:
            if "remove" in action:
                live.pop(action["remove"]["path"], None)
        live |= {action["add"]["path"]: action["add"] for action in actions if "add" in action}
    return live

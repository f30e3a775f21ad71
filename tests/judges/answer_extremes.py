"""Tables at the edges: the greatest values of each type, texts that bounds are cut in, files that hold little of what
there is, columns of every feature, and layouts that parquet-mr can write.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from answer_tables import CURRENT, DV, KEY, LAYOUT, LEGACY, LISTS, MAPPED, VALUES, Make, flat, run, value_of, valued

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["EXTREMES"]

NINES = "9" * 38
EDGES: Mapping[str, tuple[str, ...]] = {
    "d0 DECIMAL(38, 0)": (f"{NINES}BD", f"-{NINES}BD", "NULL", "0BD", "12345678901234567890BD"),
    "d38 DECIMAL(38, 38)": (f"0.{NINES}BD", f"-0.{NINES}BD", f"0.{'0' * 37}1BD", "NULL"),
    "d19 DECIMAL(19, 1)": ("999999999999999999.9BD", "-999999999999999999.9BD", "NULL", "0.1BD"),
    "i64 BIGINT": ("9223372036854775807L", "CAST('-9223372036854775808' AS BIGINT)", "NULL", "0L"),
    "f32 FLOAT": ("float('3.4028235E38')", "float('1.4E-45')", "float('-1.4E-45')", "NULL", "float('-Infinity')"),
    "f64 DOUBLE": ("1.7976931348623157E308D", "4.9E-324D", "-4.9E-324D", "NULL", "-0.0D", "1E-320D"),
    "zero DOUBLE": ("-0.0D", "NULL"),
    "least FLOAT": ("float(-0.0)", "float(1)", "NULL"),
    "most DOUBLE": ("-1.0D", "-0.0D"),
    "late TIMESTAMP": (
        *("TIMESTAMP'9999-12-31 23:59:59.999999'", "TIMESTAMP'9999-12-31 00:00:00'", "NULL"),
        *("TIMESTAMP'0001-01-01 00:00:00.000001'", "TIMESTAMP'1969-12-31 23:59:59.999999'"),
    ),
    "lntz TIMESTAMP_NTZ": (
        *("TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'", "NULL", "TIMESTAMP_NTZ'0001-01-01 00:00:00.000001'"),
        "TIMESTAMP_NTZ'1969-12-31 23:59:59.999001'",
    ),
    "cut STRING": (
        *(r"concat(repeat('a', 31), '\U0001f600')", r"concat(repeat('a', 31), '\uffff', 'z')", "NULL"),
        *(r"repeat('\U0010ffff', 40)", r"repeat('\uffff', 70)", r"concat(repeat('b', 63), 'é', 'c')", "''"),
        *("repeat('a', 32)", "repeat('a', 33)", r"concat(repeat('a', 32), '\U0010ffff')", r"repeat('\ud7ff', 33)"),
    ),
    "odd STRING": (
        *(r"'\u00e9'", r"'e\u0301'", r"'\u0000'", r"'a\u0000b'", r"'\ufeffa'", "NULL", r"'\ufffd'", r"'\ue000'"),
        *(r"'\ufb01'", "'ß'", "'İ'", r"'\n'", r"'\t x'", "' '", r"'\\'", r"'\"'", "'%'", "'_'"),
    ),
    "bin BINARY": (
        *("CAST(repeat('z', 70) AS BINARY)", "unhex(repeat('FF', 70))", "unhex(repeat('FF', 3))", "X''", "NULL"),
        *("X'FFFE'", "X'C3'", "X'EDA080'"),
    ),
    "b1 BOOLEAN": ("TRUE",),
    "no STRING": ("NULL",),
    "non DOUBLE": ("double('NaN')",),
    "c1 CHAR(1)": ("'a'", "''", "NULL", "' '", "'é'"),
}
DEEP = {
    "st STRUCT<a: STRUCT<b: STRUCT<c: DECIMAL(38, 0), d: STRING>, e: DOUBLE>, f: TIMESTAMP>": (
        "IF(id % 5 = 1, NULL, named_struct('a', IF(id % 7 = 2, NULL, named_struct('b', IF(id % 3 = 2, NULL, "
        "named_struct('c', {d0}, 'd', {cut})), 'e', {f64})), 'f', {late}))"
    ),
    "aa ARRAY<ARRAY<STRING>>": "IF(id % 6 = 1, NULL, IF(id % 6 = 2, array(), array(array({odd}), NULL, array())))",
    "ms MAP<STRUCT<x: INT, y: STRING>, ARRAY<DOUBLE>>": (
        "IF(id % 4 = 1, NULL, IF(id % 4 = 2, map(), "
        "map(named_struct('x', CAST(id AS INT), 'y', {odd}), array({f64}, NULL))))"
    ),
    "e ARRAY<STRUCT<x: INT, m: MAP<STRING, DATE>>>": (
        "IF(id % 4 = 3, NULL, array(NULL, named_struct('x', CAST(id AS INT), 'm', map('k', DATE'0001-01-01'))))"
    ),
}
EDGED = valued(EDGES)
EDGE_COLUMNS = {"k INT": KEY} | dict(zip(EDGES, EDGED.values(), strict=True))
EDGE_COLUMNS |= {column: sql.format(**EDGED) for column, sql in DEEP.items()}


def few(settings: dict[str, str], properties: str = DV, columns: Mapping[str, tuple[str, ...]] = LISTS) -> Make:
    """Files, and row groups in them, that hold one or two values of each column: most can be skipped."""
    values = {
        column: f"get(array({', '.join(each)}), CAST((id DIV 6) % {len(each)} AS INT))"
        for column, each in columns.items()
    }

    def make(spark: SparkSession, place: Path) -> None:
        nested = f"named_struct('x', {values['f64 DOUBLE']}, 't', {values['ts TIMESTAMP']})"
        run(
            spark,
            settings | {"parquet.block.row.count.limit": "6", "spark.sql.files.maxRecordsPerFile": "12"},
            place,
            f"CREATE TABLE {{t}} (k INT, {', '.join(columns)}, st STRUCT<x: DOUBLE, t: TIMESTAMP>) USING delta "
            f"TBLPROPERTIES ({properties})",
            f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ {KEY}, {', '.join(values.values())}, {nested} "
            "FROM range(0, 108)",
            "DELETE FROM {t} WHERE k % 6 = 3",
        )

    return make


def widened(spark: SparkSession, place: Path) -> None:
    """Old files in the types that columns had when they were written."""
    old = {"i": "TINYINT", "j": "SMALLINT", "l": "INT", "f": "FLOAT", "d": "DECIMAL(5, 2)", "day": "DATE", "n": "INT"}
    lists = {"i": "i8 TINYINT", "j": "i16 SMALLINT", "l": "i32 INT", "f": "f32 FLOAT", "day": "d DATE", "n": "i32 INT"}
    values = {name: value_of(LISTS[column]) for name, column in lists.items()}
    values["d"] = value_of(("1.00BD", "-999.99BD", "NULL", "0.01BD"))
    wider = {"i": "SMALLINT", "j": "INT", "l": "BIGINT", "f": "DOUBLE", "d": "DECIMAL(20, 6)", "day": "TIMESTAMP_NTZ"}
    wider |= {"n": "DOUBLE"}
    rows = f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ {KEY}, {', '.join(values[name] for name in old)} FROM range"
    run(
        spark,
        CURRENT,
        place,
        f"CREATE TABLE {{t}} (k INT, {', '.join(f'{name} {kind}' for name, kind in old.items())}) USING delta "
        f"TBLPROPERTIES ({DV}, 'delta.enableTypeWidening' = 'true', 'delta.feature.timestampNtz' = 'supported')",
        f"{rows}(0, 40)",
        *(f"ALTER TABLE {{t}} ALTER COLUMN {name} TYPE {kind}" for name, kind in wider.items()),
        f"{rows}(40, 80)",
        "ALTER TABLE {t} ALTER COLUMN i TYPE BIGINT",
        "DELETE FROM {t} WHERE k % 10 = 3",
    )


def featured(spark: SparkSession, place: Path) -> None:
    """Row tracking, ids, defaults, generated columns, columns by id, columns that came and went."""
    rows = "INSERT INTO {t} (k, s, ts, f64) SELECT /*+ COALESCE(1) */ %s, %s, %s, %s FROM range(%d, %d)"
    values = KEY, VALUES["s"], VALUES["ts"], VALUES["f64"]
    properties = (
        f"{DV}, 'delta.enableRowTracking' = 'true', 'delta.columnMapping.mode' = 'id', "
        "'delta.feature.allowColumnDefaults' = 'supported', 'delta.enableInCommitTimestamps' = 'true', "
        "'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '3', 'delta.enableChangeDataFeed' = 'true'"
    )
    run(
        spark,
        CURRENT,
        place,
        "CREATE TABLE {t} (k INT, own BIGINT GENERATED ALWAYS AS IDENTITY, s STRING DEFAULT 'none', "
        "ts TIMESTAMP, f64 DOUBLE DEFAULT 0.5, low STRING GENERATED ALWAYS AS (lower(s)), gone INT) "
        f"USING delta TBLPROPERTIES ({properties})",
        rows % (*values, 0, 40),
        "ALTER TABLE {t} DROP COLUMN gone",
        "ALTER TABLE {t} ADD COLUMN late STRING",
        "ALTER TABLE {t} ADD COLUMN gone DOUBLE",
        rows % (*values, 40, 80),
        "DELETE FROM {t} WHERE k % 10 = 3",
        "UPDATE {t} SET late = 'set', gone = double('NaN') WHERE k % 7 = 2",
    )


# -- what parquet-mr can write ----------------------------------------------------------------------------------------

VERSIONS = {"v1": {"parquet.writer.version": "PARQUET_1_0"}, "v2": {"parquet.writer.version": "PARQUET_2_0"}}
DICTIONARIES = {
    "dictionary": {"parquet.enable.dictionary": "true"},
    "plain": {"parquet.enable.dictionary": "false"},
    # Given up half-way, when it is full.
    "both": {"parquet.enable.dictionary": "true", "parquet.dictionary.page.size": "64", "parquet.page.size": "64"},
}
PAGES = {
    "pages": LAYOUT,
    "one page": {"parquet.block.row.count.limit": "1000", "parquet.page.row.count.limit": "1000"},
    "no statistics": LAYOUT | {"parquet.column.statistics.enabled": "false"},
    "filters": LAYOUT | {"parquet.bloom.filter.enabled": "true", "parquet.columnindex.truncate.length": "1"},
}
CODECS = ("snappy", "zstd", "gzip", "uncompressed", "lz4_raw")
LAYOUT_COLUMNS = {"k INT": KEY} | {
    column: value_of(LISTS[column])
    for column in ("f64 DOUBLE", "f32 FLOAT", "inf DOUBLE", "s STRING", "d DATE", "ts TIMESTAMP", "i64 BIGINT")
}
LAYOUT_COLUMNS |= {"b BOOLEAN": value_of(LISTS["b BOOLEAN"]), "bin BINARY": value_of(LISTS["bin BINARY"])}


def layouts(version: str) -> Make:
    """A file of each encoding with each index of pages, in one table."""

    def make(spark: SparkSession, place: Path) -> None:
        create = f"CREATE TABLE {{t}} ({', '.join(LAYOUT_COLUMNS)}) USING delta TBLPROPERTIES ({DV})"
        run(spark, CURRENT, place, create)
        for number, (dictionary, pages) in enumerate(product(DICTIONARIES.values(), PAGES.values())):
            codec = {"spark.sql.parquet.compression.codec": CODECS[number % len(CODECS)]}
            rows = f"{', '.join(LAYOUT_COLUMNS.values())} FROM range({number * 40}, {number * 40 + 40})"
            settings = CURRENT | VERSIONS[version] | dictionary | pages | codec
            run(spark, settings, place, f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ {rows}")
        run(spark, CURRENT, place, "DELETE FROM {t} WHERE k % 10 = 3")

    return make


OLD = {"ts TIMESTAMP": LISTS["ts TIMESTAMP"][7:], "d DATE": LISTS["d DATE"], "s STRING": LISTS["s STRING"]}
OLD_VALUES = valued(OLD | {"f64 DOUBLE": LISTS["f64 DOUBLE"]})
OLD_COLUMNS = (
    {"k INT": KEY}
    | dict(zip(OLD, OLD_VALUES.values(), strict=False))
    | {
        "f64 DOUBLE": OLD_VALUES["f64"],
        "st STRUCT<d: DATE, ts: TIMESTAMP>": f"named_struct('d', {OLD_VALUES['d']}, 'ts', {OLD_VALUES['ts']})",
        "ad ARRAY<DATE>": f"array({OLD_VALUES['d']}, NULL)",
    }
)


def by_spark_2(spark: SparkSession, place: Path) -> None:
    """Footers that say what Spark 2.4 says, and nothing of a calendar or a zone: without timestamps before 1900, which
    each reader of such files takes otherwise.
    """
    flat(LEGACY, delete="FALSE", columns=OLD_COLUMNS)(spark, place)
    for file in place.glob("*.parquet"):
        data = file.read_bytes()
        for key in (b"legacyDateTime", b"legacyINT96", b"timeZone"):
            data = data.replace(b"org.apache.spark." + key, b"org.apache.other." + key)
        mark = b"org.apache.spark.version\x18\x05"
        assert data.count(mark) == 1
        at = data.index(mark) + len(mark)
        file.write_bytes(data[:at] + b"2.4.8" + data[at + 5 :])
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    run(spark, CURRENT, place, "DELETE FROM {t} WHERE k % 10 = 3")


EXTREMES: Mapping[str, Make] = {
    "Spark 2": by_spark_2,
    "edges": flat(CURRENT, MAPPED, rows=40, columns=EDGE_COLUMNS),
    "edges, whole": flat(CURRENT, rows=40, delete="FALSE", columns=EDGE_COLUMNS),
    "edges in several pages": flat(
        CURRENT | {"parquet.columnindex.truncate.length": "2", "parquet.page.row.count.limit": "3"},
        rows=40,
        columns=EDGE_COLUMNS,
    ),
    "few values a file": few(CURRENT),
    "widened": widened,
    "featured": featured,
    "layouts of version 1": layouts("v1"),
    "layouts of version 2": layouts("v2"),
}

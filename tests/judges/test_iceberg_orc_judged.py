"""ORC files written here: Iceberg's Spark runtime and its Java library read the same rows with the same lineage, answer
the same to filters on every column, and go on writing.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyorc
import pytest
from iceberg_engine import IcebergEngine
from pyarrow import orc
from test_iceberg_types_judged import Java

from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.merge import merge
from dv_maintenance.dml.update import update
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.planning.plan import purge_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.tables import open_table

ORC = "'write.format.default' = 'orc'"
COLUMNS = (
    "id INT NOT NULL, b BOOLEAN, l BIGINT, f FLOAT, d DOUBLE, d9 DECIMAL(9, 2), d18 DECIMAL(18, 4), "
    "d38 DECIMAL(38, 10), day DATE, t TIMESTAMP, n TIMESTAMP_NTZ, s STRING, bin BINARY, "
    "st STRUCT<a: INT, l: ARRAY<INT>>, arr ARRAY<STRING>, m MAP<STRING, STRUCT<a: INT>>"
)
# f, d, day, t
VALUES = [
    ("NaN", "1", "0001-01-01", "1969-12-31 23:59:59"),
    ("1", "NaN", "1500-02-28", "1700-01-01 00:00:00"),
    ("-0.0", "0.0", "1582-10-04", "1970-01-01 00:00:00.5"),
    ("Infinity", "-0.0", "1582-10-15", "2026-01-01 10:11:12.123456"),
    ("-1", "-Infinity", "1969-12-31", "1900-01-01 00:00:01"),
    ("0.1", "2.5", "9999-12-31", "2200-01-01 00:00:00.000001"),
]
EMPTY = (
    "(8, true, 0, 0, 0, 0, 0, 0, DATE '2020-01-01', TIMESTAMP '2020-01-01', TIMESTAMP_NTZ '2020-01-01', '', X'', "
    "named_struct('a', null, 'l', null), array(), map())"
)
NULLS = f"(7{', null' * 15})"
# Some values of each column, and one between them.
COMPARED = {
    "b": ["true"],
    "l": ["0L", "3000000000000L"],
    "f": ["float('NaN')", "0.0f", "float('Infinity')", "0.1f"],
    "d": ["double('NaN')", "0.0d", "2.5d", "double('-Infinity')"],
    "d9": ["3.25", "6.25"],
    "d18": ["3.1234", "-6.1234"],
    "d38": ["-0.0000000001", "-6.0000000001"],
    "day": [f"DATE '{day}'" for *_, day, _ in VALUES],
    "t": [f"TIMESTAMP '{at}Z'" for *_, at in VALUES],
    "n": [f"TIMESTAMP_NTZ '{at}'" for *_, at in VALUES],
    "s": ["'s3é'", "''", "'s6é'"],
    "bin": ["X'03FF'", "X''"],
    "st.a": ["3", "6"],
}
QUERIES = [
    *(f"{name} {op} {text}" for name, texts in COMPARED.items() for text in texts for op in ("=", "<", ">=")),
    *(f"{name} IS {which}NULL" for name in COMPARED for which in ("", "NOT ")),
    "isnan(f)",
    "isnan(d)",
    "s LIKE 's3%'",
]


@pytest.fixture
def engine(iceberg_spark: Any, tmp_path: Path) -> IcebergEngine:
    return IcebergEngine(iceberg_spark, tmp_path)


def row(at: int, f: str, d: str, day: str, moment: str, s: str = "") -> str:
    return (
        f"({at}, {at % 2 == 0}, {at}L * 1000000000000, float('{f}'), double('{d}'), {at}.25, {at}.1234, "
        f"-{at}.0000000001, DATE '{day}', TIMESTAMP '{moment}', TIMESTAMP_NTZ '{moment}', '{s or f's{at}é'}', "
        f"X'0{at}FF', named_struct('a', {at}, 'l', array({at}, null)), array('x', null, '{at}'), "
        f"map('k{at}', named_struct('a', {at})))"
    )


def made(engine: IcebergEngine, name: str, partitioned: str = "", properties: str = ORC) -> None:
    """A table of two files, or of one for each row, which lost as many rows as they have left."""
    engine.create(name, COLUMNS, partitioned=partitioned, properties=properties)
    rows = [*(row(at, *each) for at, each in enumerate(VALUES, 1)), NULLS, EMPTY]
    for first in (0, 4):
        gone = [row(at, *VALUES[at % 6], s="gone") for at in range(first + 1, first + 5)]
        some = ", ".join([*rows[first : first + 4], *gone])
        engine.sql(f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ * FROM VALUES {some}", name)
    engine.sql("DELETE FROM {t} WHERE s = 'gone'", name)


def purged(engine: IcebergEngine, name: str, kind: str = "ORC") -> None:
    """A purge that changes nothing that Spark reads, and leaves files of this format."""
    rows = engine.rows(name)
    report = purge(open_table(str(engine.path(name))), LocalEngine())
    assert report.verified, report.problems
    assert engine.rows(name) == rows
    assert formats(engine, name) == {(kind,)}


def formats(engine: IcebergEngine, name: str) -> set[tuple[object, ...]]:
    return set(engine.sql("SELECT file_format FROM {t}.data_files", name))


def answers(engine: IcebergEngine, name: str, queries: list[str]) -> dict[str, Any]:
    return {each: sorted(engine.sql(f"SELECT id FROM {{t}} WHERE {each}", name)) for each in queries}


def judged(engine: IcebergEngine, name: str, queries: list[str], kind: str = "ORC") -> None:
    """Filters find the rows that satisfy them. In Spark's own files they do not: by statistics, readers leave out NaN,
    -0.0, dates before the calendar changed, and text with characters from U+E000 on.
    """
    true = without_skipping(engine, name, queries)
    purged(engine, name, kind)
    assert answers(engine, name, queries) == true


def without_skipping(engine: IcebergEngine, name: str, queries: list[str]) -> dict[str, Any]:
    """As ``answers``, by values instead of filters."""
    asked = engine.sql(f"SELECT id, {', '.join(queries)} FROM {{t}}", name)
    return {each: sorted((row[0],) for row in asked if row[at]) for at, each in enumerate(queries, 1)}


def test_spark_reads_and_goes_on(engine: IcebergEngine) -> None:
    made(engine, "t")
    judged(engine, "t", ["f >= 0.1f", "day < DATE '1582-10-15'", "t = TIMESTAMP '2026-01-01 10:11:12.123456Z'"])
    session, table = engine.session, open_table(str(engine.path("t")))
    changes = {"s": "concat(s, '!')", "l": "NULL"}
    files = engine.sql("SELECT file_path FROM {t}.data_files", "t")
    assert update(table, session, changes, "id IN (2, 7)", dry_run=True).rows_updated == 2
    assert engine.sql("SELECT file_path FROM {t}.data_files", "t") == files
    assert update(table, session, changes, "id IN (2, 7)").rows_updated == 2
    source = "SELECT * FROM VALUES (3, 'merged'), (50, 'new') AS s(id, s)"
    merging = merge(table, session, session.sql(source), "t.id = s.id", target_alias="t", source_alias="s")
    merging.when_matched_update({"s": "s.s"}).when_not_matched_insert({"id": "s.id", "s": "s.s"}).execute()
    assert delete(table, LocalEngine(), "id = 4").rows_deleted == 1
    assert formats(engine, "t") == {("ORC",)}
    assert engine.sql("SELECT id, s FROM {t} WHERE id IN (2, 3, 4, 50) ORDER BY id", "t") == [
        (2, "s2é!"), (3, "merged"), (50, "new"),
    ]  # fmt: skip
    engine.sql("UPDATE {t} SET s = 'spark' WHERE id = 5", "t")
    rows = engine.rows("t")
    engine.rewrite("t")
    assert engine.rows("t") == rows
    purged(engine, "t")
    engine.sql("DELETE FROM {t} WHERE id = 1", "t")
    purged(engine, "t")


@pytest.mark.deep
@pytest.mark.parametrize(("partitioned", "zone", "ansi"), [("", "UTC", "true"), ("id", "America/Los_Angeles", "false")])
def test_filters_on_every_column(engine: IcebergEngine, partitioned: str, zone: str, ansi: str) -> None:
    engine.session.conf.set("spark.sql.session.timeZone", zone)
    engine.session.conf.set("spark.sql.ansi.enabled", ansi)
    made(engine, "t", partitioned)
    judged(engine, "t", QUERIES)


MOMENTS = (
    "0001-01-03 00:00:00", "1500-02-28 01:02:03.000004", "1582-10-10 00:00:00", "1677-01-01 00:00:00.5",
    "1900-01-01 00:00:00.25", "1969-12-31 23:59:58.999999", "1969-12-31 23:59:59", "1969-12-31 23:59:59.000999",
    "1970-01-01 00:00:00", "2262-12-31 23:59:59.999999", "9999-12-29 23:59:59.999999",
)  # fmt: skip


@pytest.mark.deep
@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles"])
def test_what_arrow_does_not_write(engine: IcebergEngine, zone: str) -> None:
    """Timestamps of every age, and structs in structs in lists."""
    engine.session.conf.set("spark.sql.session.timeZone", zone)
    inner = "STRUCT<b: STRUCT<t: TIMESTAMP, s: STRING>>"
    columns = f"id INT, t TIMESTAMP, n TIMESTAMP_NTZ, deep ARRAY<{inner}>, m MAP<STRING, {inner}>"
    engine.create("t", columns, properties=ORC)
    rows = []
    for at, moment in enumerate(MOMENTS):
        b = f"named_struct('t', TIMESTAMP '{moment}Z', 's', IF({at} % 3 = 0, NULL, 's{at}'))"
        value = f"named_struct('b', IF({at} % 4 = 0, NULL, {b}))"
        row = f"TIMESTAMP '{moment}Z', TIMESTAMP_NTZ '{moment}', array({value}, NULL), map('k', {value}, 'l', NULL)"
        rows += [f"({at}, {row})", f"({at + 100}, {row})"]
    engine.sql(f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ * FROM VALUES {', '.join(rows)}, (50{', null' * 4})", "t")
    engine.sql("DELETE FROM {t} WHERE id >= 100", "t")
    compared = [("t", f"TIMESTAMP '{each}Z'") for each in MOMENTS] + [
        ("n", f"TIMESTAMP_NTZ '{each}'") for each in MOMENTS
    ]
    judged(engine, "t", [f"{name} {op} {value}" for name, value in compared for op in ("=", "<", ">=")])
    table = open_table(str(engine.path("t")))
    assert update(table, engine.session, {"n": "n + INTERVAL 1 MICROSECOND"}, "id = 1").rows_updated == 1
    assert engine.sql("SELECT n = TIMESTAMP_NTZ '1500-02-28 01:02:03.000005' FROM {t} WHERE id = 1", "t") == [(True,)]
    engine.rewrite("t")
    purged(engine, "t")


@pytest.mark.deep
def test_what_spark_does_not_write_either(engine: IcebergEngine) -> None:
    engine.create("t", "id INT, n TIMESTAMP_NTZ", properties=ORC)
    engine.sql("INSERT INTO {t} VALUES (1, TIMESTAMP_NTZ '1969-12-31 23:59:59.5')", "t")
    assert str(engine.sql("SELECT CAST(n AS STRING) FROM {t}", "t")[0][0]) == "1970-01-01 00:00:00.5"
    brotli = f"{ORC}, 'write.orc.compression-codec' = 'brotli'"
    engine.create("b", "id INT", properties=brotli)
    with pytest.raises(Exception, match="Unsupported compression codec: brotli"):
        engine.sql("INSERT INTO {t} VALUES (1)", "b")


def codecs(engine: IcebergEngine, name: str) -> set[int]:
    """Of the live files, by number: 1 is zlib, 3 is lzo."""
    files = (str(path).removeprefix("file:") for (path,) in engine.sql("SELECT file_path FROM {t}.data_files", name))
    return {pyorc.Reader(Path(path).open("rb")).compression for path in files}


def test_a_codec_that_no_library_writes_here(engine: IcebergEngine) -> None:
    """Spark's files are compressed with lzo, ours are not. Both are read by both."""
    engine.create("t", "id INT, s STRING", properties=f"{ORC}, 'write.orc.compression-codec' = 'lzo'")
    engine.sql("INSERT INTO {t} SELECT /*+ COALESCE(1) */ CAST(id AS INT), repeat('x', 50) FROM range(1000)", "t")
    assert codecs(engine, "t") == {3}
    engine.sql("DELETE FROM {t} WHERE id % 10 = 3", "t")
    table = open_table(str(engine.path("t")))
    (step,) = purge_plan(table.snapshot()).steps
    assert "new files are compressed with zlib, as no library writes lzo here" in step.reason
    judged(engine, "t", ["id = 13", "id = 14", "s > 'x'"])
    engine.sql("INSERT INTO {t} VALUES (1000, 'y')", "t")
    assert codecs(engine, "t") == {1, 3}


@pytest.mark.deep
def test_filters_on_text_that_java_orders_in_another_way(engine: IcebergEngine) -> None:
    engine.create("t", "id INT, p INT, s STRING, st STRUCT<w: STRING>", partitioned="p", properties=ORC)
    texts = [
        (1, "\uff46"), (1, "\U0001f600"), (1, "\uff47"), (2, "\uff46"), (3, "\U0001f600"),
        (4, "a\uff46"), (4, "a\U0001f600"), (5, "plain"), *((p, "gone") for p in range(1, 6)),
    ]  # fmt: skip
    rows = ", ".join(f"({at}, {p}, '{s}', named_struct('w', '{s}'))" for at, (p, s) in enumerate(texts))
    engine.sql(f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ * FROM VALUES {rows}", "t")
    engine.sql("DELETE FROM {t} WHERE s = 'gone'", "t")
    compared = ("\uff46", "\uff47", "\U0001f600", "\U0001f601", "a\uff46", "a\U0001f600")
    judged(engine, "t", [f"{name} {op} '{s}'" for name in ("s", "st.w") for op in ("=", "<", ">=") for s in compared])


@pytest.mark.deep
def test_filters_within_a_file(engine: IcebergEngine) -> None:
    """Readers skip stripes, and groups of 10,000 rows within them."""
    engine.create("t", "id INT, l BIGINT, d DOUBLE, p DECIMAL(12, 3), day DATE, t TIMESTAMP, s STRING", properties=ORC)
    parts = (
        "CAST(id AS INT), id * 1000, IF(id = 30005, double('NaN'), id / 8), CAST(id / 8 AS DECIMAL(12, 3)), "
        "DATE '1969-01-01' + CAST(id / 64 AS INT), TIMESTAMP '1960-01-01 00:00:00' + MAKE_INTERVAL(0, 0, 0, 0, id), "
        "sha2(CAST(id DIV 100 AS STRING), 256)"
    )
    engine.sql(f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ {parts} FROM range(60000)", "t")
    engine.sql("DELETE FROM {t} WHERE id % 10 = 3", "t")
    hashed = engine.sql("SELECT s FROM {t} WHERE id = 45007", "t")[0][0]
    queries = [
        "l BETWEEN 45005000 AND 45010000",
        "d = 5000.5",
        "d > 7499",
        "isnan(d)",
        "p = 5000.5",
        "day = DATE '1971-01-01'",
        "t >= TIMESTAMP '1960-01-02 21:00:00' AND t < TIMESTAMP '1960-01-02 21:00:07'",
        f"s = '{hashed}'",
        "id IN (17, 29999, 30001, 59999)",
    ]
    true = without_skipping(engine, "t", queries)
    rows = engine.rows("t")
    # Stripes of 64 KiB.
    report = maintain(
        open_table(str(engine.path("t"))), LocalEngine(), Policy(target_file_size=256 << 10, max_deleted_ratio=0.0)
    )
    assert report.verified
    assert engine.rows("t") == rows
    assert answers(engine, "t", queries) == true
    # Nothing here misleads readers, so they skip.
    for (path,) in engine.sql("SELECT file_path FROM {t}.data_files", "t"):
        assert orc.ORCFile(path).row_index_stride == 10_000
    assert len(true["d = 5000.5"]) == 1


@pytest.mark.deep
@pytest.mark.parametrize("first", ["parquet", "avro", "orc"])
def test_evolved_tables_of_mixed_formats(engine: IcebergEngine, first: str) -> None:
    evolved(engine, first, "orc")


def evolved(engine: IcebergEngine, first: str, last: str) -> None:
    """A table whose files are of two formats, and whose columns have changed."""
    engine.create(
        "t",
        "id INT, a INT, f FLOAT, p DECIMAL(9, 2), old STRING, at TIMESTAMP, gone STRING",
        partitioned="bucket(3, id), days(at), truncate(1, old)",
        properties=f"'write.format.default' = '{first}'",
    )
    rows = "CAST(id AS INT), CAST(id AS INT), id / 4, id, 'x' || id, TIMESTAMP '2026-01-01 12:00:00', 'g'"
    later = (
        "CAST(id AS INT), id * 10000000000, 0.1D, 123456789012.5, 'y', TIMESTAMP '2026-01-01 13:00:00', "
        "named_struct('x', 1, 'y', 'q', 'z', DATE '1900-01-01')"
    )
    engine.sql(f"INSERT INTO {{t}} SELECT {rows} FROM range(40)", "t")
    for change in (
        "ALTER TABLE {t} ALTER COLUMN a TYPE BIGINT",
        "ALTER TABLE {t} ALTER COLUMN f TYPE DOUBLE",
        "ALTER TABLE {t} ALTER COLUMN p TYPE DECIMAL(20, 2)",
        "ALTER TABLE {t} RENAME COLUMN old TO renamed",
        "ALTER TABLE {t} DROP COLUMN gone",
        "ALTER TABLE {t} ADD COLUMN inside STRUCT<x: INT, y: STRING>",
        "ALTER TABLE {t} ADD COLUMN inside.z DATE",
        f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.format.default' = '{last}')",
        f"INSERT INTO {{t}} SELECT {later} FROM range(40, 60)",
        "DELETE FROM {t} WHERE id % 5 = 0",
    ):
        engine.sql(change, "t")
    queries = ["a = 17", "a > 300000000000", "f < 0.3", "p > 100", "renamed = 'x7'", "inside.z IS NOT NULL", "id = 8"]
    judged(engine, "t", queries, last.upper())
    assert engine.sql("SELECT count(*) FROM {t}.delete_files", "t") == [(0,)]
    engine.sql("UPDATE {t} SET inside.y = 'w' WHERE id > 30", "t")
    purged(engine, "t", last.upper())


SCHEMA = """{"type": "struct", "schema-id": 0, "fields": [
 {"id": 1, "name": "id", "required": true, "type": "int"},
 {"id": 2, "name": "u", "required": false, "type": "uuid"},
 {"id": 3, "name": "f16", "required": false, "type": "fixed[16]"},
 {"id": 4, "name": "f40", "required": true, "type": "fixed[40]"},
 {"id": 5, "name": "b", "required": false, "type": "binary"},
 {"id": 6, "name": "t", "required": false, "type": "timestamp_ns"},
 {"id": 7, "name": "z", "required": false, "type": "timestamptz_ns"},
 {"id": 8, "name": "clock", "required": false, "type": "time"},
 {"id": 9, "name": "in", "required": false, "type": {"type": "struct", "fields": [
   {"id": 12, "name": "u", "required": true, "type": "uuid"},
   {"id": 13, "name": "n", "required": false, "type": "double"}]}},
 {"id": 10, "name": "us", "required": false, "type":
   {"type": "list", "element-id": 14, "element": "uuid", "element-required": false}},
 {"id": 11, "name": "m", "required": false, "type":
   {"type": "map", "key-id": 15, "key": "uuid", "value-id": 16, "value": "timestamp_ns", "value-required": false}}
]}"""


# Java counts structs, lists and maps as well, and has bounds of times.
LEFT_OUT = {"valueCounts": {9, 10, 11}, "nullValueCounts": {9, 10, 11}, "lowerBounds": {8}, "upperBounds": {8}}


@pytest.mark.deep
def test_types_that_spark_lacks(iceberg_spark: Any, tmp_path: Path) -> None:
    java, rng = Java(iceberg_spark, tmp_path), random.Random(7)
    zone = java.jvm.java.time.ZoneOffset.UTC
    table = java.create("t", SCHEMA, **{"write.format.default": "orc"})

    def moment() -> Any:
        seconds, nanos = rng.choice([(rng.randint(-(1 << 32), -1), 0), (rng.randint(90_000, 1 << 32), 987_654_321)])
        return java.jvm.java.time.LocalDateTime.ofEpochSecond(seconds, nanos, zone)

    for at in range(2):
        rows = []
        for number in range(20 * at, 20 * at + 20):
            when = moment()
            values = {
                "u": java.uuid(rng),
                "f16": rng.randbytes(16),
                "b": java.jvm.java.nio.ByteBuffer.wrap(rng.choice([rng.randbytes(40), b""])),
                "t": when,
                "z": when.atOffset(zone),
                "clock": java.jvm.java.time.LocalTime.ofNanoOfDay(rng.randint(0, 86_399_999_999) * 1000),
                "in": {"u": java.uuid(rng), "n": rng.random()},
                "us": [java.uuid(rng), None][: rng.randint(0, 2)],
                "m": {java.uuid(rng): moment() for _ in range(rng.randint(0, 2))},
            }
            some = {name: None if rng.random() < 0.2 else each for name, each in values.items()}
            rows.append({"id": number, "f40": rng.randbytes(40), **some})
        java.append(table, rows)
    place = str(java.spark.path("t"))
    delete(open_table(place), LocalEngine(), "id < 5 OR id IN (17, 20, 21, 33)")
    rows_before = java.rows(table)
    assert purge(open_table(place), LocalEngine()).verified
    assert java.rows(table) == rows_before
    table.refresh()
    config = java.iceberg.MetricsConfig.forTable(table)
    for task in table.newScan().includeColumnStats().planFiles().iterator():
        ours = task.file()
        assert ours.format().name() == "ORC"
        theirs = java.iceberg.orc.OrcMetrics.fromInputFile(table.io().newInputFile(ours.location()), config)
        for name, left_out in LEFT_OUT.items():
            found, wanted = (
                {key: java.text(value) for key, value in getattr(each, name)().items()} for each in (ours, theirs)
            )
            assert found == {key: value for key, value in wanted.items() if key not in left_out}, name

"""Files are skipped only if no row can match: compared with DuckDB, which reads every row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as f

from dv_maintenance.dml.catalyst import demanded_by, predicate_of, shape
from dv_maintenance.dml.condition import Condition, equal_columns
from dv_maintenance.dml.prune import files_in_range, files_that_may_match
from dv_maintenance.dml.rows import numbered_rows
from dv_maintenance.storage import RawName, Storage
from dv_maintenance.tables.delta.table import DeltaTable
from dv_maintenance.tables.predicate import And, Compare, Or, Predicate, bind
from dv_maintenance.testing.delta_builder import DeltaBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int16()),
        ("real", pa.float64()),
        ("half", pa.float32()),
        ("name", pa.string()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", tz="UTC")),
        ("part", pa.string()),
        ("flag", pa.bool_()),
    ]
)


def rows() -> pa.Table:
    count = 60
    return pa.table(
        {
            "id": [None if n % 20 == 7 else n for n in range(count)],
            "small": [None if n < 20 else n % 50 - 25 for n in range(count)],
            "real": [math.nan if n == 33 else n / 3 for n in range(count)],
            "half": [n / 10 for n in range(count)],
            "name": [f"{chr(97 + n // 5)}{'é' * (n % 3)}{'x' * 40 if n % 11 == 0 else ''}" for n in range(count)],
            "day": [date(2026, 1, 1 + n // 3) for n in range(count)],
            "moment": [datetime(2026, 1, 1, n % 24, n, 0, 999_999, tzinfo=UTC) for n in range(count)],
            "part": [None if n < 15 else "a" if n < 40 else "ü b" for n in range(count)],
            "flag": [n < 30 for n in range(count)],
        },
        schema=SCHEMA,
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DeltaTable:
    place = str(tmp_path_factory.mktemp("prune") / "t")
    builder = DeltaBuilder(place).create(SCHEMA, partition_by=["part"])
    builder.append(rows(), files=4, rows_per_row_group=4)
    builder.append(rows().slice(50), statistics=False)
    builder.delete(lambda batch: pa.array([bool(n and n % 9 == 0) for n in batch["id"].to_pylist()]))
    return DeltaTable(Storage(place))


@pytest.fixture(scope="module")
def judge(table: DeltaTable) -> Iterator[tuple[duckdb.DuckDBPyConnection, list[str]]]:
    """A view ``rows`` with the file of each row; dead rows are in it, which only asks for more."""
    snapshot = table.snapshot()
    parts = []
    for path, partition in zip(*(snapshot.files[name].to_pylist() for name in ("path", "partition")), strict=True):
        stored = pq.read_table(table.storage.local(table.storage.path_of(RawName(path))))
        value = None if "__HIVE" in partition else "a" if partition == "part=a" else "ü b"
        # Spark compares a float with a literal as doubles.
        stored = stored.set_column(stored.schema.get_field_index("half"), "half", stored["half"].cast(pa.float64()))
        stored = stored.append_column("part", pa.array([value] * len(stored), pa.string()))
        parts.append(stored.append_column("file", pa.array([path] * len(stored))))
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("rows", pa.concat_tables(parts))
    yield connection, snapshot.files["path"].to_pylist()
    connection.close()


def literal(column: str) -> st.SearchStrategy[str]:
    return {
        "id": st.integers(-5, 65).map(str),
        "small": st.sampled_from([*map(str, range(-30, 30, 3)), "40000"]),
        "real": st.sampled_from(["-1.0", "0.0", "5.5", "11.0", "19.9", "100.0"]),
        "half": st.sampled_from(["0.7", "2.3", "3.0", "5.9", "9.0"]),
        "name": st.sampled_from(["'a'", "'c'", "'ézz'", "'lx'", "'zz'", "''"]),
        "day": st.integers(1, 28).map(lambda n: f"DATE '2026-01-{n:02}'"),
        "moment": st.integers(0, 23).map(lambda n: f"TIMESTAMP '2026-01-01 {n:02}:30:00.999999+00:00'"),
        "part": st.sampled_from(["'a'", "'ü b'", "'b'"]),
    }[column]


COLUMNS = st.sampled_from(["id", "small", "real", "half", "name", "day", "moment", "part"])
OPERATORS = st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "!="])


@st.composite
def leaf(draw: st.DrawFn) -> str:
    column = draw(COLUMNS)
    one, two = draw(literal(column)), draw(literal(column))
    operator = draw(OPERATORS)
    return draw(
        st.sampled_from(
            [
                f"{column} {operator} {one}",
                f"{one} {operator} {column}",
                f"{column} BETWEEN {one} AND {two}",
                f"{column} IN ({one}, {two})",
                f"{column} NOT IN ({one}, {two})",
                f"{column} IS NULL",
                f"{column} IS NOT NULL",
                "flag",
                f"length(name) {operator} 3",
                "name LIKE 'c%'",
                "TRUE",
            ]
        )
    )


CONDITIONS = st.recursive(
    leaf(),
    lambda inner: (
        st.builds("({} AND {})".format, inner, inner)
        | st.builds("({} OR {})".format, inner, inner)
        | st.builds("NOT ({})".format, inner)
    ),
    max_leaves=5,
)


@settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
@given(sql=CONDITIONS)
def test_no_file_with_a_match_is_left_out(spark: SparkSession, sql: str, table: DeltaTable, judge: Any) -> None:
    connection, _ = judge
    snapshot = table.snapshot()
    kept = files_that_may_match(table, snapshot, predicate_of(spark, SCHEMA, sql)).files["path"].to_pylist()
    query = sql.replace("TIMESTAMP '", "TIMESTAMPTZ '")
    wanted = {file for (file,) in connection.execute(f"SELECT DISTINCT file FROM rows WHERE {query}").fetchall()}
    assert wanted <= set(kept)


@settings(max_examples=examples(10), suppress_health_check=list(HealthCheck))
@given(sql=CONDITIONS)
def test_no_row_group_with_a_match_is_left_out(spark: SparkSession, sql: str, table: DeltaTable) -> None:
    snapshot = table.snapshot()
    predicate = bind(predicate_of(spark, snapshot.schema, sql), snapshot.schema)
    tasks = table.scan_tasks(snapshot)
    everything, chosen = (
        [batch for at, task in enumerate(tasks) for batch in numbered_rows(at, task, {}, each)]
        for each in (None, predicate)
    )
    live, kept = pa.Table.from_batches(everything), pa.Table.from_batches(chosen, everything[0].schema)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        # Spark compares a float with a literal as doubles.
        half = live.schema.get_field_index("half")
        connection.register("live", live.set_column(half, "half", live["half"].cast(pa.float64())))
        condition = sql.replace("TIMESTAMP '", "TIMESTAMPTZ '")
        wanted = set(connection.execute(f"SELECT file, row FROM live WHERE {condition}").fetchall())
    assert wanted <= set(zip(kept["file"].to_pylist(), kept["row"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("id = 25", range(20, 30)),
        ("ID BETWEEN 25 AND 31", range(20, 40)),
        ("49 < id AND id <> 7", range(50, 60)),
        ("id IN (0, 46)", [*range(10), *range(40, 50)]),
        ("name IS NULL OR id = 12", range(10, 20)),
        ("upper(name) = 'C' AND NOT id >= 10", range(10)),
        ("upper(name) = 'C'", range(60)),
        ("id = '12'", range(10, 20)),
        ("CAST(id AS STRING) = '12'", range(60)),
        ("id < 0", []),
    ],
)
def test_row_groups_are_left_out_and_positions_stay_right(
    spark: SparkSession, sql: str, expected: Iterable[int], tmp_path: Path
) -> None:
    stored = pa.table({"id": pa.array(range(60)), "name": [f"n{n}" for n in range(60)]})
    builder = DeltaBuilder(str(tmp_path / "t")).create(stored.schema)
    builder.append(stored, rows_per_row_group=10)
    dead = {3, 9, 10, 25, 59}
    builder.delete(lambda batch: pa.array([n in dead for n in batch["id"].to_pylist()]))
    table = DeltaTable(Storage(str(tmp_path / "t")))
    snapshot = table.snapshot()
    [task] = table.scan_tasks(snapshot)
    predicate = bind(predicate_of(spark, snapshot.schema, sql), snapshot.schema)
    found = [row for batch in numbered_rows(4, task, {}, predicate) for row in batch.to_pylist()]
    assert [(row["file"], row["row"], row["id"]) for row in found] == [(4, n, n) for n in expected if n not in dead]


@pytest.mark.parametrize(
    ("sql", "most"),
    [
        ("id = 3", 2),
        ("ID = 3 AND name < 'z'", 2),
        ("part = 'a'", 4),
        ("part <=> 'a'", 4),
        ("day > '2026-01-19'", 2),
        ("day > DATE '2026-01-25'", 1),
        ("id IN (50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 61, 62)", 3),
        ("part IN ('b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k', 'l')", 0),
        ("moment < TIMESTAMP '2025-12-31 23:00:00'", 1),
        ("NOT (id > 10 OR part IS NOT NULL)", 5),
        ("id IN (1, 59)", 3),
        ("name = 'a' AND rand() < 2", 3),
        ("id = '3'", 2),
        ("id + 0 = id", 14),
        ("FALSE", 0),
        ("FALSE AND id = 1", 0),
    ],
)
def test_what_is_left_out(spark: SparkSession, sql: str, most: int, table: DeltaTable) -> None:
    kept = files_that_may_match(table, table.snapshot(), predicate_of(spark, SCHEMA, sql))
    assert kept.files.num_rows <= most


@settings(max_examples=examples(10), suppress_health_check=list(HealthCheck))
@given(keys=st.lists(st.integers(-10, 70), max_size=6))
def test_keys_in_range(keys: list[int], table: DeltaTable, judge: Any) -> None:
    connection, _ = judge
    kept = files_in_range(table, table.snapshot(), "id", pa.array(sorted(keys), pa.int64())).files["path"].to_pylist()
    found = connection.execute(f"SELECT DISTINCT file FROM rows WHERE id IN ({', '.join(map(str, [*keys, -99]))})")
    assert {file for (file,) in found.fetchall()} <= set(kept)


@pytest.mark.parametrize(
    ("sql", "columns", "only"),
    [
        ("part = 'a' OR upper(PART) IS NULL", ("part",), True),
        ("true", (), True),
        ("rand() < 0.5", (), False),
        ("Day(moment) = day()", ("day", "moment"), False),
        ("part IN (SELECT x FROM y)", ("part",), False),
        ("t.id = 1 AND part = 'a'", ("id", "part"), False),
        ("this is not SQL (", tuple(SCHEMA.names), False),
    ],
)
def test_what_a_condition_is_about(sql: str, columns: tuple[str, ...], only: bool) -> None:
    found = Condition.parse(sql, SCHEMA.names)
    assert (found.columns, found.only_about(["part"])) == (columns, only)


def test_a_file_s_own_dv_does_not_matter(spark: SparkSession, table: DeltaTable) -> None:
    """Bounds stay outer bounds; what is known of nulls still holds."""
    kept = files_that_may_match(table, table.snapshot(), predicate_of(spark, SCHEMA, "small IS NOT NULL"))
    assert kept.files.num_rows < table.snapshot().files.num_rows


@pytest.mark.parametrize(
    ("sql", "equal"),
    [
        ("t.id = s.key", {"id": "Key"}),
        ("(s.KEY = T.ID AND (t.part = 'a' AND s.more > 1))", {"id": "Key"}),
        ("t.id = s.key OR t.part = 'a'", {}),
        ("t.id = s.key + 1 AND t.id = t.small AND t.day > s.more", {}),
        ("t.id <=> s.key AND NOT t.flag", {}),
        ("id = key AND part = 'a'", {}),
        ("t.id = s.key AND t.name = s.both", {"id": "Key"}),
        ("t.id = s.key AND t.part = '\\\\'", {}),
        ('t.id = s.key AND t.part = "a"', {}),
        ("t.id = (", {}),
    ],
)
def test_what_a_merge_demands(sql: str, equal: dict[str, str]) -> None:
    assert equal_columns(sql, ("t", SCHEMA.names), ("s", ["Key", "more", "both", "BOTH"])) == equal


def test_a_merge_s_own_condition_leaves_files_out(spark: SparkSession, table: DeltaTable) -> None:
    joined = shape(spark, SCHEMA).alias("t").join(spark.range(9).alias("s"), f.expr("t.id = s.id AND t.part = 'a'"))
    kept = files_that_may_match(table, table.snapshot(), demanded_by(joined))
    assert 0 < kept.files.num_rows <= 4


NEW_YORK = {"spark.sql.session.timeZone": "America/New_York"}
KOLKATA = {"spark.sql.session.timeZone": "Asia/Kolkata", "spark.sql.timestampType": "TIMESTAMP_NTZ"}
# To Java it has Brussels' time, to Python one of its own, 19:32 ahead of UTC.
AMSTERDAM = {"spark.sql.session.timeZone": "Europe/Amsterdam"}
ANSI, LAX = {"spark.sql.ansi.enabled": "true"}, {"spark.sql.ansi.enabled": "false"}
QUOTED = "spark.sql.ansi.doubleQuotedIdentifiers"


@pytest.mark.parametrize(
    ("sql", "settings", "expected"),
    [
        ("f = 16777217", LAX, [("=", 16777216.0)]),
        ("f = 16777217", ANSI, "nothing"),
        ("n = '1'", ANSI, [("=", 1)]),
        ("n > 1.5", {}, [(">", 1)]),
        ("n + 1 > 1 AND n < 7L", {}, [("<", 7)]),
        ("\"s\" = 'a'", {**ANSI, QUOTED: "true"}, [("=", "a")]),
        ("\"s\" = 'a'", {QUOTED: "false"}, "nothing"),
        ("s = '\\x41'", {"spark.sql.parser.escapedStringLiterals": "true"}, [("=", "\\x41")]),
        ("s = 'it''s'", {}, [("=", "it's")]),
        ("s = 'it''s'", {"spark.sql.legacy.consecutiveStringLiterals.enabled": "true"}, [("=", "its")]),
        ("t < '1930-01-01'", AMSTERDAM, [("<", datetime(1930, 1, 1, tzinfo=UTC))]),
        ("t < TIMESTAMP'2026-01-01 00:00:00'", KOLKATA, [("<", datetime(2025, 12, 31, 18, 30, tzinfo=UTC))]),
        ("t = DATE'2026-01-01'", NEW_YORK, [("=", datetime(2026, 1, 1, 5, tzinfo=UTC))]),
        ("d < '2026-1-1'", {}, [("<", date(2026, 1, 1))]),
        ("s < 'a' COLLATE UTF8_LCASE", {}, []),
        ("s <=> 'a'", {}, [("=", "a")]),
        ("f > 'NaN'", {}, "nothing"),
    ],
)
def test_the_session_says_what_a_condition_means(
    spark: SparkSession, sql: str, settings: dict[str, str], expected: Any
) -> None:
    types = {"f": pa.float32(), "s": pa.string(), "n": pa.int32(), "t": pa.timestamp("us", "UTC"), "d": pa.date32()}
    before = {key: spark.conf.get(key) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        found = predicate_of(spark, pa.schema(types), sql)
    finally:
        for key, value in before.items():
            spark.conf.set(key, str(value))
    assert ("nothing" if found == Or(()) else compared(found)) == expected


def compared(predicate: Predicate) -> list[tuple[str, Any]]:
    if isinstance(predicate, And):
        return [each for part in predicate.parts for each in compared(part)]
    return [(predicate.op, predicate.value)] if isinstance(predicate, Compare) else []

"""Random erasure lists over every type and from every kind of source: what goes is what plain Python says is equal, and
what Spark says of the same keys in the table's own types.

Values are few and close to each other: texts that are one number to whoever casts them, neighbours of floats, times
that are one in another zone. ``DVM_KEY_LISTS``: how many lists the deep form takes, other ones each time unless
``DVM_SEED`` says the first.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random, randrange
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.predicate_judging import session_with
from support.random_sql import settings

from dv_maintenance.dml.delete import delete
from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.read import read
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.table import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LISTS = int(os.environ.get("DVM_KEY_LISTS", "400"))
SEED = int(os.environ.get("DVM_SEED", randrange(1 << 30)))
AT_ONCE = 20
ROWS = 60
SESSION_ZONE = "spark.sql.session.timeZone"
ZONES = ("UTC", "America/New_York", "Asia/Kolkata", "Europe/Amsterdam", "Australia/Lord_Howe")
NAN, INF = math.nan, math.inf
DAY = datetime(2026, 1, 5)


@dataclass(frozen=True)
class Column:
    """``texts`` of a value that name it exactly; ``wrong``: texts that name none. ``json``: whether JSON may have it
    without quotes; ``others``: types besides its own that hold its values.
    """

    name: str
    sql: str
    kind: pa.DataType
    values: tuple[Any, ...]
    texts: Callable[[Any], list[str]]
    wrong: tuple[str, ...] = ()
    json: bool = False
    others: tuple[pa.DataType, ...] = field(default=())


def floats(width: Any) -> Callable[[float], list[str]]:
    def texts(value: float) -> list[str]:
        if not math.isfinite(value):
            return ["NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"]
        return [str(width(value)), f"{value:.{9 if width is np.float32 else 17}g}", *([] if value else ["0", "-0.0"])]

    return texts


def times(value: datetime) -> list[str]:
    return [value.isoformat(sep=" "), value.isoformat(timespec="microseconds")]


def instants(value: datetime) -> list[str]:
    zones = [UTC, ZoneInfo("America/New_York"), ZoneInfo("Asia/Kolkata")]
    return [value.astimezone(zone).isoformat() for zone in zones] + [
        f"{value.replace(tzinfo=None).isoformat(sep=' ')}Z"
    ]


def whole(bits: int) -> tuple[int, ...]:
    return (0, 1, 7, -7, 10, 100, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)))


NO_WHOLE = ("007", "7.0", "1e2", "+7", "", " 7", "x", str(2**63), "NaN", "1_0")
NO_FLOAT = ("007", "nan", "1e400", "x", "", "0x1p3", "0.1000000000000000055", "9007199254740993")
TEXTS = (
    "7",
    "07",
    "007",
    "7.0",
    "1",
    "t",
    "true",
    "NaN",
    "",
    " 7",
    "1e3",
    "1000",
    "1.1",
    "1.10",
    "a,b",
    'q"q',
    "l\nn",
    "é",
)
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
MOMENTS = (
    *(NOON + timedelta(hours=hours) for hours in (0, -2, 4, -4, 5.5)),
    NOON + timedelta(microseconds=1),
    datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
    datetime(2026, 10, 25, 1, 30, tzinfo=UTC),
)
LOCAL = (DAY, DAY + timedelta(microseconds=1), DAY + timedelta(hours=12), datetime(1900, 1, 1), datetime(1500, 3, 1))

FLOATS = tuple(float(np.float32(value)) for value in (0.1, 0.5, 16777216.0, NAN, INF, -0.0, 0.0, 1e-45))
DAYS = tuple(date(*parts) for parts in ((2026, 1, 5), (2026, 5, 1), (1, 1, 1), (9999, 12, 31), (1582, 10, 4)))

COLUMNS = (
    Column("s", "STRING", pa.string(), TEXTS, lambda value: [value]),
    Column("vc", "VARCHAR(6)", pa.string(), TEXTS, lambda value: [value]),
    Column(
        "c", "CHAR(4)", pa.string(), ("ab", "a", "", "ab c", "7", "07"), lambda v: [v, f"{v} ", f"{v:<9}"], ("abcde",)
    ),
    Column(
        "t", "TINYINT", pa.int8(), whole(8), lambda v: [str(v)], ("128", *NO_WHOLE), True, (pa.int64(), pa.string())
    ),
    Column(
        "sm", "SMALLINT", pa.int16(), whole(16), lambda v: [str(v)], ("32768", *NO_WHOLE), True, (pa.decimal128(9, 3),)
    ),
    Column("i", "INT", pa.int32(), whole(32), lambda v: [str(v)], NO_WHOLE, True, (pa.float64(), pa.string())),
    Column(
        "l",
        "BIGINT",
        pa.int64(),
        (*whole(64), 2**53, 2**53 + 1),
        lambda v: [str(v)],
        NO_WHOLE,
        True,
        (pa.decimal128(20, 0),),
    ),
    Column(
        "dec",
        "DECIMAL(10, 2)",
        pa.decimal128(10, 2),
        tuple(map(Decimal, ("1.10", "1.11", "1.00", "-1.10", "99999999.99", "0.00"))),
        lambda v: [str(v), f"{v}0", *([str(v).rstrip("0").rstrip(".")] if v else [])],
        ("1.105", "01.10", "1.1e0", "x", "100000000", "-0"),
        True,
        (pa.decimal128(38, 20), pa.string()),
    ),
    Column(
        "f",
        "FLOAT",
        pa.float32(),
        FLOATS,
        floats(np.float32),
        ("16777217", "0.100000002", *NO_FLOAT),
        True,
        (pa.float64(), pa.string()),
    ),
    Column(
        "d",
        "DOUBLE",
        pa.float64(),
        (0.1, math.nextafter(0.1, 1), 0.5, 2.0**53, NAN, -INF, -0.0, 0.0, 5e-324),
        floats(np.float64),
        NO_FLOAT,
        True,
        (pa.string(),),
    ),
    Column(
        "day",
        "DATE",
        pa.date32(),
        DAYS,
        lambda v: [v.isoformat()],
        ("2026-1-5", "20260105", "2026-02-30", "05.01.2026", ""),
        False,
        (pa.string(),),
    ),
    Column(
        "at",
        "TIMESTAMP",
        pa.timestamp("us", "UTC"),
        MOMENTS,
        instants,
        ("2026-01-05", "2026-07-01 10:00", "2026-07-01 24:00:00", "x"),
        False,
        (pa.string(),),
    ),
    Column(
        "ntz",
        "TIMESTAMP_NTZ",
        pa.timestamp("us"),
        LOCAL,
        times,
        ("2026-01-05", "2026-01-05 00:00:00Z", "x"),
        False,
        (pa.string(),),
    ),
    Column(
        "bo",
        "BOOLEAN",
        pa.bool_(),
        (True, False),
        lambda v: [str(v).lower()],
        ("t", "1", "TRUE", ""),
        True,
        (pa.string(),),
    ),
    Column(
        "bin",
        "BINARY",
        pa.binary(),
        (b"", b"\x07", b"7", b"\x00\xff"),
        lambda v: [f"X'{v.hex()}'", f"x'{v.hex().upper()}'"],
        ("07", "X'7'", "Bw=="),
        False,
        (pa.string(),),
    ),
)


@dataclass(frozen=True)
class Made:
    place: Path
    rows: list[dict[str, Any]]


@pytest.fixture(scope="module")
def made(delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """A table by delta-spark in which every value of every column comes up, in several files."""
    random = Random(7)
    rows = []
    for n in range(ROWS):
        pools = {each.name: (*each.values, None) for each in COLUMNS}
        rows.append(
            {"n": n} | {name: pool[n] if n < len(pool) else random.choice(pool) for name, pool in pools.items()}
        )
    place = tmp_path_factory.mktemp("keys") / "made"
    columns = ", ".join(f"{each.name} {each.sql}" for each in COLUMNS)
    zone = delta_spark.conf.get(SESSION_ZONE)
    delta_spark.sql(
        f"CREATE TABLE delta.`{place}` (n INT, {columns}) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    schema = pa.schema([("n", pa.int32()), *((each.name, each.kind) for each in COLUMNS)])
    frame(delta_spark, pa.Table.from_pylist(rows, schema)).repartition(3).createOrReplaceTempView("made_rows")
    delta_spark.sql(f"INSERT INTO delta.`{place}` SELECT * FROM made_rows")
    yield Made(place, rows)
    delta_spark.conf.set(SESSION_ZONE, zone)


def frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    return spark.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))


@dataclass
class KeyList:
    """``keys``: exact values per key, in order of the columns; ``refused``: whether one has no exact value."""

    columns: list[Column]
    keys: list[tuple[Any, ...]]
    source: str | pa.Table
    refused: bool
    zone: str

    def __str__(self) -> str:
        text = self.source if isinstance(self.source, pa.Table) else Path(self.source).read_bytes()
        return f"{[each.name for each in self.columns]} in {self.zone}: {text!r}"


def key_list(random: Random, folder: Path) -> KeyList:
    columns = random.sample(COLUMNS, random.choice((1, 1, 1, 2, 2, 3)))
    zone = random.choice(ZONES)
    keys = [
        tuple(random.choice((*each.values, *each.values, None)) for each in columns)
        for _ in range(random.randint(1, 9))
    ]
    form = random.choice(("csv", "csv", "json", "json", "parquet", "frame"))
    if form in ("parquet", "frame"):
        table, refused = typed(random, columns, keys)
        if form == "parquet":
            pq.write_table(table, folder / "erase.parquet")
        return KeyList(columns, keys, str(folder / "erase.parquet") if form == "parquet" else table, refused, zone)
    wrong = random.randrange(len(keys)) if random.random() < 0.3 else None
    lines, refused = [], False
    for number, key in enumerate(keys):
        cells: list[tuple[str | None, bool]] = []
        at = random.randrange(len(columns)) if number == wrong else None
        for place, (column, value) in enumerate(zip(columns, key, strict=True)):
            if place == at and column.wrong:
                cells.append((random.choice(column.wrong), False))
                refused = True
                continue
            if value is None:
                cells.append((None, False))
                continue
            text = random.choice(column.texts(value))
            if column.name == "at" and random.random() < 0.3:
                local = value.astimezone(ZoneInfo(zone))
                text = local.replace(tzinfo=None).isoformat(sep=" ")
                refused |= local.utcoffset() != local.replace(fold=1 - local.fold).utcoffset()
            bare = column.json and text not in ("NaN", "Infinity", "-Infinity") and random.random() < 0.5
            cells.append((text, bare))
        lines.append(
            json_line(columns, cells) if form == "json" else ",".join(csv_cell(random, text) for text, _ in cells)
        )
    header = [] if form == "json" else [",".join(each.name for each in columns)]
    end = random.choice(("\n", "\r\n"))
    path = folder / f"erase.{form}"
    path.write_bytes((random.choice(("", "\ufeff")) + end.join([*header, *lines]) + random.choice(("", end))).encode())
    return KeyList(columns, keys, str(path), refused, zone)


def csv_cell(random: Random, text: str | None) -> str:
    if text is None:
        return ""
    must = not text or any(char in text for char in '",\r\n')
    return '"' + text.replace('"', '""') + '"' if must or random.random() < 0.3 else text


def json_line(columns: list[Column], cells: list[tuple[str | None, bool]]) -> str:
    pairs = [
        f"{json.dumps(column.name)}: {text if bare else json.dumps(text)}"
        for column, (text, bare) in zip(columns, cells, strict=True)
    ]
    return "{" + ", ".join(pairs) + "}"


def typed(random: Random, columns: list[Column], keys: list[tuple[Any, ...]]) -> tuple[pa.Table, bool]:
    """Keys as Arrow has them, each column in its own type or in another one; and whether a value is not exact there."""
    arrays, refused = [], False
    for at, column in enumerate(columns):
        values = [key[at] for key in keys]
        kind = random.choice((column.kind, *column.others))
        if pa.types.is_string(kind) and not pa.types.is_string(column.kind):
            values = [None if value is None else random.choice(column.texts(value)) for value in values]
        elif pa.types.is_floating(kind) and pa.types.is_integer(column.kind):
            values = [None if value is None else float(value) for value in values]
        elif pa.types.is_decimal(kind):
            values = [None if value is None else Decimal(value) for value in values]
        if random.random() < 0.1 and pa.types.is_string(column.kind):
            kind, values, refused = pa.int64(), [7] * len(values), True
        arrays.append(pa.array(values, kind))
    return pa.table(arrays, names=[each.name for each in columns]), refused


def canonical(column: Column, value: Any) -> Any:
    """Equal where SQL says so: NaN to NaN, zeros whatever their sign, a CHAR whatever spaces it ends with."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value
    return value.rstrip(" ") if column.sql.startswith("CHAR") else value


def expected(made: Made, keys: KeyList) -> set[int]:
    wanted = {
        tuple(canonical(column, value) for column, value in zip(keys.columns, key, strict=True))
        for key in keys.keys
        if None not in key
    }

    def of(row: dict[str, Any]) -> tuple[Any, ...] | None:
        values = [row[column.name] for column in keys.columns]
        if None in values:
            return None
        return tuple(canonical(column, value) for column, value in zip(keys.columns, values, strict=True))

    return {row["n"] for row in made.rows if of(row) in wanted}


def spark_says(spark: SparkSession, made: Made, lists: dict[int, KeyList]) -> dict[int, set[int]]:
    """Of the same keys in the table's own types, by number of the list, in one query; a CHAR is not for columns of text
    to be compared with.
    """
    questions: list[str] = []
    said: dict[int, set[int]] = {}
    for number, keys in lists.items():
        names = [column.name for column in keys.columns]
        if "c" in names:
            continue
        schema = pa.schema([(column.name, column.kind) for column in keys.columns])
        rows = [dict(zip(names, key, strict=True)) for key in keys.keys]
        frame(spark, pa.Table.from_pylist(rows, schema)).createOrReplaceTempView(f"wanted_keys_{number}")
        same = " AND ".join(f"wanted.{name} = made.{name}" for name in names)
        exists = f"EXISTS (SELECT 1 FROM wanted_keys_{number} wanted WHERE {same})"
        questions.append(f"SELECT {number} AS number, n FROM delta.`{made.place}` made WHERE {exists}")
    said: dict[int, set[int]] = {
        number: set() for number in lists if "c" not in [c.name for c in lists[number].columns]
    }
    for row in spark.sql(" UNION ALL ".join(questions)).collect() if questions else ():
        said[row.number].add(row.n)
    for number in said:
        spark.catalog.dropTempView(f"wanted_keys_{number}")
    return said


@dataclass
class Seen:
    """Lists, those among them that were rightly refused, and how often a type came up in one that was not."""

    lists: int = 0
    refused: int = 0
    by_type: Counter[str] = field(default_factory=Counter)
    asked: dict[int, tuple[KeyList, set[int]]] = field(default_factory=dict)

    def print(self, first: int) -> None:
        print(f"lists from {first}: {self.lists}, refused {self.refused}, differences 0: {dict(self.by_type)}")


def judge(spark: SparkSession, made: Made, folder: Path, seed: int, seen: Seen) -> None:
    keys = key_list(Random(seed), folder)
    shutil.copytree(made.place, folder / "t")
    table = DeltaTable(Storage(str(folder / "t")))
    source = frame(spark, keys.source) if isinstance(keys.source, pa.Table) else keys.source
    on = [column.name for column in keys.columns]
    wanted = settings(Random(seed)) | {SESSION_ZONE: keys.zone}
    what = f"list {seed}: {keys}, {wanted}"
    seen.lists += 1
    with session_with(spark, wanted):
        if keys.refused:
            with pytest.raises(UsageError):
                print(what, delete(table, spark, keys=source, on=on))
            assert table.version() == 1, what
            seen.refused += 1
            return
        report = delete(table, spark, keys=source, on=on)
    left = {n for batch in read(table, columns=["n"])[1] for n in batch.column("n").to_pylist()}
    gone = {row["n"] for row in made.rows} - left
    assert gone == expected(made, keys), what
    assert report.keys, what
    assert report.rows_deleted == len(gone), what
    nulls = sum(None in key for key in keys.keys)
    empty_lines = nulls if len(on) == 1 and str(source).endswith(".csv") else 0
    assert (report.keys.given, report.keys.null) == (len(keys.keys) - empty_lines, nulls - empty_lines), what
    assert report.keys.distinct - report.keys.unmatched <= len(gone), what
    seen.by_type.update(column.sql for column in keys.columns)
    seen.asked[seed] = keys, gone


def judge_all(spark: SparkSession, made: Made, folder: Path, first: int, lists: int) -> Seen:
    seen = Seen()
    for batch in range(first, first + lists, AT_ONCE):
        for seed in range(batch, min(batch + AT_ONCE, first + lists)):
            place = folder / str(seed)
            place.mkdir()
            judge(spark, made, place, seed, seen)
            shutil.rmtree(place / "t")
        for seed, said in spark_says(spark, made, {seed: keys for seed, (keys, _) in seen.asked.items()}).items():
            keys, gone = seen.asked[seed]
            assert gone == said, f"list {seed}: {keys}"
        seen.asked.clear()
    seen.print(first)
    return seen


def test_random_key_lists(delta_spark: SparkSession, made: Made, tmp_path: Path) -> None:
    judge_all(delta_spark, made, tmp_path, 0, 3)


@pytest.mark.deep
def test_many_random_key_lists(delta_spark: SparkSession, made: Made, tmp_path: Path) -> None:
    seen = judge_all(delta_spark, made, tmp_path, SEED, LISTS)
    assert seen.lists / 20 < seen.refused < seen.lists / 2

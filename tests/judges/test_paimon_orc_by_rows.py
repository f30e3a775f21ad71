"""Rows of ORC files for which Arrow has no type are moved as they are: nanoseconds of any year, maps with null keys.
Paimon's engine reads the same before and after, wherever its Java writes and reads.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from paimon_judging import in_order, opened, our_rows
from support.paimon_engine import DV, EngineError, PaimonEngine
from test_paimon_blobs import EVOLVING, with_vectors, without_vectors
from test_paimon_formats_judged import kinds, time_zone
from test_paimon_maintenance import LOCAL, no_dvs

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.parquet import footer
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.planning.policy import Policy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORC = DV | {"file.format": "orc"}
NANOS = "TIMESTAMP(9)"
# From 0001 to 9999; days on which calendars and time zones changed; beside 1970.
SECONDS = [
    *(-62_135_596_800, -62_135_510_400, -12_219_292_801, -12_219_292_800, -11_000_000_000, -9_223_372_037),
    *(-2_717_650_800, -86_401, -86_399, -18_000, -2, 0, 1, 17_999, 18_001, 86_399, 1_700_000_000, 9_223_372_037),
    *(20_000_000_000, 253_402_214_399, 253_402_300_799),
]
FRACTIONS = [0, 1, 999, 1_000, 999_999, 1_000_000, 123_456_789, 999_999_999]
ZONES = ("UTC", "America/New_York", "Asia/Kolkata")


def everywhere(engine: PaimonEngine, spark: SparkSession, path: Path) -> list[list[str]]:
    found = []
    for zone in ZONES:
        with time_zone(spark, zone):
            found.append(in_order(engine.rows(path)))
    return found


def moved(engine: PaimonEngine, spark: SparkSession, path: Path, filters: list[tuple[Any, ...]]) -> None:
    """Purge and compact the table, and let Paimon go on, with the same answers."""
    before = everywhere(engine, spark, path)
    answers = engine.ask(path, filters, all_rows=True)
    assert purge(opened(path), LocalEngine()).verified
    assert no_dvs(path)
    assert everywhere(engine, spark, path) == before
    assert engine.ask(path, filters) == engine.ask(path, filters, all_rows=True) == answers
    assert maintain(opened(path), LocalEngine(), Policy(min_input_files=2)).verified
    assert len(opened(path).snapshot().files) == 1
    assert kinds(path) == {"orc"}
    assert everywhere(engine, spark, path) == before
    assert engine.ask(path, filters) == engine.ask(path, filters, all_rows=True) == answers


def goes_on(engine: PaimonEngine, path: Path, row: list[Any]) -> None:
    rows = engine.rows(path)
    engine.append(path, [row])
    engine.delete(path, lambda each: each["id"] % 4 == 1)
    left = in_order([*(each for each in rows if each["id"] % 4 != 1), engine.rows(path)[-1]])
    assert in_order(engine.rows(path)) == left
    engine.compact(path)
    assert in_order(engine.rows(path)) == left


@pytest.mark.parametrize("written", ZONES[:2])
def test_nanoseconds_of_any_year(
    paimon_engine: PaimonEngine, spark: SparkSession, tmp_path: Path, written: str
) -> None:
    engine, path = paimon_engine, tmp_path / "table"
    row = {"type": "ROW", "fields": [{"id": 90, "name": "t", "type": NANOS}, {"id": 91, "name": "z", "type": LOCAL}]}
    columns: dict[str, Any] = {"id": "INT", "t": NANOS, "z": LOCAL, "a": {"type": "ARRAY", "element": row}}
    columns |= {"m": {"type": "MAP", "key": NANOS, "value": NANOS}, "u": "TIMESTAMP(6)", "v": "STRING"}
    engine.create(path, columns, options=ORC | {"orc.timestamp-ltz.legacy.type": "false"})
    times = [second * 10**9 + fraction for second in SECONDS for fraction in FRACTIONS]
    rows = []
    for at, when in enumerate(times):
        array = [[when, None], None, [None, when]] if at % 5 else None
        entries = [(when, times[-at]), (times[at - 1], None)] if at % 3 else None
        rows.append([at, when, None if at % 7 == 0 else when, array, entries, when // 1000, f"v{at}"])
    with time_zone(spark, written):
        for start in range(0, len(rows), 56):
            engine.append(path, rows[start : start + 56])
    # Near ones only: Arrow writes the file again.
    with time_zone(spark, written):
        engine.append(path, [[1000 + at, 10**18 + at, None, None, None, 0, None] for at in range(8)])
    engine.delete(path, lambda row: row["id"] % 3 == 1)
    with pytest.raises(RefusedError, match="holds a timestamp with nanoseconds before 1677 or after 2262"):
        our_rows(path)
    filters = [(kind, name, when) for kind in ("=", "<", ">=") for name in "tz" for when in times[::5]]
    filters += [("null", "z"), ("not null", "t"), ("=", "u", times[3] // 1000), ("=", "v", "v44")]
    moved(engine, spark, path, filters)
    # Paimon's own compaction moves times before 1582 by some days.
    engine.delete(path, lambda row: row["id"] < 1000)
    goes_on(engine, path, [2000, times[-1], times[-1], None, None, 0, "new"])


MAPS: dict[str, Any] = {
    "m": {"type": "MAP", "key": "INT", "value": "STRING"},
    "s": {"type": "MAP", "key": "STRING", "value": {"type": "MAP", "key": "BIGINT", "value": "DATE"}},
    "d": {"type": "MAP", "key": "DECIMAL(20, 5)", "value": {"type": "ARRAY", "element": "DOUBLE"}},
    "a": {"type": "ARRAY", "element": {"type": "MAP", "key": NANOS, "value": "FLOAT"}},
    "r": {
        "type": "ROW",
        "fields": [
            {"id": 90, "name": "c", "type": {"type": "MAP", "key": "CHAR(5)", "value": "BOOLEAN"}},
            {"id": 91, "name": "t", "type": "TIMESTAMP(3)"},
        ],
    },
    "k": {
        "type": "MAP",
        "key": {"type": "ROW", "fields": [{"id": 95, "name": "b", "type": "BYTES"}]},
        "value": "TINYINT",
    },
    "n": {"type": "MULTISET", "element": "STRING"},
}
FAR = -9_300_000_000 * 10**9 + 123_456_789


def with_null_keys(number: int) -> list[Any]:
    none = number % 2 == 0
    key = None if none else number
    return [
        number,
        [(number, "x"), (key, None), (number + 1, "")] if none else [(number, None)],
        [("", [(None, number), (7, None)]), (None, None)] if none else [],
        [("1.50000", [1.5, None]), (None, [])] if none else None,
        [[(None, 1.5), (FAR, None)], None, [(number, 0.1)]],
        [[("ab", True), (None, None), ("abcde", False)], number * 1000],
        [([b"\x00"], 1), (None, 2), ([None], 3)],
        [("a", 2), (None, 3)] if none else None,
    ]


@pytest.mark.parametrize("codec", ["zstd", pytest.param("lz4", marks=pytest.mark.deep)])
def test_maps_with_null_keys(paimon_engine: PaimonEngine, spark: SparkSession, tmp_path: Path, codec: str) -> None:
    engine, path = paimon_engine, tmp_path / "table"
    engine.create(path, {"id": "INT", **MAPS, "v": "STRING"}, options=ORC | {"file.compression": codec})
    for start in (0, 20):
        engine.append(path, [[*with_null_keys(at), f"v{at}"] for at in range(start, start + 20)])
    # One with the same columns and no such key.
    engine.append(path, [[1000 + at, [(at, "y")], *[None] * 6, f"w{at}"] for at in range(20)])
    engine.delete(path, lambda row: row["id"] % 3 == 1)
    with pytest.raises(RefusedError, match="holds maps with a null key"):
        our_rows(path)
    filters = [("=", "v", "v12"), (">", "id", 30), ("null", "m"), ("not null", "d"), ("in", "id", 3, 1003)]
    moved(engine, spark, path, filters)
    goes_on(engine, path, [*with_null_keys(2000), "new"])


def test_from_parquet_files_and_back(paimon_engine: PaimonEngine, spark: SparkSession, tmp_path: Path) -> None:
    engine, path = paimon_engine, tmp_path / "table"
    engine.create(path, {"id": "INT", "t": NANOS, "a": {"type": "ARRAY", "element": NANOS}}, options=DV)
    times = [second * 10**9 + 123_456_789 for second in SECONDS]

    def append(first: int) -> None:
        engine.append(path, [[first + at, when, [when, None]] for at, when in enumerate(times)])

    append(0)
    engine.alter(path, ("option", "file.format", "orc"))
    append(100)
    engine.delete(path, lambda row: row["id"] % 3 == 1)
    moved(engine, spark, path, [(kind, "t", when) for kind in ("=", "<", ">=") for when in times])
    before = everywhere(engine, spark, path)
    engine.alter(path, ("option", "file.format", "parquet"))
    append(200)
    engine.delete(path, lambda row: row["id"] >= 200)
    assert maintain(opened(path), LocalEngine(), Policy(min_input_files=2)).verified
    engine.delete(path, lambda row: row["id"] == 3)
    assert purge(opened(path), LocalEngine()).verified
    assert kinds(path) == {"parquet"}
    before = [[row for row in each if "'id': 3," not in row] for each in before]
    assert everywhere(engine, spark, path) == before
    goes_on(engine, path, [2000, times[0], None])


def test_other_formats_have_no_null_keys(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """Paimon writes none either, into Avro but text."""
    engine = paimon_engine
    for kind, why in (("parquet", "Parquet does not support null keys in maps"), ("avro", "NullPointerException")):
        path = tmp_path / kind
        engine.create(path, {"id": "INT", "m": {"type": "MAP", "key": "STRING", "value": "INT"}}, options=ORC)
        rows: list[list[Any]] = [[at, [("a", 1), (None, at)]] for at in range(5)]
        engine.append(path, rows)
        engine.delete(path, lambda row: row["id"] == 1)
        engine.alter(path, ("option", "file.format", kind))
        with pytest.raises(EngineError, match=why):
            engine.append(path, rows)
        before = engine.rows(path)
        with pytest.raises(RefusedError, match="holds maps with a null key"):
            purge(opened(path), LocalEngine())
        assert engine.rows(path) == before


def test_keys_that_differ_by_sign(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """To Java 0.0 and -0.0 are two keys, to Python they are one."""
    engine, path = paimon_engine, tmp_path / "table"
    engine.create(path, {"id": "INT", "m": {"type": "MAP", "key": "DOUBLE", "value": "INT"}}, options=ORC)
    engine.append(path, [[1, [(0.0, 1), (-0.0, 2), (None, 3)]], [2, None]])
    engine.delete(path, lambda row: row["id"] == 2)
    assert len(engine.rows(path)[0]["m"]) == 3
    with pytest.raises(RefusedError, match="does not tell apart"):
        purge(opened(path), LocalEngine())
    assert len(engine.rows(path)[0]["m"]) == 3


def row_of(at: int) -> list[Any]:
    when = SECONDS[at % len(SECONDS)] * 10**9 + 123_456_789
    return [at, [(at, "x"), (None, "y")] if at % 2 else None, when, when // 1000]


COLUMNS = {"id": "INT NOT NULL", "m": MAPS["m"], "t": NANOS, "u": "TIMESTAMP(6)"}


@pytest.mark.parametrize("key", [[], ["id"]], ids=["row ids", "a key"])
def test_row_ids_and_keys(paimon_engine: PaimonEngine, spark: SparkSession, tmp_path: Path, key: list[str]) -> None:
    engine, path = paimon_engine, tmp_path / "table"
    options = {"write-only": "true"} if key else {"row-tracking.enabled": "true"}
    engine.create(path, COLUMNS, key=key, options=ORC | options)
    append = {"write-only": "false"} if key else None
    engine.append(path, map(row_of, range(30)), options=append)
    if key:
        engine.append(path, map(row_of, [*range(0, 30, 4), 77]), options=append)
    else:
        engine.delete(path, lambda row: row["id"] % 3 == 1)

    def rows() -> list[list[str]]:
        found = []
        for zone in ZONES:
            with time_zone(spark, zone):
                found.append(in_order(engine.rows(path, lineage=not key)))
        return found

    before = rows()
    assert not no_dvs(path)
    assert purge(opened(path), LocalEngine()).verified
    assert no_dvs(path)
    assert rows() == before
    assert kinds(path) == {"orc"}


def test_a_file_of_keys_stays_one(paimon_engine: PaimonEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if only its later rows need pyorc: two files of a level may not have the same keys."""
    engine, path = paimon_engine, tmp_path / "table"
    engine.create(path, {"id": "INT NOT NULL", "t": "TIMESTAMP(6)"}, key=["id"], options=ORC | {"write-only": "true"})
    rows = [[at, datetime(2026 if at < 10 else 1500, 1, 1)] for at in range(20)]
    for part in (rows, rows[:2]):
        engine.append(path, part, options={"write-only": "false"})
    before = in_order(engine.rows(path))
    assert len(opened(path).snapshot().files) == 2
    monkeypatch.setattr(footer, "MAX_BATCH_ROWS", 4)
    assert purge(opened(path), LocalEngine()).verified
    assert no_dvs(path)
    assert len(opened(path).snapshot().files) == 2
    assert in_order(engine.rows(path)) == before


def test_data_evolution(paimon_engine: PaimonEngine, spark: SparkSession, tmp_path: Path) -> None:
    engine, path = paimon_engine, tmp_path / "table"
    engine.create(path, COLUMNS, options=EVOLVING | {"file.format": "orc", "x": "y"})
    engine.append(path, map(row_of, range(30)))
    expected = [
        [row for row in each if int(row[7:].split(",")[0]) in range(5, 27)] for each in everywhere(engine, spark, path)
    ]
    assert len(expected[0]) == 22
    with_vectors(path)
    delete(opened(path), LocalEngine(), "id < 5 OR id > 26")
    assert purge(opened(path), LocalEngine()).verified
    assert no_dvs(path)
    assert kinds(path) == {"orc"}
    without_vectors(path)
    assert everywhere(engine, spark, path) == expected

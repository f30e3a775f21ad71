"""Erasure lists delete the rows that they name and no others: keys of every type and from every kind of file."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.predicate_judging import session_with
from support.twins import make_table

from dv_maintenance.dml.delete import delete
from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.read import read
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.table import DeltaTable
from dv_maintenance.testing.delta_builder import DeltaBuilder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SESSION_ZONE = "spark.sql.session.timeZone"
TABLE = """
    CREATE TABLE {t} (n INT, s STRING, c CHAR(4), i BIGINT, b TINYINT, dec DECIMAL(10, 2), f FLOAT, d DOUBLE, day DATE,
        at TIMESTAMP, ntz TIMESTAMP_NTZ, bo BOOLEAN, bin BINARY, st STRUCT<a: INT, b: STRING>, `a.b` INT, `a``b` INT,
        _dvm_file INT, _dvm_row STRING) USING delta
        TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name');
    INSERT INTO {t} VALUES
    (0, '7', 'ab', 7, 7, 1.10, 0.1F, 0.1D, DATE '2026-01-05', TIMESTAMP '2026-07-01 12:00:00',
        TIMESTAMP_NTZ '2026-01-05 00:00:00', true, X'07', struct(1, 'x'), 7, 7, 7, 'x'),
    (1, '07', 'a', 8, 8, 1.11, float('NaN'), double('NaN'), DATE '2026-01-06', TIMESTAMP '2026-07-01 10:00:00',
        TIMESTAMP_NTZ '2026-01-05 00:00:01', false, X'08', struct(2, 'x'), 8, 8, 8, 'x'),
    (2, '007', 'zz', 9007199254740993, 9, 1000, float('-0.0'), double('-0.0'), DATE '2026-01-07',
        TIMESTAMP '2026-10-25 00:30:00', TIMESTAMP_NTZ '1900-01-05 00:00:01', null, X'', struct(3, 'x'), 9, 9, 9, 'x'),
    (3, '', 'zzzz', 9007199254740992, 10, -5, float('infinity'), double('-infinity'), DATE '2026-12-31',
        TIMESTAMP '2026-10-25 01:30:00', TIMESTAMP_NTZ '2026-07-01 12:00:00.123456', null, X'00ff', null, 10, 10, 10,
        'y'),
    (4, 't', 'b', 1, 1, 1, 1, 1, null, null, null, null, null, null, null, null, null, null),
    (5, 'true', 'b', 2, 2, 2, 2, 2, null, null, null, null, null, null, null, null, null, null),
    (6, '1e3', 'b', 3, 3, 3, 3, 3, null, null, null, null, null, null, null, null, null, null),
    (7, '1000', 'b', 4, 4, 4, 4, 4, null, null, null, null, null, null, null, null, null, null),
    (8, 'NaN', 'b', 5, 5, 5, 5, 5, null, null, null, null, null, null, null, null, null, null),
    (9, null, 'b', 6, 6, 6, 6, 6, null, null, null, null, null, null, null, null, null, null)
"""


@pytest.fixture(scope="module")
def table(delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DeltaTable:
    return DeltaTable(Storage(str(make_table(delta_spark, tmp_path_factory.mktemp("keys") / "t", TABLE))))


@pytest.fixture
def zone(delta_spark: SparkSession) -> Iterator[Any]:
    before = delta_spark.conf.get(SESSION_ZONE)
    yield lambda name: delta_spark.conf.set(SESSION_ZONE, name)
    delta_spark.conf.set(SESSION_ZONE, before)


def write(folder: Path, text: str, name: str = "erase.csv") -> str:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


def counted(table: DeltaTable, spark: SparkSession, keys: DataFrame | str, *on: str) -> tuple[int | None, ...]:
    """Rows that would go, and of the keys: given, null, distinct, unmatched."""
    report = delete(table, spark, keys=keys, on=on, dry_run=True)
    assert report.keys
    return report.rows_deleted, report.keys.given, report.keys.null, report.keys.distinct, report.keys.unmatched


# In one list all of these were read as numbers, and deleted '07', '7', 't' and '1' as well.
def test_text_against_text(table: DeltaTable, delta_spark: SparkSession, tmp_path: Path) -> None:
    listed = 's,note\n007,x\n"007",\n1e3,y\ntrue,\nNaN,\n"",empty\n,null\n 7,\n'
    assert counted(table, delta_spark, write(tmp_path, listed), "S") == (5, 8, 1, 6, 1)
    lines = '{"s":"007"}\n{"s":null}\n\n{"x":[1]}\n{"s":"t"}\n'
    assert counted(table, delta_spark, write(tmp_path, lines, "erase.jsonl.gz"), "s") == (2, 4, 2, 2, 0)


# Types whose values have one text each: what is deleted, and that no other row is.
@pytest.mark.parametrize(
    ("column", "keys", "expected"),
    [
        ("i", "7\n9007199254740993\n9223372036854775807\n", (2, 3, 0, 3, 1)),
        ("c", "ab\na   \nzz\nb\n", (9, 4, 0, 4, 0)),
    ],
)
def test_text_against_types(
    table: DeltaTable, delta_spark: SparkSession, tmp_path: Path, column: str, keys: str, expected: Any
) -> None:
    assert counted(table, delta_spark, write(tmp_path, f"{column}\n{keys}"), column) == expected


def test_numbers_and_times(table: DeltaTable, delta_spark: SparkSession, tmp_path: Path) -> None:
    """A row of the table goes if all of its values are understood; two lines of one key differ in their spelling."""
    listed = """n,dec,d,ntz
        0,1.1,0.1,2026-01-05 00:00:00
        1,1.110,NaN,2026-01-05T00:00:01.000
        2,1000,0,1900-01-05T00:00:01.000
        2,1000.00,-0.0,1900-01-05 00:00:01
        3,-5.00,-Infinity,2026-07-01 12:00:00.123456
        3,-5.00,-Infinity,2026-07-01 12:00:00.123
    """
    keys = write(tmp_path, "\n".join(filter(None, map(str.strip, listed.splitlines()))) + "\n")
    assert counted(table, delta_spark, keys, "n", "dec", "d", "ntz") == (4, 6, 0, 5, 1)


def test_several_columns_of_all_types(table: DeltaTable, delta_spark: SparkSession, tmp_path: Path) -> None:
    names = ["f", "day", "at", "bo", "bin", "a.b", "a`b", "_dvm_file", "_dvm_row"]
    rows = [
        "NaN,2026-01-06,2026-07-01T15:30:00+05:30,false,X'08',8,8,8,x",
        "0.1,2026-01-05,2026-07-01 12:00:00Z,true,x'07',7,7,7,x",
        "0.1,2026-01-05,2026-07-01 12:00:00Z,true,x'07',7,7,7,y",
        "0.1,2026-01-05,2026-07-01 12:00:00Z,true,,7,7,7,y",
    ]
    keys = write(tmp_path, "\n".join([",".join(names), *rows]))
    assert counted(table, delta_spark, keys, *names) == (2, 4, 1, 3, 1)


@pytest.mark.parametrize(
    ("column", "text", "line"),
    [
        ("i", "1\n007\n7.0\n", "line 3: no exact value for column i (bigint) (and 1 more)"),
        ("b", "300\n", "line 2"),
        ("d", "9007199254740993\n", "line 2"),
        ("day", "2026-1-5\n", "line 2: no exact value for column day (date)"),
        ("at", "2026-01-05\n", "line 2"),
        ("i", '1\n"2\n', "line 3: its quotes"),
        ("i", "1\n2,3\n", "line 3: 2 fields"),
        ("c", "abcde\n", "line 2: no exact value for column c"),
        ("st", "1\n", "no text form"),
    ],
)
def test_what_has_no_exact_value_is_refused(
    table: DeltaTable, delta_spark: SparkSession, tmp_path: Path, column: str, text: str, line: str
) -> None:
    with pytest.raises(UsageError) as caught:
        delete(table, delta_spark, keys=write(tmp_path, f"{column}\n{text}"), on=[column])
    assert line in caught.value.message
    assert not [each for each in text.split() if len(each) > 3 and each in str(caught.value)], "keys are personal"


def test_json_numbers_are_no_text(table: DeltaTable, delta_spark: SparkSession, tmp_path: Path) -> None:
    keys = write(tmp_path, '{"s": "x", "i": 7, "bo": true}\n{"s": "7", "i": "7", "bo": true}\n', "erase.json")
    assert counted(table, delta_spark, keys, "s", "i", "bo") == (1, 2, 0, 2, 1)
    with pytest.raises(UsageError, match=r"erase.json, line 1: no exact value for column s \(string\)"):
        delete(table, delta_spark, keys=write(tmp_path, '{"s": 7}\n', "erase.json"), on=["s"])


def test_times_without_a_zone_are_in_the_sessions(
    table: DeltaTable, delta_spark: SparkSession, tmp_path: Path, zone: Any
) -> None:
    zone("Europe/Amsterdam")
    keys = write(tmp_path, "at\n2026-07-01 14:00:00\n2026-07-01T10:00:00Z\n1930-01-01 00:00:00\n")
    assert counted(table, delta_spark, keys, "at") == (2, 3, 0, 3, 1)
    for twice_or_never in ("2026-10-25 02:30:00", "2026-03-29 02:30:00"):
        with pytest.raises(UsageError, match=r"line 2: no exact value .* no instant in the session's zone, or two"):
            delete(table, delta_spark, keys=write(tmp_path, f"at\n{twice_or_never}\n", "inexact.csv"), on=["at"])
    with session_with(delta_spark, {"spark.sql.timestampType": "TIMESTAMP_NTZ"}):
        assert counted(table, delta_spark, keys, "at") == (2, 3, 0, 3, 1)


@pytest.mark.parametrize(
    ("column", "keys", "expected"),
    [
        ("i", "SELECT '7' AS i UNION ALL SELECT '8' UNION ALL SELECT NULL", (2, 3, 1, 2, 0)),
        ("i", "SELECT NULL AS i", (0, 1, 1, 0, 0)),
        ("d", "SELECT float('NaN') AS d UNION ALL SELECT float(0)", (2, 2, 0, 2, 0)),
        ("c", "SELECT 'ab' AS c UNION ALL SELECT 'ab '", (1, 2, 0, 1, 0)),
        ("i dec st", "SELECT 7D AS i, 1.1000BD AS dec, struct(1 AS a, 'x' AS b) AS st", (1, 1, 0, 1, 0)),
        ("s", "SELECT s COLLATE UTF8_LCASE AS s FROM VALUES ('007'), ('T') AS t(s)", (1, 2, 0, 2, 1)),
        ("i", "SELECT '007' AS i", "no exact value for column i"),
        ("i", "SELECT 9007199254740992D AS i", "no exact value for column i"),
        ("f", "SELECT 0.1D AS f", "no exact value for column f"),
        ("b", "SELECT 300 AS b", "no exact value for column b"),
        ("s", "SELECT 7 AS s", "keys of type int have no exact values in column s"),
        ("day", "SELECT TIMESTAMP '2026-01-05 00:00:00' AS day", "keys of type timestamp"),
        ("at", "SELECT TIMESTAMP_NTZ '2026-07-01 12:00:00' AS at", "keys of type timestamp_ntz"),
        ("i", "SELECT 1 AS j", "no column named 'i'"),
        ("i", "SELECT 1 AS i, 2 AS I", "AMBIGUOUS|more than one"),
    ],
)
def test_keys_with_types_of_their_own(
    table: DeltaTable, delta_spark: SparkSession, column: str, keys: str, expected: Any
) -> None:
    frame = delta_spark.sql(keys)
    if isinstance(expected, str):
        with pytest.raises(UsageError, match=expected):
            delete(table, delta_spark, keys=frame, on=[column])
    else:
        assert counted(table, delta_spark, frame, *column.split()) == expected


def test_folders_and_what_is_deleted(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
    builder = DeltaBuilder(str(tmp_path / "t")).create(schema)
    names = ["7", "07", "007", "7.0", "abc", "b\nc", None]
    builder.append(pa.table({"k": names, "n": range(7)}, schema=schema), files=2)
    folder = tmp_path / "erase"
    folder.mkdir()
    (folder / "_SUCCESS").write_text("")
    write(folder, 'k\n007\n"b\nc"\n', "a.csv")
    write(folder, "n,k\n1,7.0\n,\n", "b.csv.gz")
    table = DeltaTable(Storage(str(tmp_path / "t")))
    report = delete(table, spark, keys=str(folder), on=["k"])
    assert report.rows_deleted == 3
    assert report.to_json()["keys"] == {"given": 4, "null": 1, "distinct": 3, "unmatched": 0}
    left = [name for batch in read(table)[1] for name in batch.column("k").to_pylist()]
    assert sorted(left, key=str) == ["07", "7", None, "abc"]
    pq.write_to_dataset(pa.table({"k": ["07", "7"], "n": [1, 2]}), tmp_path / "hive.parquet", partition_cols=["k"])
    with pytest.raises(UsageError, match="no column named 'k'"):
        delete(table, spark, keys=str(tmp_path / "hive.parquet"), on=["k"])
    with pytest.raises(UsageError, match="no files"):
        delete(table, spark, keys=str(tmp_path / "nothing.csv"), on=["k"])

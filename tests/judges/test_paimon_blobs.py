"""Columns of blobs and vectors in tables of Paimon's own engine in Java. Its version 1.4 has no deletion vectors beside
blobs: ``test_paimon_python`` has these.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from paimon_judging import ALL_DELETED_FILES, in_order, judge_rows, opened, our_rows, same
from pypaimon_judge import PyPaimon
from support.paimon_engine import DV, EngineError, PaimonEngine

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.health import health

EVOLVING = {"row-tracking.enabled": "true", "data-evolution.enabled": "true"}


def vector(element: str, length: int) -> dict[str, object]:
    return {"type": "VECTOR", "element": element, "length": length}


def test_blobs_are_read(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """In several files for one range of rows, and in none for rows from before the column."""
    engine, path = paimon_engine, tmp_path / "t"
    engine.create(path, {"id": "INT", "pic": "BLOB"}, options=EVOLVING | {"blob.target-file-size": "100 b"})
    engine.append(path, [(n, [None, b"", bytes(range(n))][n % 3]) for n in range(40)])
    engine.alter(path, ("add", "other", "BLOB"))
    engine.append(path, [(n, b"y" * 5000, b"z") for n in range(40, 50)])
    assert sum(name.endswith(".blob") for name in opened(path).snapshot().parts["file_name"].to_pylist()) > 10
    found = judge_rows(engine, path)
    assert {row["pic"] for row in found if row["id"] % 3 == 0 and row["id"] < 40} == {None}
    judge_rows(engine, path, 1)


def test_blobs_that_were_cut(paimon_engine: PaimonEngine, pypaimon: PyPaimon, tmp_path: Path) -> None:
    """It opens no table with blobs and deletion vectors, but reads what is left without them."""
    engine, path = paimon_engine, tmp_path / "db.db" / "t"
    columns = {"id": "int64", "pic": "large_binary"}
    pypaimon("create", path, columns=columns, partition=[], options={"bucket": "-1", **DV, **EVOLVING})
    rows = [{"id": each, "pic": [None, "", f"p{each}" * each][each % 3]} for each in range(20)]
    pypaimon("append", path, columns=columns, rows=rows)
    pypaimon("delete", path, ids=[0, 5, 6, 7, 19])
    before = our_rows(path)
    assert purge(opened(path), LocalEngine()).verified
    assert sorted(opened(path).snapshot().files["physical_rows"].to_pylist()) == [4, 11]
    without_vectors(path)
    assert in_order(engine.rows(path)) == in_order(before)


def with_vectors(path: Path) -> None:
    """Give a table the option for deletion vectors."""
    for schema in (path / "schema").glob("schema-*"):
        schema.write_text(re.sub(r'"x" *: *"y"', '"deletion-vectors.enabled": "true"', schema.read_text()))
        assert "deletion-vectors" in schema.read_text()


def without_vectors(path: Path) -> None:
    """Take the option from a table."""
    for schema in (path / "schema").glob("schema-*"):
        schema.write_text(schema.read_text().replace('"deletion-vectors.enabled": "true"', '"x": "y"'))
        assert "deletion-vectors" not in schema.read_text()


@pytest.mark.parametrize(
    ("gaps", "kind"), [(True, "parquet"), (False, "parquet"), pytest.param(True, "avro", marks=pytest.mark.deep)]
)
def test_files_beside_a_gap_are_never_merged(
    paimon_engine: PaimonEngine, pypaimon: PyPaimon, tmp_path: Path, gaps: bool, kind: str
) -> None:
    """The id of a row is its place, and so a purge leaves a file for each range of ids, for good."""
    engine, path = paimon_engine, tmp_path / "db.db" / "t"
    columns = {"id": "int64", "a": "string"}
    options = {"bucket": "-1", "compaction.min.file-num": "2", "file.format": kind, **DV, **EVOLVING}
    pypaimon("create", path, columns=columns, partition=[], options=options)
    rows = [{"id": each, "a": f"a{each}"} for each in range(60)]
    count = 60 if gaps else 6
    for at in range(0, 60, count):
        pypaimon("append", path, columns=columns, rows=rows[at : at + count])
    if gaps:
        pypaimon("delete", path, ids=list(range(5, 55, 6)))
        assert purge(opened(path), LocalEngine()).verified
    assert len(opened(path).snapshot().files) == 10
    without_vectors(path)
    before = ids(engine, path)
    assert bool(engine.compact(path)) != gaps
    assert len(opened(path).snapshot().files) == (10 if gaps else 1)
    assert ids(engine, path) == before


def ids(engine: PaimonEngine, path: Path) -> dict[int, int]:
    """By row id."""
    return {row["_ROW_ID"]: row["id"] for row in engine.rows(path, lineage=True)}


@pytest.mark.parametrize("beside", ["parquet", "avro"])
def test_vectors_that_were_cut(paimon_engine: PaimonEngine, tmp_path: Path, beside: str) -> None:
    """In Avro, as its engine in Java has them in files of their own. It reads no row ids from Avro files."""
    engine, path = paimon_engine, tmp_path / "t"
    columns = {"id": "INT", "v": vector("FLOAT", 3), "w": vector("BIGINT", 2)}
    options = EVOLVING | {"vector.file.format": "avro", "file.format": beside, "x": "y"}
    engine.create(path, columns, options=options)
    for first in (0, 500):
        rows = [(n, [0.5, float("nan"), float(n)], None if n % 2 else [n, 2]) for n in range(first, first + 500)]
        engine.append(path, rows)
    was = {} if beside == "avro" else ids(engine, path)
    with_vectors(path)
    gone = {0, 1, 77, 499, 500, 740}
    delete(opened(path), LocalEngine(), f"id IN ({', '.join(map(str, gone))})")
    assert purge(opened(path), LocalEngine()).verified
    assert not opened(path).snapshot().index.dvs
    vectors = [row for row in opened(path).snapshot().parts.to_pylist() if row["file_name"].endswith(".vector.avro")]
    ranges = [(2, 75), (78, 421), (501, 239), (741, 259)]
    assert sorted((row["first_row_id"], row["physical_rows"]) for row in vectors) == ranges
    without_vectors(path)
    assert len(judge_rows(engine, path)) == 994
    if was:
        assert ids(engine, path) == {key: value for key, value in was.items() if key not in gone}
    engine.append(path, rows)
    assert len(judge_rows(engine, path)) == 1494


@pytest.mark.parametrize("codec", ["none", pytest.param("snappy", marks=pytest.mark.deep)])
def test_vectors_in_json_that_were_cut(paimon_engine: PaimonEngine, tmp_path: Path, codec: str) -> None:
    """Lines of which no value is decoded."""
    engine, path = paimon_engine, tmp_path / "t"
    columns = {"id": "INT", "v": vector("FLOAT", 3), "w": vector("BIGINT", 2)}
    options = EVOLVING | {"vector.file.format": "json", "file.compression": codec, "x": "y"}
    engine.create(path, columns, options=options)
    for first in (0, 500):
        rows = [(n, [0.1, -1e-30, float(n)], None if n % 2 else [n, 2]) for n in range(first, first + 500)]
        engine.append(path, rows)
    was, values = ids(engine, path), {row["id"]: row for row in engine.rows(path)}
    with_vectors(path)
    gone = {0, 1, 77, 499, 500, 740}
    delete(opened(path), LocalEngine(), f"id IN ({', '.join(map(str, gone))})")
    assert purge(opened(path), LocalEngine()).verified
    assert not opened(path).snapshot().index.dvs
    vectors = [row for row in opened(path).snapshot().parts.to_pylist() if ".vector.json" in row["file_name"]]
    ranges = [(2, 75), (78, 421), (501, 239), (741, 259)]
    assert sorted((row["first_row_id"], row["physical_rows"]) for row in vectors) == ranges
    without_vectors(path)
    assert ids(engine, path) == {key: value for key, value in was.items() if key not in gone}
    assert {row["id"]: row for row in judge_rows(engine, path)} == {n: values[n] for n in values if n not in gone}
    engine.append(path, rows)
    assert len(judge_rows(engine, path)) == 1494


INF, NAN = float("inf"), float("nan")
FLOATS = [NAN, INF, -INF, -0.0, 0.0, 0.1, 1e10, 1.0000001192092896, 16777218.0, 9.007199e15, 33554432.0]
# By the type of the elements. Paimon writes the shortest text that means the number.
ELEMENTS: dict[str, list[object]] = {
    "FLOAT": [*FLOATS, 1.401298464324817e-45, 1.1754942106924411e-38, 3.4028234663852886e38],
    "DOUBLE": [*FLOATS, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 2.0**-44],
    "BOOLEAN": [True, False],
    "TINYINT": [-128, 127],
    "SMALLINT": [-32768, 0],
    "INT": [-(2**31), 1],
    "BIGINT": [-(2**63), 2**53 + 1],
}


def test_vectors_in_json_are_read(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """Of all types of elements, each a text; in columns that are renamed, dropped and added."""
    engine, path = paimon_engine, tmp_path / "t"
    columns = {"id": "INT", **{kind: vector(kind, 2) for kind in ELEMENTS}, "gone": vector("INT", 1)}
    options = EVOLVING | {"vector.file.format": "json", "file.compression": "none", "x": "y"}
    engine.create(path, columns, options=options)

    def pair(of: list[object], at: int) -> list[object] | None:
        return None if at % 5 == 3 else [of[(at + n) % len(of)] for n in range(2)]

    engine.append(path, [(at, *(pair(of, at) for of in ELEMENTS.values()), [at]) for at in range(40)])
    (file,) = path.rglob("*.vector.json")
    values = [value for line in file.read_text().splitlines() for value in json.loads(line).values()]
    assert {type(element) for value in values for element in value or ()} == {str}
    judge_rows(engine, path)
    engine.alter(path, ("rename", "FLOAT", "f"), ("rename", "DOUBLE", "FLOAT"), ("drop", "gone"))
    engine.alter(path, ("add", "gone", "VECTOR<INT, 1>"))
    engine.append(path, [(at, *(pair(of, at) for of in ELEMENTS.values()), [-at]) for at in range(40, 60)])
    assert [row["gone"] for row in judge_rows(engine, path)] == [*[None] * 40, *([-at] for at in range(40, 60))]
    judge_rows(engine, path, 1)
    rows = {row["id"]: row for row in engine.rows(path)}
    with_vectors(path)
    assert delete(opened(path), LocalEngine(), "gone IS NOT NULL AND id > 50 OR f IS NULL").rows_deleted == 19
    gone = {at for at in rows if at > 50 or at % 5 == 3}
    same(our_rows(path), [row for at, row in rows.items() if at not in gone])
    assert purge(opened(path), LocalEngine()).verified
    without_vectors(path)
    assert {row["id"] for row in judge_rows(engine, path)} == rows.keys() - gone


# Numbers as Java reads them. Of the first, the nearest double is midway between two floats, and the text is not.
NUMBERS = {
    "FLOAT": [
        *('"1.00000017881393432617187500001"', '"1.00000017881393432617187499999"', '"1.000000178813934326171875"'),
        *('"7.006492321624086e-46"', '"7.006492321624086E-46"', '"7.0064923216240853E-46"', '"1E-46"', '"-0"', '"007"'),
        *('"3.4028235677973365E38"', '"16777217"', '"9007199791611905"', '"123456789012345678901234567890"'),
    ],
    "DOUBLE": ['"2.2250738585072012E-308"', '"9007199254740993"', '"0.1000000000000000055511151231257827"', '"1E400"'],
    "BIGINT": ['"9223372036854775807"', '"-0"', '"007"', '"9223372036854775808"', '"1.0"'],
    "TINYINT": ['"128"', '"-128"'],
}
# Lines as Paimon does not write them, though it reads some.
ODD = [
    *('{"v":[1.0]}', '{"v":[1]}', '{"v":[true]}', '{"v":[null]}', '{"v":[" 1.5f"]}', '{"v":["0x1p3"]}', '{"v":["+1"]}'),
    *('{"v":["1_0"]}', '{"v":["nan"]}', '{"v":["inf"]}', '{"v":["1."]}', '{"v":[".5"]}', '{"v":["x"]}', '{"v":[""]}'),
    *('{"v":["1.0\\n"]}', '{"v":["\\ud800"]}', '{"v":["\u0661"]}', '{"v":[["1"]]}', '{"v":[{}]}', '{"v":[NaN]}'),
    *('{"v":[]}', '{"v":["1","2"]}', '{"v":"1"}', '{"v":1}', '{"v":{}}', "[]", "null", "", "{", '{"v":["1"]} x'),
    *("[" * 100_000, '{"v":' + "9" * 5000 + "}", '{"v":["1.0","', '{"v":["1.0"],"w":NaN}'),
]
PLAIN = ["{}", '{"v":null}', '{"V":["1"]}', '{"v":["1"],"v":["2"]}', ' {"w":{"v":[1]}, "\\u0076":\t["3"]} ']


def test_numbers_in_json(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """The same as Java's parsers find, or refused with the line and what is there."""
    engine = paimon_engine
    options = EVOLVING | {"vector.file.format": "json", "file.compression": "none"}
    for kind, numbers in NUMBERS.items():
        path = tmp_path / kind
        engine.create(path, {"id": "INT", "v": vector(kind, 1)}, options=options)
        engine.append(path, [(1, [1])])
        (file,) = path.rglob("*.vector.json")
        for line in [*(f'{{"v":[{number}]}}' for number in numbers), *PLAIN]:
            file.write_text(f"{line}\n")
            try:
                theirs = engine.rows(path)
            except EngineError:
                theirs = []
            if theirs and "e-46" not in line:
                same(our_rows(path), theirs)
            else:
                with pytest.raises(RefusedError, match=rf"{file.name} can't be read: line 1 has .* no VECTOR of 1"):
                    our_rows(path)
        for line in ODD:
            file.write_bytes(line.encode() + b"\n")
            with pytest.raises(RefusedError, match="can't be read: line 1 has "):
                our_rows(path)
    file.write_bytes(b'{"v":["\xff"]}\n')
    with pytest.raises(RefusedError, match="which can't be read as JSON"):
        our_rows(path)
    file.write_text('{"v":["1"]}\n' * 2)
    with pytest.raises(RefusedError, match="has at least 2 lines of 1 rows"):
        our_rows(path)
    engine.alter(path, ("option", "json.ignore-parse-errors", "true"))
    with pytest.raises(RefusedError, match=r"\(json\.ignore-parse-errors\)"):
        our_rows(path)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("csv", "Unsupported data type for CSV format: VECTOR"),
        ("text", "BinaryVector cannot be cast to class"),
        ("orc", "Unsupported type: VECTOR"),
        ("parquet", "Unsupported type: VECTOR"),
    ],
)
def test_formats_that_vectors_are_not_written_to(
    paimon_engine: PaimonEngine, tmp_path: Path, kind: str, says: str
) -> None:
    options = EVOLVING | {"vector.file.format": kind, "file.format": "avro", "file.compression": "snappy"}
    with pytest.raises(EngineError, match=says):
        paimon_engine.create(tmp_path / "t", {"id": "INT", "v": vector("FLOAT", 3)}, options=options)
        paimon_engine.append(tmp_path / "t", [(1, [0.5, 1.5, 2.5])])


def test_vectors(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    engine, path = paimon_engine, tmp_path / "t"
    columns = {"id": "INT", "v": vector("FLOAT", 3), "w": vector("BIGINT", 2)}
    rows = [(n, [0.5, -1.5, float(n)], None if n % 2 else [n, 2]) for n in range(40)]
    engine.create(path, columns, options=DV | {"file.format": "avro"})
    engine.append(path, rows)
    engine.delete(path, lambda row: row["id"] % 7 == 3)
    before = in_order(judge_rows(engine, path))
    assert len(before) == 34
    assert purge(opened(path), LocalEngine()).verified
    assert health(opened(path).snapshot()).counts.files_with_dv == 0
    assert in_order(judge_rows(engine, path)) == before
    engine.append(path, rows[:3])
    engine.delete(path, lambda row: row["id"] == 5)
    before = in_order(judge_rows(engine, path))
    assert engine.compact(path, options=ALL_DELETED_FILES)
    assert in_order(judge_rows(engine, path)) == before
    apart = tmp_path / "apart"
    engine.create(apart, columns, options=EVOLVING | {"vector.file.format": "avro", "vector.target-file-size": "1 b"})
    for _ in range(2):
        engine.append(apart, rows * 50)
    names = opened(apart).snapshot().parts["file_name"].to_pylist()
    assert sum(".vector.avro" in name for name in names) > 3
    judge_rows(engine, apart)
    with pytest.raises(EngineError, match="Unsupported type: VECTOR<FLOAT, 3>"):
        engine.create(tmp_path / "parquet", columns)

"""Columns of blobs and vectors in tables of Paimon's own engine in Java. Its version 1.4 has no deletion vectors beside
blobs: ``test_paimon_python`` has these.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from paimon_judging import ALL_DELETED_FILES, in_order, judge_rows, opened, our_rows
from pypaimon_judge import PyPaimon
from support.paimon_engine import DV, EngineError, PaimonEngine

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
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
    (schema,) = (path / "schema").glob("schema-*")
    schema.write_text(re.sub(r'"x" *: *"y"', '"deletion-vectors.enabled": "true"', schema.read_text()))
    assert "deletion-vectors" in schema.read_text()


def without_vectors(path: Path) -> None:
    """Take the option from a table."""
    (schema,) = (path / "schema").glob("schema-*")
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
    """Lines of which no value is read."""
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
    assert {row["id"]: row for row in engine.rows(path)} == {n: row for n, row in values.items() if n not in gone}
    engine.append(path, rows)
    assert len(engine.rows(path)) == 1494


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

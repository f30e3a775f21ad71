"""Vectors in JSON, Lance and Vortex files. What Paimon writes and reads is in ``judges/test_paimon_blobs`` and
``judges/test_paimon_python``.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
import vortex
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paimon_writer import PaimonWriter

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.files.json_vectors import vectors
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table

OPTIONS = {
    "bucket": "-1",
    "row-tracking.enabled": "true",
    "data-evolution.enabled": "true",
    "deletion-vectors.enabled": "true",
}
FLOATS = {"type": "VECTOR", "element": "FLOAT", "length": 2}
BYTES = {"type": "VECTOR", "element": "TINYINT", "length": 1}
COLUMNS: Any = {"id": "BIGINT", "v": FLOATS, "w": BYTES}
SCHEMA = pa.schema([("v", pa.list_(pa.float32(), 2)), ("w", pa.list_(pa.int8(), 1))])
KINDS = [".vector.json", ".vector.json.gz", ".vector.lance", ".vector.vortex"]


def as_json(rows: pa.Table) -> bytes:
    def spelled(value: list[Any] | None) -> list[str] | None:
        return None if value is None else [str(each) for each in value]

    return b"".join(
        json.dumps({name: spelled(value) for name, value in row.items()}).encode() + b"\n" for row in rows.to_pylist()
    )


def as_lance(rows: pa.Table, path: Path) -> None:
    with lance.file.LanceFileWriter(str(path), rows.schema) as writer:
        writer.write_batch(rows)


WRITE: dict[str, Callable[[pa.Table, Path], object]] = {
    ".vector.json": lambda rows, path: path.write_bytes(as_json(rows)),
    ".vector.json.gz": lambda rows, path: path.write_bytes(gzip.compress(as_json(rows))),
    ".vector.lance": as_lance,
    ".vector.vortex": lambda rows, path: vortex.io.write(rows, str(path)),
}


def row(at: int) -> dict[str, Any]:
    return {"id": at, "v": None if at % 3 == 1 else [at / 2, -1.5], "w": [at]}


def longer(at: int) -> dict[str, Any]:
    """With vectors of another length."""
    return row(at) | {"v": [0.5, 1.5, 2.5]}


def put(
    table: PaimonWriter,
    kind: str,
    sizes: Sequence[int],
    schema: pa.Schema = SCHEMA,
    row: Callable[[int], dict[str, Any]] = row,
    more: int = 0,
) -> None:
    """Rows, and their vectors in files of these ``sizes`` in rows, which have ``more`` than they should."""
    ids = range(sum(sizes))
    table.append([row(at) for at in ids], _FIRST_ROW_ID=0, _WRITE_COLS=["id"])
    first = 0
    for size in sizes:
        held = pa.Table.from_pylist([row(at) for at in range(first, first + size + more)], schema)

        def write(_: Any, path: Path, held: pa.Table = held) -> None:
            WRITE[kind](held, path)

        rows = [{"v": None, "w": None}] * size
        table.append(rows, _FIRST_ROW_ID=first, _WRITE_COLS=["v", "w"], suffix=kind, write=write)
        first += size


def rows_of(table: PaimonWriter, columns: list[str] | None = None) -> list[dict[str, Any]]:
    _, batches = read(open_table(str(table.path)), None, columns)
    return [each for batch in batches for each in batch.to_pylist()]


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_read(tmp_path: Path, kind: str) -> None:
    """From several files for one range of rows, without deleted rows, under new names, in another order."""
    table = PaimonWriter(tmp_path / "t", COLUMNS, options=OPTIONS)
    put(table, kind, [3, 1, 6])
    assert rows_of(table) == [row(at) for at in range(10)]
    assert rows_of(table, ["w"]) == [{"w": [at]} for at in range(10)]
    assert delete(open_table(str(table.path)), LocalEngine(), "v IS NULL OR id IN (3, 9)").rows_deleted == 5
    left = [0, 2, 5, 6, 8]
    assert rows_of(table) == [row(at) for at in left]
    table.alter({"id": "BIGINT", "w": FLOATS, "u": BYTES}, {"w": "v", "u": "w"})
    renamed = [{"u": [at], "w": row(at)["v"], "id": at} for at in left]
    assert rows_of(table, ["u", "w", "id"]) == renamed
    assert purge(open_table(str(table.path)), LocalEngine()).verified
    assert rows_of(table, ["u", "w", "id"]) == renamed


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_are_others_are_refused(tmp_path: Path, kind: str) -> None:
    one = PaimonWriter(tmp_path / "one", COLUMNS, options=OPTIONS)
    put(one, kind, [3], more=1)
    with pytest.raises((DamagedTableError, RefusedError), match=r"4 (lines of 3 )?rows"):
        rows_of(one)
    other = PaimonWriter(tmp_path / "other", COLUMNS, options=OPTIONS)
    put(other, kind, [3], SCHEMA.set(0, pa.field("v", pa.list_(pa.float64(), 3))), longer)
    says = "for the column v, which is no VECTOR of 2 float" if "json" in kind else "it has v .*double.*, not v .*float"
    with pytest.raises((DamagedTableError, RefusedError), match=says):
        rows_of(other)
    (file,) = other.path.rglob(f"*{kind}")
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises((DamagedTableError, RefusedError), match=file.name):
        rows_of(other)
    file.unlink()
    with pytest.raises(DamagedTableError, match=rf"{file.name} is named by the table's log, but does not exist"):
        rows_of(other)
    assert rows_of(other, ["id"]) == [{"id": at} for at in range(3)]


@pytest.mark.parametrize("kind", KINDS)
def test_columns_that_are_no_vectors(tmp_path: Path, kind: str) -> None:
    lists = {"type": "ARRAY", "element": "FLOAT"}
    table = PaimonWriter(tmp_path / "t", COLUMNS | {"v": lists}, options=OPTIONS)
    put(table, kind, [3])
    with pytest.raises(DamagedTableError, match="holds the column v, whose values are no vectors"):
        rows_of(table)


def test_lines_that_are_no_objects() -> None:
    """However deep they are: about as deep as Python reads, it may not write."""
    for depth in (1, *range(900, 1000), 100_000):
        with pytest.raises(RefusedError, match=r"line 1 has '\[+"):
            vectors([b"[" * depth + b"]" * depth], SCHEMA)


@settings(max_examples=examples(200))
@given(st.lists(st.one_of(st.none(), st.lists(st.floats(width=32), min_size=2, max_size=2)), max_size=5))
def test_floats_as_text_are_the_same(values: list[list[float] | None]) -> None:
    """With as many digits as tell a float from others: nine."""
    texts = [None if value is None else [_as_java(each) for each in value] for value in values]
    lines = [json.dumps({"v": each}).encode() for each in texts]
    found = vectors(lines, pa.schema([SCHEMA.field("v")])).column(0)
    assert repr(found.to_pylist()) == repr(values)


def _as_java(value: float) -> str:
    named = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}
    return named.get(str(value), f"{value:.8E}".replace("E+", "E"))

"""Columns of variants in Paimon tables: purged here, and read by Paimon's own engine, whatever is shredded."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from paimon_judging import in_order, opened
from support.paimon_engine import DV, EngineError, PaimonEngine

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import purge

INNER = {"type": "ROW", "fields": [{"id": 9, "name": "w", "type": "VARIANT"}]}
COLUMNS = {"id": "INT", "v": "VARIANT", "r": INNER, "vs": {"type": "ARRAY", "element": "VARIANT"}}
TYPED = {"type": "ROW", "fields": [{"id": 0, "name": "a", "type": "INT"}, {"id": 1, "name": "b", "type": "STRING"}]}
SHREDDED = {"type": "ROW", "fields": [{"id": 0, "name": "v", "type": TYPED}]}


def names(path: Path) -> list[str]:
    found: list[str] = opened(path).snapshot().files["file_name"].to_pylist()
    return found


def typed(path: Path) -> list[int]:
    """How many typed columns each live file has."""
    found = [pq.ParquetFile(path / "bucket-0" / name).schema for name in names(path)]
    return sorted(sum(".typed_value" in schema.column(at).path for at in range(len(schema))) for schema in found)


def rows(first: int) -> list[list[object]]:
    each = [json.dumps({"a": at, "b": f"b{at}", "c": [at, None]} if at % 3 else at) for at in range(first, first + 20)]
    return [[at, text, [text] if at % 4 else None, [text, None]] for at, text in enumerate(each, first)]


def test_variants(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    engine, path = paimon_engine, tmp_path / "t"
    engine.create(path, COLUMNS, options=DV)
    engine.append(path, rows(0))
    engine.delete(path, lambda row: row["id"] % 5 == 2)
    theirs = in_order(engine.rows(path))
    assert len(theirs) == 16
    assert purge(opened(path), LocalEngine()).verified
    assert in_order(engine.rows(path)) == theirs
    # Paimon goes on.
    engine.append(path, rows(20))
    engine.delete(path, lambda row: row["id"] % 7 == 3)
    theirs = in_order(engine.rows(path))
    assert engine.compact(path, options={"compaction.delete-ratio-threshold": "0"})
    assert in_order(engine.rows(path)) == theirs


@pytest.mark.deep
def test_shredded_variants_are_put_together(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """Paimon 1.4 writes them, and does not read them: here it reads what became of them."""
    engine, path, twin = paimon_engine, tmp_path / "t", tmp_path / "twin"
    columns = dict(list(COLUMNS.items())[:2])
    for place, options in ((path, {"parquet.variant.shreddingSchema": json.dumps(SHREDDED)}), (twin, {})):
        engine.create(place, columns, options=DV | options)
        engine.append(place, [row[:2] for row in rows(0)])
    assert typed(path) > typed(twin) == [0]
    engine.delete(twin, lambda row: row["id"] % 5 == 2)
    builder = {name: [at for at in range(20) if at % 5 == 2] for name in names(path)}
    engine._call("delete", path, positions=builder)
    assert purge(opened(path), LocalEngine()).verified
    assert typed(path) == [0]
    assert in_order(engine.rows(path)) == in_order(engine.rows(twin))


def test_orc_files_have_no_variants(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="Unsupported type: VARIANT"):
        paimon_engine.create(tmp_path / "t", {"id": "INT", "v": "VARIANT"}, options=DV | {"file.format": "orc"})

"""Rewrites of files with shapes (geospatial): their bytes and their annotations. DuckDB is the judge."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.raw_log import RawLog, add, metadata

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.tables import open_table
from dv_maintenance.tables.model import SHAPES

FAR = "geography(OGC:CRS84, karney)"
TYPES = {
    "g": "geometry(EPSG:3857)",
    "h": "geography(OGC:CRS84, spherical)",
    "nested": {
        "type": "struct",
        "fields": [{"name": "x", "type": "geometry(srid:4267)", "nullable": True, "metadata": {}}],
    },
    "many": {"type": "array", "elementType": FAR, "containsNull": True},
    "named": {"type": "map", "keyType": "string", "valueType": "geometry(OGC:CRS84)", "valueContainsNull": True},
}
ANNOTATIONS = {
    ("g", "GeometryType(crs=EPSG:3857)"),
    ("h", "GeographyType(crs=<null>, algorithm=<null>)"),
    ("x", "GeometryType(crs=srid:4267)"),
    ("element", "GeographyType(crs=<null>, algorithm=KARNEY)"),
    ("value", "GeometryType(crs=<null>)"),
}


def point(number: int) -> bytes:
    return struct.pack("<BIdd", 1, 1, number, 2 * number)


def made(place: Path, types: dict[str, Any]) -> RawLog:
    fields = {"id": "long", **types}.items()
    schema = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields]
    features = ["deletionVectors", "geospatial"]
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    log = RawLog(place)
    log.commit(
        0,
        {"protocol": {**versions, "readerFeatures": features, "writerFeatures": features}},
        metadata({"type": "struct", "fields": schema}, delta__enableDeletionVectors="true"),
    )
    return log


def test_shapes_of_all_levels_keep_bytes_and_annotations(tmp_path: Path) -> None:
    log = made(tmp_path, TYPES)
    points = [point(n) if n % 7 else None for n in range(100)]
    data = pa.table(
        {
            "id": range(100),
            "g": points,
            "h": points[::-1],
            "nested": [{"x": each} for each in points],
            "many": [[each, None, b""] if each else None for each in points],
            "named": pa.array([[("a", each)] for each in points], pa.map_(pa.string(), pa.binary())),
        }
    )
    pq.write_table(data, tmp_path / "a.parquet", row_group_size=30)
    stats = {"numRecords": 100, "minValues": {"g": "POINT(0 0)"}, "maxValues": {"g": "POINT(99 198)"}}
    log.commit(1, add("a.parquet", size=(tmp_path / "a.parquet").stat().st_size, stats=json.dumps(stats)))
    table = open_table(str(tmp_path))
    delete(table, LocalEngine(1), "id IN (0, 3, 6, 9)")
    assert purge(table, LocalEngine(1)).verified
    (new,) = table.snapshot().files["path"].to_pylist()
    assert new != "a.parquet"
    duck = duckdb.connect()
    asked = f"SELECT name, logical_type FROM parquet_schema('{tmp_path}/{new}') WHERE logical_type LIKE 'Geo%'"
    assert set(duck.execute(asked).fetchall()) == ANNOTATIONS
    bounds = f"SELECT path_in_schema FROM parquet_metadata('{tmp_path}/{new}') WHERE stats_min_value IS NOT NULL"
    assert {path for (path,) in duck.execute(bounds).fetchall()} == {"id", "named, key_value, key"}
    texts = "id, ST_AsText(g), ST_AsText(h), ST_AsText(nested.x)"
    rows = duck.execute(f"SELECT {texts} FROM read_parquet('{tmp_path}/{new}') ORDER BY id").fetchall()
    live = [n for n in range(100) if n not in {0, 3, 6, 9}]
    spelled = [f"POINT ({n} {2 * n})" if n % 7 else None for n in range(100)]
    assert rows == [(n, spelled[n], spelled[99 - n], spelled[n]) for n in live]
    kept = pq.read_table(tmp_path / new)
    assert kept.equals(data.take(live).cast(kept.schema))
    actions = [json.loads(line) for line in (log.log / f"{3:020}.json").read_text().splitlines()]
    (added,) = (each["add"] for each in actions if "add" in each)
    assert json.loads(added["stats"])["minValues"] == {"id": 1}


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("geometry", "planar OGC:CRS84"),
        ("geometry( EPSG:3857 )", "planar EPSG:3857"),
        ("geography(OGC:CRS84)", "spherical OGC:CRS84"),
        ("geography(projjson:p, Andoyer)", "andoyer projjson:p"),
        ("geography(OGC:CRS84, flat)", None),
        ("geometry(OGC:CRS84, karney)", None),
    ],
)
def test_types_of_shapes(tmp_path: Path, text: str, shapes: str | None) -> None:
    made(tmp_path, {"g": text})
    if shapes is None:
        with pytest.raises(RefusedError, match="column g has the unknown type"):
            open_table(str(tmp_path)).snapshot()
    else:
        metadata = open_table(str(tmp_path)).snapshot().schema.field("g").metadata
        assert metadata[SHAPES].decode() == shapes

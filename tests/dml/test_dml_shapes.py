"""Shapes in conditions and new values. Points are in big-endian order, which Spark 4.2 would write in the other one."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.raw_log import RawLog, add, metadata
from support.sessions import cheap

from dv_maintenance.dml.catalyst import demanded_by, shape
from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.merge import merge
from dv_maintenance.dml.operation import row_level
from dv_maintenance.dml.prune import files_that_may_match
from dv_maintenance.dml.read import matching_rows
from dv_maintenance.dml.shapes import shapes_in
from dv_maintenance.dml.update import update
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTING = "spark.sql.geospatial.enabled"
TYPES: dict[str, Any] = {
    "id": "long",
    "g": "geometry(EPSG:3857)",
    "h": "geography(OGC:CRS84, spherical)",
    "in": {
        "type": "struct",
        "fields": [
            {"name": "x", "type": "geometry(OGC:CRS84)", "nullable": True, "metadata": {}},
            {"name": "n", "type": "long", "nullable": True, "metadata": {}},
        ],
    },
    "many": {"type": "array", "elementType": "geometry(OGC:CRS84)", "containsNull": True},
    "named": {"type": "map", "keyType": "string", "valueType": "geometry(OGC:CRS84)", "valueContainsNull": True},
    "keyed": {"type": "map", "keyType": "geometry(SRID:0)", "valueType": "long", "valueContainsNull": True},
    "far": "geography(OGC:CRS84, karney)",
}
ANNOTATIONS = {
    ("g", "GeometryType(crs=EPSG:3857)"),
    ("h", "GeographyType(crs=<null>, algorithm=<null>)"),
    ("far", "GeographyType(crs=<null>, algorithm=KARNEY)"),
    ("key", "GeometryType(crs=SRID:0)"),
    *((name, "GeometryType(crs=<null>)") for name in ("x", "element", "value")),
}
ROWS = 12
NEW = struct.pack("<BIdd", 1, 1, 8, 9)
MADE = f"ST_GeomFromWKB(X'{NEW.hex()}')"


def point(number: int) -> bytes:
    return struct.pack(">BIdd", 0, 1, number, 2 * number)


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    if spark.version < "4.1":
        pytest.skip("Spark before 4.1 has no shapes")
    made = cheap(spark).newSession()
    made.conf.set(SETTING, "true")
    return made


@pytest.fixture
def table(tmp_path: Path) -> Table:
    schema = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in TYPES.items()]
    features = ["deletionVectors", "geospatial"]
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    log = RawLog(tmp_path)
    log.commit(
        0,
        {"protocol": {**versions, "readerFeatures": features, "writerFeatures": features}},
        metadata({"type": "struct", "fields": schema}, delta__enableDeletionVectors="true"),
    )
    points = [point(n) for n in range(ROWS)]
    data = pa.table(
        {
            "id": range(ROWS),
            "g": [None if n % 4 == 3 else each for n, each in enumerate(points)],
            "h": points,
            "in": [{"x": each, "n": n} for n, each in enumerate(points)],
            "many": [[each, None] for each in points],
            "named": pa.array([[("a", each), ("b", None)] for each in points], pa.map_(pa.string(), pa.binary())),
            "keyed": pa.array([[(each, 1)] for each in points], pa.map_(pa.binary(), pa.int64())),
            "far": points,
        }
    )
    pq.write_table(data, tmp_path / "a.parquet")
    log.commit(1, add("a.parquet", size=(tmp_path / "a.parquet").stat().st_size))
    return open_table(str(tmp_path))


def rows(table: Table) -> dict[int, dict[str, Any]]:
    schema, batches = read(table)
    return {row["id"]: row for row in pa.Table.from_batches(batches, schema).to_pylist()}


def test_shapes_are_assigned_and_the_others_keep_their_bytes(
    session: SparkSession, table: Table, tmp_path: Path
) -> None:
    wanted = rows(table)
    kept = {name: name for name in ("many", "named", "keyed")}
    values = {"g": f"IF(id = 1, ST_SetSrid({MADE}, 3857), g)", "in.n": "77", **kept}
    assert update(table, session, values, "id < 3 AND ST_Srid(g) = 3857 AND h IS NOT NULL").rows_updated == 3
    for number in range(3):
        wanted[number]["in"] = {**wanted[number]["in"], "n": 77}
    wanted[1]["g"] = NEW
    assert rows(table) == wanted

    values = {"many": f"array(ST_SetSrid({MADE}, 4326), many[0])", "named": f"map('c', ST_SetSrid({MADE}, 4326))"}
    values |= {"in": f"named_struct('x', ST_SetSrid({MADE}, 4326), 'n', 1L)", "keyed": f"map({MADE}, 5L)"}
    assert update(table, session, {**values, "h": "NULL"}, "id = 4").rows_updated == 1
    moved = rows(table)[4].pop("many")[1]  # at another place than before
    assert struct.unpack("<xxxxxdd", moved) == (4, 8) or moved == point(4)
    new = {"named": [("c", NEW)], "in": {"x": NEW, "n": 1}, "keyed": [(NEW, 5)], "h": None}
    wanted[4] |= {**new, "many": [NEW, moved]}
    assert rows(table) == wanted

    # A source with shapes and with bytes, and every kind of clause.
    source = session.sql(
        f"SELECT * FROM VALUES (2, {MADE}, X'{NEW.hex()}'), (7, NULL, X''), (99, {MADE}, X'{NEW.hex()}') AS s(id, g, b)"
    )
    merging = merge(table, session, source, "t.id = s.id", target_alias="t", source_alias="s")
    (
        merging.when_matched_delete("t.g IS NULL AND ST_AsBinary(t.in.x) IS NOT NULL")
        .when_matched_update({"g": "ST_SetSrid(s.g, 3857)", "in.x": "ST_SetSrid(ST_GeomFromWKB(s.b), 4326)"})
        .when_not_matched_insert({"id": "s.id", "h": "ST_GeogFromWKB(s.b)", "g": "ST_SetSrid(s.g, 3857)"})
        .when_not_matched_by_source_update({"in.n": "-1", "g": "NULL"}, f"ST_AsBinary(t.g) = X'{NEW.hex()}'")
        .execute()
    )
    del wanted[7]
    wanted[2] |= {"g": NEW, "in": {"x": NEW, "n": 77}}
    wanted[1] |= {"g": None, "in": {"x": point(1), "n": -1}}
    wanted[99] = {**dict.fromkeys(TYPES), "id": 99, "g": NEW, "h": NEW}
    assert rows(table) == wanted

    asked = f"ST_AsBinary(g) = X'{NEW.hex()}'"
    found = matching_rows(table, session, asked, table.snapshot(), table.snapshot().schema)
    assert sorted(each for batch in found for each in batch["id"].to_pylist()) == [2, 99]
    assert delete(table, session, "g IS NULL AND ST_Srid(h) = 4326 AND named['a'] IS NOT NULL").rows_deleted == 3
    wanted = {number: row for number, row in wanted.items() if row["g"] is not None or row["h"] is None}
    assert rows(table) == wanted

    files = [str(path) for path in tmp_path.glob("*.parquet") if path.name != "a.parquet"]
    duck = duckdb.connect()
    types = duck.execute(f"SELECT name, logical_type FROM parquet_schema({files}) WHERE logical_type LIKE 'Geo%'")
    assert set(types.fetchall()) == ANNOTATIONS
    read_there = duck.execute(f'SELECT id, ST_AsText(g), ST_AsWKB("in".x), ST_AsText(h) FROM read_parquet({files})')
    assert {(2, "POINT (8 9)", NEW, "POINT (2 4)"), (99, "POINT (8 9)", None, "POINT (8 9)")} <= {
        *read_there.fetchall()
    }


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"g": MADE}, "column g is geometry(3857), but its new value geometry(0), and shapes are not cast"),
        ({"g": f"X'{NEW.hex()}'"}, "but its new value binary, and shapes are not cast"),
        ({"g": f"ST_SetSrid({MADE}, CAST(id AS INT))"}, "but its new value geometry(any), and shapes are not cast"),
        (
            {"h": f"ST_SetSrid({MADE}, 4326)"},
            "column h is geography(4326), but its new value geometry(4326), and shapes are not cast",
        ),
        ({"many": f"array({MADE})"}, "but its new value array<geometry(0)>, and shapes are not cast"),
        ({"in.x": "g"}, "but its new value struct<x:geometry(3857),n:bigint>, and shapes are not cast"),
        ({"far": "h"}, "column far can't be assigned: it holds shapes of a type that Spark lacks"),
        ({"id": "ST_Srid(far)"}, "names column far, which holds shapes of a type that Spark lacks"),
    ],
)
def test_shapes_of_other_types_are_refused(
    session: SparkSession, table: Table, values: dict[str, str], says: str
) -> None:
    before = rows(table)
    with pytest.raises(RefusedError, match=re.escape(says)):
        update(table, session, values, "id = 0")
    assert rows(table) == before


def test_a_session_without_shapes_is_told_how_to_get_them(session: SparkSession, table: Table) -> None:
    session.conf.set(SETTING, "false")
    attempts = (
        lambda: update(table, session, {"g": f"ST_SetSrid({MADE}, 3857)"}),
        lambda: update(table, session, {"id": "1"}, "ST_Srid(in.x) = 0"),
        lambda: delete(table, session, "ST_Srid(g) = 0"),
        lambda: matching_rows(table, session, "ST_Srid(g) = 0", table.snapshot(), table.snapshot().schema),
    )
    for attempt in attempts:
        with pytest.raises(RefusedError, match=f"shapes, which the session has turned off.*set {SETTING} to true"):
            attempt()
    # What needs no look at them is done.
    assert update(table, session, {"g": "NULL", "id": "id + 100"}, "id = 0").rows_updated == 1
    assert delete(table, session, "h IS NULL").rows_deleted == 0
    assert rows(table)[100]["h"] == point(0)


@pytest.mark.parametrize(("condition", "files"), [("id > 5", 1), ("id > 50", 0), ("g IS NOT NULL AND id > 50", 0)])
def test_what_else_is_demanded_skips_files(session: SparkSession, table: Table, condition: str, files: int) -> None:
    update(table, session, {"h": "h"})  # the new file has bounds
    snapshot, sql = table.snapshot(), f"ST_Srid(in.x) = 4326 AND {condition}"
    shapes = shapes_in(session, snapshot, [sql])
    predicate = demanded_by(shapes.shown(shape(session, snapshot.schema)).where(sql))
    assert files_that_may_match(row_level(table), snapshot, predicate).files.num_rows == files

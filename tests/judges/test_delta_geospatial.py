"""Tables with shapes (geospatial). delta-spark makes them in a preview, reads their other columns and deletes by these,
but neither writes nor reads shapes with Spark 4.1. DuckDB reads the shapes of Parquet files.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.sessions import cheap

from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.rows import live_rows
from dv_maintenance.dml.update import update
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREVIEW = ("spark.sql.geospatial.enabled", "spark.databricks.delta.geo.preview.enabled")
POINT = struct.pack("<BIdd", 1, 1, 0.5, 0.25)
NEW = f"ST_GeomFromWKB(X'{POINT.hex()}')"
BOX = {"minValues": {"id": 0, "g": "POINT(0 0)"}, "maxValues": {"id": 99, "g": "POINT(99 198)"}}


class Shapes(pa.ExtensionType):
    """What Arrow writes as GEOMETRY, or as GEOGRAPHY if edges are spherical."""

    def __init__(self, about: bytes) -> None:
        self.about = about
        super().__init__(pa.binary(), "geoarrow.wkb")

    def __arrow_ext_serialize__(self) -> bytes:
        return self.about


def shapes(about: bytes) -> pa.Array:
    points = [struct.pack("<BIdd", 1, 1, n, 2 * n) for n in range(100)]
    return pa.ExtensionArray.from_storage(Shapes(about), pa.array(points, pa.binary()))


@pytest.mark.deep
def test_every_verb_moves_shapes(delta_spark: SparkSession, tmp_path: Path) -> None:
    spark, path = cheap(delta_spark), tmp_path / "t"
    for key in PREVIEW:
        spark.conf.set(key, "true")

    def sql(statement: str) -> list[Any]:
        return [tuple(row) for row in spark.sql(statement.replace("{t}", f"delta.`{path}`")).collect()]

    sql(
        "CREATE TABLE {t} (id INT, g GEOMETRY(4326), h GEOGRAPHY(4326)) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    file = path / "a.parquet"
    numbers = pa.array(range(100), pa.int32())
    pq.write_table(pa.table({"id": numbers, "g": shapes(b"{}"), "h": shapes(b'{"edges":"spherical"}')}), file)
    add = {"path": file.name, "partitionValues": {}, "size": file.stat().st_size, "modificationTime": 1}
    stats = json.dumps({"numRecords": 100, **BOX, "nullCount": {"id": 0, "g": 0}})
    commit = json.dumps({"add": {**add, "dataChange": True, "stats": stats}})
    (path / "_delta_log" / f"{1:020}.json").write_text(commit)

    table = open_table(str(path))
    assert delete(table, LocalEngine(), "id IN (3, 4, 5)").rows_deleted == 3
    live = [n for n in range(100) if n not in {3, 4, 5}]
    assert sql("SELECT id FROM {t} ORDER BY id") == [(n,) for n in live]
    schema, batches = read(table)
    ours = [tuple(row.values()) for row in pa.Table.from_batches(batches, schema).sort_by("id").to_pylist()]
    asked = f"SELECT id, ST_AsWKB(g), ST_AsWKB(h) FROM '{file}' WHERE id NOT IN (3, 4, 5) ORDER BY id"
    assert ours == duckdb.connect().execute(asked).fetchall()
    (line,) = (each for each in (path / "_delta_log" / f"{2:020}.json").read_text().splitlines() if each[2:5] == "add")
    assert BOX.items() <= json.loads(json.loads(line)["add"]["stats"]).items()  # the box still covers what is left

    sql("DELETE FROM {t} WHERE id = 7")
    assert health(table.snapshot()).counts.deleted_rows == 4
    table.vacuum(VacuumRequest(retention=0, allow_short_retention=True))
    assert sql("SELECT count(*) FROM {t}") == [(96,)]

    def judged() -> tuple[list[Any], list[Any], list[Any]]:
        """Types, bounds and rows of shapes, as DuckDB reads them in the files and for the ids that Spark names."""
        chosen = sql("SELECT id, input_file_name() FROM {t}")
        names = sorted({name.removeprefix("file://") for _, name in chosen})
        ids = ", ".join(str(id_) for id_, _ in chosen)
        duck = duckdb.connect()
        types = f"SELECT name, type, logical_type FROM parquet_schema({names}) WHERE name IN ('g', 'h')"
        bounds = f"SELECT count(stats_min_value) FROM parquet_metadata({names}) WHERE path_in_schema IN ('g', 'h')"
        rows = f"SELECT id, ST_AsWKB(g), ST_AsText(h) FROM read_parquet({names}) WHERE id IN ({ids}) ORDER BY id"
        return (
            sorted(set(duck.execute(types).fetchall())),
            duck.execute(bounds).fetchall(),
            duck.execute(rows).fetchall(),
        )

    before = judged()
    assert [row[0] for row in before[2]] == [n for n in live if n != 7]
    assert purge(table, LocalEngine()).verified
    assert sql("SELECT DISTINCT input_file_name() FROM {t}") != [(file.as_uri(),)]
    assert judged() == before
    sql("DELETE FROM {t} WHERE id = 8")
    assert sql("SELECT count(*) FROM {t}") == [(95,)]
    types, bounds, rows = judged()
    assert update(table, spark, {"id": "id + 200"}, "id IN (10, 20)").rows_updated == 2
    moved = sorted((row[0] + 200 * (row[0] in {10, 20}), *row[1:]) for row in rows if row[0] != 8)
    assert judged() == (types, bounds, moved)
    # Spark with delta-spark 4.4 reads no shapes, so DuckDB judges what conditions on them and new values leave.
    sets = {"g": f"ST_SetSrid({NEW}, 4326)", "id": "230"}
    assert update(table, spark, sets, "id = 30 AND ST_Srid(h) = 4326").rows_updated == 1
    assert delete(table, spark, "ST_AsBinary(g) = ST_AsBinary(h) AND id IN (230, 31)").rows_deleted == 1
    changed = [(230, POINT, row[2]) if row[0] == 30 else row for row in moved if row[0] != 31]
    assert judged() == (types, bounds, sorted(changed))
    for key in PREVIEW:
        spark.conf.set(key, "false")
    with pytest.raises(RefusedError, match="column g, which holds shapes, which the session has turned off"):
        update(table, spark, {"id": "1"}, "g IS NOT NULL")
    for column in ("g", "h"):  # no condition passes shapes to Spark
        nobody: Any = None
        with pytest.raises(RefusedError, match="can't be passed to Spark"):
            live_rows(nobody, [], pa.schema([table.snapshot().schema.field(column)]), None)

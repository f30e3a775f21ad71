"""Avro files written here: Iceberg's Spark runtime and its Java library read the same rows with the same lineage,
answer the same to filters on every column, and go on writing. pyiceberg and DuckDB read no Avro data files.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from iceberg_engine import IcebergEngine
from test_iceberg_orc_judged import QUERIES, evolved, formats, judged, made, purged
from test_iceberg_types_judged import SCHEMA, Java

from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.merge import merge
from dv_maintenance.dml.update import update
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.files.avro.container import header_of
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.tables import open_table

AVRO = "'write.format.default' = 'avro'"


@pytest.fixture
def engine(iceberg_spark: Any, tmp_path: Path) -> IcebergEngine:
    return IcebergEngine(iceberg_spark, tmp_path)


def test_spark_reads_and_goes_on(engine: IcebergEngine) -> None:
    made(engine, "t", properties=AVRO)
    judged(engine, "t", ["f >= 0.1f", "isnan(d)", "day < DATE '1582-10-15'", "d = 0.0d"], "AVRO")
    session, table = engine.session, open_table(str(engine.path("t")))
    changes = {"s": "concat(s, '!')", "l": "NULL", "m": "map('new', named_struct('a', id))"}
    files = engine.sql("SELECT file_path FROM {t}.data_files", "t")
    assert update(table, session, changes, "id IN (2, 7)", dry_run=True).rows_updated == 2
    assert engine.sql("SELECT file_path FROM {t}.data_files", "t") == files
    assert update(table, session, changes, "id IN (2, 7)").rows_updated == 2
    source = "SELECT * FROM VALUES (3, 'merged'), (50, 'new') AS s(id, s)"
    merging = merge(table, session, session.sql(source), "t.id = s.id", target_alias="t", source_alias="s")
    merging.when_matched_update({"s": "s.s"}).when_not_matched_insert({"id": "s.id", "s": "s.s"}).execute()
    assert delete(table, LocalEngine(), "id = 4").rows_deleted == 1
    assert formats(engine, "t") == {("AVRO",)}
    assert engine.sql("SELECT id, s, m FROM {t} WHERE id IN (2, 4, 50) ORDER BY id", "t") == [
        (2, "s2é!", {"new": (2,)}), (50, "new", None),
    ]  # fmt: skip
    engine.sql("UPDATE {t} SET s = 'spark' WHERE id = 5", "t")
    rows = engine.rows("t")
    engine.rewrite("t")
    assert engine.rows("t") == rows
    purged(engine, "t", "AVRO")
    engine.sql("DELETE FROM {t} WHERE id = 1", "t")
    purged(engine, "t", "AVRO")


NAMED = (
    "id INT NOT NULL, s STRING, `a.b-é` INT, `1x` STRUCT<`q r`: INT, `😀`: DECIMAL(9, 2)>, mi MAP<INT, STRING>, "
    "ms MAP<STRUCT<a: INT>, ARRAY<DECIMAL(9, 2)>>, v VARIANT, st STRUCT<v: VARIANT, d: DATE>, c CHAR(3), u VARCHAR(9)"
)


def named(at: int) -> str:
    return (
        f"({at}, 's{at}', {at}, named_struct('q r', {at}, '😀', 1.25), map({at}, 'x', 70, null), "
        f"map(named_struct('a', {at}), array(1.5, null)), parse_json('[{at}, \"x\"]'), "
        f"named_struct('v', parse_json('\"y\"'), 'd', DATE '2026-01-01'), 'c{at}', 'u')"
    )


@pytest.mark.parametrize("codec", [pytest.param("gzip", marks=pytest.mark.deep), "zstd",
                                   pytest.param("snappy", marks=pytest.mark.deep),
                                   pytest.param("uncompressed", marks=pytest.mark.deep)])  # fmt: skip
def test_odd_names_and_maps_and_variants(engine: IcebergEngine, codec: str) -> None:
    """The schema of a file is as Spark's own, but for documentation and the names of fixed types."""
    engine.create("t", NAMED, properties=f"{AVRO}, 'write.avro.compression-codec' = '{codec}'")
    text = ", ".join([*map(named, range(9)), f"(9{', null' * 9})"]).replace("{", "{{").replace("}", "}}")
    engine.sql(f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ * FROM VALUES {text}", "t")
    engine.rewrite("t")
    ((path,),) = engine.sql("SELECT file_path FROM {t}.data_files", "t")
    theirs = header_of(Path(str(path)).read_bytes())
    engine.sql("DELETE FROM {t} WHERE id = 4", "t")
    judged(engine, "t", ["`a.b-é` = 3", "`1x`.`q r` >= 7", "mi[3] = 'x'", "c = 'c3'", "st.d IS NULL"], "AVRO")
    ((path,),) = engine.sql("SELECT file_path FROM {t}.data_files", "t")
    ours = header_of(Path(str(path)).read_bytes())
    assert ours["avro.codec"] == theirs["avro.codec"]
    assert comparable(json.loads(ours["avro.schema"]), []) == comparable(json.loads(theirs["avro.schema"]), [])


def comparable(schema: Any, known: list[Any]) -> Any:
    """With definitions instead of names. ``known``: those before."""
    if isinstance(schema, list):
        return [comparable(each, known) for each in schema]
    if isinstance(schema, str):
        return next((each for name, each in known if name == schema), schema)
    if schema.get("type") == "fixed":
        known.append((schema["name"], {**schema, "name": "fixed"}))
        return {**schema, "name": "fixed"}
    below = {"type", "fields", "items", "values"}
    return {key: comparable(value, known) if key in below else value for key, value in schema.items() if key != "doc"}


AGGREGATED = ("id", "b", "l", "f", "d", "d9", "d38", "day", "t", "n", "s", "bin", "st.a")


@pytest.mark.deep
@pytest.mark.parametrize(("partitioned", "zone", "ansi"), [("", "UTC", "true"), ("id", "America/Los_Angeles", "false")])
def test_filters_on_every_column(engine: IcebergEngine, partitioned: str, zone: str, ansi: str) -> None:
    engine.session.conf.set("spark.sql.session.timeZone", zone)
    engine.session.conf.set("spark.sql.ansi.enabled", ansi)
    made(engine, "t", partitioned, AVRO)
    # Spark takes some of them from the counts and bounds of manifests, which its own Avro files lack.
    whole = (
        "SELECT count(*), " + ", ".join(f"min({each}), max({each}), count({each})" for each in AGGREGATED) + " FROM {t}"
    )
    before = repr(engine.sql(whole, "t"))  # with NaN
    judged(engine, "t", QUERIES, "AVRO")
    assert repr(engine.sql(whole, "t")) == before
    assert engine.sql("SELECT count(*) FROM {t}", "t") == [(8,)]


@pytest.mark.deep
@pytest.mark.parametrize("first", ["parquet", "avro", "orc"])
def test_evolved_tables_of_mixed_formats(engine: IcebergEngine, first: str) -> None:
    evolved(engine, first, "avro")


@pytest.mark.deep
def test_files_of_many_blocks(engine: IcebergEngine) -> None:
    """Spark reads a file in parts, each of which begins with the next block."""
    engine.create("t", "id BIGINT, s STRING", properties=f"{AVRO}, 'read.split.target-size' = '100000'")
    engine.sql("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, sha2(CAST(id AS STRING), 256) FROM range(60000)", "t")
    engine.sql("DELETE FROM {t} WHERE id % 10 = 3", "t")
    purged(engine, "t", "AVRO")
    assert engine.session.table(f"{engine.catalog}.t.table").rdd.getNumPartitions() > 10
    engine.sql("DELETE FROM {t} WHERE id % 10 = 4", "t")
    before = engine.rows("t")
    report = maintain(
        open_table(str(engine.path("t"))), LocalEngine(), Policy(target_file_size=256 << 10, max_deleted_ratio=0.0)
    )
    assert report.verified
    assert engine.rows("t") == before
    assert engine.sql("SELECT count(*) > 3 FROM {t}.data_files", "t") == [(True,)]


@pytest.mark.deep
def test_types_that_spark_lacks(iceberg_spark: Any, tmp_path: Path) -> None:
    """Those of an unknown type included: Java stores them as nulls, and nothing is stored here."""
    java, rng = Java(iceberg_spark, tmp_path), random.Random(7)
    table = java.create("t", SCHEMA, **{"write.format.default": "avro"})
    for at in range(2):
        java.append(table, [java.row(number, rng) for number in range(20 * at, 20 * at + 20)])
    place = str(java.spark.path("t"))
    delete(open_table(place), LocalEngine(), "id < 5 OR id IN (17, 20, 21, 33)")
    before = java.rows(table)
    assert len(before) == 31
    assert purge(open_table(place), LocalEngine()).verified
    assert java.rows(table) == before
    table.refresh()
    (task,) = table.newScan().planFiles().iterator()
    assert task.file().format().name() == "AVRO"


BYTES = """{"type": "struct", "schema-id": 0, "fields": [
 {"id": 1, "name": "id", "required": true, "type": "int"},
 {"id": 2, "name": "u", "required": false, "type": "uuid"},
 {"id": 3, "name": "f", "required": false, "type": "fixed[40]"},
 {"id": 4, "name": "us", "required": false, "type":
   {"type": "map", "key-id": 5, "key": "uuid", "value-id": 6, "value": "fixed[3]", "value-required": false}}
]}"""


@pytest.mark.deep
def test_uuids_and_fixed_bytes(iceberg_spark: Any, tmp_path: Path) -> None:
    java, rng = Java(iceberg_spark, tmp_path), random.Random(3)
    table = java.create("t", BYTES, **{"write.format.default": "avro"})
    rows = [
        {"id": at, "u": java.uuid(rng), "f": rng.randbytes(40), "us": {java.uuid(rng): rng.randbytes(3)}}
        for at in range(9)
    ]
    java.append(table, [*rows, {"id": 9}])
    engine = java.spark
    engine.sql("DELETE FROM {t} WHERE id = 2", "t")
    ((u,),) = engine.sql("SELECT u FROM {t} WHERE id = 4", "t")
    judged(engine, "t", [f"u = '{u}'", "u IS NULL", "f IS NOT NULL"], "AVRO")

"""Types that Spark's SQL lacks, in tables that Iceberg's Java library made: its generic reader, which knows them all,
finds the same rows with the same lineage after a purge, and its own metrics of our files are those in our manifests.
"""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from iceberg_engine import IcebergEngine

from dv_maintenance.dml.clauses import with_clauses
from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.merge import merge
from dv_maintenance.dml.update import update
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError, UsageError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.tables.table import Table

SCHEMA = """{"type": "struct", "schema-id": 0, "fields": [
 {"id": 1, "name": "id", "required": true, "type": "int"},
 {"id": 2, "name": "u", "required": false, "type": "uuid"},
 {"id": 3, "name": "v7", "required": true, "type": "uuid"},
 {"id": 4, "name": "f16", "required": false, "type": "fixed[16]"},
 {"id": 5, "name": "f40", "required": false, "type": "fixed[40]"},
 {"id": 6, "name": "b", "required": false, "type": "binary"},
 {"id": 7, "name": "t", "required": false, "type": "timestamp_ns"},
 {"id": 8, "name": "z", "required": false, "type": "timestamptz_ns"},
 {"id": 9, "name": "clock", "required": false, "type": "time"},
 {"id": 10, "name": "never", "required": false, "type": "unknown"},
 {"id": 11, "name": "v", "required": false, "type": "variant"},
 {"id": 12, "name": "in", "required": false, "type": {"type": "struct", "fields": [
   {"id": 15, "name": "u", "required": false, "type": "uuid"},
   {"id": 16, "name": "never", "required": false, "type": "unknown"},
   {"id": 17, "name": "f16", "required": false, "type": "fixed[16]"},
   {"id": 18, "name": "v", "required": false, "type": "variant"}]}},
 {"id": 13, "name": "us", "required": false, "type":
   {"type": "list", "element-id": 19, "element": "uuid", "element-required": false}},
 {"id": 14, "name": "m", "required": false, "type":
   {"type": "map", "key-id": 20, "key": "uuid", "value-id": 21, "value": "timestamp_ns", "value-required": false}}
]}"""


class Java:
    """Tables of Iceberg's Java library, row by row."""

    def __init__(self, spark: Any, place: Path) -> None:
        self.spark = IcebergEngine(spark, place)
        self.jvm = spark._jvm
        self.iceberg = self.jvm.org.apache.iceberg
        self.catalog = self.iceberg.hadoop.HadoopCatalog(
            spark._jsc.hadoopConfiguration(),
            str(place),
        )

    def create(self, name: str, schema: str, **properties: str) -> Any:
        parsed = self.iceberg.SchemaParser.fromJson(schema)
        id_ = self.iceberg.catalog.TableIdentifier.parse(f"{name}.table")
        return self.catalog.createTable(
            id_,
            parsed,
            self.iceberg.PartitionSpec.unpartitioned(),
            {"format-version": "3", "write.delete.mode": "merge-on-read", **properties},
        )

    def append(self, table: Any, rows: list[dict[str, Any]], p: int | None = None) -> None:
        """``p``: the rows' partition, if the table has any."""
        file = table.io().newOutputFile(f"{table.location()}/data/{random.getrandbits(60):x}.parquet")
        factory = self.iceberg.data.GenericFileWriterFactory.Builder(table).build()
        encrypted = self.iceberg.encryption.EncryptedFiles.plainAsEncryptedOutput(file)
        place = self.iceberg.PartitionData(table.spec().partitionType())
        if p is not None:
            place.set(0, p)
        writer = factory.newDataWriter(encrypted, table.spec(), place)
        for row in rows:
            writer.write(self.record(table.schema().asStruct(), row))
        writer.close()
        table.newAppend().appendFile(writer.toDataFile()).commit()

    def record(self, struct: Any, row: dict[str, Any]) -> Any:
        found = self.iceberg.data.GenericRecord.create(struct)
        for name, value in row.items():
            found.setField(name, self.record(struct.fieldType(name), value) if name == "in" and value else value)
        return found

    def rows(self, table: Any) -> list[str]:
        """With lineage."""
        table.refresh()
        schema = self.iceberg.MetadataColumns.schemaWithRowLineage(table.schema())
        found = self.iceberg.data.IcebergGenerics.read(table).project(schema).build()
        return sorted(self.text(each) for each in found.iterator())

    def text(self, value: Any) -> str:
        if isinstance(value, bytes):
            return value.hex()
        if value is None or not hasattr(value, "getClass"):
            return repr(value)
        name = value.getClass().getName()
        if "ByteBuffer" in name:
            return self.iceberg.util.ByteBuffers.toByteArray(value).hex()
        if name.endswith("GenericRecord"):
            # The reader leaves in the column by which it applied deletion vectors.
            names = [each.name() for each in value.struct().fields() if each.name() != "_pos"]
            return str({name: self.text(value.getField(name)) for name in names})
        if name.startswith("java.util.") and "List" in name:
            return f"[{', '.join(map(self.text, value))}]"
        return str(value.toString())

    def metrics(self, table: Any) -> Iterator[tuple[Any, Any]]:
        """The metrics of each live file, as its manifest has them and as Java reads them from the file."""
        table.refresh()
        for task in table.newScan().includeColumnStats().planFiles().iterator():
            file = table.io().newInputFile(task.file().location())
            config = self.iceberg.MetricsConfig.forTable(table)
            yield task.file(), self.iceberg.parquet.ParquetUtil.fileMetrics(file, config)

    def uuid(self, rng: random.Random) -> Any:
        text = f"{rng.getrandbits(128):032x}"
        return self.jvm.java.util.UUID.fromString("-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])))

    def moment(self, rng: random.Random) -> Any:
        seconds = rng.choice([rng.randint(-(1 << 32), 1 << 32), rng.randint(-9, 9)])
        utc = self.jvm.java.time.ZoneOffset.UTC
        return self.jvm.java.time.LocalDateTime.ofEpochSecond(seconds, rng.randint(0, 999_999_999), utc)

    def variant(self, rng: random.Random) -> Any:
        """A string, or an object with one field."""
        variants = self.iceberg.variants
        if rng.random() < 0.5:
            return variants.Variant.of(variants.Variants.emptyMetadata(), variants.Variants.of(f"text {rng.random()}"))
        metadata = variants.Variants.metadata(["a", "b"])
        made = variants.Variants.object(metadata)
        made.put("ab"[rng.randrange(2)], variants.Variants.of(f"t{rng.randint(0, 99)}"))
        return variants.Variant.of(metadata, made)

    def row(self, number: int, rng: random.Random) -> dict[str, Any]:
        at = self.moment(rng)
        values = {
            "u": self.uuid(rng),
            "f16": rng.randbytes(16),
            "f40": rng.randbytes(40),
            "b": self.jvm.java.nio.ByteBuffer.wrap(rng.choice([rng.randbytes(40), b"\xff" * 20, b""])),
            "t": at,
            "z": at.atOffset(self.jvm.java.time.ZoneOffset.UTC),
            "clock": self.jvm.java.time.LocalTime.ofNanoOfDay(rng.randint(0, 86_399_999_999) * 1000),
            "v": self.variant(rng),
            "in": {
                "u": self.uuid(rng), "f16": rng.randbytes(16),
                **({"v": self.variant(rng)} if rng.random() < 0.7 else {}),
            },
            "us": [self.uuid(rng), None, self.uuid(rng)][: rng.randint(0, 3)],
            "m": {self.uuid(rng): self.moment(rng) for _ in range(rng.randint(0, 2))},
        }  # fmt: skip
        low = self.jvm.java.util.UUID(0x0190_0000_0000_7000 + number, -(1 << 62) + number)
        some = {name: None if rng.random() < 0.2 else each for name, each in values.items()}
        return {"id": number, "v7": low, **some}


@pytest.fixture
def java(iceberg_spark: Any, tmp_path: Path) -> Java:
    return Java(iceberg_spark, tmp_path)


def purged(java: Java, name: str, table: Any) -> None:
    rows = java.rows(table)
    report = purge(open_table(str(java.spark.path(name))), LocalEngine())
    assert report.verified, report.problems
    assert java.rows(table) == rows


# Java has counts and bounds of what is in lists, maps and variants; ours are of columns and fields of structs.
INSIDE = {11, 18, 19, 20, 21}
UUIDS = {2, 3, 15}


def same_metrics(java: Java, table: Any) -> None:
    for ours, theirs in java.metrics(table):
        for name in ("valueCounts", "nullValueCounts"):
            found, wanted = (dict(getattr(each, name)()) for each in (ours, theirs))
            assert found == {key: value for key, value in wanted.items() if key not in INSIDE}
        for name in ("lowerBounds", "upperBounds"):
            found, wanted = (
                {key: java.text(value) for key, value in getattr(each, name)().items()} for each in (ours, theirs)
            )
            assert found == {key: value for key, value in wanted.items() if key not in INSIDE | UUIDS}


def test_every_type(java: Java) -> None:
    table, rng = java.create("t", SCHEMA), random.Random(7)
    for at in range(2):
        java.append(table, [java.row(number, rng) for number in range(20 * at, 20 * at + 20)])
    delete(open_table(str(java.spark.path("t"))), LocalEngine(), "id < 5 OR id IN (17, 20, 21, 33)")
    purged(java, "t", table)
    same_metrics(java, table)


def test_values_that_spark_lacks_are_carried(java: Java) -> None:
    """Changed rows keep nanoseconds, times, and what is beside nulls of unknown type."""
    fields = json.loads(SCHEMA)["fields"]
    wanted = {"type": "struct", "schema-id": 0, "fields": [*fields[:6], fields[9], *fields[6:9], *fields[10:]]}
    table, rng = java.create("t", json.dumps(wanted)), random.Random(7)
    java.append(table, [java.row(number, rng) for number in range(20)])
    expressions = java.iceberg.expressions.Expressions
    table.updateSpec().addField(expressions.bucket("t", 4)).addField(expressions.hour("z")).commit()
    place, session = str(java.spark.path("t")), java.spark.session
    delete(open_table(place), LocalEngine(), "id IN (4, 5)")

    def rows() -> dict[str, dict[str, str]]:
        found = map(ast.literal_eval, java.rows(table))
        return {row["id"]: row for row in found}

    before = rows()
    assert update(open_table(place), session, {"b": "X'01'"}, "id % 3 = 0 AND never IS NULL").rows_updated == 7
    source = "SELECT * FROM VALUES (7, X'02'), (99, X'03') AS s(id, b)"
    values = {"id": "s.id", "b": "s.b", "v7": f"'{GIVEN}'", "clock": "NULL"}
    merging = merge(open_table(place), session, session.sql(source), "t.id = s.id", target_alias="t", source_alias="s")
    merging.when_matched_update({"b": "s.b"}).when_not_matched_insert(values).execute()
    after = rows()
    new = after.pop("99")
    assert (new["b"], new["v7"], new["t"], new["in"]) == ("03", GIVEN, "None", "None")
    for number, row in before.items():
        changed = "01" if int(number) % 3 == 0 else "02" if number == "7" else row["b"]
        sequence = "4" if number == "7" else "3" if changed == "01" else row["_last_updated_sequence_number"]
        assert after.pop(number) == {**row, "b": changed, "_last_updated_sequence_number": sequence}
    assert not after
    table.refresh()
    for row in rows().values():  # Java looks for them where its transforms put them
        for name in ("t", "z"):
            if row[name] != "None":
                found = java.iceberg.data.IcebergGenerics.read(table).where(expressions.equal(name, row[name])).build()
                assert row["id"] in [str(each.getField("id")) for each in found.iterator()]
    purged(java, "t", table)
    for sets, condition in (({"b": "X'04'"}, "clock IS NULL"), ({"t": "TIMESTAMP_NTZ '2026-01-01'"}, "id = 1")):
        with pytest.raises(RefusedError, match=r"times of day|nanoseconds"):
            update(open_table(place), session, sets, condition)


QUERIES = (
    "SELECT count(*), count(u), count(b), count(f16) FROM {t}",
    "SELECT count(v) FROM {t}",
    *(f"SELECT min({name}), max({name}) FROM {{t}}" for name in ("u", "b", "f16", "f40")),
    "SELECT min(u), max(u) FROM {t} WHERE u > '80000000-0000-0000-0000-000000000000'",
    "SELECT count(*) FROM {t} WHERE u < '80000000-0000-0000-0000-000000000000'",
    "SELECT id FROM {t} WHERE b > X'80' OR b = X'' ORDER BY id",
    "SELECT id FROM {t} WHERE b IS NULL OR v IS NULL OR u IS NULL ORDER BY id",
    "SELECT id, variant_get(v, '$.a', 'string') FROM {t} ORDER BY id",
)
SPARKS = """{"type": "struct", "schema-id": 0, "fields": [
 {"id": 1, "name": "id", "required": true, "type": "int"},
 {"id": 2, "name": "p", "required": true, "type": "int"},
 {"id": 3, "name": "u", "required": false, "type": "uuid"},
 {"id": 4, "name": "f16", "required": false, "type": "fixed[16]"},
 {"id": 5, "name": "f40", "required": false, "type": "fixed[40]"},
 {"id": 6, "name": "b", "required": false, "type": "binary"},
 {"id": 7, "name": "v", "required": false, "type": "variant"}
]}"""


@pytest.mark.deep
def test_what_spark_answers(java: Java) -> None:
    """From bounds: if UUIDs had any, Spark would fail."""
    table, rng = java.create("t", SPARKS), random.Random(7)
    table.updateSpec().addField("p").commit()
    table.refresh()
    for p in range(2):
        rows = [{**java.row(10 * p + at, rng), "p": p} for at in range(10)]
        java.append(table, [{name: row[name] for name in ("id", "p", "u", "f16", "f40", "b", "v")} for row in rows], p)
    java.spark.sql("DELETE FROM {t} WHERE id IN (3, 14)", "t")
    before = [java.spark.sql(each, "t") for each in QUERIES]
    purged(java, "t", table)
    for query, answer in zip(QUERIES, before, strict=True):
        assert java.spark.sql(query, "t") == answer, query


@pytest.mark.deep
def test_shapes(java: Java) -> None:
    """Spark reads the same shapes after a delete and a purge, in files with the annotations of its own."""
    engine = java.spark
    engine.session.conf.set("spark.sql.geospatial.enabled", "true")
    engine.create("t", "id INT, g GEOMETRY(0), h GEOGRAPHY(4326), s STRUCT<g: GEOMETRY(3857)>")
    point = "unhex('01010000000000000000' || lpad(hex(id), 4, '0') || '0000000000000040')"
    shapes = f"ST_GeomFromWKB({point}), IF(id % 4 = 0, NULL, ST_GeogFromWKB({point}))"
    inner = f"named_struct('g', ST_SetSrid(ST_GeomFromWKB({point}), 3857))"
    engine.sql(
        f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ CAST(id AS INT), {shapes}, {inner} FROM range(40)",
        "t",
    )
    of = "id, ST_AsBinary(g), ST_AsBinary(h), ST_AsBinary(s.g)"
    asked = f"SELECT {of}, ST_SRID(g), ST_SRID(s.g), _row_id, _last_updated_sequence_number FROM {{t}} ORDER BY id"

    def rows() -> list[Any]:
        return engine.sql(asked, "t")

    def stored() -> list[Any]:
        """Annotations of the live files' columns, with the default spelled out, and the columns with bounds."""
        found = []
        for name, lower in engine.sql("SELECT file_path, lower_bounds FROM {t}.files WHERE content = 0", "t"):
            columns = [json.loads(each.logical_type.to_json()) for each in [*pq.ParquetFile(name).schema][:4]]
            found.append([*({"crs": "OGC:CRS84", **each} for each in columns), *(each for each in lower if each < 9)])
        return found

    table = open_table(str(engine.path("t")))
    before, files = rows(), stored()
    assert [each["Type"] for each in files[0][:-1]] == ["None", "Geometry", "Geography", "Geometry"]
    assert files[0][-1] == 1
    assert delete(table, LocalEngine(), "id IN (3, 4, 5)").rows_deleted == 3
    live = [row for row in before if row[0] not in {3, 4, 5}]
    assert rows() == live
    ours = [row for batch in read(table)[1] for row in batch.to_pylist()]
    assert [(row["id"], row["g"], row["h"], row["s"]["g"]) for row in sorted(ours, key=lambda row: row["id"])] == [
        tuple(value and bytes(value) if at else value for at, value in enumerate(row[:4])) for row in live
    ]
    assert purge(table, LocalEngine()).verified
    assert (rows(), stored()) == (live, files)
    assert engine.sql("SELECT count(*) FROM {t}.delete_files", "t") == [(0,)]
    # Changed rows keep their shapes, and inserted ones have none.
    assert update(table, engine.session, {"id": "id + 100"}, "id % 10 = 7").rows_updated == 4
    source = "SELECT * FROM VALUES (8, 208), (300, 300) AS s(id, new)"
    merging = merge(
        table, engine.session, engine.session.sql(source), "t.id = s.id", target_alias="t", source_alias="s"
    )
    merging.when_matched_update({"id": "s.new"}).when_not_matched_insert({"id": "s.new", "g": "NULL"}).execute()
    moved = {7: 107, 17: 117, 27: 127, 37: 137, 8: 208}
    wanted = sorted((moved.get(row[0], row[0]), *row[1:-1]) for row in live)
    *found, new = rows()
    assert [row[:-1] for row in found] == wanted
    assert new[:-2] == (300, None, None, None, None, None)
    assert {json.dumps(each[1:4]) for each in stored()} == {json.dumps(files[0][1:4])}
    assert purge(table, LocalEngine()).verified
    assert rows() == [*found, new]
    engine.sql("UPDATE {t} SET h = NULL WHERE id < 9", "t")
    engine.rewrite("t")
    assert [row[2] for row in rows()][:4] == [None] * 4
    assert len(rows()) == 38


POINT = "ST_GeomFromWKB(X'000000000140200000000000004022000000000000')"
UPDATES: tuple[tuple[dict[str, str], str], ...] = (
    ({"g": POINT}, "id = 1"),
    ({"g": f"IF(id = 3, {POINT}, g)", "s.n": "s.n + 100", "a": "a", "m": "m"}, "id IN (2, 3) AND ST_Srid(s.g) = 3857"),
    ({"s.g": f"ST_SetSrid({POINT}, 3857)", "h": "ST_GeogFromWKB(ST_AsBinary(g))"}, "ST_AsBinary(h) = X'00' OR id = 6"),
    ({"id": "id + 100", "g": "NULL"}, "ST_AsBinary(m['k']) = ST_AsBinary(a[0]) AND id % 10 = 7"),
    ({"a": f"array({POINT}, a[0])", "m": f"map('new', {POINT})", "s": "named_struct('g', s.g, 'n', 0)"}, "id = 8"),
    ({"k": f"map({POINT}, 1)", "s.g": "NULL", "a": "array(NULL, a[0])"}, "id IN (9, 29)"),
)
DELETES = (
    "g IS NULL AND id > 100",
    "ST_Srid(g) = 0 AND h IS NULL",
    "ST_AsBinary(s.g) IS NULL AND id < 20",
    "a[0] IS NULL",
)
MERGE = """
    MERGE INTO {t} t USING source s ON t.id = s.id
    WHEN MATCHED AND ST_AsBinary(t.g) = ST_AsBinary(s.g) THEN DELETE
    WHEN MATCHED THEN UPDATE SET g = s.g, s.g = ST_SetSrid(ST_GeomFromWKB(s.b), 3857)
    WHEN NOT MATCHED AND s.g IS NOT NULL THEN INSERT (id, g, h) VALUES (s.id, s.g, ST_GeogFromWKB(s.b))
    WHEN NOT MATCHED BY SOURCE AND ST_AsBinary(t.h) = ST_AsBinary(t.g) AND t.id > 30 THEN UPDATE SET g = NULL
"""
NOT_STORED = (
    {"g": f"ST_SetSrid({POINT}, 3857)"}, {"g": "h"}, {"g": "X'00'"}, {"g": f"ST_SetSrid({POINT}, id - id)"},
    {"s.g": POINT}, {"a": f"array(ST_SetSrid({POINT}, 3857))"}, {"h": f"ST_SetSrid({POINT}, 4326)"},
)  # fmt: skip


@pytest.mark.deep
def test_expressions_on_shapes(java: Java) -> None:
    """The same statements of Spark on a twin leave the same rows: bytes, reference systems and lineage."""
    engine, session = java.spark, java.spark.session
    session.conf.set("spark.sql.geospatial.enabled", "true")
    point = "unhex('000000000140' || lpad(hex(id), 2, '0') || '000000000000' || '4030000000000000')"
    shape, inner = f"ST_GeomFromWKB({point})", f"ST_SetSrid(ST_GeomFromWKB({point}), 3857)"
    for name in "ot":
        engine.create(
            name,
            "id INT, g GEOMETRY(0), h GEOGRAPHY(4326), s STRUCT<g: GEOMETRY(3857), n: INT>, a ARRAY<GEOMETRY(0)>, "
            "m MAP<STRING, GEOMETRY(0)>, k MAP<GEOMETRY(0), INT>",
        )
        for start in (0, 20):  # the second file has no nulls
            engine.sql(
                f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ CAST(id AS INT), {shape}, "
                f"IF(id < 20 AND id % 4 = 0, NULL, ST_GeogFromWKB({point})), named_struct('g', {inner}, 'n', 1), "
                f"array({shape}, NULL), map('k', {shape}, 'l', NULL), map({shape}, 1) "
                f"FROM range({start}, {start + 20})",
                name,
            )
    of = ", ".join(f"hex(ST_AsBinary({each}))" for each in ("g", "h", "s.g", "a[0]", "a[1]", "map_values(m)[0]"))
    lineage = "ST_SRID(g), ST_SRID(s.g), IF(id < 300, _row_id, 0), _last_updated_sequence_number"
    asked = (
        f"SELECT id, s.n, size(a), map_keys(m), hex(ST_AsBinary(map_keys(k)[0])), {of}, {lineage} FROM {{t}} ORDER BY 1"
    )
    table = open_table(str(engine.path("t")))

    def same() -> list[Any]:
        ours = engine.sql(asked, "t")
        assert ours == engine.sql(asked, "o")
        return ours

    before = same()
    for sets, condition in UPDATES:
        spelled = ", ".join(f"{name} = {value}" for name, value in sets.items())
        engine.sql(f"UPDATE {{t}} SET {spelled} WHERE {condition}", "o")
        assert update(table, session, sets, condition).rows_updated
        now = same()
        assert now != before
        before = now
    for condition in DELETES:
        engine.sql(f"DELETE FROM {{t}} WHERE {condition}", "o")
        assert delete(table, session, condition).rows_deleted
        same()
    session.sql(
        f"SELECT * FROM VALUES (1, {POINT}, X'00'), (2, {POINT}, X'01'), (300, {POINT}, X'02'), (301, NULL, X'') "
        "AS source(id, g, b)"
    ).createOrReplaceTempView("source")
    engine.sql(MERGE, "o")
    start, *clauses = (each.strip() for each in MERGE.split("WHEN"))
    begun = merge(table, session, "source", start.split(" ON ")[1], target_alias="t", source_alias="s")
    with_clauses(begun, [f"WHEN {each}" for each in clauses]).execute()
    left = same()
    assert {300} <= {row[0] for row in left}
    assert not {1, 301} & {row[0] for row in left}
    for sets in NOT_STORED:
        ((name, value),) = sets.items()
        with pytest.raises(Exception, match="CANNOT_SAFELY_CAST"):
            engine.sql(f"UPDATE {{t}} SET {name} = {value} WHERE id = 2", "o")
        with pytest.raises(RefusedError, match="and shapes are not cast"):
            update(table, session, sets, "id = 2")
    assert same() == left
    bounds = [row for name in "to" for row in engine.sql("SELECT lower_bounds FROM {t}.files WHERE content = 0", name)]
    columns = engine.java("t").schema()
    bounded = {columns.findColumnName(each) for (lower,) in bounds for each in lower}
    assert bounded == {"id", "s.n", None}  # the last are row ids
    engine.rewrite("t")
    assert engine.sql(asked, "t") == left


PARTS = "SELECT p, count(*), sum(try_variant_get(v, '$.a', 'INT')) FROM {t} WHERE p = 0 AND id < 100 GROUP BY p"


@pytest.mark.deep
def test_variants_stay_shredded_as_long_as_the_table_wants_it(java: Java) -> None:
    # The vectorized reader of 1.12 knows no shredded variants.
    properties = "'write.parquet.shred-variants' = 'true', 'read.parquet.vectorization.enabled' = 'false'"
    java.spark.create("t", "id INT, p INT, v VARIANT, s STRUCT<w: VARIANT>", partitioned="p", properties=properties)
    place = str(java.spark.path("t"))
    kinds = ("'a', id, 'b', 'x' || id, 'c', named_struct('d', id * 1.5D)", "'a', array(id, id + 1), 'e', id % 2 = 0")

    def insert(part: int, kind: str) -> None:
        made = f"to_variant_object(named_struct({kind}))"
        rows = f"CAST(id AS INT), {part}, {made}, IF(id % 5 = 0, NULL, named_struct('w', {made}))"
        java.spark.sql(f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ {rows} FROM range(200)", "t")

    def purged() -> list[int]:
        rows, asked = java.spark.rows("t"), java.spark.sql(PARTS, "t")
        report = purge(open_table(place), LocalEngine())
        assert report.verified, report.problems
        assert java.spark.rows("t") == rows
        assert java.spark.sql(PARTS, "t") == asked
        return typed()

    def typed() -> list[int]:
        """How many typed columns each live file has."""
        paths = open_table(place).snapshot().files["path"].to_pylist()
        stored = [pq.ParquetFile(path.removeprefix("file:")).schema for path in paths]
        return sorted(sum(".typed_value" in schema.column(at).path for at in range(len(schema))) for schema in stored)

    for part, kind in enumerate(kinds):
        insert(part, kind)
    java.spark.sql("DELETE FROM {t} WHERE id % 50 = 3", "t")
    few, many = typed()
    assert many > few > 0
    assert purged() == [few, many]
    # Files that are shredded in different ways become one with nothing shredded.
    insert(0, kinds[1])
    java.spark.sql("DELETE FROM {t} WHERE id % 50 = 4 AND p = 0", "t")
    assert purged() == [0, few]
    values = sorted(map(repr, java.spark.sql("SELECT * FROM {t}", "t")))
    assert update(open_table(place), java.spark.session, {"s": "s"}, "id = 7").rows_updated == 3
    assert sorted(map(repr, java.spark.sql("SELECT * FROM {t}", "t"))) == values
    java.spark.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.parquet.shred-variants' = 'false')", "t")
    java.spark.sql("DELETE FROM {t} WHERE id % 50 = 5", "t")
    assert not any(purged())
    # Avro files can't have them shredded.
    java.spark.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.parquet.shred-variants' = 'true')", "t")
    insert(2, kinds[0])
    java.spark.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.format.default' = 'avro')", "t")
    java.spark.sql("DELETE FROM {t} WHERE id % 50 = 6 AND p = 2", "t")
    values = java.spark.rows("t")
    assert purge(open_table(place), LocalEngine()).verified
    assert java.spark.rows("t") == values
    assert java.spark.sql("SELECT count(*) FROM {t}.data_files WHERE file_format = 'AVRO'", "t") == [(1,)]


CHANGED = [
    *json.loads(SPARKS)["fields"],
    {"id": 8, "name": "in", "required": False, "type": {"type": "struct", "fields": [
        {"id": 9, "name": "u", "required": True, "type": "uuid"},
        {"id": 10, "name": "v", "required": False, "type": "variant"}]}},
    {"id": 11, "name": "us", "required": False, "type":
        {"type": "list", "element-id": 12, "element": "uuid", "element-required": False}},
    {"id": 13, "name": "m", "required": False, "type":
        {"type": "map", "key-id": 14, "key": "uuid", "value-id": 15, "value": "uuid", "value-required": False}},
]  # fmt: skip
ROWS = 12
GIVEN = "11111111-aaaa-4bbb-8ccc-000000000001"


@pytest.fixture
def twins(java: Java) -> Java:
    """``t`` and ``twin``, with UUIDs and variants, partitioned by a bucket of a UUID."""
    for name in ("t", "twin"):
        rng = random.Random(7)
        modes = {f"write.{verb}.mode": "merge-on-read" for verb in ("update", "merge")}
        table = java.create(name, json.dumps({"type": "struct", "schema-id": 0, "fields": CHANGED}), **modes)
        rows = []
        for at in range(ROWS):
            row = {key: value for key, value in java.row(at, rng).items() if key in {"id", "u", "f16", "f40", "b", "v"}}
            inner = {"u": java.uuid(rng), "v": java.variant(rng)}
            some = {"in": inner, "us": [java.uuid(rng), None], "m": {java.uuid(rng): java.uuid(rng)}}
            rows.append({**row, "p": 1, **(some if at % 3 else {})})
        java.append(table, rows)
        table.updateSpec().addField(java.iceberg.expressions.Expressions.bucket("u", 4)).commit()
    return java


def changed(twins: Java, statement: str, act: Callable[[Table], object]) -> None:
    """Our act and Spark's statement do the same, as both of Iceberg's readers see it; only inserted rows may have
    other ids.
    """
    before = twins.spark.rows("t")
    act(open_table(str(twins.spark.path("t"))))
    twins.spark.session.sql(statement.replace("{t}", f"{twins.spark.catalog}.twin.table"))
    assert twins.spark.rows("t") != before
    seen = (
        f"SELECT *, if(id < {ROWS}, _row_id, NULL), _last_updated_sequence_number, _partition.u_bucket_4 FROM {{t}} "
        "ORDER BY id"
    )
    assert str(twins.spark.sql(seen, "t")) == str(twins.spark.sql(seen, "twin"))
    by_java = [twins.rows(twins.spark.java(name)) for name in ("t", "twin")]
    assert "MERGE" in statement or by_java[0] == by_java[1]


@pytest.mark.deep
def test_uuids_and_variants_are_updated_and_merged(twins: Java) -> None:
    spark, session = twins.spark, twins.spark.session

    def updates(sets: dict[str, str], where: str) -> None:
        sql = f"UPDATE {{t}} SET {', '.join(f'{name} = {value}' for name, value in sets.items())} WHERE {where}"
        changed(twins, sql, lambda table: update(table, session, sets, where))

    updates({"p": "p + 1"}, "id % 3 = 1 OR f16 IS NULL")
    updates({"u": f"'{GIVEN.upper()}'", "v": """parse_json('{"a": [1, "x"]}')"""}, "id BETWEEN 3 AND 5")
    updates({"v": "NULL", "us": f"array('{GIVEN}')"}, "variant_get(v, '$.a[1]', 'string') = 'x' AND id > 3")
    with pytest.raises(RefusedError, match="column u does not fit its type: 'x' is not a UUID"):
        update(open_table(str(spark.path("t"))), session, {"u": "'x'"}, "id = 5")
    values = f"""'{GIVEN[:-1]}' || id AS u, parse_json('{{"k": ' || id || '}}') AS v"""
    source = f"SELECT id + 8 AS id, {values} FROM range(2, 8)"
    clauses = (
        "WHEN MATCHED THEN UPDATE SET u = s.u, v = s.v WHEN NOT MATCHED THEN INSERT (id, p, u, v) VALUES "
        "(CAST(s.id AS INT), 9, s.u, s.v)"
    )
    assigned = {"id": "CAST(s.id AS INT)", "p": "9", "u": "s.u", "v": "s.v"}
    changed(
        twins,
        f"MERGE INTO {{t}} t USING ({source}) s ON t.id = s.id {clauses}",
        lambda table: (
            merge(table, session, session.sql(source), "t.id = s.id", target_alias="t", source_alias="s")
            .when_matched_update({"u": "s.u", "v": "s.v"})
            .when_not_matched_insert(assigned)
            .execute()
        ),
    )
    purged(twins, "t", spark.java("t"))


def test_rows_are_found_by_their_uuids(twins: Java, tmp_path: Path) -> None:
    """Spark's own answer is that to ``concat(u, '')``: bounds that Java wrote make it miss UUIDs that it compares."""
    spark, session = twins.spark, twins.spark.session
    table = open_table(str(spark.path("t")))
    known = sorted(str(row[0]) for row in spark.sql("SELECT u FROM {t} WHERE u IS NOT NULL", "t"))
    for condition in (
        f"u IN ('{known[1]}', '{known[-1]}')",
        f"u = '{known[0].upper()}' OR u LIKE '%a'",
        f"NOT u <= '{known[5]}'",
    ):
        asked = condition.replace("u ", "concat(u, '') ", 1)
        (answer,) = spark.sql(f"SELECT count(*) FROM {{t}} WHERE {asked}", "t")
        assert delete(table, session, condition, dry_run=True).rows_deleted == answer[0], condition
    keys = [known[0], known[2].upper(), GIVEN]
    csv = tmp_path / "keys.csv"
    csv.write_text("\n".join(["u", *keys]))
    texts = session.createDataFrame([(key,) for key in keys], "u string")
    for given in (str(csv), texts, texts.selectExpr("unhex(replace(u, '-', '')) AS u")):
        report = delete(table, session, keys=given, on=["u"], dry_run=True)
        assert (report.rows_deleted, report.keys and report.keys.unmatched) == (2, 1)
    csv.write_text("u\n1-2-3-4-5\n")
    with pytest.raises(UsageError, match="no exact value for column u"):
        delete(table, session, keys=str(csv), on=["u"])

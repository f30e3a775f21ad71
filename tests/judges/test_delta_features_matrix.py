"""Each table feature on a table that real delta-spark made: maintenance keeps what the feature promises, as delta-spark
sees it, and writes what delta-spark itself would; or it refuses, and names who can do it instead.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from support.sessions import cheap

from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.merge import merge
from dv_maintenance.dml.update import update
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import UnsupportedFeatureError
from dv_maintenance.maintenance.engine_sql import engine_sql
from dv_maintenance.maintenance.execution.apply import apply, purge
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.rows.layout import stores_partitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DV = "'delta.enableDeletionVectors' = 'true'"
ROWS = "INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, string(id % 2) FROM range(20)"
MORE = "INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, string(id % 2) FROM range(20, 40)"
DELETE = "DELETE FROM {t} WHERE id % 5 = 0"
UPDATE = "UPDATE {t} SET p = '0' WHERE id % 7 = 0"
IDS = ", _metadata.row_id, _metadata.row_commit_version"


@dataclass(frozen=True)
class Row:
    """``features``: what the protocol must name. ``extra``: what delta-spark selects besides the columns. ``settings``:
    of the session, while the table is made."""

    make: tuple[str, ...]
    features: frozenset[str]
    extra: str = ""
    settings: tuple[tuple[str, str], ...] = ()


def row(create: str, *statements: str, features: str, extra: str = "", settings: dict[str, str] | None = None) -> Row:
    return Row((create, *statements), frozenset(features.split()), extra, tuple((settings or {}).items()))


def table(columns: str, properties: str, rest: str = "") -> str:
    return f"CREATE TABLE {{t}} ({columns}) USING delta {rest} TBLPROPERTIES ({properties})"


PLAIN = "id BIGINT, p STRING"
PARTS = "PARTITIONED BY (p)"
TRACKED = f"{DV}, 'delta.enableRowTracking' = 'true'"

REWRITTEN = {
    "row tracking": row(table(PLAIN, TRACKED), ROWS, MORE, DELETE, UPDATE, features="rowTracking", extra=IDS),
    "row tracking, by field id": row(
        table(PLAIN, f"{TRACKED}, 'delta.columnMapping.mode' = 'id'", PARTS),
        *(ROWS, MORE, DELETE, UPDATE, "REORG TABLE {t} APPLY (PURGE)", "DELETE FROM {t} WHERE id % 3 = 0"),
        features="rowTracking columnMapping",
        extra=IDS,
    ),
    "row tracking, not on yet": row(
        table(PLAIN, f"{DV}, 'delta.feature.rowTracking' = 'supported'"), ROWS, DELETE, features="rowTracking"
    ),
    "in-commit timestamps": row(
        table(PLAIN, f"{DV}, 'delta.enableInCommitTimestamps' = 'true'"), ROWS, DELETE, features="inCommitTimestamp"
    ),
    "domain metadata": row(
        table(PLAIN, f"{DV}, 'delta.feature.domainMetadata' = 'supported'"), ROWS, DELETE, features="domainMetadata"
    ),
    "column mapping by name": row(
        table(PLAIN, f"{DV}, 'delta.columnMapping.mode' = 'name'"),
        *(ROWS, "ALTER TABLE {t} RENAME COLUMN p TO q", MORE, DELETE),
        features="columnMapping",
    ),
    "column mapping by id": row(
        table(PLAIN, f"{DV}, 'delta.columnMapping.mode' = 'id'", PARTS), ROWS, MORE, DELETE, features="columnMapping"
    ),
    "type widening": row(
        table("id INT, p STRING", f"{DV}, 'delta.enableTypeWidening' = 'true'"),
        *(ROWS.replace("id,", "CAST(id AS INT),"), "ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT", MORE, DELETE),
        features="typeWidening",
    ),
    "generated and identity columns": row(
        table("id BIGINT, p STRING, g BIGINT GENERATED ALWAYS AS (id * 2), n BIGINT GENERATED ALWAYS AS IDENTITY", DV),
        *(ROWS.replace("{t}", "{t} (id, p)"), DELETE),
        features="generatedColumns identityColumns",
    ),
    "constraints and defaults": row(
        table("id BIGINT NOT NULL, p STRING DEFAULT 'x'", f"{DV}, 'delta.feature.allowColumnDefaults' = 'supported'"),
        *("ALTER TABLE {t} ADD CONSTRAINT positive CHECK (id >= 0)", ROWS, DELETE),
        features="checkConstraints invariants allowColumnDefaults",
    ),
    "v2 checkpoints": row(
        table(PLAIN, f"{DV}, 'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '2'"),
        *(ROWS, MORE, DELETE, "DELETE FROM {t} WHERE id = 1"),
        features="v2Checkpoint",
    ),
    "IcebergCompat v1": row(
        table(PLAIN, "'delta.columnMapping.mode' = 'name', 'delta.enableIcebergCompatV1' = 'true'", PARTS),
        *(ROWS, MORE),
        features="icebergCompatV1",
    ),
    "IcebergCompat v2": row(
        table(PLAIN, "'delta.columnMapping.mode' = 'name', 'delta.enableIcebergCompatV2' = 'true'", PARTS),
        *(ROWS, MORE),
        features="icebergCompatV2",
    ),
    "IcebergCompat v3": row(
        table(
            PLAIN,
            f"{TRACKED}, 'delta.columnMapping.mode' = 'name', 'delta.enableIcebergCompatV3' = 'true'",
            PARTS,
        ),
        *(ROWS, MORE, DELETE),
        features="icebergCompatV3 rowTracking",
        extra=IDS,
    ),
    "variant": row(
        table("id BIGINT, p STRING, v VARIANT", DV),
        *(ROWS.replace("FROM", ", parse_json(concat('[', id, ', null]')) FROM"), DELETE),
        features="variantType",
        extra=", to_json(v) AS v",
    ),
    "materialised partition columns": row(
        table(PLAIN, f"{DV}, 'delta.feature.materializePartitionColumns' = 'supported'", PARTS),
        *(ROWS, MORE, DELETE),
        features="materializePartitionColumns",
    ),
    "vacuumProtocolCheck": row(
        table(PLAIN, f"{DV}, 'delta.feature.vacuumProtocolCheck' = 'supported'"),
        *(ROWS, DELETE),
        features="vacuumProtocolCheck",
    ),
}

TYPED = "a int, b string, c struct<d decimal(9,2), e timestamp>, f array<double>, g date"
OBJECT = (
    "named_struct('a', CAST(id AS INT), 'b', 'x', 'c', named_struct('d', CAST(id AS DECIMAL(9, 2)), 'e', "
    "timestamp'2026-01-01 00:00:00'), 'f', array(1.5D, CAST(id AS DOUBLE)), 'g', date'2026-01-02')"
)
VALUE = (
    "CASE id % 7 WHEN 0 THEN NULL WHEN 1 THEN parse_json('[1, null, \"s\"]') "
    f"WHEN 2 THEN to_variant_object(named_struct('a', 'text', 'z', id)) ELSE to_variant_object({OBJECT}) END"
)
SHREDDED = row(
    table("id BIGINT, p STRING, v VARIANT", f"{DV}, 'delta.enableVariantShredding' = 'true'"),
    *(ROWS.replace("FROM", f", {VALUE} FROM"), MORE.replace("FROM", f", {VALUE} FROM"), DELETE),
    features="variantShredding-preview",
    extra=", to_json(v) AS v, schema_of_variant(v) AS w",
    settings={
        "spark.sql.variant.writeShredding.enabled": "true",
        "spark.sql.variant.forceShreddingSchemaForTest": TYPED,
    },
)


class Made:
    def __init__(self, spark: SparkSession, path: Path, wanted: Row) -> None:
        self.spark, self.path, self.row = cheap(spark), path, wanted
        for key, value in wanted.settings:
            self.spark.conf.set(key, value)
        try:
            for statement in wanted.make:
                self.run(statement)
        finally:
            for key, _ in wanted.settings:
                self.spark.conf.unset(key)
        self.table = open_table(str(path))

    def run(self, statement: str, path: Path | None = None) -> None:
        self.spark.sql(statement.replace("{t}", f"delta.`{path or self.path}`")).collect()

    def seen(self) -> list[str]:
        return sorted(map(str, self.rows()))

    def rows(self) -> list[Any]:
        """As delta-spark reads them, with what the feature is about; a variant has no text of its own."""
        columns = [name for name in self.table.snapshot().schema.names if name != "v"]
        query = f"SELECT {', '.join(columns)}{self.row.extra} FROM delta.`{self.path}`"
        return self.spark.sql(query).collect()

    def last_adds(self, path: Path) -> list[dict[str, Any]]:
        newest = max(file for file in (path / "_delta_log").glob("*.json") if file.stem.isdecimal())
        actions = [json.loads(line) for line in newest.read_text().splitlines()]
        return [action["add"] for action in actions if "add" in action]


def shape(path: Path, add: dict[str, Any], stored: bool) -> tuple[Any, ...]:
    """What an add and its file are like, without what differs from writer to writer: delta-spark may store partition
    columns where no feature asks for it.
    """
    schema = pq.ParquetFile(path / add["path"]).schema_arrow
    columns = {(f.name, str(f.type), (f.metadata or {}).get(b"PARQUET:field_id")) for f in schema}
    columns = {each for each in columns if stored or each[0] not in add["partitionValues"]}
    tags = tuple(sorted((add.get("tags") or {}).items()))
    return frozenset(columns), tags, add["dataChange"], add.get("defaultRowCommitVersion")


def rewrite(made: Made) -> None:
    """All DVs out, and small files merged: some features don't go with DVs."""
    policy = Policy(max_deleted_ratio=0)
    report = apply(made.table, LocalEngine(), build_plan(made.table.snapshot(), policy))
    assert report.verified
    assert report.steps


@pytest.mark.deep
@pytest.mark.parametrize("name", REWRITTEN)
def test_a_rewrite_keeps_what_the_feature_promises(name: str, delta_spark: SparkSession, tmp_path: Path) -> None:
    made = Made(delta_spark, tmp_path / "t", REWRITTEN[name])
    assert made.row.features <= load_snapshot(made.table.storage).protocol.features("writer")
    before, twin = made.seen(), tmp_path / "twin"
    shutil.copytree(made.path, twin)

    rewrite(made)
    assert made.seen() == before
    files = made.table.snapshot().files
    assert files["dv_id"].null_count == files.num_rows

    made.run("REORG TABLE {t} APPLY (PURGE)" if DV in made.row.make[0] else "OPTIMIZE {t}", twin)
    stores = stores_partitions(load_snapshot(made.table.storage).protocol)
    ours, theirs = ({shape(path, add, stores) for add in made.last_adds(path)} for path in (made.path, twin))
    assert ours == theirs, "the files are as delta-spark writes them"

    # Life goes on there, on top of our commit.
    made.run("INSERT INTO {t} (id, p) VALUES (1000, '1'), (1001, '0')".replace("(id, p)", named(made)))
    made.run("DELETE FROM {t} WHERE id = 1000")
    after = made.rows()
    assert len(after) == len(before) + 1
    assert set(before) < set(map(str, after))
    if made.row.extra == IDS:
        ids = [each["row_id"] for each in after]
        assert len(set(ids)) == len(ids), "no row id is given out twice"


NESTED = "map('a', array(timestamp'2026-01-01 00:00:00', NULL))"
CHANGED_ROWS = {
    "row tracking": row(table(PLAIN, TRACKED), ROWS, MORE, DELETE, UPDATE, features="rowTracking"),
    "row tracking, by field id": row(
        table(PLAIN, f"{TRACKED}, 'delta.columnMapping.mode' = 'id', 'delta.enableChangeDataFeed' = 'true'", PARTS),
        *(ROWS, MORE, UPDATE, "REORG TABLE {t} APPLY (PURGE)", DELETE),
        features="rowTracking columnMapping",
    ),
    "materialised partition columns": row(
        table(PLAIN, f"{TRACKED}, 'delta.feature.materializePartitionColumns' = 'supported'", PARTS),
        *(ROWS, MORE, DELETE),
        features="materializePartitionColumns",
    ),
    "clustering": row(table(PLAIN, TRACKED, "CLUSTER BY (p)"), ROWS, MORE, DELETE, features="clustering"),
    "IcebergCompat v3": row(
        table(
            f"{PLAIN}, m MAP<STRING, ARRAY<TIMESTAMP>>",
            f"{TRACKED}, 'delta.columnMapping.mode' = 'name', 'delta.enableIcebergCompatV3' = 'true'",
            PARTS,
        ),
        *(each.replace("id % 2)", f"id % 2), {NESTED}") for each in (ROWS, MORE)),
        DELETE,
        features="icebergCompatV3",
    ),
}


@pytest.mark.deep
@pytest.mark.parametrize("name", CHANGED_ROWS)
def test_changed_rows_keep_their_ids(name: str, delta_spark: SparkSession, tmp_path: Path) -> None:
    made, twin = Made(delta_spark, tmp_path / "t", CHANGED_ROWS[name]), tmp_path / "twin"
    shutil.copytree(made.path, twin)
    source = "SELECT id * 3 AS id, 's' AS p FROM range(20)"

    def seen(path: Path) -> dict[int, Any]:
        named = "*, _metadata.row_id AS r, _metadata.row_commit_version AS v"
        rows = delta_spark.sql(f"SELECT {named} FROM delta.`{path}` ORDER BY id").collect()
        return {each["r"]: tuple(value for name, value in each.asDict().items() if name != "r") for each in rows}

    before = seen(made.path)

    update(made.table, delta_spark, {"p": "concat(p, 'x')"}, "id % 4 = 1")
    begun = merge(made.table, delta_spark, source, "t.id = s.id", target_alias="t", source_alias="s")
    begun = begun.when_matched_delete("t.id > 20").when_matched_update({"p": "s.p"})
    begun.when_not_matched_insert({"id": "s.id", "p": "'1'"}).execute()
    made.run("UPDATE {t} SET p = concat(p, 'x') WHERE id % 4 = 1", twin)
    made.run(
        f"MERGE INTO {{t}} t USING ({source}) s ON t.id = s.id WHEN MATCHED AND t.id > 20 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET p = s.p WHEN NOT MATCHED THEN INSERT (id, p) VALUES (s.id, '1')",
        twin,
    )

    ours, theirs = seen(made.path), seen(twin)
    assert ours != before
    assert {r: held for r, held in ours.items() if r in before} == {r: theirs[r] for r in theirs if r in before}
    assert sorted(map(str, ours.values())) == sorted(map(str, theirs.values())), "inserted rows too, whatever their ids"
    assert min(ours.keys() - before.keys()) > max(before)
    if stores_partitions(load_snapshot(made.table.storage).protocol):
        looks = [{laid_out(path, add) for add in made.last_adds(path) if new(add)} for path in (made.path, twin)]
        assert looks[0] == looks[1], "the files are as delta-spark writes them"
    rewrite(made)
    assert seen(made.path) == ours


def new(add: dict[str, Any]) -> bool:
    return "deletionVector" not in add


def laid_out(path: Path, add: dict[str, Any]) -> tuple[Any, ...]:
    """The tags of a new file, and its columns with the ids of all that is in them; without those of tracked rows."""

    def ids(field: Any) -> tuple[Any, ...]:
        inside = [field.type.field(at) for at in range(field.type.num_fields)]
        return (field.metadata or {}).get(b"PARQUET:field_id"), str(field.type), *map(ids, inside)

    schema = pq.ParquetFile(path / add["path"]).schema_arrow
    columns = frozenset((each.name, ids(each)) for each in schema if not each.name.startswith("_row-"))
    return columns, tuple(sorted((add.get("tags") or {}).items()))


def named(made: Made) -> str:
    return f"({', '.join(made.table.snapshot().schema.names[:2])})"


@pytest.mark.deep
def test_rows_are_deleted_where_iceberg_reads_deletion_vectors(delta_spark: SparkSession, tmp_path: Path) -> None:
    made = Made(delta_spark, tmp_path / "t", REWRITTEN["IcebergCompat v3"])
    before = made.rows()
    delete(made.table, delta_spark, "id % 4 = 1")
    assert sorted(map(str, made.rows())) == sorted(str(each) for each in before if each["id"] % 4 != 1)
    tags = [add["tags"]["ICEBERG_COMPAT_VERSION"] for add in made.last_adds(made.path)]
    assert tags
    assert {*tags} == {"3"}
    made.run("DELETE FROM {t} WHERE id % 4 = 2")
    made.run("OPTIMIZE {t}")
    assert sorted(each["id"] for each in made.rows()) == sorted(
        each["id"] for each in before if each["id"] % 4 in (0, 3)
    )


@pytest.mark.deep
def test_shredded_variants_stay_shredded(delta_spark: SparkSession, tmp_path: Path) -> None:
    made = Made(delta_spark, tmp_path / "t", SHREDDED)
    before = made.seen()
    # Casts of a typed part fail in Spark 4.1, in its own files too.
    wheres = ("to_json(variant_get(v, '$.a')) = '3'", "variant_get(v, '$.c.d') IS NOT NULL", "v IS NULL")

    def found() -> list[int]:
        return [made.spark.read.format("delta").load(str(made.path)).where(where).count() for where in wheres]

    answers = found()
    typed = {str(pq.ParquetFile(file).schema_arrow.field("v")) for file in made.path.glob("*.parquet")}
    old = {*made.path.glob("*.parquet")}
    report = purge(made.table, LocalEngine())
    assert report.verified
    assert len(report.steps) == 2, "each file has a typed part of its own"
    assert made.seen() == before
    assert found() == answers
    new = {*made.path.glob("*.parquet")} - old
    assert {str(pq.ParquetFile(file).schema_arrow.field("v")) for file in new} == typed
    nulls = {json.loads(add["stats"])["nullCount"]["v"] for add in made.last_adds(made.path)}
    assert sum(nulls) > 0
    made.run("DELETE FROM {t} WHERE id = 1")
    made.run("INSERT INTO {t} VALUES (1000, '1', parse_json('{\"a\": 1}'))")
    made.run("OPTIMIZE {t}")
    assert len(made.seen()) == len(before)

    # The same work by the engine's own SQL, checked by our reader.
    other = Made(delta_spark, tmp_path / "other", SHREDDED)
    done = engine_sql(other.table, delta_spark, "purge")
    assert (done.verified, done.by, bool(done.checked)) == (True, "content", True)
    assert done.dvs_before > 0 == done.dvs_after
    assert other.seen() == before


ALL_TYPES = (
    "n boolean, i tinyint, s smallint, l bigint, f float, w double, d decimal(4, 1), e decimal(18, 4), "
    "h decimal(38, 10), t timestamp, u timestamp_ntz, b binary, x string, a array<struct<y: int, z: string>>, "
    "m array<array<int>>, g date"
)
WIDE = (
    "named_struct('n', id % 2 = 0, 'i', CAST(id AS TINYINT), 's', CAST(300 * id AS SMALLINT), "
    "'l', id * id * id * 99999999, "
    "'f', CAST(id AS FLOAT) / 3, 'w', id / 7, 'd', CAST(id AS DECIMAL(4, 1)), 'e', CAST(id AS DECIMAL(18, 4)) / 8, "
    "'h', CAST(-id AS DECIMAL(38, 10)) * 1234567890123456.789BD, 't', timestamp'1950-01-01 00:00:00.000001', "
    "'u', timestamp_ntz'2200-01-01 00:00:00', 'b', CAST('bytes' AS BINARY), 'x', repeat('ä', CAST(id * 5 AS INT)), "
    "'a', array(named_struct('y', 1, 'z', 'in', 'rest', id), NULL), 'm', array(array(1, NULL), NULL), "
    "'g', date'1582-10-15', 'rest', parse_json('{\"deep\": [1.50, null, {\"ö\": 1e300}]}'))"
)


@pytest.mark.deep
def test_changed_rows_with_shredded_variants_are_those_of_delta_spark(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    """Files of three kinds: shredded into many types, shredded otherwise, not shredded."""
    value = f"CASE id % 4 WHEN 0 THEN NULL WHEN 1 THEN parse_json('[1, \"s\"]') ELSE to_variant_object({WIDE}) END"
    shredded = replace(
        SHREDDED,
        make=(
            table("id BIGINT, p STRING, v VARIANT", f"{DV}, 'delta.enableVariantShredding' = 'true'"),
            f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ id, 'p', {value} FROM range(40)",
        ),
        settings=(
            SHREDDED.settings[0],
            (SHREDDED.settings[1][0], ALL_TYPES),
        ),
    )
    made, twin = Made(delta_spark, tmp_path / "t", shredded), tmp_path / "twin"
    for settings in (SHREDDED.settings, ((SHREDDED.settings[0][0], "false"),)):
        for key, setting in settings:
            made.spark.conf.set(key, setting)
        made.run(shredded.make[1].replace("range(40)", f"range({40 + len(settings) * 10}, {45 + len(settings) * 10})"))
        for key, _ in settings:
            made.spark.conf.unset(key)
    kinds = {str(pq.ParquetFile(file).schema_arrow.field("v").type) for file in made.path.glob("*.parquet")}
    assert len(kinds) == 3
    assert sum("decimal128(38, 10)" in kind and "list" in kind for kind in kinds) == 1
    shutil.copytree(made.path, twin)

    def seen(path: Path) -> list[str]:
        asked = "id, p, to_json(v), schema_of_variant(v)"
        return sorted(map(str, made.spark.sql(f"SELECT {asked} FROM delta.`{path}`").collect()))

    def both(statement: str, act: Callable[[], object]) -> None:
        before = seen(made.path)
        act()
        made.run(statement, twin)
        assert seen(made.path) == seen(twin) != before

    # Spark 4.1 fails on casts of a typed part, in its own files too.
    where = "variant_get(v, '$.x') IS NOT NULL AND to_json(variant_get(v, '$.a[0].rest')) IN ('6', '7')"
    both(f"DELETE FROM {{t}} WHERE {where}", lambda: delete(made.table, delta_spark, where))
    both("UPDATE {t} SET p = 'q'", lambda: update(made.table, delta_spark, {"p": "'q'"}))
    source = "SELECT id, parse_json('{\"new\": ' || id || '}') AS v FROM range(30, 50)"
    clauses = (
        "WHEN MATCHED AND t.id < 35 THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)"
    )
    begun = merge(made.table, delta_spark, source, "t.id = s.id", target_alias="t", source_alias="s")
    begun = begun.when_matched_update({"v": "s.v"}, "t.id < 35").when_not_matched_insert({"id": "s.id", "v": "s.v"})
    both(f"MERGE INTO {{t}} t USING ({source}) s ON t.id = s.id {clauses}", begun.execute)
    before = seen(made.path)
    made.run("OPTIMIZE {t}")
    made.run("INSERT INTO {t} (id, p) VALUES (1000, '1')")
    assert len(seen(made.path)) == len(before) + 1


def test_catalog_managed_tables_are_their_catalogs(golden_copy: Callable[[str], Path]) -> None:
    path = golden_copy("delta/catalog_managed_0")
    with pytest.raises(UnsupportedFeatureError, match="catalog") as caught:
        open_table(str(path)).snapshot()
    assert "through its catalog" in (caught.value.next_step or "")


@pytest.mark.deep
def test_variants_are_changed_as_by_delta_spark(delta_spark: SparkSession, tmp_path: Path) -> None:
    feed = table("id BIGINT, p STRING, v VARIANT, s STRUCT<v: VARIANT>", f"{DV}, 'delta.enableChangeDataFeed' = 'true'")
    value = """parse_json('{"a": ' || id || ', "b": [null, "x"]}')"""
    fill = f"INSERT INTO {{t}} SELECT id, 'p', if(id % 5 = 0, NULL, {value}), struct({value}) FROM range(40)"
    made, twin = Made(delta_spark, tmp_path / "t", row(feed, fill, features="variantType")), tmp_path / "twin"
    shutil.copytree(made.path, twin)

    def both(statement: str, act: Callable[[], object]) -> None:
        act()
        made.run(statement, twin)
        seen = []
        for path in (made.path, twin):
            named = f"id, p, to_json(v), to_json(s.v) FROM delta.`{path}`"
            changes = made.spark.read.option("readChangeFeed", "true").option("startingVersion", 1)
            feed = changes.format("delta").load(str(path)).selectExpr(
                "id", "p", "to_json(v) AS v", "to_json(s.v) AS w", "_change_type", "_commit_version"
            )  # fmt: skip
            seen.append([sorted(map(str, each.collect())) for each in (made.spark.sql(f"SELECT {named}"), feed)])
        assert seen[0] == seen[1]

    def updates(sets: dict[str, str], where: str) -> None:
        given = ", ".join(f"{name} = {value}" for name, value in sets.items())
        both(f"UPDATE {{t}} SET {given} WHERE {where}", lambda: update(made.table, delta_spark, sets, where))

    updates({"p": "'q'"}, "id % 4 = 1")
    updates({"v": "s.v", "s": "NULL"}, "variant_get(v, '$.a', 'int') BETWEEN 10 AND 20")
    where = "variant_get(v, '$.b[1]', 'string') = 'x' AND id % 7 = 3"
    both(f"DELETE FROM {{t}} WHERE {where}", lambda: delete(made.table, delta_spark, where))
    source = f"SELECT id + 35 AS id, {value} AS v FROM range(10)"
    clauses = "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)"
    begun = merge(made.table, delta_spark, source, "t.id = s.id", target_alias="t", source_alias="s")
    begun = begun.when_matched_update({"v": "s.v"}).when_not_matched_insert({"id": "s.id", "v": "s.v"})
    both(f"MERGE INTO {{t}} t USING ({source}) s ON t.id = s.id {clauses}", begun.execute)

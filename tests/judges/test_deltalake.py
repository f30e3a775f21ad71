"""Tables made by deltalake, compacted by us, judged by deltalake and polars."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, QueryBuilder, Schema, write_deltalake
from deltalake.schema import ArrayType, PrimitiveType, StructType
from deltalake.transaction import AddAction
from support.readers import READERS

from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.merge import merge
from dv_maintenance.dml.rows import live_rows
from dv_maintenance.dml.update import update
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError, UnsupportedFeatureError
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.read import read
from dv_maintenance.spark_source.types import spark_schema
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.replay import full_state
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.testing.delta_builder import DeltaBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=[[], ["part"]], ids=["flat", "partitioned"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "t"
    for start in range(0, 300, 50):
        rows = pa.table(
            {
                "id": pa.array(range(start, start + 50), pa.int64()),
                "part": pa.array([f"p{n % 2}" for n in range(50)]),
                "price": pa.array([None if n % 7 == 0 else n / 4 for n in range(50)], pa.float64()),
                "tags": pa.array([[f"t{n}", None] if n % 3 else None for n in range(50)], pa.list_(pa.string())),
            }
        )
        write_deltalake(str(path), rows, mode="append", partition_by=request.param or None)
        if start == 100:
            DeltaTable(str(path)).delete("id % 10 = 3")
    return path


def test_small_files_become_few_and_nothing_else_changes(made: Path, canon: ModuleType) -> None:
    table = open_table(str(made))
    before = table.snapshot()
    seen = {name: canon.rows(reader(made)) for name, reader in READERS.items()}

    assert not purge(table, LocalEngine()).steps, "deltalake writes no DVs"
    report = maintain(table, LocalEngine())
    after = table.snapshot()
    assert report.verified
    assert after.files.num_rows == len(pc.unique(before.files["partition"])) < before.files.num_rows
    assert not maintain(table, LocalEngine()).steps, "a second run does nothing"
    for name, reader in READERS.items():
        assert canon.rows(reader(made)) == seen[name], name
        assert canon.rows(reader(made, before.version)) == seen[name], name

    adds = pa.table(DeltaTable(str(made)).get_add_actions(flatten=True))
    assert sum(adds["num_records"].to_pylist()) == 285
    assert (min(adds["min.id"].to_pylist()), max(adds["max.id"].to_pylist())) == (0, 299)

    table.vacuum(VacuumRequest(retention=0, allow_short_retention=True, now=after.timestamp + 1000))
    assert len(list(made.rglob("*.parquet"))) == after.files.num_rows
    for name, reader in READERS.items():
        assert canon.rows(reader(made)) == seen[name], name


def test_a_checkpoint_of_deltalake_is_enough(made: Path) -> None:
    before = open_table(str(made)).snapshot()
    DeltaTable(str(made)).create_checkpoint()
    for commit in (made / "_delta_log").glob("*.json"):
        commit.unlink()
    after = open_table(str(made)).snapshot()
    assert after.warnings == ()
    columns = ["path", "partition", "size", "physical_rows", "modified", "partition_values"]
    rows = [snapshot.files.select(columns).sort_by("path").to_pylist() for snapshot in (before, after)]
    assert rows[0] == rows[1]


def test_files_of_its_updates_with_deletion_vectors(tmp_path: Path, canon: ModuleType) -> None:
    """The Arrow schema in them names views, which Arrow can read but not filter."""
    path = tmp_path / "t"
    rows = pa.table(
        {
            "id": pa.array(range(50), pa.int64()),
            "name": [f"n{n}" for n in range(50)],
            "raw": pa.array([b"x"] * 50, pa.binary()),
            "tags": pa.array([["a", None]] * 50, pa.list_(pa.string())),
            "deep": pa.array([{"q": "z"}] * 50, pa.struct([("q", pa.string())])),
        }
    )
    builder = DeltaBuilder(str(path)).create(rows.schema)
    builder.append(rows)
    DeltaTable(str(path)).update(updates={"name": "'new'"}, predicate="id < 10")
    DeltaTable(str(path)).delete("id = 40")
    source = pa.table({"id": [1, 100], "name": ["m", "n"]})
    begun = DeltaTable(str(path)).merge(source, "t.id = s.id", source_alias="s", target_alias="t")
    begun.when_matched_update({"name": "s.name"}).when_not_matched_insert({"id": "s.id", "name": "s.name"}).execute()
    builder.delete(lambda batch: pc.is_in(batch.column("id"), value_set=pa.array([5, 7], pa.int64())))
    [file] = DeltaTable(str(path)).file_uris()
    assert pa.string_view() in pq.read_schema(file.removeprefix("file://")).types
    seen = {name: canon.rows(reader(path)) for name, reader in READERS.items()}
    table = open_table(str(path))
    schema, batches = read(table)
    ours = pa.Table.from_batches(batches, schema)
    assert (ours.num_rows, ours.schema.types) == (48, rows.schema.types)
    assert {*ours["name"].to_pylist()} >= {"m", "n", "new", "n49"}
    assert purge(table, LocalEngine()).verified
    for name, reader in READERS.items():
        assert canon.rows(reader(path)) == seen[name], name


# -- nanoseconds: delta-rs makes and reads such tables, Spark does not -------------------------------------------------


def nanos(ids: range) -> pa.Table:
    values = [None if n % 7 == 0 else n * 1_000_000_007 - 5 for n in ids]
    return pa.table(
        {
            "id": pa.array(ids, pa.int32()),
            "t": pa.array(values, pa.timestamp("ns", "UTC")),
            "n": pa.array(values, pa.timestamp("ns")),
            "s": pa.array([{"t": value} for value in values], pa.struct([("t", pa.timestamp("ns", "UTC"))])),
            "a": pa.array([[value, None] for value in values], pa.list_(pa.timestamp("ns"))),
        }
    )


@pytest.fixture
def made_of_nanos(tmp_path: Path) -> Path:
    path = tmp_path / "t"
    zoned, local = PrimitiveType("timestamp_nanos"), PrimitiveType("timestamp_nanos_ntz")
    nested = [Field("s", StructType([Field("t", zoned)])), Field("a", ArrayType(local))]
    schema = Schema([Field("id", PrimitiveType("integer")), Field("t", zoned), Field("n", local), *nested])
    DeltaTable.create(str(path), schema, configuration={"delta.enableDeletionVectors": "true"})
    for start in range(0, 300, 100):
        append_nanos(path, range(start, start + 100))
    return path


def append_nanos(path: Path, ids: range) -> None:
    """A file of ours in a commit of delta-rs, whose own writer cuts values off to microseconds."""
    file = path / f"{ids.start}.parquet"
    pq.write_table(nanos(ids), file)
    stats = {"numRecords": len(ids), "minValues": {"id": ids[0]}, "maxValues": {"id": ids[-1]}, "nullCount": {"id": 0}}
    table = DeltaTable(str(path))
    add = AddAction(file.name, file.stat().st_size, {}, 1, True, json.dumps(stats))
    table.create_write_transaction([add], "append", table.schema())


def by_delta_rs(path: Path, where: str = "true", version: int | None = None) -> pa.Table:
    found = QueryBuilder().register("t", DeltaTable(str(path), version))
    return pa.table(found.execute(f"SELECT * FROM t WHERE {where} ORDER BY id"))


def test_nanoseconds_are_moved_as_they_are(made_of_nanos: Path) -> None:
    path, table = made_of_nanos, open_table(str(made_of_nanos))
    ids = ", ".join(map(str, range(0, 300, 3)))
    assert delete(table, LocalEngine(), f"id IN ({ids})").rows_deleted == 100
    before, version = by_delta_rs(path), table.version()
    assert before.num_rows == 200
    assert any(value.value % 1000 for value in before["t"].drop_null())
    conditions = ("t > '1970-01-01T00:01:00'", "n = '1970-01-01T00:00:09.999999995'", "t IS NULL")
    asked = [by_delta_rs(path, each) for each in conditions]

    report = purge(table, LocalEngine())
    assert report.verified, report.problems
    assert table.snapshot().files["dv_id"].null_count == table.snapshot().files.num_rows
    assert by_delta_rs(path) == before == by_delta_rs(path, version=version)
    assert [by_delta_rs(path, each) for each in conditions] == asked
    schema, batches = read(table)
    ours = pa.Table.from_batches(batches, schema).sort_by("id")
    assert ours.cast(before.schema) == before

    # Nothing is skipped by bounds: writers cut off nanoseconds. delta-rs goes on.
    for row in full_state(table.storage, load_snapshot(table.storage)).adds.to_pylist():
        assert json.loads(row["stats"])["minValues"].keys() == {"id"}
    write_deltalake(str(path), nanos(range(300, 310)), mode="append")
    DeltaTable(str(path)).delete("id % 10 = 1")
    maintain(table, LocalEngine())
    assert by_delta_rs(path).num_rows == 210 - 21
    assert table.vacuum(VacuumRequest(retention=0, allow_short_retention=True)).deleted
    assert by_delta_rs(path).num_rows == 210 - 21


def test_changed_rows_keep_their_nanoseconds(made_of_nanos: Path, spark: SparkSession) -> None:
    path, table = made_of_nanos, open_table(str(made_of_nanos))
    before = by_delta_rs(path).to_pylist()
    assert update(table, spark, {"id": "id + 1000"}, "id % 10 = 3").rows_updated == 30
    source = "SELECT * FROM VALUES (5, 2005), (3000, 3000) AS s(id, new)"
    merging = merge(table, spark, spark.sql(source), "t.id = s.id", target_alias="t", source_alias="s")
    merging.when_matched_update({"id": "s.new", "n": "NULL"}).when_not_matched_insert({"id": "s.new"}).execute()
    for row in before:
        row["id"] += 1000 if row["id"] % 10 == 3 else 0
        if row["id"] == 5:
            row |= {"id": 2005, "n": None}
    wanted = [*before, {"id": 3000, "t": None, "n": None, "s": None, "a": None}]
    assert by_delta_rs(path).to_pylist() == sorted(wanted, key=lambda row: row["id"])
    assert by_delta_rs(path, "id = 1003")["t"][0].value == 3 * 1_000_000_007 - 5
    for sets, condition in (({"id": "1"}, "t IS NULL"), ({"id": "size(a)"}, "true"), ({"t": "now()"}, "true")):
        with pytest.raises(RefusedError, match="holds nanoseconds"):
            update(table, spark, sets, condition)
    with pytest.raises(RefusedError, match=r"column n, which holds nanoseconds: t\.n < s\.new"):
        merge(table, spark, spark.sql(source), "t.n < s.new", target_alias="t", source_alias="s").when_matched_update(
            {"id": "1"}
        ).execute()
    DeltaTable(str(path)).alter.add_constraint({"c": "id >= 0 OR t IS NULL"})
    with pytest.raises(RefusedError, match="column t, which holds nanoseconds: id >= 0"):
        update(table, spark, {"id": "1"})


def test_what_spark_lacks_stays_out_of_spark(made_of_nanos: Path) -> None:
    table = open_table(str(made_of_nanos))
    snapshot = table.snapshot()
    nobody: Any = None
    for name in ("t", "s"):
        with pytest.raises(UnsupportedFeatureError, match=f"column '{name}' has the type nanos"):
            spark_schema(pa.schema([snapshot.schema.field(name)]))
        with pytest.raises(RefusedError, match="can't be passed to Spark"):
            live_rows(nobody, [], pa.schema([snapshot.schema.field(name)]), None)

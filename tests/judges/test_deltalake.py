"""Tables made by deltalake, compacted by us, judged by deltalake and polars."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from support.readers import READERS

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.testing.delta_builder import DeltaBuilder


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

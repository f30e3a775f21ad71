"""Tables made by deltalake, compacted by us, judged by deltalake and polars."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from readers import READERS

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.apply import maintain, purge
from dv_maintenance.tables import open_table


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

    table.vacuum(retention=0, allow_short_retention=True, now=after.timestamp + 1000)
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

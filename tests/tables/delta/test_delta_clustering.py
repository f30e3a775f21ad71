"""Clustered tables: which files share a new one, and what a new file says of its unit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.clustered import cluster_by, cluster_files, clustered

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.maintenance.execution.apply import apply, purge
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.read import read
from dv_maintenance.maintenance.zorder import zorder
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.replay import full_state
from dv_maintenance.tables.delta.rows.clustering import kept_number
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])


@pytest.fixture
def builder(tmp_path: Path) -> DeltaBuilder:
    return clustered(DeltaBuilder(str(tmp_path / "t")), SCHEMA, ["a"], **{"delta.dataSkippingNumIndexedCols": "0"})


def append(builder: DeltaBuilder, first: int, files: int, per_file: int = 100) -> list[str]:
    """New files' paths."""
    before = set(paths(builder))
    numbers = range(first, first + files * per_file)
    builder.append(pa.table({"a": numbers, "b": [f"v{n}" for n in numbers]}, SCHEMA), files=files)
    return sorted(set(paths(builder)) - before)


def paths(builder: DeltaBuilder) -> list[str]:
    found: list[str] = load_snapshot(builder.storage).files["path"].to_pylist()
    return found


def adds(builder: DeltaBuilder) -> list[dict[str, Any]]:
    rows = full_state(builder.storage, load_snapshot(builder.storage)).adds.to_pylist()
    return [{**row, "tags": dict(row["tags"] or ())} for row in rows]


def unit(add: dict[str, Any]) -> tuple[Any, ...]:
    return add["tags"].get("ZCUBE_ID"), add["tags"].get("ZCUBE_ZORDER_BY"), add["clusteringProvider"]


def values(builder: DeltaBuilder) -> list[int]:
    return sorted(value for batch in read(open_table(builder.storage.uri))[1] for value in batch["a"].to_pylist())


def test_a_purge_gives_each_clustered_file_one_of_its_own(builder: DeltaBuilder) -> None:
    cluster_files(builder, append(builder, 0, 2), "one", ["a"])
    cluster_files(builder, append(builder, 200, 1), "two", ["a"], provider=None)
    append(builder, 300, 2)
    builder.delete(lambda rows: pc.equal(pc.bit_wise_and(rows["a"], 3), 0))
    before = values(builder)
    report = purge(open_table(builder.storage.uri), LocalEngine())
    assert report.verified
    assert values(builder) == before
    one, two = ("one", '["a"]', "liquid"), ("two", '["a"]', None)
    assert sorted(map(str, map(unit, adds(builder)))) == sorted(map(str, [one, one, two, (None, None, None)]))
    assert all(json.loads(add["stats"])["minValues"].keys() == {"a"} for add in adds(builder)), "whatever is indexed"


def test_small_files_are_merged_with_neighbours_of_their_unit(builder: DeltaBuilder) -> None:
    one = append(builder, 0, 4)
    cluster_files(builder, one, "one", ["a"])
    cluster_files(builder, append(builder, 400, 1), "two", ["a"])
    cluster_files(builder, append(builder, 500, 1), "one", ["b"])  # the same id, but other columns
    loose = append(builder, 600, 2)
    # The second file of the unit is not small, so what is before it has no neighbour.
    dirty = {one[1]: range(60)}
    builder.delete(dirty)
    plan = build_plan(load_snapshot(builder.storage), Policy(max_deleted_ratio=0.5))
    merged = sorted(tuple(sorted(each.path for each in step.inputs)) for step in plan.steps)
    assert merged == sorted([(one[1],), tuple(one[2:]), tuple(loose)])
    before = values(builder)
    assert apply(open_table(builder.storage.uri), LocalEngine(), plan).verified
    assert values(builder) == before
    found = [unit(add) for add in adds(builder)]
    assert found.count(("one", '["a"]', "liquid")) == 3
    assert found.count((None, None, None)) == 1
    again = build_plan(load_snapshot(builder.storage), Policy(max_deleted_ratio=0.5))
    assert all(
        {unit(add) for add in adds(builder) if add["path"] in {each.path for each in step.inputs}}
        == {("one", '["a"]', "liquid")}
        for step in again.steps
    )


def test_a_file_of_an_unknown_unit_is_rewritten_alone(builder: DeltaBuilder) -> None:
    chosen, actions = {*append(builder, 0, 3)}, []
    for add in adds(builder):
        known = {name: value for name, value in add.items() if value is not None and name in ("path", "size", "stats")}
        known |= {"partitionValues": {}, "modificationTime": add["modificationTime"], "dataChange": False}
        actions.append({"add": {**known, "clusteringProvider": "other"}})
    builder.commit(actions)
    assert build_plan(load_snapshot(builder.storage)).steps == ()
    builder.delete({min(chosen): range(60)})
    purge(open_table(builder.storage.uri), LocalEngine())
    assert [add["clusteringProvider"] for add in adds(builder)] == ["other"] * 3


def test_a_delete_keeps_the_unit_and_new_rows_have_none(builder: DeltaBuilder) -> None:
    cluster_files(builder, append(builder, 0, 1), "one", ["a"])
    builder.delete(lambda rows: pc.less(rows["a"], 10))
    append(builder, 100, 1)
    assert load_snapshot(builder.storage).units().tolist() in ([0, -1], [-1, 0])
    builder.checkpoint()
    assert load_snapshot(builder.storage).units().tolist() in ([0, -1], [-1, 0])


def test_other_clustering_columns_have_statistics_from_then_on(builder: DeltaBuilder) -> None:
    cluster_files(builder, append(builder, 0, 1), "one", ["a"])
    cluster_by(builder, [["b"]])
    builder.delete(lambda rows: pc.less(rows["a"], 10))
    purge(open_table(builder.storage.uri), LocalEngine())
    (add,) = adds(builder)
    assert unit(add) == ("one", '["a"]', "liquid"), "as the engine, which leaves such files to OPTIMIZE FULL"
    assert json.loads(add["stats"])["minValues"] == {"b": "v10"}


def test_a_domain_without_columns_is_damage(builder: DeltaBuilder) -> None:
    domain = {"domain": "delta.clustering", "configuration": '{"clusteringColumns": 1}', "removed": False}
    builder.commit([{"domainMetadata": domain}])
    append_dirty = DeltaBuilder(builder.storage.uri)
    with pytest.raises(DamagedTableError, match="does not name its columns"):
        zorder(open_table(append_dirty.storage.uri), LocalEngine(), ["a"])


def test_an_ordered_file_stays_ordered_when_it_is_purged(tmp_path: Path) -> None:
    builder = DeltaBuilder(str(tmp_path / "t")).create(SCHEMA)
    append(builder, 0, 2)
    table = open_table(builder.storage.uri)
    zorder(table, LocalEngine(), ["a"])
    builder.delete(lambda rows: pc.less(rows["a"], 10))
    purge(table, LocalEngine())
    assert zorder(table, LocalEngine(), ["a"]).steps == ()


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("part-00003-c78ebe11-d8ec-c000.snappy.parquet", "part-00003-"),
        ("Xy/part-00003-00012-c78ebe11.parquet", "part-00003-00012-"),
        ("part-c78ebe11.parquet", "part-"),
        ("other.parquet", "part-"),
        ("part-{uuid}.parquet", "part-"),
    ],
)
def test_new_files_are_numbered_as_those_they_replace(path: str, kept: str) -> None:
    assert kept_number(path) == kept

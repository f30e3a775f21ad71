"""Clustered tables: which files share a new one, and what a new file says of its unit."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.clustered import cluster_by, cluster_files, clustered

from dv_maintenance.cli import main
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.maintenance.cluster import cluster, plan_cluster
from dv_maintenance.maintenance.execution.apply import apply, purge
from dv_maintenance.maintenance.meter.of_table import decide_for
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.planning.steps import MaintenancePlan
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


# -- cluster ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(builder: DeltaBuilder) -> Any:
    return open_table(builder.storage.uri)


def test_only_what_is_not_clustered_is_clustered(builder: DeltaBuilder, place: Any) -> None:
    append(builder, 0, 40, 500)
    builder.delete(lambda rows: pc.equal(pc.bit_wise_and(rows["a"], 3), 0))
    before = values(builder)
    report = cluster(place, LocalEngine(), target_size=20_000)
    assert (report.verified, values(builder)) == (True, before)
    found = sorted(adds(builder), key=lambda add: add["path"])
    assert len(found) > 3
    assert len({unit(add) for add in found}) == 1
    assert unit(found[0])[1:] == ('["a"]', "liquid")
    bounds = [json.loads(add["stats"]) for add in found]
    assert all(low["maxValues"]["a"] <= high["minValues"]["a"] for low, high in pairwise(bounds))
    assert [add["path"].split("-")[1:3] for add in found] == [["00001", f"{n:05}"] for n in range(len(found))]

    assert cluster(place, LocalEngine()).steps == ()
    append(builder, 20_000, 1)
    plan = plan_cluster(place, place.snapshot())
    assert [each.why for step in plan.steps for each in step.inputs] == ["unclustered"], "the unit is much larger"
    apply(place, LocalEngine(), plan)
    assert {unit(add)[0] for add in adds(builder)} == {unit(found[0])[0], plan.unit}
    append(builder, 20_100, 1)
    again = plan_cluster(place, place.snapshot())
    assert sorted(each.why for step in again.steps for each in step.inputs) == ["small_unit", "unclustered"]


def test_changed_columns_are_clustered_by_a_full_run(builder: DeltaBuilder, place: Any) -> None:
    append(builder, 0, 2)
    cluster(place, LocalEngine())
    cluster_by(builder, [["b"]])
    assert plan_cluster(place, place.snapshot()).steps == ()
    assert cluster(place, LocalEngine(), full=True).verified
    (add,) = adds(builder)
    assert unit(add)[1:] == ('["b"]', "liquid")


def test_what_cannot_be_clustered_is_refused(tmp_path: Path) -> None:
    plain = DeltaBuilder(str(tmp_path / "plain")).create(SCHEMA)
    with pytest.raises(RefusedError, match="not clustered: it names no columns") as caught:
        cluster(open_table(plain.storage.uri), LocalEngine())
    assert "zorder(" in str(caught.value)
    nested = DeltaBuilder(str(tmp_path / "nested")).create(
        pa.schema([("a", pa.struct([("x", pa.int64())]))]), features=["clustering"]
    )
    cluster_by(nested, [["a"]])
    with pytest.raises(RefusedError, match=r"clustered by a, and values of type struct"):
        cluster(open_table(nested.storage.uri), LocalEngine())


def test_nested_columns(tmp_path: Path) -> None:
    """Next to a column whose name reads like the path of another one. The fields of a null struct are null."""
    schema = pa.schema([("a", pa.struct([("x", pa.int64()), ("b c", pa.string())])), ("a.x", pa.int64())])
    builder = DeltaBuilder(str(tmp_path / "t")).create(schema, features=["clustering", "domainMetadata"])
    cluster_by(builder, [["a", "x"], ["a", "b c"], ["a.x"]])
    rows = [{"a": None if n % 50 == 0 else {"x": n * 7919 % 3000, "b c": "v"}, "a.x": 1} for n in range(3000)]
    builder.append(pa.Table.from_pylist(rows, schema), files=6)
    report = cluster(open_table(builder.storage.uri), LocalEngine(), target_size=4_000)
    assert report.verified
    found = sorted(adds(builder), key=lambda add: add["path"])
    assert len(found) > 3
    assert {unit(add)[1:] for add in found} == {('["a.x","a.`b c`","`a.x`"]', "liquid")}
    bounds = [json.loads(add["stats"]) for add in found]
    assert sum(each["nullCount"]["a"]["x"] for each in bounds) == bounds[0]["nullCount"]["a"]["x"] == 60
    assert all(low["maxValues"]["a"]["x"] <= high["minValues"]["a"]["x"] for low, high in pairwise(bounds))
    assert cluster(open_table(builder.storage.uri), LocalEngine()).steps == ()


def test_the_command(builder: DeltaBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    append(builder, 0, 2)
    assert main(["cluster", builder.storage.uri, "--engine", "local", "--dry-run"]) == 0
    assert "2 not clustered yet" in capsys.readouterr().out
    assert main(["cluster", builder.storage.uri, "--engine", "local"]) == 0
    assert len(adds(builder)) == 1
    assert main(["zorder", builder.storage.uri, "--columns", "a", "--engine", "local"]) == 3
    assert "dvm cluster" in capsys.readouterr().err


def test_a_row_deleted_meanwhile_stays_deleted(builder: DeltaBuilder, place: Any) -> None:
    append(builder, 0, 2)
    plan = plan_cluster(place, place.snapshot())
    builder.delete(lambda rows: pc.less(rows["a"], 10))
    assert apply(place, LocalEngine(), plan).verified
    assert values(builder) == list(range(10, 200))
    assert {unit(add)[0] for add in adds(builder)} == {plan.unit}


def test_a_policy_that_clusters(builder: DeltaBuilder, place: Any) -> None:
    policy = Policy(cluster=True, max_deleted_ratio=0.5)
    append(builder, 0, 2, 30_000)
    apply(place, LocalEngine(), decide_for(place, place.snapshot(), policy))
    assert {unit(add)[1] for add in adds(builder)} == {'["a"]'}
    append(builder, 60_000, 1)
    (clustered_file, loose) = sorted(paths(builder), key=lambda path: "part-00001-" not in path)
    builder.delete({clustered_file: range(35_000)})
    (step,) = decide_for(place, place.snapshot(), policy).steps
    assert [each.path for each in step.inputs] == [clustered_file]
    more = append(builder, 61_000, 1)
    plan = decide_for(place, place.snapshot(), policy)
    assert MaintenancePlan.from_json(plan.to_json()) == plan
    assert [(step.keeps_order, {each.path for each in step.inputs}) for step in plan.steps] == [
        (True, {clustered_file}),
        (False, {loose, *more}),
    ]
    for tasks, left in ((1, 0), (2, 1), (3, 2)):  # one was spent today
        limited = decide_for(place, place.snapshot(), policy.model_copy(update={"max_tasks": tasks}))
        assert len(limited.steps) == left
    before = values(builder)
    assert apply(place, LocalEngine(), plan).verified
    assert values(builder) == before
    assert {unit(add)[1] for add in adds(builder)} == {'["a"]'}
    assert len({unit(add)[0] for add in adds(builder)}) == 2
    assert decide_for(place, place.snapshot(), policy).steps == ()


def test_steps_of_a_policy_that_clusters_fit_its_limits(builder: DeltaBuilder, place: Any) -> None:
    append(builder, 0, 4, 1000)
    policy = Policy(cluster=True, target_file_size=100)
    (together,) = decide_for(place, place.snapshot(), policy).steps
    assert len(together.inputs) == 4
    limited = decide_for(place, place.snapshot(), policy.model_copy(update={"max_files": 3}))
    assert [len(step.inputs) for step in limited.steps] == [1, 1, 1]


def test_a_policy_that_clusters_leaves_other_tables_as_they_are(tmp_path: Path) -> None:
    plain = DeltaBuilder(str(tmp_path / "plain")).create(SCHEMA)
    append(plain, 0, 2)
    table = open_table(plain.storage.uri)
    policy = Policy(cluster=True)
    assert decide_for(table, table.snapshot(), policy).steps == decide_for(table, table.snapshot()).steps != ()

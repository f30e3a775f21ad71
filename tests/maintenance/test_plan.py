"""Plans: every file in exactly one place, for a reason, within the limits, whatever the table looks like."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dv_maintenance.errors import DamagedTableError, UsageError
from dv_maintenance.maintenance.execution.report import nothing_to_purge
from dv_maintenance.maintenance.planning.explain import explain
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.planning.steps import MaintenancePlan
from dv_maintenance.tables.model import FILES_SCHEMA, Snapshot
from dv_maintenance.tables.partition_spec import by_columns

MIB = 1 << 20


def file(path: str, size: int = 256 * MIB, rows: int | None = 1000, deleted: int = 0, **more: Any) -> dict[str, Any]:
    dv_id = f"dv-{path}" if deleted else None
    base = {"partition": "", "dv_id": dv_id, "modified": 0}
    return {"path": path, "size": size, "physical_rows": rows, "deleted_rows": deleted, **base, **more}


def table(
    *files: Mapping[str, Any],
    properties: Mapping[str, str] | None = None,
    partitioned: bool = False,
    format: str = "memory",
) -> Snapshot:
    return Snapshot(
        table="file:///t",
        format=format,
        version=7,
        timestamp=0,
        schema=pa.schema([("p", pa.string())]),
        specs=by_columns("p") if partitioned or any(each["partition"] for each in files) else by_columns(),
        properties=properties or {},
        files=pa.Table.from_pylist([dict(each) for each in files], schema=FILES_SCHEMA),
    )


def groups(plan: MaintenancePlan) -> list[list[str]]:
    """The inputs of each rewrite, by path."""
    return [[each.path for each in step.inputs] for step in plan.steps if step.action == "rewrite"]


def reasons(plan: MaintenancePlan) -> dict[str, int]:
    return {each.reason: each.files for each in plan.left_alone}


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    files = []
    for number in range(draw(st.integers(0, 25))):
        rows = draw(st.none() | st.integers(0, 50))
        dv = draw(st.booleans()) and rows != 0
        deleted = draw(st.integers(0, 50 if rows is None else rows)) if dv else 0
        files.append(
            file(
                f"f{number:02}",
                size=draw(st.integers(0, 300)),
                rows=rows,
                deleted=deleted,
                dv_id=f"dv{number}" if dv else None,
                partition=f"p={draw(st.sampled_from('ab'))}",
                modified=draw(st.integers(0, 3)),
            )
        )
    return table(*files, partitioned=True)


policies = st.builds(
    Policy,
    max_deleted_ratio=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    target_file_size=st.sampled_from([1, 100, 1000]),
    min_file_size=st.sampled_from([None, 0, 50]),
    min_input_files=st.integers(2, 4),
    max_bytes=st.sampled_from([None, 150, 1000]),
    max_files=st.sampled_from([None, 1, 5]),
    max_tasks=st.sampled_from([None, 1, 3]),
    partitions=st.sampled_from([(), ({"p": "a"},)]),
)


@given(snapshots(), policies, st.booleans())
@settings(max_examples=examples(25))
def test_what_holds_in_every_plan(snapshot: Snapshot, policy: Policy, purge: bool) -> None:
    plan = build_plan(snapshot, policy, purge=purge)
    rows = {row["path"]: row for row in snapshot.files.to_pylist()}
    inputs = [each for step in plan.steps for each in step.inputs]

    # Each file is in one step, or counted as left alone.
    assert max(Counter(each.path for each in inputs).values(), default=1) == 1
    assert len(inputs) + sum(each.files for each in plan.left_alone) == len(rows)
    assert sum(each.size for each in inputs) + sum(each.size_bytes for each in plan.left_alone) == sum(
        row["size"] for row in rows.values()
    )

    for step in plan.steps:
        # A step stays in its partition, and says what the log says.
        for each in step.inputs:
            row = rows[each.path]
            assert row["partition"] == step.partition
            assert (each.dv_id, each.size) == (row["dv_id"], row["size"])
            assert (each.physical_rows, each.deleted_rows) == (row["physical_rows"], row["deleted_rows"])
            assert policy.partitions == () or step.partition == "p=a"
            assert each.dv_id is not None or not purge
            if step.action == "remove":
                assert each.dv_id is not None
                assert 0 < each.deleted_rows == (each.physical_rows or 0)
        if step.action == "rewrite" and {each.why for each in step.inputs} == {"small"}:
            assert len(step.inputs) >= policy.min_input_files
        live = sum(
            each.size * (each.physical_rows - each.deleted_rows) / each.physical_rows
            if each.physical_rows
            else each.size
            for each in step.inputs
        )
        assert len(step.inputs) == 1 or step.action == "remove" or live <= plan.target_file_size + len(step.inputs)

    # Limits.
    if policy.max_bytes is not None and sum(step.cost.bytes_read for step in plan.steps) > policy.max_bytes:
        (alone,) = (step for step in plan.steps if step.action == "rewrite")
        assert max(each.size for each in alone.inputs) > policy.max_bytes
    assert policy.max_files is None or len(inputs) <= policy.max_files
    assert policy.max_tasks is None or sum(step.action == "rewrite" for step in plan.steps) <= policy.max_tasks

    # Without limits, a purge misses no deletion vector of the selection.
    if purge and policy.max_bytes is policy.max_files is policy.max_tasks is None:
        wanted = {
            path
            for path, row in rows.items()
            if row["dv_id"] is not None and (not policy.partitions or row["partition"] == "p=a")
        }
        assert {each.path for each in inputs} == wanted

    assert MaintenancePlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert explain(plan)


@given(snapshots(), policies, st.randoms(use_true_random=False))
@settings(max_examples=examples(30))
def test_the_order_of_files_in_the_log_does_not_matter(snapshot: Snapshot, policy: Policy, random: Any) -> None:
    rows = snapshot.files.to_pylist()
    random.shuffle(rows)
    assert build_plan(table(*rows, partitioned=True), policy) == build_plan(snapshot, policy)


def test_more_deleted_rows_than_the_ratio_allows() -> None:
    plan = build_plan(table(file("at", deleted=50), file("above", deleted=51)))
    assert groups(plan) == [["above"]]
    assert reasons(plan) == {"at most 5 % of its rows deleted, and at least 192 MiB of live rows": 1}
    assert plan.steps[0].reason == "1 file with more than 5 % of the rows deleted: rewrite into one new file"


def test_a_big_file_that_is_half_deleted_is_a_small_file() -> None:
    plan = build_plan(table(file("a", deleted=600), file("b", deleted=600), file("c", deleted=900)))
    # By live bytes 102, 102 and 26 MiB, of 768 MiB on disk.
    assert groups(plan) == [["a", "b", "c"]]
    lazy = Policy(max_deleted_ratio=0.9)
    assert groups(build_plan(table(file("a", deleted=600), file("b", deleted=600)), lazy)) == [["a", "b"]]
    assert groups(build_plan(table(file("a", deleted=600)), lazy)) == []


def test_bins_are_packed_by_live_bytes() -> None:
    # 2 GiB on disk, 200 MiB alive: one new file.
    plan = build_plan(table(*(file(f"f{n}", deleted=900) for n in range(8))))
    assert len(groups(plan)) == 1
    assert plan.steps[0].expected.files_after == 1
    assert plan.steps[0].cost.bytes_read == 8 * 256 * MIB


def test_a_bin_does_not_read_without_bounds() -> None:
    # A thousandth alive: by live bytes alone one task would read 50 GiB.
    plan = build_plan(table(*(file(f"f{n:03}", deleted=999) for n in range(200))))
    assert len(groups(plan)) == 25
    assert max(step.cost.bytes_read for step in plan.steps) <= 8 * 256 * MIB


def test_small_files_are_merged_only_together() -> None:
    small = [file(f"f{n}", size=MIB) for n in range(3)]
    assert groups(build_plan(table(*small))) == [["f0", "f1", "f2"]]
    assert groups(build_plan(table(*small), Policy(min_input_files=4))) == []
    assert groups(build_plan(table(small[0]))) == []
    assert reasons(build_plan(table(small[0]))) == {
        "small, but fewer than 2 such files fit into a new one of 256 MiB": 1
    }


def test_a_dirty_file_goes_alone_or_takes_small_ones_along() -> None:
    assert groups(build_plan(table(file("dirty", deleted=500)))) == [["dirty"]]
    plan = build_plan(table(file("dirty", deleted=500), file("small", size=MIB)))
    assert groups(plan) == [["dirty", "small"]]
    assert [each.why for each in plan.steps[0].inputs] == ["deleted_ratio", "small"]


def test_a_deletion_vector_without_row_count_goes() -> None:
    plan = build_plan(table(file("a", rows=None, deleted=1), file("b", rows=None)))
    assert groups(plan) == [["a"]]
    assert plan.steps[0].inputs[0].why == "unknown_rows"
    assert plan.steps[0].expected.live_rows is None
    assert plan.steps[0].expected.rows_purged == 1


def test_wholly_deleted_files_are_removed_without_being_read() -> None:
    plan = build_plan(table(file("a", deleted=1000), file("b", deleted=1000), file("c")), Policy(max_deleted_ratio=1))
    assert [(step.action, len(step.inputs)) for step in plan.steps] == [("remove", 2)]
    assert plan.steps[0].cost.bytes_read == plan.steps[0].expected.files_after == 0
    # No DV, no proof: the row count of such a file is not what data is dropped on.
    assert [step.action for step in build_plan(table(file("a", rows=0), file("b", rows=0, size=5))).steps] == []


def test_purge_takes_deletion_vectors_and_nothing_else() -> None:
    files = [file("lone", deleted=1), file("tiny", size=1), file("tiny2", size=1), file("big")]
    plan = build_plan(table(*files), purge=True)
    assert groups(plan) == [["lone"]]
    assert reasons(plan) == {"no deletion vector": 3}
    empty = build_plan(table(file("empty", dv_id="x")), purge=True)
    assert groups(empty) == [["empty"]]


def test_partitions_do_not_mix_and_can_be_chosen() -> None:
    files = [file(f"{p}{n}", size=MIB, partition=f"p={p}") for n in range(2) for p in "ab"]
    assert groups(build_plan(table(*files))) == [["a0", "a1"], ["b0", "b1"]]
    plan = build_plan(table(*files), Policy(partitions=[{"p": "b"}]))
    assert groups(plan) == [["b0", "b1"]]
    assert reasons(plan) == {"outside the selected partitions": 2}
    with pytest.raises(UsageError, match=r"'q' is not a partition column.*use p"):
        build_plan(table(*files), Policy(partitions=[{"q": "b"}]))


def test_null_partitions_can_be_chosen() -> None:
    files = [
        file("null", deleted=900, partition="p=__HIVE_DEFAULT_PARTITION__"),
        file("x", deleted=900, partition="p=x"),
    ]
    assert groups(build_plan(table(*files), Policy(partitions=[{"p": None}]))) == [["null"]]


def test_limits_take_what_does_the_most_good_per_byte_first() -> None:
    files = [file("half", deleted=500, partition="p=1"), file("most", deleted=900, partition="p=2")]
    everything = build_plan(table(*files))
    assert groups(everything) == [["most"], ["half"]]
    one = build_plan(table(*files), Policy(max_tasks=1))
    assert groups(one) == [["most"]]
    assert reasons(one) == {"over the daily limit: max_tasks is 1": 1}
    assert one.left_alone[0].examples == ("half",)


def test_what_does_not_fit_makes_room_for_what_does() -> None:
    files = [
        *(file(name, size=100 * MIB, deleted=900, partition=f"p={name}") for name in "ab"),
        file("small", size=20 * MIB, deleted=500, partition="p=c"),
    ]
    plan = build_plan(table(*files), Policy(max_bytes="130MiB"))
    assert groups(plan) == [["a"], ["small"]]
    assert reasons(plan) == {"over the daily limit: max_bytes is 130 MiB": 1}


def test_a_file_above_max_bytes_gets_a_run_of_its_own() -> None:
    """No run took it, and nothing said so: its deleted rows stayed for ever."""
    large = [file("big", size=500 * MIB, deleted=900, partition="p=1"), file("half", size=301 * MIB, deleted=500)]
    plan = build_plan(table(*large, file("ok", size=MIB, deleted=500, partition="p=2")), Policy(max_bytes="300MiB"))
    assert groups(plan) == [["ok"]]
    assert reasons(plan) == {"larger than max_bytes, 300 MiB: waits for a day without other work": 2}
    # Nothing else needs a rewrite: removals cost nothing to read.
    gone = file("gone", deleted=1000, partition="p=3")
    plan = build_plan(table(*large, gone), Policy(max_bytes="300MiB"))
    assert [[each.path for each in step.inputs] for step in plan.steps] == [["gone"], ["big"]]
    assert plan.steps[1].reason.endswith("; larger than max_bytes, 300 MiB, so it gets its own run")
    assert reasons(plan) == {"larger than max_bytes, 300 MiB: waits for a day without other work": 1}
    # The other limits hold.
    assert groups(build_plan(table(*large, gone), Policy(max_bytes="300MiB", max_files=1))) == []


def test_bins_are_cut_to_the_limits() -> None:
    files = [file(f"f{n}", size=MIB) for n in range(10)]
    plan = build_plan(table(*files), Policy(max_files=4))
    assert [len(group) for group in groups(plan)] == [4]
    plan = build_plan(table(*files), Policy(max_bytes="5MiB"))
    assert sum(len(group) for group in groups(plan)) >= 4
    removals = build_plan(table(*(file(f"f{n}", deleted=1000) for n in range(10))), Policy(max_files=4))
    assert [len(step.inputs) for step in removals.steps] == [4]


def test_a_second_run_finds_nothing_left_to_do() -> None:
    """The new files, of the size that was expected, are not worth touching again."""
    files = [file(f"f{n:02}", size=(n * 37 % 90 + 1) * MIB, deleted=n * 83 % 1000) for n in range(40)]
    plan = build_plan(table(*files))
    gone = {each.path for step in plan.steps for each in step.inputs}
    kept = [each for each in files if each["path"] not in gone]
    new = [file(f"new-{step.id}", size=step.expected.bytes_after) for step in plan.steps]
    assert plan.steps
    assert build_plan(table(*kept, *new)).steps == ()


def test_the_target_size_comes_from_the_policy_then_the_table() -> None:
    dirty = file("a", deleted=500)

    def target(format: str, policy: Policy | None = None, **properties: str) -> int:
        return build_plan(table(dirty, properties=properties, format=format), policy).target_file_size

    megabytes: dict[str, str] = {"delta.targetFileSize": "64mb", "target-file-size": "1048576"}
    assert target("delta") == 256 * MIB
    assert target("delta", **megabytes) == 64 * MIB
    assert target("paimon", **megabytes) == MIB
    assert target("lance", **megabytes) == 256 * MIB
    assert target("delta", Policy(target_file_size="1GiB"), **megabytes) == 1024 * MIB
    with pytest.raises(UsageError, match=r"delta\.targetFileSize: not a size"):
        target("delta", **{"delta.targetFileSize": "a lot"})


@pytest.mark.parametrize("files", [0, 1, 9])
def test_without_dvs_a_purge_leaves_alone_what_its_plan_would(files: int) -> None:
    clean = table(*(file(f"{9 - number}") for number in range(files)))
    report = nothing_to_purge(clean)
    assert report is not None
    assert report.left_alone == build_plan(clean, purge=True).left_alone


def test_a_file_above_the_target_becomes_several() -> None:
    plan = build_plan(table(file("a", size=1100 * MIB, deleted=100)))
    assert plan.steps[0].expected.files_after == 4
    # A tenth too much is not worth a file of its own.
    assert build_plan(table(file("a", size=270 * MIB, deleted=60))).steps[0].expected.files_after == 1


def test_an_empty_table_has_an_empty_plan() -> None:
    plan = build_plan(table())
    assert (plan.steps, plan.left_alone) == ((), ())
    assert "Nothing to do" in explain(plan)


def test_numbers_that_contradict_each_other_are_damage() -> None:
    with pytest.raises(DamagedTableError, match=r"the log lists bad with .* 10 rows, 11 of them deleted"):
        build_plan(table(file("ok"), file("bad", rows=10, deleted=11)))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"steps": 5}, "steps"),
        ({"version": "7"}, "version"),
        ({"version": -1}, "negative"),
        ({"surprise": 1}, "surprise"),
        ({"policy": {"max_deleted_ratio": 7}}, "max_deleted_ratio"),
        ({"target_file_size": 0}, "negative"),
        ({"steps.0.action": "remove"}, "would remove a, which has live rows"),
        ({"steps.0.action": "drop table"}, "action"),
        ({"steps.0.inputs": []}, "no inputs"),
        ({"steps.0.inputs.0.size": -1}, "negative"),
        ({"steps.0.inputs.0.path": None}, "path"),
        ({"steps.1.id": "step-1"}, "share an id"),
        ({"steps.1.inputs.0.path": "a", "steps.1.inputs.0.dv_id": "dv-a"}, "input more than once"),
    ],
)
def test_plans_that_are_none_are_refused(change: dict[str, Any], complaint: str) -> None:
    body = build_plan(table(file("a", deleted=900, partition="p=1"), file("b", deleted=600, partition="p=2"))).to_json()
    for where, value in change.items():
        *path, last = (int(part) if part.isdigit() else part for part in where.split("."))
        place: Any = body
        for part in path:
            place = place[part]
        place[last] = value
    with pytest.raises(UsageError, match=complaint):
        MaintenancePlan.from_json(body)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"steps": []}', "\x00"])
def test_files_that_hold_no_plan_are_refused(tmp_path: Any, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(UsageError, match="not a valid plan"):
        MaintenancePlan.load(str(tmp_path / "plan.json"))
    with pytest.raises(UsageError, match="cannot read the plan"):
        MaintenancePlan.load(str(tmp_path / "missing.json"))


def test_a_plan_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more files than fit into memory as objects, the best steps come first, and the next plan continues."""
    monkeypatch.setattr("dv_maintenance.maintenance.planning.plan.MOST_FILES", 5)
    snapshot = table(*(file(f"f{n}", deleted=200 + n) for n in range(9)))
    plan = build_plan(snapshot)
    assert sum(len(step.inputs) for step in plan.steps) == 5
    (reason,) = (each for each in reasons(plan) if each.startswith("beyond the 5 files of one plan"))
    assert reasons(plan)[reason] == 4
    # A purge leaves no deletion vector behind.
    assert sum(len(step.inputs) for step in build_plan(snapshot, purge=True).steps) == 9

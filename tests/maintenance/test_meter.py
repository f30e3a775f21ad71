"""The meter: what readers paid against what a rewrite costs, and when a run is worth its start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dv_maintenance.maintenance.meter.decide import decide, is_due
from dv_maintenance.maintenance.meter.measure import DAY, measure
from dv_maintenance.maintenance.meter.prices import Prices
from dv_maintenance.maintenance.meter.timeline import Timeline, from_snapshot, timeline
from dv_maintenance.maintenance.planning.candidates import Deadlines
from dv_maintenance.maintenance.planning.deadlines import NEVER
from dv_maintenance.maintenance.planning.facts import file_facts
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.planning.steps import MaintenancePlan
from dv_maintenance.maintenance.reads.model import Reads
from dv_maintenance.tables.file_log import FILE_CHANGES, FileCommit, FileLog
from dv_maintenance.tables.model import FILES_SCHEMA, Snapshot
from dv_maintenance.tables.partition_spec import by_columns
from dv_maintenance.units import day_of

GB = 10**9
NOW = 20_000 * DAY
PRICES = Prices()


def snapshot(*files: dict[str, Any]) -> Snapshot:
    """Files of 1 GB and a million rows, written ten days ago, unless they say otherwise."""
    rows = [
        {
            "path": f"f{number}",
            "partition": "",
            "size": GB,
            "physical_rows": 1_000_000,
            "deleted_rows": 0,
            "dv_id": f"dv{number}" if file.get("deleted_rows") else None,
            "modified": NOW - 10 * DAY,
        }
        | file
        for number, file in enumerate(files)
    ]
    return Snapshot(
        table="file:///t",
        format="memory",
        version=7,
        timestamp=NOW,
        schema=pa.schema([]),
        specs=by_columns(),
        properties={},
        files=pa.Table.from_pylist(rows, schema=FILES_SCHEMA),
    )


def life(*steps: tuple[float, int], born: float = 10.0) -> Timeline:
    """One file: days ago, and rows deleted from then on."""
    times = np.array([NOW - int(days * DAY) for days, _ in steps], np.int64)
    rows = np.array([rows for _, rows in steps], np.int64)
    first = times[:1] if len(times) else np.array([NOW], np.int64)
    offsets = np.array([0, len(times)], np.int64)
    return Timeline(np.array([NOW - int(born * DAY)], np.int64), offsets, times, rows, first, np.ones(1, np.bool_))


def paid(shot: Snapshot, timeline: Timeline, per_day: float, *, small: bool = False, target: int = GB) -> float:
    facts = file_facts(shot)
    flags = np.full(len(facts), small)
    found = measure(
        facts, timeline, Reads.declared(per_day), PRICES, now=NOW, small=flags, target=target, retention_days=0
    )
    return float(found.paid[0])


def test_deleted_rows_and_their_vector_cost_each_read() -> None:
    """By hand: 20 reads a day for 2 days; a tenth of 3.4 CPU seconds for the rows, 13 % for the vector."""
    shot = snapshot({"deleted_rows": 100_000})
    assert paid(shot, life((2, 100_000)), 20) == pytest.approx(40 * 3.4 * (0.1 + 0.13))


def test_only_the_last_vector_counts_for_being_there() -> None:
    """A rewrite before it would not have saved it; the deleted rows of the earlier one count all the time."""
    shot = snapshot({"deleted_rows": 100_000})
    expected = 3.4 * (20 * 2 * 0.05 + 20 * 1 * (0.05 + 0.13))
    assert paid(shot, life((2, 50_000), (1, 100_000)), 20) == pytest.approx(expected)


def test_a_small_file_costs_the_part_of_an_open_that_a_full_one_would_not() -> None:
    shot = snapshot({"size": GB // 4})
    expected = 20 * 10 * 3.4 * (4 << 20) / GB * 0.75
    assert paid(shot, life(), 20, small=True) == pytest.approx(expected)
    assert paid(shot, life(), 20) == 0


def test_a_rewrite_costs_decoding_writing_and_the_old_copy() -> None:
    facts = file_facts(snapshot({"deleted_rows": 250_000}))
    none, reads = np.zeros(1, np.bool_), Reads.declared(1)
    life_ = life((1, 250_000))
    found = measure(facts, life_, reads, PRICES, now=NOW, small=none, target=GB, retention_days=7)
    assert found.cost[0] == pytest.approx(3.4 + 3.3 * 0.75, rel=0.01)
    stored = Prices(storage=2)
    found = measure(facts, life_, reads, stored, now=NOW, small=none, target=GB, retention_days=7)
    assert found.cost[0] == pytest.approx(3.4 + 3.3 * 0.75 + 2 * 7, rel=0.01)
    assert found.paid[0] == pytest.approx(3.4 * (0.25 + 0.13) + 2 * 0.25), "dead rows pay for a day of storage"


def test_a_file_that_changes_all_day_costs_more() -> None:
    """A change every hour: a run of five minutes meets one of them with one chance in twelve."""
    facts, none = file_facts(snapshot({"deleted_rows": 240})), np.zeros(1, np.bool_)
    quiet = life((1.5, 240))
    busy = life(*((hour / 24, 240 - hour) for hour in range(23, -1, -1)))
    costs = [
        measure(facts, each, Reads.declared(1), PRICES, now=NOW, small=none, target=GB, retention_days=0).cost[0]
        for each in (quiet, busy)
    ]
    assert costs[1] / costs[0] == pytest.approx(1 + 24 * 5 / (24 * 60))


def test_reads_of_other_partitions_cost_nothing() -> None:
    shot = snapshot({"deleted_rows": 100_000, "partition": "p=1"}, {"deleted_rows": 100_000, "partition": "p=2"})
    times = np.array([NOW - DAY], np.int64)
    reads = Reads.observed("spark event logs", np.zeros(0, np.int64), NOW - 10 * DAY, NOW, {"p=1": times})
    facts, bound = file_facts(shot), from_snapshot(shot)
    found = measure(facts, bound, reads, PRICES, now=NOW, small=np.zeros(2, np.bool_), target=GB, retention_days=0)
    assert found.paid.tolist() == pytest.approx([3.4 * 0.23, 0])


# -- from the log -------------------------------------------------------------------------------------------------


def log(*commits: tuple[float, list[tuple[bool, str, str | None, int]]], changed: bool = True) -> FileLog:
    """Commits: days ago, and rows (added, path, DV, deleted rows)."""
    entries = [
        {"commit": number, "added": added, "path": path, "dv_id": dv, "partition": "", "deleted_rows": deleted}
        for number, (_, rows) in enumerate(commits)
        for added, path, dv, deleted in rows
    ]
    made = tuple(
        FileCommit(number + 1, NOW - int(days * DAY), "WRITE", changed, False)
        for number, (days, _) in enumerate(commits)
    )
    return FileLog(made, pa.Table.from_pylist(entries, schema=FILE_CHANGES), None, True)


def lives(made: Timeline) -> list[tuple[float, list[tuple[float, int]], bool]]:
    """Per file: born, steps, exact. In days ago."""
    return [
        (
            (NOW - int(made.born[file])) / DAY,
            [
                ((NOW - int(made.times[at])) / DAY, int(made.deleted[at]))
                for at in range(made.offsets[file], made.offsets[file + 1])
            ],
            bool(made.exact[file]),
        )
        for file in range(len(made))
    ]


def test_a_file_s_life_from_the_log() -> None:
    shot = snapshot({"deleted_rows": 30, "dv_id": "b"}, {})
    history = log(
        (5, [(True, "f0", None, 0)]),
        (4, [(False, "f0", None, 0), (True, "f0", "a", 10)]),
        (1, [(False, "f0", "a", 10), (True, "f0", "b", 30), (True, "f1", None, 0)]),
    )
    assert lives(timeline(shot, history)) == [(5.0, [(4.0, 10), (1.0, 30)], True), (1.0, [], True)]


def test_what_is_older_than_the_log_is_counted_from_its_first_commit() -> None:
    shot = snapshot({"deleted_rows": 30, "dv_id": "b"}, {"deleted_rows": 5, "dv_id": "c"})
    history = log((3, []), (1, [(False, "f0", "a", 10), (True, "f0", "b", 30)]))
    made = timeline(shot, history)
    assert lives(made) == [(10.0, [(3.0, 10), (1.0, 30)], False), (10.0, [(3.0, 5)], False)]
    # For a deadline the earliest possible time counts.
    assert made.first_delete.tolist() == [NOW - 10 * DAY] * 2


def test_a_restored_file_begins_again() -> None:
    shot = snapshot({"deleted_rows": 10, "dv_id": "a"})
    history = log(
        (5, [(True, "f0", None, 0)]),
        (4, [(False, "f0", None, 0), (True, "f0", "a", 10)]),
        (3, [(False, "f0", "a", 10)]),
        (2, [(True, "f0", "a", 10)]),
    )
    assert lives(timeline(shot, history)) == [(2.0, [(2.0, 10)], True)]


def test_a_vector_that_only_moves_is_no_step() -> None:
    """A delete from another file rewrites the index file of both (Paimon). A column that is added is none either."""
    shot = snapshot({"deleted_rows": 10, "dv_id": "c"}, {"deleted_rows": 5, "dv_id": "x"})
    history = log(
        (5, [(True, "f0", None, 0)]),
        (4, [(False, "f0", None, 0), (True, "f0", "a", 10)]),
        (2, [(False, "f0", "a", 10), (True, "f0", "b", 10), (False, "f1", "w", 5), (True, "f1", "x", 5)]),
        (1, [(False, "f0", "b", 10), (True, "f0", "c", 10)]),
    )
    made = timeline(shot, history)
    assert lives(made) == [(5.0, [(4.0, 10)], True), (10.0, [(5.0, 5)], False)]
    assert made.last_step.tolist() == [NOW - 4 * DAY, NOW - 5 * DAY]


def test_the_bound_without_a_log_is_one() -> None:
    """Whatever the log says, readers paid at most what the snapshot alone suggests."""
    shot = snapshot({"deleted_rows": 100_000})
    assert paid(shot, from_snapshot(shot), 20) >= paid(shot, life((9, 20_000), (2, 100_000)), 20)


# -- decisions ----------------------------------------------------------------------------------------------------


def decided(shot: Snapshot, made: Timeline, per_day: float | None, **more: Any) -> MaintenancePlan:
    reads = None if per_day is None else Reads.declared(per_day)
    return decide(shot, more.pop("policy", Policy()), now=NOW, reads=reads, timeline=made, **more)


def test_a_file_is_rewritten_once_its_readers_have_paid_for_it() -> None:
    shot = snapshot({"deleted_rows": 100_000})
    cost = 3.4 + 3.3 * 0.9
    per_day = cost / (3.4 * 0.23 * 4)
    plan = decided(shot, life((4.1, 100_000)), per_day, start=0)
    assert is_due(plan, NOW)
    assert plan.steps[0].reason == (
        "1 file whose readers have paid for 1.0 rewrites since 29 Sep 2024: rewrite into about 4 new files"
    )
    assert plan.steps[0].metered is not None
    assert plan.steps[0].metered.paid == pytest.approx(cost * 4.1 / 4, abs=1e-5)
    assert plan.basis == f"{per_day:.4g} reads a day (declared)"
    early = decided(shot, life((2, 100_000)), per_day, start=0)
    assert not early.steps
    assert early.left_alone[0].reason == ("its readers have paid at most 0.5 of a rewrite so far, due about 6 Oct 2024")
    assert early.next_due_at == pytest.approx(NOW + 2 * DAY, abs=10)
    assert decide(
        shot, Policy(), now=early.next_due_at or 0, reads=Reads.declared(per_day), timeline=life((2, 100_000)), start=0
    ).steps


def test_a_run_waits_until_its_start_is_paid_for_too() -> None:
    shot = snapshot({"deleted_rows": 100_000})
    made, per_day = life((4.1, 100_000)), (3.4 + 3.3 * 0.9) / (3.4 * 0.23 * 4)
    plan = decided(shot, made, per_day, start=10)
    assert plan.steps
    assert not is_due(plan, NOW)
    when = plan.next_due_at or 0
    later = decide(shot, Policy(), now=when, reads=Reads.declared(per_day), timeline=made, start=10)
    assert is_due(later, when)
    assert sum(step.metered.paid - step.metered.cost for step in later.steps if step.metered) == pytest.approx(
        10, abs=1e-3
    )


def test_a_partition_that_changes_right_now_waits_for_quiet() -> None:
    """Not for ever: until its readers have paid for two rewrites."""
    shot = snapshot({"deleted_rows": 100_000})
    minute = 1 / (24 * 60)
    ripe, per_day = life((4, 90_000), (minute, 100_000)), 1.2 * (3.4 + 3.3 * 0.9) / (3.4 * 0.09 * 4)
    assert is_due(decided(shot, ripe, per_day, start=0), NOW)
    waits = decided(shot, ripe, per_day, start=0, quiet=120_000)
    assert not waits.steps
    assert waits.next_due_at == pytest.approx(NOW + 60_000, abs=2_000)
    assert is_due(decided(shot, ripe, 2 * per_day, start=0, quiet=120_000), NOW)
    assert is_due(decided(shot, life((4, 100_000)), per_day, start=0, quiet=120_000), NOW)


def test_other_partitions_do_not_pay_for_a_start() -> None:
    shot = replace(
        snapshot({"deleted_rows": 900_000, "partition": "p=1"}, {"deleted_rows": 100_000, "partition": "p=2"}),
        specs=by_columns("p"),
    )
    policy = Policy.from_mapping({"partitions": ["p=2"]})
    plan = decided(shot, from_snapshot(shot), 2.0, policy=policy, start=15)
    assert [step.partition for step in plan.steps] == ["p=2"]
    assert not is_due(plan, NOW)
    assert is_due(decided(shot, from_snapshot(shot), 2.0, start=15), NOW)


def test_what_is_half_way_there_rides_along() -> None:
    shot = snapshot({"deleted_rows": 900_000}, {"deleted_rows": 100_000}, {"deleted_rows": 10})
    bound = from_snapshot(shot)
    cost = 3.4 + 3.3 * 0.9
    per_day = 0.6 * cost / (3.4 * 0.23 * 10)
    plan = decided(shot, bound, per_day, start=0)
    assert sorted(each.why for step in plan.steps for each in step.inputs) == ["along", "paid"]
    alone = snapshot({"deleted_rows": 100_000})
    assert not decided(alone, from_snapshot(alone), per_day, start=0).steps


def test_without_reads_the_thresholds_decide_and_the_plan_says_so() -> None:
    shot = snapshot({"deleted_rows": 60_000}, {"deleted_rows": 40_000})
    plan = decided(shot, from_snapshot(shot), None)
    assert [each.path for step in plan.steps for each in step.inputs] == ["f0"]
    assert plan.basis == "thresholds: no reads of the table are known"
    assert is_due(plan, NOW)
    chosen = decided(shot, from_snapshot(shot), 1e-3, policy=Policy(max_deleted_ratio=0.03))
    assert len([each for step in chosen.steps for each in step.inputs]) == 2
    assert chosen.basis == "thresholds: set in the policy"


def test_a_deadline_comes_first() -> None:
    shot = snapshot({"deleted_rows": 900_000}, {"deleted_rows": 1})
    by = np.array([NEVER, NOW + DAY], np.int64)
    deadlines = Deadlines(by, np.array([NOW - DAY, NOW - 20 * DAY], np.int64))
    for per_day in (None, 1_000.0):
        plan = decided(shot, from_snapshot(shot), per_day, deadlines=deadlines)
        assert plan.steps[0].reason.startswith("1 file that must go by 5 Oct 2024, with rows deleted on 14 Sep 2024")
        assert plan.steps[0].metered is not None
        assert plan.steps[0].metered.purge_by == NOW + DAY
        assert is_due(plan, NOW)
    later = Deadlines(by + np.array([0, 9 * DAY]), deadlines.since)
    waits = decided(shot, from_snapshot(shot), 1e-6, deadlines=later)
    assert not waits.steps
    assert waits.next_due_at == NOW + 8 * DAY


def test_a_nightly_run_does_not_come_a_day_late() -> None:
    """What will be paid for before noon is rewritten tonight."""
    shot = snapshot({"deleted_rows": 100_000})
    per_day = (3.4 + 3.3 * 0.9) / (3.4 * 0.23 * 4)
    plan = decided(shot, life((3.7, 100_000)), per_day, start=0, ahead=DAY // 2)
    assert is_due(plan, NOW, DAY // 2)
    assert not decided(shot, life((3.7, 100_000)), per_day, start=0).steps


def test_two_small_files_that_do_not_fit_into_one_are_left_alone() -> None:
    """They were rewritten one by one, for ever."""
    shot = snapshot({"size": 150 << 20}, {"size": 140 << 20})
    plan = decided(shot, from_snapshot(shot), 1e6, start=0)
    assert not plan.steps
    assert plan.next_due_at is None


def test_a_metered_plan_survives_json() -> None:
    shot = snapshot({"deleted_rows": 900_000})
    plan = decided(shot, from_snapshot(shot), 1e6)
    assert MaintenancePlan.from_json(plan.to_json()) == plan


def test_a_small_file_that_stays_is_not_called_large() -> None:
    shot = snapshot({"size": 2000}, {})
    made = decided(shot, from_snapshot(shot), 0.5)
    assert [(each.reason, each.examples) for each in made.left_alone] == [
        ("no deletion vector, and at least 192 MiB of live rows", ("f1",)),
        ("small, but no file of its partition is due for a rewrite", ("f0",)),
    ]


def test_each_file_left_alone_has_its_own_sentence_and_day() -> None:
    shot = snapshot({"deleted_rows": 10_000}, {"deleted_rows": 40_000}, {}, {"deleted_rows": 1})
    deadlines = Deadlines(NOW + np.array([90, 90, 90, 20]) * DAY, np.full(4, NOW - DAY))
    made = decide(
        shot, Policy(), now=NOW, reads=Reads.declared(0.5), timeline=from_snapshot(shot), deadlines=deadlines, listed=9
    )
    assert [each.path for each in made.kept] == ["f1", "f0", "f3", "f2"], "those due first"
    first, second, third, clean = made.kept
    assert first.due_at is not None
    assert second.due_at is not None
    assert NOW < first.due_at < second.due_at < NOW + 90 * DAY
    assert first.reason.startswith("its readers have paid 0.")
    assert first.reason != second.reason
    assert f"due about {day_of(first.due_at)}; its deleted rows must go by" in first.reason
    assert third.due_at == NOW + 20 * DAY, "a deadline before its readers will have paid"
    assert (clean.due_at, clean.deleted_rows) == (None, 0)
    assert clean.reason.startswith("no deletion vector, and at least")
    assert made.kept_not_listed == 0
    assert MaintenancePlan.from_json(made.to_json()) == made
    assert decided(shot, from_snapshot(shot), 0.5).kept == (), "only where somebody asks"

    cut = decide(shot, Policy(), now=NOW, timeline=from_snapshot(shot), deadlines=deadlines, listed=2)
    assert cut.kept[0].path == "f3"
    assert (len(cut.kept), cut.kept_not_listed) == (2, 2)

"""Many tables, one window: what runs, what waits, and what is said ahead."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dv_maintenance.config import Document, validate
from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.scheduling.allocate import FAIR, allocate
from dv_maintenance.maintenance.scheduling.demand import demand_ahead, dues, in_time
from dv_maintenance.maintenance.scheduling.items import Reserve, WorkItem
from dv_maintenance.maintenance.scheduling.window import Night, Window, coming_nights, seconds_left
from dv_maintenance.units import parse_instant

DAY = 86_400_000
HOUR = 3_600_000
EXACT = Reserve(1.0, 1.0)


def nights(seconds, count=30, start=0):
    return [Night((start + n) * DAY, (start + n) * DAY + HOUR, seconds) for n in range(count)]


def item(table, seconds, *, deadline=None, ratio=1.0, since=0, id="1"):
    due = None if deadline is None else deadline * DAY + HOUR
    return WorkItem(table, id, seconds, seconds * ratio, seconds, due, since * DAY)


def tonight(items, seconds, at=0, reserve=EXACT, **more):
    coming = nights(seconds, 30, at + 1)
    return allocate(items, now=at * DAY, seconds=seconds, coming=coming, reserve=reserve, **more)


def chosen(allocation):
    return [(each.item.table, each.why) for each in allocation.chosen]


def test_mandatory_work_runs_first_then_what_readers_paid_most_for():
    found = tonight(
        [item("a", 10, ratio=2), item("b", 10, ratio=9), item("c", 10, deadline=1, ratio=0.1), item("d", 10)], 30
    )
    assert chosen(found) == [("c", "deadline"), ("b", "paid"), ("a", "paid")]
    assert [each.item.table for each in found.waiting] == ["d"]
    assert found.waiting[0].reason.startswith("Waited: it may need 10 s, 0 s were left")
    assert found.feasible
    assert not found.alerts


def test_work_that_nobody_paid_for_waits_for_its_deadline():
    early = tonight([item("a", 10, deadline=20, ratio=0.3)], 60)
    assert not early.chosen
    assert early.waiting[0].reason == "Kept: readers have paid 0.3 of its cost so far; it must be done by 21 Jan."
    assert chosen(tonight([item("a", 10, deadline=20, ratio=0.3)], 60, at=18)) == [("a", "deadline")]


def test_a_burst_of_deadlines_begins_as_early_as_it_must():
    burst = [item(f"t{n}", 10, deadline=9, ratio=0.1) for n in range(20)]
    done = {}
    for night in range(10):
        left = [each for each in burst if each.table not in done]
        done |= {each.item.table: night for each in tonight(left, 30, at=night).chosen}
    assert len(done) == 20
    assert max(done.values()) <= 9


def test_a_step_that_may_not_finish_does_not_start():
    found = tonight([item("a", 50, ratio=9), item("b", 20)], 60, reserve=Reserve(1.0, 1.5))
    assert chosen(found) == [("b", "paid")]
    assert Reserve.learnt([(10, 10)] * 4).worst == 1.5
    assert Reserve.learnt([(10, 10)] * 5).worst == pytest.approx(1.15)
    assert Reserve.learnt([(10, 30)]).worst == pytest.approx(3.45)
    assert Reserve.learnt([]) == Reserve()


def test_a_step_larger_than_every_window_is_named():
    found = tonight([item("a", 100), item("b", 10)], 60)
    assert chosen(found) == [("b", "paid")]
    assert not found.feasible
    (alert,) = found.alerts
    assert alert == (
        "a, step 1: Too large for the window: it may take 100 s or more, the longest window has 60 s. "
        "Lengthen window or budget, or run dvm.apply() for this table at another time."
    )


def test_overload_meets_as_many_deadlines_as_possible_and_says_so_at_once():
    items = [item("large", 38, deadline=2), *(item(f"t{n}", 20, deadline=3) for n in range(8))]
    found = tonight(items, 40)
    assert not found.feasible
    assert found.alerts == (found.demand.sentence,)
    assert found.demand.sentence == (
        "Deadlines until 4 Jan need 50 s a night, the window has 40 s. 1 step of 1 table will be late."
    )
    assert [each.table for each in found.demand.late] == ["large"]
    assert all(why == "deadline" for _, why in chosen(found))


def test_demand_ahead_checks_every_night():
    items = [item(f"t{n}", 240, deadline=9) for n in range(50)]
    found = demand_ahead(items, nights(540), reserve=EXACT)
    assert found.sentence.startswith("Deadlines until 10 Jan need 20 min a night, the window has 9 min.")
    assert not found.feasible
    calm = demand_ahead(items[:5], nights(540), reserve=EXACT)
    assert calm.feasible
    assert calm.sentence == "Deadlines until 10 Jan need 2 min a night, the window has 9 min."
    assert demand_ahead([item("a", 5)], nights(540)).sentence == "No deadlines ahead."


def test_items_of_a_table_run_together_and_pay_for_one_start():
    items = [item("a", 10, ratio=9), item("b", 10, ratio=5), item("a", 10, ratio=2, id="2")]
    found = tonight(items, 40, start_seconds=5)
    assert [each.item.table for each in found.chosen] == ["a", "a", "b"]
    assert not found.waiting


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_as_many_deadlines_as_any_choice_meets(data):
    lengths = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=8)
    items = [item(f"t{n}", s, deadline=d) for n, (s, d) in enumerate(data.draw(lengths))]
    windows = nights(6, 7)
    kept, _ = in_time(dues(items, windows, start_seconds=0, reserve=EXACT))

    def fits(some):
        due = dues(some, windows, start_seconds=0, reserve=EXACT)
        return all(sum(each.seconds for each in due[: at + 1]) <= due[at].room for at in range(len(due)))

    best = max(mask.bit_count() for mask in range(1 << len(items)) if fits(_subset(items, mask)))
    assert len(kept) == best
    assert fits([each.item for each in kept])


def _subset(items, mask):
    return [each for at, each in enumerate(items) if mask >> at & 1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(1.0, 4.0), st.floats(1, 50), st.booleans()), min_size=1, max_size=30), st.data())
def test_no_table_waits_for_seven_windows_in_a_feasible_setting(tables, data):
    """Each table has work again five to nine nights after it was done; the window has room for all of it."""
    room = sum(seconds + 1 for seconds, _, _ in tables) / FAIR + 2 * 5
    due = {f"t{n}": data.draw(st.integers(0, 3)) for n in range(len(tables))}
    for night in range(25):
        items = [
            item(name, tables[n][0], since=due[name], ratio=tables[n][1], deadline=due[name] + 8 * tables[n][2] + 8)
            for n, name in enumerate(due)
            if due[name] <= night
        ]
        found = tonight(items, room, at=night, start_seconds=1)
        assert found.feasible
        for each in found.chosen:
            due[each.item.table] = night + data.draw(st.integers(5, 9))
        assert all(night - at < 7 for at in due.values())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 40), st.integers(-3, 20) | st.none(), st.floats(0, 9)), max_size=30),
    st.floats(0, 100),
    st.floats(1, 3),
)
def test_what_is_chosen_always_fits_and_everything_else_has_a_reason(rows, seconds, worst):
    items = [item(f"t{n % 7}", s, deadline=d, ratio=r, id=str(n)) for n, (s, d, r) in enumerate(rows)]
    found = tonight(items, seconds, at=3, reserve=Reserve(1.0, worst), start_seconds=2)
    tables = {each.item.table for each in found.chosen}
    assert sum(each.item.seconds for each in found.chosen) + 2 * len(tables) <= seconds + 1e-6
    assert {each.item.id for each in found.chosen} | {each.item.id for each in found.waiting} == {x.id for x in items}
    assert all(each.reason.endswith(".") for each in found.waiting)


BERLIN = Window(start="01:00", length="1h", timezone="Europe/Berlin")


def test_a_window_opens_at_local_time():
    winter, summer = parse_instant("2026-01-10T00:00:00Z"), parse_instant("2026-07-10T00:00:00Z")
    assert BERLIN.seconds_left(winter) == 3600
    assert BERLIN.seconds_left(winter + 1_800_000) == 1800
    assert BERLIN.seconds_left(winter + HOUR) == 0
    assert BERLIN.seconds_left(summer) == 0
    assert BERLIN.opens_next(summer) == parse_instant("2026-07-10T23:00:00Z")
    assert BERLIN.opens_next(winter) == winter


@pytest.mark.parametrize(
    ("start", "day", "opens"),
    [
        ("02:30", "2026-03-29", "2026-03-29T01:30:00Z"),  # skipped: 03:30 in summer time
        ("02:30", "2026-10-25", "2026-10-25T00:30:00Z"),  # comes twice: the first one
        ("01:00", "2026-03-29", "2026-03-29T00:00:00Z"),
    ],
)
def test_a_window_is_as_long_when_the_clocks_change(start, day, opens):
    window = Window(start=start, length="2h", timezone="Europe/Berlin")
    found = next(each for each in window.openings(parse_instant(f"{day}T00:00:00Z")) if each[0] > 0)
    assert found == (parse_instant(opens), parse_instant(opens) + 2 * HOUR)


def test_a_window_over_midnight_on_some_days():
    window = Window(start="23:30", length="1h", days=("sat",))
    saturday = parse_instant("2026-01-10T23:45:00Z")
    assert window.seconds_left(saturday) == 2700
    assert window.seconds_left(saturday + HOUR) == 0
    assert window.opens_next(saturday) == parse_instant("2026-01-17T23:30:00Z")
    assert [each.seconds for each in coming_nights(window, 600_000, saturday, 2)] == [600, 600]


def test_a_budget_ends_before_its_window():
    at = parse_instant("2026-01-10T00:00:00Z")
    assert seconds_left(BERLIN, 600_000, at) == 600
    assert seconds_left(BERLIN, 600_000, at, spent=450) == 150
    assert seconds_left(BERLIN, 600_000, at, spent=650) == 0
    assert seconds_left(None, 600_000, at + HOUR) == 600
    assert seconds_left(None, None, at) == 86_400


def test_a_start_that_yaml_reads_as_a_number():
    assert Window(start=22 * 60 + 30, length="1h").start == "22:30"
    for wrong in ({"start": "25:00"}, {"start": 7}, {"length": "25h"}, {"timezone": "Berlin"}, {"days": ()}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            validate(Window, Document({"start": "01:00", "length": "1h", **wrong}, "t.yaml"), what="window")


def test_the_wait_counts_from_when_a_table_last_got_work():
    old = [item("old", 30, since=-9), item("new", 30, ratio=9)]
    assert chosen(tonight(old, 30)) == [("old", "fair")]
    assert chosen(tonight(old, 30, served={"old": -DAY})) == [("new", "paid")]

"""Random histories of tables: nothing that anybody can reach is ever deleted, and in the end nothing else is left."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.paimon_lake import DAY, HOUR, Lake, crashed_vacuums, gone, lake

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.tables.paimon.vacuum.expiry import CURRENT, Rules, Stamp, first_kept, reasons

STEPS = (
    "add", "add", "add two", "add with extra", "mark", "mark", "compact", "upgrade", "merge", "changelog", "analyze",
    "tag", "tag old", "untag", "branch", "on branch", "expire branch", "consume", "rollback", "forward", "expire",
)  # fmt: skip


def take(table: Lake, step: str, number: int) -> None:
    live = list(table.files.values())
    oldest = min(table.numbers(), default=0)
    match step:
        case "add two":
            table.commit("APPEND", add=[table.new_file(), table.new_file()])
        case "add with extra":
            table.add_file(extra=2)
        case "mark" if live:
            table.mark(live[number % len(live)], number % 10)
        case "compact" if len(live) > 1:
            table.compact(live[: 1 + number % len(live)])
        case "upgrade" if live:
            table.upgrade(live[-1])
        case "merge":
            table.merge_manifests()
        case "changelog":
            table.add_with_changelog()
        case "analyze":
            table.analyze()
        case "tag":
            table.tag(f"t{number}", table.version)
        case "tag old":
            table.tag(f"o{number}", oldest)
        case "untag" if table.tagged:
            table.untag(min(table.tagged))
        case "branch" if not table.lakes:
            table.branch_off("b", oldest)
        case "on branch" if table.lakes:
            take(table.lakes["b"], ("add", "compact", "tag", "mark")[number % 4], number)
        case "expire branch" if table.lakes:
            table.lakes["b"].expire(1)
        case "consume":
            table.consume("c", max(1, table.version - number % 4))
        case "rollback":
            table.rollback(max(oldest, table.version - 1 - number % 3))
        case "forward" if table.lakes:
            table.fast_forward("b")
        case "expire":
            table.expire(2)
        case _:
            table.add_file()


def build(path: Path, steps: list[str], least: int = 1) -> Lake:
    table = lake(path, options={"snapshot.num-retained.min": str(least)})
    table.add_file()
    for number, step in enumerate(steps):
        take(table, step, number)
    return table


def kept(table: Lake, cutoff: int, least: int) -> set[int]:
    """The rule once more, from the writer's own times."""
    numbers, times = table.numbers(), {}
    for number in numbers:
        times[number] = table.body(f"{table.own}snapshot/snapshot-{number}")["timeMillis"]
    first = numbers[0]
    wanted = [table.body(str(path.relative_to(table.path)))["nextSnapshot"] for path in table.path.glob("consumer/*")]
    while (
        first <= numbers[-1] - least
        and first < min([numbers[-1], *wanted])
        and times[first] < cutoff
        and times[first + 1] < cutoff
    ):
        first += 1
    return {number for number in numbers if number >= first}


def needed(table: Lake, numbers: set[int]) -> set[str]:
    return table.root_needs(exclude=[number for number in table.numbers() if number not in numbers])


@settings(max_examples=examples(5))
@example(steps=["branch", "on branch", "expire branch"], back=0, least=1)
@given(steps=st.lists(st.sampled_from(STEPS), max_size=14), back=st.integers(-1, 6), least=st.integers(1, 3))
def test_histories(tmp_path_factory: pytest.TempPathFactory, steps: list[str], back: int, least: int) -> None:
    check_history(tmp_path_factory.mktemp("h") / "t", steps, back, least)


@pytest.mark.deep
@settings(max_examples=1500)
@given(steps=st.lists(st.sampled_from(STEPS), max_size=30), back=st.integers(-1, 12), least=st.integers(1, 4))
def test_many_histories(tmp_path_factory: pytest.TempPathFactory, steps: list[str], back: int, least: int) -> None:
    check_history(tmp_path_factory.mktemp("h") / "t", steps, back, least)


def check_history(path: Path, steps: list[str], back: int, least: int) -> None:
    table = build(path, steps, least)
    table.check()
    # A snapshot that was superseded `back` seconds before the newest one is too old.
    now = table.now - back * 1000 + HOUR
    stay = kept(table, table.now - back * 1000, least)
    must = needed(table, stay)
    reachable = needed(table, set(table.numbers()))
    before, stored = table.everything(), table.stored()

    dry = table.vacuum(now=now, dry_run=True)
    assert table.everything() == before
    result = table.vacuum(now=now)
    assert result.expired == dry.expired
    assert result.deleted == len(gone(result))
    assert set(table.numbers()) == stay
    table.check()
    # All that only expired snapshots needed went; what was an orphan before is too young for anything to happen.
    assert table.stored() == stored - (reachable - must)
    again = table.vacuum(now=now, lite=True)
    assert (again.deleted, again.expired.files) == (0, ())
    # A day later there is nothing but what is needed.
    later = table.now + DAY + HOUR + 1
    stay = kept(table, later - HOUR, least)
    table.vacuum(now=later)
    table.check()
    assert set(table.numbers()) == stay
    assert table.stored() == needed(table, stay)
    assert table.vacuum(now=later).expired.files == ()
    for branch in table.lakes.values():
        branch.vacuum(now=later)
        assert branch.numbers() == [branch.version] if least == 1 else branch.numbers()
    table.check()


def check_crashes(path: Path, steps: list[str], step: int = 1) -> None:
    original = build(path / "t", steps)
    original.put("manifest/manifest-00000000-0000-4000-8000-00000000dead-0", b"orphan")
    original.now += DAY
    original.add_file()
    for table in crashed_vacuums(original, path, step):
        assert table.stored() == needed(table, {table.version})
        assert table.numbers() == [table.version]


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.deep)])
def test_crashes(tmp_path: Path, step: int) -> None:
    steps = ["add", "mark", "tag", "changelog", "compact", "analyze", "branch", "on branch", "merge", "compact"]
    check_crashes(tmp_path, steps, step)


@pytest.mark.deep
@settings(max_examples=30)
@given(steps=st.lists(st.sampled_from(STEPS).filter(lambda step: step != "consume"), max_size=12))
def test_many_crashes(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    check_crashes(tmp_path_factory.mktemp("h"), steps)


def check_damage(path: Path, data: st.DataObject, steps: list[str]) -> None:
    """Whatever bytes a file of the table's own is damaged to: an error of ours with nothing deleted, or none."""
    table = lake(path, codec="null")
    table.add_file()
    for number, step in enumerate(steps):
        take(table, step, number)
    places = [*path.glob("snapshot/*"), *path.glob("manifest/*"), *path.glob("tag/*"), *path.glob("schema/*")]
    place = data.draw(st.sampled_from(sorted(places)))
    body = bytearray(place.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.just(len(body)) | st.integers(0, len(body)))
    place.write_bytes(bytes(body[:cut]))
    before = table.everything()
    files = {file for file in table.needs[table.version] if "bucket" in file}
    try:
        table.vacuum()
    except DvMaintenanceError as error:
        done = error.done
    else:
        done = "all of it"
    assert (done is None) == (table.everything() == before) or done == "all of it"
    # A file whose name is damaged is not taken for an orphan.
    assert files <= table.stored()


@settings(max_examples=examples(10))
@given(data=st.data())
def test_damage(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    check_damage(tmp_path_factory.mktemp("d") / "t", data, ["mark", "tag", "compact"])


@pytest.mark.deep
@settings(max_examples=1000)
@given(data=st.data(), steps=st.lists(st.sampled_from(STEPS), max_size=6))
def test_much_damage(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, steps: list[str]) -> None:
    check_damage(tmp_path_factory.mktemp("d") / "t", data, steps)


# -- which snapshots go -------------------------------------------------------------------------------------------

TIMES = st.lists(st.integers(0, 9), min_size=1, max_size=8)


@given(
    times=TIMES,
    first=st.integers(1, 50),
    cutoff=st.integers(0, 10),
    least=st.integers(1, 9),
    most=st.none() | st.integers(1, 12),
    wanted=st.dictionaries(st.sampled_from("abc"), st.integers(0, 60), max_size=2),
)
def test_the_rule(
    times: list[int], first: int, cutoff: int, least: int, most: int | None, wanted: dict[str, int]
) -> None:
    stamps = [Stamp(first + place, time) for place, time in enumerate(times)]
    rules = Rules(cutoff, least, most)
    stays = first_kept(stamps, rules, wanted)
    newest = stamps[-1].id
    assert first <= stays <= newest
    for stamp, successor in pairwise(stamps):
        if stamp.id < stays:
            assert newest - stamp.id >= least
            assert all(stamp.id < number for number in wanted.values())
            old = stamp.timestamp < cutoff and successor.timestamp < cutoff
            assert old or (most is not None and newest - stamp.id >= most)
    # No more stays than has to.
    if stays < newest:
        stamp, successor = stamps[stays - first], stamps[stays - first + 1]
        old = stamp.timestamp < cutoff and successor.timestamp < cutoff
        assert (
            newest - stays < least
            or any(stays >= number for number in wanted.values())
            or not (old or (most is not None and newest - stays >= most))
        )
    why = reasons(stamps, rules, wanted)
    assert set(why) == {stamp.id for stamp in stamps if stamp.id >= stays}
    assert why[newest] == CURRENT

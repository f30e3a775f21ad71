"""Others write, tag, branch off, roll back and expire while a table is cleaned up: between any two calls of it.

An action is what another process does at once. Whatever comes of the vacuum, a result or a conflict: each snapshot, tag
and branch that is there afterwards has all its files, there are no gaps, and the newest snapshot is the one that the
others left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paimon_lake import DAY, HOUR, Lake, before_each_call, copied, lake

from dv_maintenance.errors import ConflictError, DamagedTableError, DvMaintenanceError
from dv_maintenance.tables.reports import VacuumReport


def original(path: Path) -> Lake:
    """Nine snapshots, of which a vacuum keeps the newest two; a tag on one, a branch of another."""
    table = lake(path, options={"snapshot.num-retained.min": "2"})
    first = table.add_file()
    table.add_file()
    table.tag("t", 2)
    table.mark(first, 1)
    branch = table.branch_off("b", 3)
    assert branch is not None
    branch.add_file()
    table.add_with_changelog()
    table.compact(list(table.files.values())[:2])
    table.mark(table.add_file(), 3)
    table.merge_manifests()
    table.compact(list(table.files.values())[:2])
    table.add_file()
    return table


def commit_and_expire(table: Lake) -> None:
    for _ in range(3):
        table.add_file()
    table.compact(list(table.files.values()))
    table.expire(1)


def roll_back_and_write(table: Lake, version: int) -> None:
    """The ids of those that were rolled back are given again."""
    newest = table.version
    table.rollback(version)
    while table.version < newest + 1:
        table.add_file()


def fast_forward(table: Lake) -> None:
    while table.lakes["b"].version < table.version + 1:
        table.lakes["b"].add_file()
    table.fast_forward("b")


def first_there(table: Lake) -> int:
    return min(table.numbers())


ACTIONS: dict[str, Callable[[Lake], object]] = {
    "append": lambda table: table.add_file(),
    "compact": lambda table: table.compact(list(table.files.values())),
    "delete rows": lambda table: table.mark(next(iter(table.files.values())), 5),
    "commit and expire all but one": commit_and_expire,
    "expire three": lambda table: table.expire(max(1, len(table.numbers()) - 3)),
    "tag the oldest": lambda table: table.tag("new", first_there(table)),
    "tag one in the middle": lambda table: table.tag("new", 5),
    "move a tag": lambda table: table.tag("t", 6),
    "branch off the oldest": lambda table: table.branch_off("c", first_there(table)),
    "branch off one in the middle": lambda table: table.branch_off("c", 5),
    "write to a branch": lambda table: table.lakes["b"].add_file(),
    "drop a tag": lambda table: table.untag("t"),
    "consume": lambda table: table.consume("c", 5),
    "roll back to the oldest": lambda table: table.rollback(first_there(table)),
    "roll back to one in the middle": lambda table: table.rollback(5),
    "roll back by one": lambda table: table.rollback(table.version - 1),
    "roll back to the tag": lambda table: table.rollback(2),
    "roll back and write": lambda table: roll_back_and_write(table, 5),
    "fast-forward": fast_forward,
}


Outcome = VacuumReport | DvMaintenanceError


def interfered(table: Lake, *actions: tuple[Callable[[Lake], object], int]) -> tuple[Outcome, int]:
    """What comes of a vacuum when others act in front of its calls of these numbers; and how many it makes."""
    now = table.now + DAY + HOUR + 1

    def act(number: int, _: str, __: object) -> None:
        for action, at in actions:
            if number == at:
                action(table)

    with before_each_call(act) as calls:
        try:
            found: Outcome = table.vacuum(now=now)
        except (ConflictError, DamagedTableError) as error:
            found = error
    return found, len(calls)


def check(table: Lake, found: Outcome) -> None:
    table.check()
    if isinstance(found, DvMaintenanceError):
        # What was done stands in it, and nothing else was.
        assert (found.done is None) == ("snapshots up to" not in str(found))
    # The next run has all that it takes to go on.
    table.now += DAY
    for file in table.path.glob("consumer/*"):
        file.unlink()
    table.vacuum()
    table.check()
    assert len(table.numbers()) <= 2
    assert table.stored() == table.root_needs()


def races(
    template: Lake,
    path: Path,
    stride: int,
    actions: Mapping[str, tuple[int, Callable[[Lake], object]]],
    check: Callable[[Lake, Outcome], None],
) -> None:
    """Run each action before every ``stride``-th storage call of a vacuum, one vacuum each. ``actions``: with the
    number of the first such call.
    """
    _, calls = interfered(copied(template, path / "quiet"))
    for name, (first, action) in actions.items():
        for at in range(first % stride, calls, stride):
            table = copied(template, path / f"{name}-{at}")
            found, _ = interfered(table, (action, at))
            try:
                check(table, found)
            except Exception as error:
                raise AssertionError(f"{name} in front of call {at} of {calls}: {found!r}") from error


def test_at_some_points(tmp_path: Path) -> None:
    actions = {name: (at, action) for at, (name, action) in enumerate(ACTIONS.items())}
    races(original(tmp_path / "t"), tmp_path, 211, actions, check)


@pytest.mark.deep
@pytest.mark.parametrize("name", ACTIONS)
def test_at_every_point(tmp_path: Path, name: str) -> None:
    races(original(tmp_path / "t"), tmp_path, 1, {name: (0, ACTIONS[name])}, check)


@pytest.mark.deep
@settings(max_examples=300)
@given(moves=st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.integers(0, 150)), min_size=2, max_size=4))
def test_some_at_some_points(tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[str, int]]) -> None:
    place = tmp_path_factory.mktemp("r")
    table = original(place / "t")
    found, _ = interfered(table, *((ACTIONS[name], at) for name, at in moves))
    check(table, found)

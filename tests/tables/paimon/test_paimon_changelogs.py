"""Vacuum of Paimon tables whose changelogs outlive their snapshots, next to a model of who needs which file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.paimon_lake import DAY, HOUR, LASTING, Lake, before_each_call, copied, crashed_vacuums, gone, lake
from test_paimon_vacuum_histories import STEPS, kept, take
from test_paimon_vacuum_races import ACTIONS, commit_and_expire, races

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, RefusedError
from dv_maintenance.tables.paimon.vacuum.decision import CHANGELOG
from dv_maintenance.tables.paimon.vacuum.expiry import CURRENT, Rules, Stamp, first_changelog
from dv_maintenance.tables.paimon.vacuum.holders import read_holders
from dv_maintenance.tables.paimon.vacuum.run import LEFT

PRODUCERS = ("none", "input", "full-compaction", "lookup")
# A fast-forward leaves changelogs of other numbers than the snapshots have then.
LASTING_STEPS = (*(step for step in STEPS if step != "forward"), "outdate")


def lasting(path: Path, **options: str) -> Lake:
    return lake(
        path, options={**LASTING, **{name.replace("__", "-").replace("_", "."): options[name] for name in options}}
    )


def hints(table: Lake) -> list[str]:
    return [(table.path / table.own / "changelog" / name).read_text() for name in ("EARLIEST", "LATEST")]


# -- what is left -------------------------------------------------------------------------------------------------


def test_a_snapshot_leaves_itself_as_a_changelog(tmp_path: Path) -> None:
    table = lasting(tmp_path / "t")
    files = [table.add_file() for _ in range(3)]
    compacted = table.compact(files)
    table.compact([compacted])
    table.add_with_changelog()
    bodies = {number: (table.path / f"snapshot/snapshot-{number}").read_bytes() for number in table.numbers()}
    before = table.everything()
    dry = table.vacuum(dry_run=True)
    assert table.everything() == before
    assert (dry.expired.kept[LEFT], dry.expired.kept[CHANGELOG]) == (5, 3 + 2 * 5)
    # Files of a compaction are not changes: they are deleted with their snapshots.
    assert gone(dry) == {*(f"snapshot/snapshot-{number}" for number in range(1, 6)), f"bucket-0/{compacted.name}"}
    result = table.vacuum()
    assert (result.expired, result.deleted) == (dry.expired, 6)
    assert (table.numbers(), table.numbers("changelog"), hints(table)) == ([6], [1, 2, 3, 4, 5], ["1", "5"])
    for number in range(1, 6):
        assert (table.path / f"changelog/changelog-{number}").read_bytes() == bodies[number]
    table.check()


def test_with_a_producer_only_its_files_stay(tmp_path: Path) -> None:
    table = lasting(tmp_path / "t", changelog__producer="lookup")
    file = table.add_file()
    table.add_with_changelog()
    table.analyze()
    table.mark(file, 1)
    table.compact(list(table.files.values()))
    table.add_file()
    changes = [path.name for path in (table.path / "bucket-0").glob("changelog-*")]
    table.vacuum()
    assert table.numbers("changelog") == [1, 2, 3, 4, 5]
    # The list and the manifest of the second, and its file.
    assert table.stored() - table.needs[6] == table.changes[2][1]
    assert {path.name for path in (table.path / "bucket-0").glob("changelog-*")} == set(changes)
    table.check()


def test_once_without_a_producer_changes_may_be_in_deltas(tmp_path: Path) -> None:
    table = lasting(tmp_path / "t")
    file = table.add_file()
    table.compact([file])
    table.options = {**table.options, "changelog-producer": "input"}
    table.write_schema()
    table.add_file()
    table.vacuum()
    assert (table.path / "bucket-0" / file.name).exists()
    assert table.changes[1][1] | table.changes[2][1] <= table.stored()


def test_changelogs_expire_by_their_own_options(tmp_path: Path) -> None:
    table = lasting(tmp_path / "t", changelog_num__retained_max="5")
    files = [table.add_file() for _ in range(4)]
    table.compact(files)
    table.expire(1)
    for _ in range(3):
        table.add_file()
    dry = table.vacuum(dry_run=True)
    going = {f"changelog/changelog-{number}" for number in (1, 2, 3)} | {f"snapshot/snapshot-{n}" for n in (5, 6, 7)}
    assert {path for path in gone(dry) if "manifest" not in path} == going
    assert dry.expired.kept[LEFT] == 3
    assert table.vacuum().expired == dry.expired
    assert (table.numbers("changelog"), hints(table)) == ([4, 5, 6, 7], ["4", "7"])
    # The fifth took the files of the first four away, so that its changelog keeps them.
    assert all((table.path / "bucket-0" / file.name).exists() for file in files)
    table.add_file()
    table.add_file()
    table.vacuum()
    assert table.numbers("changelog") == [6, 7, 8, 9]
    assert not any((table.path / "bucket-0" / file.name).exists() for file in files)
    table.check()
    assert table.stored() == table.root_needs()
    # Thirty days on only the newest of them stays, as with Paimon; and what --retention says is about snapshots.
    table.vacuum(now=table.now + 29 * DAY, retention=29 * DAY)
    assert table.numbers("changelog") == [6, 7, 8, 9]
    table.vacuum(now=table.now + 30 * DAY + 1)
    assert (table.numbers("changelog"), hints(table)) == ([9], ["9", "9"])


def test_a_changelog_that_expires_at_once_is_still_written(tmp_path: Path) -> None:
    """Somebody else may be about to leave the ones before it, and Paimon fails at gaps."""
    table = lasting(tmp_path / "t", changelog_num__retained_max="3")
    for _ in range(5):
        table.add_file()
    written: list[Any] = []

    def note(_: int, name: str, path: Any) -> None:
        if name in {"create", "put"}:
            written.append(path)

    with before_each_call(note):
        result = table.vacuum()
    pairs = [path for number in range(1, 5) for path in (f"changelog/changelog-{number}", "changelog/LATEST")]
    assert written == [*pairs, "snapshot/EARLIEST", "changelog/EARLIEST"]
    assert (table.numbers("changelog"), hints(table)) == ([3, 4], ["3", "4"])
    assert (result.expired.kept[LEFT], result.deleted) == (2, len(gone(result)))
    assert table.stored() == table.root_needs()


def test_consumers_hold_changelogs(tmp_path: Path) -> None:
    table = lasting(tmp_path / "t", changelog_num__retained_max="2", consumer_changelog__only="true")
    for _ in range(6):
        table.add_file()
    table.consume("c", 3)
    table.vacuum()
    assert (table.numbers(), table.numbers("changelog")) == ([6], [3, 4, 5])
    table.options = {**table.options, "consumer.changelog-only": "false"}
    table.write_schema()
    table.consume("c", 4)
    for _ in range(3):
        table.add_file()
    table.consume("c", 8)
    table.vacuum()
    assert (table.numbers(), table.numbers("changelog")) == ([8, 9], [7])


def test_options_that_no_longer_keep_changelogs(tmp_path: Path) -> None:
    """As with Paimon: no changelog is written, and existing ones are kept."""
    table = lasting(tmp_path / "t")
    for _ in range(4):
        table.add_file()
    table.expire(1)
    table.options = {name: value for name, value in table.options.items() if name not in LASTING}
    table.write_schema()
    table.add_file()
    result = table.vacuum()
    assert (table.numbers(), table.numbers("changelog")) == ([5], [1, 2, 3])
    assert set(result.expired.kept) == {CURRENT, CHANGELOG}
    table.check()


def test_an_existing_changelog(tmp_path: Path) -> None:
    """Of the same content, however it is spelled, it is taken for ours; of another, nothing goes."""
    table = lasting(tmp_path / "t")
    for _ in range(4):
        table.add_file()
    body = dict(reversed(table.body("snapshot/snapshot-2").items()))
    del body["changelogManifestList"]
    table.put("changelog/changelog-2", json.dumps(body).encode())
    other = copied(table, tmp_path / "other")
    table.vacuum()
    assert table.body("changelog/changelog-2") == body
    assert table.numbers("changelog") == [1, 2, 3]
    other.change("changelog/changelog-2", timeMillis=7)
    before = other.everything()
    with pytest.raises(
        RefusedError, match="changelog-2 exists, and differs from the changelog of snapshot 2"
    ) as caught:
        other.vacuum()
    assert caught.value.next_step
    assert other.everything() == before


def test_a_concurrent_changelog_stops_the_vacuum(tmp_path: Path) -> None:
    template = lasting(tmp_path / "t")
    for _ in range(4):
        template.add_file()

    def come(at: int) -> Callable[[int, str, Any], None]:
        def do(_: int, name: str, path: Any) -> None:
            if name == "create" and path == f"changelog/changelog-{at}":
                table.put(path, b"{")

        return do

    for at in (1, 3):
        table = copied(template, tmp_path / str(at))
        with before_each_call(come(at)), pytest.raises(DvMaintenanceError, match="was written concurrently") as caught:
            table.vacuum()
        assert (caught.value.done is None) == (at == 1)
        assert table.numbers() == list(range(at, 5))


@pytest.mark.parametrize(("call", "path"), [("create", "changelog-1"), ("put", "LATEST")])
def test_a_late_changelog_is_withdrawn(tmp_path: Path, call: str, path: str) -> None:
    """Others expire the snapshot and its changelog while we write that: Paimon fails at gaps, and believes the hint."""
    table = lasting(tmp_path / "t")
    for _ in range(5):
        table.add_file()
    came = []

    def come(_: int, name: str, argument: Any) -> None:
        if (name, argument, came) == (call, f"changelog/{path}", []):
            came.append(True)
            table.expire(1, changelogs=1)

    with before_each_call(come):
        table.vacuum()
    assert came
    assert (table.numbers(), table.numbers("changelog"), hints(table)) == ([5], [4], ["4", "4"])
    table.check()
    assert table.stored() == table.root_needs()


def test_changelogs_of_a_number_that_was_given_again_are_read_again(tmp_path: Path) -> None:
    table = lasting(tmp_path / "t")
    for _ in range(4):
        table.add_file()
    table.tag("t", 1)
    table.expire(1)
    layout = table.table().layout
    before = read_holders(layout)
    table.rollback(1)
    for _ in range(4):
        table.add_with_changelog()
    table.expire(1)
    after = read_holders(layout, before).branches[None]
    assert list(after.changelogs) == [1, 2, 3, 4]
    for number, ref in after.changelogs.items():
        assert ref.data == (table.path / f"changelog/changelog-{number}").read_bytes()


def test_unfinished_files_of_a_writer(tmp_path: Path) -> None:
    table = lasting(tmp_path / "t")
    table.add_file()
    staged = "changelog/.changelog-3.00000000-dead-4000-8000-000000000001.tmp"
    for path in (staged, "changelog/.changelog-9.crc", "changelog/notes.txt"):
        table.put(path, b"x")
    assert gone(table.vacuum()) == {staged, "changelog/.changelog-9.crc"}


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"id": 2, "timeMillis": 1}', b'{"timeMillis": 1}', b'{"id": 1}'])
def test_damage(tmp_path: Path, text: bytes) -> None:
    table = lasting(tmp_path / "t")
    for _ in range(3):
        table.add_file()
    table.put("changelog/changelog-1", text)
    before = table.everything()
    with pytest.raises(DamagedTableError, match="changelog/changelog-1"):
        table.vacuum()
    assert table.everything() == before


def test_branches_leave_their_own(tmp_path: Path) -> None:
    table = lasting(tmp_path / "t")
    for _ in range(3):
        table.add_file()
    branch = table.branch_off("b", 2)
    assert branch is not None
    branch.add_file()
    branch.vacuum()
    assert (branch.numbers(), branch.numbers("changelog"), hints(branch)) == ([3], [2], ["2", "2"])
    assert table.numbers("changelog") == []
    table.compact(list(table.files.values()))
    table.vacuum()
    assert table.numbers("changelog") == [1, 2, 3]
    table.check()


LISTS = ("baseManifestList", "deltaManifestList", "changelogManifestList")


# -- histories ----------------------------------------------------------------------------------------------------


def build(path: Path, steps: list[str], least: int, most: int, producer: str) -> Lake:
    options = {"snapshot.num-retained.min": str(least), "changelog.num-retained.max": str(most)}
    table = lake(path, options={**LASTING, **options, "changelog-producer": producer})
    table.add_file()
    for number, step in enumerate(steps):
        if step == "outdate":
            table.expire(2, changelogs=2)
        else:
            take(table, step, number)
    return table


def expected(table: Lake, cutoff: int, least: int, most: int) -> tuple[set[int], list[int]]:
    """The rules once more: the snapshots, and the changelogs that stay."""
    stay = kept(table, cutoff, least)
    after = sorted({*table.numbers("changelog"), *table.numbers()} - stay)
    wanted = [table.body(str(path.relative_to(table.path)))["nextSnapshot"] for path in table.path.glob("consumer/*")]
    first = min([table.version - most + 1, table.version - least + 1, *wanted, *after[-1:]])
    return stay, [number for number in after if number >= first]


def ever_named(table: Lake, changelogs: set[int]) -> set[str]:
    """All that changelogs name. What a tag kept remains when the tag is removed, although nobody needs it, until its
    changelog expires.
    """
    bodies = [table.body(f"changelog/changelog-{number}") for number in changelogs]
    lists = {f"manifest/{name}" for body in bodies for key, name in body.items() if key in LISTS and name}
    return lists.union(*(table.needs[number] for number in changelogs))


def check_history(path: Path, steps: list[str], back: int, least: int, most: int, producer: str) -> None:
    table = build(path, steps, least, most, producer)
    table.check()
    now = table.now - back * 1000 + HOUR
    stay, left = expected(table, table.now - back * 1000, least, most)
    going = [number for number in table.numbers() if number not in stay]
    must = table.root_needs(exclude=going, left=left)
    reachable = table.root_needs(left=sorted({*table.numbers("changelog"), *going}))
    reachable |= ever_named(table, set(table.numbers("changelog")) - set(left))
    before, stored = table.everything(), table.stored()

    dry = table.vacuum(now=now, dry_run=True)
    assert table.everything() == before
    result = table.vacuum(now=now)
    assert result.expired == dry.expired
    assert result.deleted == len(gone(result))
    assert (set(table.numbers()), table.numbers("changelog")) == (stay, left)
    if left:
        assert hints(table) == [str(left[0]), str(left[-1])]
    table.check()
    assert table.stored() == stored - (reachable - must)
    again = table.vacuum(now=now, lite=True)
    assert (again.deleted, again.expired.files) == (0, ())
    later = table.now + DAY + HOUR + 1
    stay, left = expected(table, later - HOUR, least, most)
    # A file that only a compaction removed may have gone with its own changelog, before that of the compaction.
    stored = table.stored()
    table.vacuum(now=later)
    table.check()
    assert (set(table.numbers()), table.numbers("changelog")) == (stay, left)
    assert table.stored() == table.root_needs() & stored
    for branch in table.lakes.values():
        branch.vacuum(now=later)
    table.check()


MANY = st.lists(st.sampled_from(LASTING_STEPS), max_size=30)


@settings(max_examples=examples(5))
@given(
    steps=st.lists(st.sampled_from(LASTING_STEPS), max_size=14),
    back=st.integers(-1, 6),
    least=st.integers(1, 2),
    most=st.integers(2, 9),
    producer=st.sampled_from(PRODUCERS),
)
@example(steps=["tag", "add", "add", "add", "expire", "untag"], back=0, least=1, most=2, producer="input")
def test_histories(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], back: int, least: int, most: int, producer: str
) -> None:
    check_history(tmp_path_factory.mktemp("h") / "t", steps, back, least, most, producer)


@pytest.mark.deep
@settings(max_examples=1000)
@given(
    steps=MANY,
    back=st.integers(-1, 12),
    least=st.integers(1, 3),
    most=st.integers(3, 20),
    producer=st.sampled_from(PRODUCERS),
)
@example(steps=["changelog", "compact", "add"], back=0, least=1, most=3, producer="none")
def test_many_histories(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], back: int, least: int, most: int, producer: str
) -> None:
    check_history(tmp_path_factory.mktemp("h") / "t", steps, back, least, most, producer)


def check_crashes(path: Path, steps: list[str], producer: str, step: int = 1) -> None:
    original = build(path / "t", steps, 1, 6, producer)
    original.now += DAY
    original.add_file()
    stored = original.stored()
    for table in crashed_vacuums(original, path, step):
        left = expected(original, original.now + DAY, 1, 6)[1]
        assert (table.numbers(), table.numbers("changelog")) == ([table.version], left)
        assert table.stored() == table.root_needs() & stored


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.deep)])
def test_crashes(tmp_path: Path, step: int) -> None:
    steps = ["add", "changelog", "compact", "expire", "tag", "changelog", "add two", "compact", "merge", "add"]
    check_crashes(tmp_path, steps, "none", step)


@pytest.mark.deep
@settings(max_examples=30)
@given(
    steps=st.lists(st.sampled_from(LASTING_STEPS).filter(lambda step: step != "consume"), max_size=12),
    producer=st.sampled_from(PRODUCERS),
)
def test_many_crashes(tmp_path_factory: pytest.TempPathFactory, steps: list[str], producer: str) -> None:
    check_crashes(tmp_path_factory.mktemp("h"), steps, producer)


# -- others meanwhile ---------------------------------------------------------------------------------------------


def original(path: Path, *, first: bool) -> Lake:
    """Snapshots, of which a vacuum keeps the newest two, and changelogs, of which it keeps two; ``first``: none yet."""
    table = lake(path, options={**LASTING, "snapshot.num-retained.min": "2", "changelog.num-retained.max": "4"})
    for _ in range(2):
        table.add_file()
    table.tag("t", 2)
    branch = table.branch_off("b", 2)
    assert branch is not None
    branch.add_file()
    table.add_with_changelog()
    table.compact(list(table.files.values())[:2])
    if not first:
        table.expire(2)
    table.mark(table.add_file(), 3)
    table.compact(list(table.files.values())[:2])
    table.add_file()
    return table


def commit_expire_and_outdate(table: Lake) -> None:
    commit_and_expire(table)
    table.expire(1, changelogs=1)


MEANWHILE: dict[str, Callable[[Lake], object]] = {
    **{name: action for name, action in ACTIONS.items() if name != "fast-forward"},
    "expire and outdate": lambda table: table.expire(2, changelogs=1),
    "expire one and outdate": lambda table: table.expire(max(1, len(table.numbers()) - 1), changelogs=1),
    "commit, expire and outdate": commit_expire_and_outdate,
}


def check_race(table: Lake, found: Any) -> None:
    table.check()
    if isinstance(found, DvMaintenanceError):
        assert (found.done is None) == ("snapshots up to" not in str(found) and "was written" not in str(found))
    table.now += DAY
    for file in table.path.glob("consumer/*"):
        file.unlink()
    stored = table.stored()
    table.vacuum()
    table.check()
    assert len(table.numbers()) <= 2
    assert table.stored() == table.root_needs() & stored


def test_at_some_points(tmp_path: Path) -> None:
    actions = {name: (5 * at, action) for at, (name, action) in enumerate(MEANWHILE.items())}
    races(original(tmp_path / "t", first=False), tmp_path, 251, actions, check_race)


@pytest.mark.deep
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", MEANWHILE)
def test_at_every_point(tmp_path: Path, name: str, first: bool) -> None:
    races(original(tmp_path / "t", first=first), tmp_path, 1, {name: (0, MEANWHILE[name])}, check_race)


# -- the rule -----------------------------------------------------------------------------------------------------


@given(
    times=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    first=st.integers(1, 50),
    behind=st.integers(0, 3),
    cutoff=st.integers(0, 10),
    least=st.integers(1, 9),
    most=st.none() | st.integers(1, 12),
    wanted=st.dictionaries(st.sampled_from("abc"), st.integers(0, 60), max_size=2),
)
def test_the_rule(
    times: list[int], first: int, behind: int, cutoff: int, least: int, most: int | None, wanted: dict[str, int]
) -> None:
    stamps = [Stamp(first + place, time) for place, time in enumerate(times)]
    newest = stamps[-1].id + behind
    stays = first_changelog(stamps, newest, Rules(cutoff, least, most), wanted)

    def may_go(stamp: Stamp) -> bool:
        held = newest - stamp.id < least or stamp == stamps[-1] or any(stamp.id >= each for each in wanted.values())
        return not held and (stamp.timestamp < cutoff or (most is not None and newest - stamp.id >= most))

    assert stays == next(stamp.id for stamp in stamps if not may_go(stamp))

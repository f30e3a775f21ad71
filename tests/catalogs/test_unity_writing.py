"""Commits to tables that Unity Catalog manages: staged, ratified, published, reported."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.managed import ManagedBackend, ManagedFolder
from support.unity import Unity

from dv_maintenance.catalogs.unity import UnityTable
from dv_maintenance.cli import main
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import ConflictError, RefusedError, StorageDeniedError, StorageUnavailableError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.publish import publish
from dv_maintenance.storage import FileExistsAlreadyError, Storage
from dv_maintenance.tables.delta.commit import dv_files
from dv_maintenance.tables.delta.log.segment import commit_path, read_commit
from dv_maintenance.testing.backends import DeltaBackend
from dv_maintenance.testing.faults import Kill, Killed
from dv_maintenance.testing.trials import Trial
from dv_maintenance.testing.verbs import Verb, verbs_of

TABLE = "main.s.table"
NAME = f"uc.{TABLE}"


def ids(backend: ManagedBackend) -> list[int]:
    return sorted(row[0] for row in backend.rows())


def stored(backend: ManagedBackend) -> dict[str, bytes]:
    found = (path for path in backend.folder.rglob("*") if path.is_file())
    return {path.relative_to(backend.folder).as_posix(): path.read_bytes() for path in found}


def published(backend: ManagedBackend, version: int) -> bytes:
    return (backend.folder / commit_path(version)).read_bytes()


def commits(backend: ManagedBackend) -> list[dict[str, Any]]:
    """The commitInfo of each version."""
    table = backend.open()
    return [read_commit(table.storage, version)[0]["commitInfo"] for version in range(table.version() + 1)]


def own_purges(backend: ManagedBackend) -> int:
    return sum(each["operation"] == "REORG" for each in commits(backend))


def test_a_purge(server: Unity, backend: ManagedBackend) -> None:
    server.asked.clear()
    server.posted.clear()
    outcome = purge(backend.open(), LocalEngine())
    assert outcome.verified
    assert len(server.asked) == 5, "two looks, the table's optimizer, the commit and the report"
    assert ids(backend) == [1, 2, 3, 5]
    first, second = server.posted
    commit = first["updates"][0]["commit"]
    file = backend.folder / "_delta_log" / "_staged_commits" / commit["file-name"]
    assert file.read_bytes() == published(backend, 3)
    assert (commit["version"], commit["file-size"]) == (3, file.stat().st_size)
    assert commit["timestamp"] == commits(backend)[3]["inCommitTimestamp"]
    assert second["updates"] == [{"action": "set-latest-backfilled-version", "latest-published-version": 3}]
    uuid = server.tables[TABLE]["metadata"]["table-uuid"]
    assert {each["requirements"][0]["uuid"] for each in server.posted} == {uuid}


def test_in_commit_timestamps_grow_whatever_the_clock_says(backend: ManagedBackend, monkeypatch: Any) -> None:
    monkeypatch.setattr("dv_maintenance.units.time.time_ns", lambda: 1_000_000_000_000_000_000)
    purge(backend.open(), LocalEngine())
    times = [each["inCommitTimestamp"] for each in commits(backend)]
    assert times == sorted(set(times))


VERBS = [
    ["purge"],
    ["vacuum"],
    ["checkpoint"],
    ["delete", "--where", "id = 1"],
    ["restore", "--version", "1"],
    ["publish"],
]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_dry_runs_change_nothing(
    server: Unity, backend: ManagedBackend, verb: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = stored(backend), json.dumps(server.tables)
    engine = ["--engine", "local"] if verb[0] in ("purge", "delete") else []
    assert main([verb[0], NAME, *engine, *verb[1:], "--dry-run"]) == 0, capsys.readouterr()
    assert (stored(backend), json.dumps(server.tables)) == before


# -- the catalog's answers ---------------------------------------------------------------------------------------------

DONE = [
    "drop",
    "lost",
    "unknown",
    "unknown after",
    "busy",
    "throttle",
    "slow",
    "text",
    "torn",
    "lost lost",
    "lost unknown",
    "unknown busy drop",  # three attempts of a request, then the frame's next one
    "lost drop drop",
]


@pytest.mark.parametrize("replays", [True, False], ids=["200", "409"])
@pytest.mark.parametrize("faults", DONE)
def test_a_commit_through_faults(server: Unity, backend: ManagedBackend, faults: str, replays: bool) -> None:
    """Whatever happened to the request, the purge is in the log once."""
    server.replays = replays
    server.post_faults[:] = re.findall(r"unknown after|\w+", faults)
    outcome = purge(backend.open(), LocalEngine())
    assert (outcome.verified, own_purges(backend), ids(backend)) == (True, 1, [1, 2, 3, 5])


@pytest.mark.parametrize("ascending", [True, False])
@pytest.mark.parametrize("texts", [True, False])
def test_answers_of_other_servers(server: Unity, backend: ManagedBackend, ascending: bool, texts: bool) -> None:
    server.ascending, server.texts = ascending, texts
    server.post_faults[:] = ["", "denied"]  # nothing is reported
    assert purge(backend.open(), LocalEngine()).verified
    backend.append("a", [(7, "a", "y")])
    assert ids(backend) == [1, 2, 3, 5, 7]


@pytest.mark.parametrize("fault", ["denied", "expired"])
def test_a_commit_that_is_refused_leaves_nothing(server: Unity, backend: ManagedBackend, fault: str) -> None:
    before = stored(backend)
    server.post_faults[:] = [fault]
    with pytest.raises(StorageDeniedError, match="the catalog refused"):
        purge(backend.open(), LocalEngine())
    assert stored(backend) == before
    assert purge(backend.open(), LocalEngine()).verified


def test_a_refusal_after_a_lost_answer_is_no_proof(server: Unity, backend: ManagedBackend) -> None:
    """The commit happened: its files must stay."""
    server.post_faults[:] = ["lost", *["denied"] * 40]
    outcome = purge(backend.open(), LocalEngine())
    assert (outcome.verified, own_purges(backend), ids(backend)) == (True, 1, [1, 2, 3, 5])


def test_a_catalog_that_fails_for_good(server: Unity, backend: ManagedBackend) -> None:
    server.post_faults[:] = ["drop"] * 100
    with pytest.raises(StorageUnavailableError, match="can't be reached"):
        purge(backend.open(), LocalEngine())
    server.post_faults.clear()
    assert ids(backend) == [1, 2, 3, 5]
    assert purge(backend.open(), LocalEngine()).verified


@pytest.mark.parametrize("fault", ["denied", "drop", "busy", "text"])
def test_failures_after_ratification_are_warnings(
    server: Unity, backend: ManagedBackend, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.post_faults[:] = ["", *[fault] * (1 if fault == "denied" else 3)]
    assert purge(backend.open(), LocalEngine()).verified
    assert "version 3 is committed, but not published yet" in caplog.text
    assert [each["version"] for each in server.tables[TABLE]["commits"]] == [3, 2]
    report = publish(backend.open())
    assert (report.version, report.copied, report.replaced) == (3, (), ())
    assert [each["version"] for each in server.tables[TABLE]["commits"]] == [3]


def test_a_copy_that_fails_is_a_warning(
    server: Unity, backend: ManagedBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create = Storage.create

    def full(self: Storage, path: str, data: bytes, **options: Any) -> None:
        if path == commit_path(3):
            raise StorageDeniedError("no space")
        create(self, path, data, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "create", full)
        assert purge(backend.open(), LocalEngine()).verified
    assert "version 3 is committed, but not published yet" in caplog.text
    assert not (backend.folder / commit_path(3)).exists()
    assert [each["version"] for each in server.tables[TABLE]["commits"]] == [3, 2]
    assert publish(backend.open()).copied == (3,)


# -- other writers -----------------------------------------------------------------------------------------------------


def beside(server: Unity, *actions: Callable[[], object]) -> None:
    """What other writers do right before the next requests for a commit are carried out."""

    def quiet(action: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            later, server.meanwhile[:] = list(server.meanwhile), []
            action()
            server.meanwhile[:] = later

        return run

    server.meanwhile[:] = [quiet(each) for each in actions]


def test_a_commit_that_another_writer_overtakes_is_rebased(server: Unity, backend: ManagedBackend) -> None:
    table = backend.open()
    beside(server, lambda: backend.delete([1]), lambda: backend.append("a", [(9, "a", "y")]))
    outcome = purge(table, LocalEngine())
    assert outcome.verified
    assert ids(backend) == [2, 3, 5, 9]
    staged = {path.name for path in (backend.folder / "_delta_log" / "_staged_commits").iterdir()}
    names = {name for (_, _), name in server.names.items()}
    assert staged == names, "staged files of lost attempts are deleted"


def test_a_conflict_is_one(server: Unity, backend: ManagedBackend) -> None:
    before = stored(backend)
    beside(server, lambda: purge(backend.open(), LocalEngine()))
    assert purge(backend.open(), LocalEngine()).version_after == 2, "nothing of it was left to do"
    assert own_purges(backend) == 1
    new = stored(backend).keys() - before.keys()
    assert sum(path.endswith(".parquet") for path in new) == 1, "own files are deleted"


def test_ten_commits_may_be_unpublished(server: Unity, backend: ManagedBackend) -> None:
    """Another writer publishes nothing."""
    server.post_faults[:] = ["", "denied"] * 9
    for number in range(9):
        backend.append("b", [(20 + number, "b", "y")])
        (backend.folder / commit_path(3 + number)).unlink()
    assert len(server.tables[TABLE]["commits"]) == 10
    server.post_faults[:] = ["", "denied"]
    backend.append("b", [(30, "b", "y")])
    (backend.folder / commit_path(12)).unlink()
    assert purge(backend.open(), LocalEngine()).verified
    assert ids(backend) == [1, 2, 3, 5, *range(20, 29), 30]
    assert [each["version"] for each in server.tables[TABLE]["commits"]] == [13]
    assert all((backend.folder / commit_path(version)).is_file() for version in range(14))


@pytest.mark.parametrize("again", ["publish", "purge"])
def test_a_torn_copy_is_not_reported(
    server: Unity, backend: ManagedBackend, again: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other engines take what exists for published, report it, and lose the only whole copy."""
    server.post_faults[:] = ["", "denied"]
    backend.append("a", [(7, "a", "y")])
    whole = published(backend, 3)
    (backend.folder / commit_path(3)).write_bytes(whole[: len(whole) // 2])
    assert main(["fsck", NAME]) == 5
    said = capsys.readouterr()
    assert f"dvm publish {NAME}" in said.out + said.err
    if again == "publish":
        assert publish(backend.open(), dry_run=True).replaced == (3,)
        assert published(backend, 3) != whole
        assert publish(backend.open()).replaced == (3,)
    else:
        purge(backend.open(), LocalEngine())
    assert published(backend, 3) == whole
    assert ids(backend) == [1, 2, 3, 5, 7]


def test_a_name_of_another_table_is_not_written(server: Unity, backend: ManagedBackend) -> None:
    before = stored(backend)

    def again() -> None:
        server.tables[TABLE]["metadata"]["table-uuid"] = "another"

    server.meanwhile[:] = [again]
    with pytest.raises(RefusedError, match="dropped and created again") as caught:
        purge(backend.open(), LocalEngine())
    assert caught.value.uncommitted
    assert stored(backend) == before
    assert len(server.tables[TABLE]["commits"]) == 1


def race(server: Unity, backend: ManagedBackend, writers: int, each: int) -> None:
    """Writers append and delete rows of their own while purges run; nothing is lost, nothing is there twice."""
    errors: list[BaseException] = []

    def insist(commit: Callable[[], object]) -> None:
        while True:
            with suppress(FileExistsAlreadyError, StorageUnavailableError):
                commit()
                return

    def write(first: int) -> None:
        mine = ManagedBackend(backend.folder, server)
        try:
            mine.join()
            for number in range(first, first + each):
                insist(lambda number=number: mine.append("b", [(number, "b", "y"), (-number, "b", "y")]))
                insist(lambda number=number: mine.delete([-number]))
        except Exception as error:  # noqa: BLE001 - reported by the test
            errors.append(error)

    threads = [threading.Thread(target=write, args=(100 * (at + 1),)) for at in range(writers)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        with suppress(ConflictError):
            purge(backend.open(), LocalEngine(1))
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert ids(backend) == [1, 2, 3, 5, *(100 * (at + 1) + number for at in range(writers) for number in range(each))]
    made = commits(backend)
    times = [info["inCommitTimestamp"] for info in made]
    assert times == sorted(set(times))
    assert len({info["txnId"] for info in made}) == len(made)


def test_a_race(server: Unity, backend: ManagedBackend) -> None:
    race(server, backend, writers=2, each=4)


@pytest.mark.deep
@pytest.mark.parametrize("number", range(100))
def test_races(server: Unity, backend: ManagedBackend, number: int) -> None:
    server.replays = number % 2 == 0
    race(server, backend, writers=3, each=5)


# -- kills -------------------------------------------------------------------------------------------------------------

KILLED = [verb for verb in verbs_of(DeltaBackend("nowhere")) if verb.name in {"purge", "vacuum", "delete", "restore"}]


@pytest.fixture
def trial(server: Unity, tmp_path: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch) -> Trial:
    monkeypatch.setattr(dv_files, "_INLINE", 0)
    place = tmp_path / "table"
    return Trial(ManagedBackend(place, server), ManagedFolder(place, server), verb)


@pytest.mark.parametrize(
    "verb",
    # The others commit as a purge does.
    [pytest.param(verb, marks=() if verb.name == "purge" else pytest.mark.deep) for verb in KILLED],
    ids=lambda verb: verb.name,
)
def test_a_kill_at_every_file_of_a_commit(trial: Trial) -> None:
    points = [point for point in trial.points() if "_delta_log" in point.path]
    assert sum("_staged_commits" in point.path for point in points) >= 1
    for point in points:
        for when in ("before", "halfway", "after"):
            trial.kill(Kill(point.number, when))


@pytest.mark.parametrize("verb", KILLED, ids=lambda verb: verb.name)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("request_", ["ratify", "report"])
def test_a_kill_at_a_request(trial: Trial, request_: str, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    own, alive = getattr(UnityTable, request_), [True]

    def die(self: UnityTable, what: Any) -> Any:
        if alive and alive.pop():
            if after:
                own(self, what)
            raise Killed(request_)
        return own(self, what)

    monkeypatch.setattr(UnityTable, request_, die)

    def death() -> None:
        with suppress(Killed):
            trial.verb.run(trial.backend, trial.now)

    trial.survive(death)
    assert not alive

"""Vacuums of tables whose changelogs outlive their snapshots beside Paimon's own expiry: of the same table they leave
the same snapshots, changelogs and files, and streaming readers get the same changes.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from paimon_judging import ALL_DELETED_FILES, History, Intruder, opened, stored_files
from support.paimon_engine import DV, EngineError, PaimonEngine

from dv_maintenance.errors import ConflictError
from dv_maintenance.files.avro.container import read_records
from dv_maintenance.files.avro.schema import Wanted
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.tables.paimon.vacuum.run import LEFT

HISTORIES = int(os.environ.get("DVM_HISTORIES", "2"))
# Until the test says otherwise, commits expire nothing.
PATIENT = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1000", "changelog.num-retained.max": "2000"}
KINDS: dict[str, dict[str, str]] = {
    "none": {},
    "lookup with DVs": {"changelog-producer": "lookup", **DV},
    "append with DVs": DV,
    "append": {},
    "input": {"changelog-producer": "input"},
    "lookup": {"changelog-producer": "lookup"},
    "full-compaction": {"changelog-producer": "full-compaction"},
}


class Changes(History):
    """A table of one kind."""

    def __init__(self, engine: PaimonEngine, path: Path, kind: str, seed: int = 0) -> None:
        draw, options = random.Random(f"{kind}-{seed}"), {**PATIENT, **KINDS[kind]}
        super().__init__(engine, path, draw, keyed=not kind.startswith("append"), options=options)
        self.deletes = self.keyed or "DVs" in kind
        self.append()

    def append(self) -> None:
        again = [(number, "ab"[number % 2], f"again{number}") for number in range(self.draw.randint(0, 3))]
        self.engine.append(self.path, [*again, *self.rows(self.draw.randint(1, 9))])

    def delete(self) -> None:
        rest = self.draw.randint(0, 2)
        if self.deletes:
            self.delete_some(3, rest)

    def expire(self) -> None:
        kept = self.draw.randint(1, 4)
        most = {"snapshot.num-retained.max": str(kept), "changelog.num-retained.max": str(kept + 3)}
        self.engine.expire_by_options(self.path, most)

    def rollback(self) -> None:
        first = numbers(self.path, "snapshot")[0]
        self.engine.rollback(self.path, max(first, self.engine.version(self.path) - 1))
        # Its snapshots may be gone by now.
        self.tags = [name for name in self.tags if (self.path / f"tag/tag-{name}").exists()]

    def step(self) -> None:
        often = [self.append, self.append, self.delete, self.compact, self.purge]
        self.draw.choice([*often, *often, self.tag, self.branch, self.expire, self.rollback])()

    def retain(self, snapshots: int, changelogs: int) -> None:
        most = {"snapshot.num-retained.max": str(snapshots), "changelog.num-retained.max": str(changelogs)}
        self.engine.alter(self.path, *(("option", name, value) for name, value in most.items()))


def numbers(path: Path, kind: str) -> list[int]:
    return sorted(int(each.name.rpartition("-")[2]) for each in (path / kind).glob(f"{kind}-*"))


def names(paths: Iterable[str]) -> set[str]:
    return {path.rpartition("/")[2] for path in paths}


def changes_of_tags(path: Path) -> set[str]:
    """Names of the lists of changes that tags name, of their manifests and of the files in these."""
    bodies = [json.loads(each.read_text()) for each in path.glob("tag/tag-*")]
    lists = {body["changelogManifestList"] for body in bodies if body.get("changelogManifestList")}
    there = [(path / "manifest" / name).read_bytes() for name in lists if (path / "manifest" / name).exists()]
    manifests = {record["_FILE_NAME"] for data in there for record in read_records(data, {"_FILE_NAME": None})}
    there = [(path / "manifest" / name).read_bytes() for name in manifests if (path / "manifest" / name).exists()]
    wanted: Wanted = {"_FILE": {"_FILE_NAME": None}}
    return lists | manifests | {each["_FILE"]["_FILE_NAME"] for data in there for each in read_records(data, wanted)}


def hints(path: Path) -> list[str]:
    return [(path / "changelog" / name).read_text() for name in ("EARLIEST", "LATEST")]


def said(path: Path) -> list[dict[str, Any]]:
    """What changelogs say, without what is null."""
    bodies = [json.loads((path / f"changelog/changelog-{n}").read_text()) for n in numbers(path, "changelog")]
    return [{key: value for key, value in body.items() if value is not None} for body in bodies]


def judge(engine: PaimonEngine, path: Path, theirs: Path) -> None:
    assert numbers(path, "snapshot") == numbers(theirs, "snapshot")
    assert numbers(path, "changelog") == numbers(theirs, "changelog")
    assert stored_files(theirs) <= stored_files(path)
    # Paimon takes the changes of a tagged snapshot away when their time has come; here a tag keeps all that it names.
    assert names(stored_files(path) - stored_files(theirs)) <= changes_of_tags(path)
    assert said(path) == said(theirs)
    ids = numbers(path, "changelog")
    if ids:
        assert hints(path) == hints(theirs) == [str(ids[0]), str(ids[-1])]
    for number in [*ids, *numbers(path, "snapshot")]:
        assert engine.changes(path, number) == engine.changes(theirs, number)


def check_history(engine: PaimonEngine, folder: Path, kind: str, seed: int) -> None:
    path, theirs = folder / "table", folder / "theirs"
    history = Changes(engine, path, kind, seed)
    for _ in range(14):
        history.step()
    history.retain(kept := history.draw.randint(1, 3), kept + history.draw.randint(1, 8))
    before = engine.changes(path, 1) if not numbers(path, "changelog") and 1 in numbers(path, "snapshot") else None
    shutil.copytree(path, theirs)
    planned = vacuum(opened(path), VacuumRequest(dry_run=True))
    stored = stored_files(path)
    assert vacuum(opened(path)).kept == planned.kept
    assert sorted(stored - stored_files(path)) == sorted(planned.paths or ())
    assert len(stored_files(path) - stored) <= planned.kept.get(LEFT, 0)
    engine.expire_by_options(theirs)
    judge(engine, path, theirs)
    # Rollbacks leave some.
    later = time.time_ns() // 1_000_000 + 3_600_000
    orphans = names(engine.orphans(path, later))
    assert orphans == names(engine.orphans(theirs, later))
    if before is not None and numbers(path, "changelog"):
        changes = engine.changes(path, numbers(path, "changelog")[0])
        assert changes == before[len(before) - len(changes) :]
    # And both go on: a commit expires, and leaves and takes changelogs by itself.
    for _ in range(3):
        history.append()
        history.delete()
        history.compact()
    vacuum(opened(path))
    assert names(engine.orphans(path, later)) <= orphans
    (shutil.rmtree(theirs), shutil.copytree(path, theirs))
    engine.expire_by_options(theirs)
    judge(engine, path, theirs)
    assert vacuum(opened(path), VacuumRequest(dry_run=True)).paths == ()


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_it_leaves_what_paimon_leaves(paimon_engine: PaimonEngine, tmp_path: Path, seed: int) -> None:
    kinds = list(KINDS)
    check_history(paimon_engine, tmp_path, kinds[seed % len(kinds)], seed // len(kinds))


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", KINDS)
def test_it_leaves_what_paimon_leaves_of_every_kind(
    paimon_engine: PaimonEngine, tmp_path: Path, kind: str, seed: int
) -> None:
    check_history(paimon_engine, tmp_path, kind, 100 + seed)


# -- others meanwhile ---------------------------------------------------------------------------------------------

# Two snapshots and three changelogs are left of it.
FEW = {
    "snapshot.num-retained.min": "1",
    "snapshot.num-retained.max": "2",
    "changelog.num-retained.max": "5",
    "write-only": "true",
}


def busy(engine: PaimonEngine, path: Path, kind: str) -> None:
    key = [] if kind == "append" else ["id"]
    engine.create(path, {"id": "INT NOT NULL", "v": "STRING"}, key=key, options={**FEW, **KINDS[kind]})
    for start in (0, 20, 40):
        engine.append(path, [(number, f"v{number}") for number in range(start, start + 20)])
    engine.expire_by_options(path)
    for start in (10, 30, 50):
        engine.append(path, [(number, f"w{number}") for number in range(start, start + 20)])
        engine.compact(path, options={**ALL_DELETED_FILES, "write-only": "false", "snapshot.num-retained.max": "1000"})


def commit_and_expire(engine: PaimonEngine, path: Path) -> None:
    for number in range(3):
        engine.append(path, [(1000 + number, "new")])
    engine.expire_by_options(path)


OTHERS = {
    "expires": lambda engine, path: engine.expire_by_options(path),
    "commits and expires": commit_and_expire,
    "rolls back": lambda engine, path: engine.rollback(path, engine.version(path) - 1),
}


def race(engine: PaimonEngine, template: Path, intruder: Intruder, kind: str, what: str, at: int) -> int:
    """A vacuum in whose middle somebody else does something; the number of its calls to the storage."""
    path = template.with_name(f"{kind}-{what}-{at}".replace(" ", "-"))
    shutil.copytree(template, path)
    changes = engine.changes(path, numbers(path, "changelog")[0])

    came = []

    def other() -> None:
        came.append(what)
        # What it needs may go in front of its eyes: then it was too late, and knows.
        with suppress(EngineError):
            OTHERS[what](engine, path)

    with suppress(ConflictError):
        intruder.during(lambda: vacuum(opened(path)), at, other)
    calls = intruder.calls
    ids = [*numbers(path, "changelog"), *numbers(path, "snapshot")]
    assert sorted(set(ids)) == list(range(ids[0], max(ids) + 1))
    for snapshot in numbers(path, "snapshot"):
        engine.rows(path, snapshot)
    if what == "rolls back":
        engine.changes(path, ids[0])
    else:
        # By itself a vacuum makes fewer calls than with others about.
        new = range(3 if "commits and expires" in came else 0)
        every = [*changes, *(["+I", 1000 + number, "new"] for number in new)]
        found = engine.changes(path, ids[0])
        assert every[len(every) - len(found) :] == found or found == every[: len(found)]
    # And Paimon goes on.
    commit_and_expire(engine, path)
    assert [len(numbers(path, kind)) for kind in ("snapshot", "changelog")] == [2, 3]
    engine.changes(path, numbers(path, "changelog")[0])
    return calls


def test_others_at_some_moments(paimon_engine: PaimonEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy(paimon_engine, tmp_path / "template", "input")
    intruder = Intruder(monkeypatch)
    calls = race(paimon_engine, tmp_path / "template", intruder, "input", "expires", 10_000)
    for at in sorted(random.Random(1).sample(range(calls // 2, calls + 1), 2)):
        race(paimon_engine, tmp_path / "template", intruder, "input", "commits and expires", at)


@pytest.mark.deep
@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.parametrize("kind", ["none", "input", "append"])
def test_others_at_every_moment(
    paimon_engine: PaimonEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, what: str
) -> None:
    busy(paimon_engine, tmp_path / "template", kind)
    intruder, at, calls = Intruder(monkeypatch), 1, 1
    while at <= calls:
        calls = max(calls, race(paimon_engine, tmp_path / "template", intruder, kind, what, at))
        at += 1
    assert at > 30


class CrashError(BaseException):
    """The process died."""


def crash(engine: PaimonEngine, template: Path, intruder: Intruder, at: int) -> bool:
    """The process dies in front of a call, and Paimon takes over; whether it came to that."""
    path = template.with_name(f"crash-{at}")
    shutil.copytree(template, path)
    changes = engine.changes(path, numbers(path, "changelog")[0])

    def die() -> None:
        raise CrashError

    try:
        intruder.during(lambda: vacuum(opened(path)), at, die)
        crashed = False
    except CrashError:
        crashed = True
    for number in numbers(path, "snapshot"):
        engine.rows(path, number)
    for number in sorted({*numbers(path, "changelog"), *numbers(path, "snapshot")}):
        found = engine.changes(path, number)
        assert changes[len(changes) - len(found) :] == found
    commit_and_expire(engine, path)
    assert [len(numbers(path, kind)) for kind in ("snapshot", "changelog")] == [2, 3]
    ids = numbers(path, "changelog")
    assert hints(path) == [str(ids[0]), str(ids[-1])]
    vacuum(opened(path))
    assert vacuum(opened(path), VacuumRequest(dry_run=True)).paths == ()
    return crashed


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["none", "input", "append"])
def test_paimon_takes_over_after_a_crash(
    paimon_engine: PaimonEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    busy(paimon_engine, tmp_path / "template", kind)
    intruder, at = Intruder(monkeypatch), 20
    while crash(paimon_engine, tmp_path / "template", intruder, at):
        at += 1
    assert at > 40

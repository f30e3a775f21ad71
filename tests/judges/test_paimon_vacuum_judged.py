"""Vacuums beside Paimon's own expiry and orphan cleaning: of the same table they leave the same files, and whoever
commits and expires meanwhile loses nothing.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from contextlib import suppress
from pathlib import Path

import pytest
from paimon_judging import (
    ALL_DELETED_FILES,
    History,
    Intruder,
    in_order,
    judge_files,
    judge_rows,
    opened,
    stored_files,
)
from support.paimon_engine import DV, DV64, EngineError, PaimonEngine

from dv_maintenance.errors import ConflictError
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables.guard import VacuumRequest

HOUR = 3_600_000
HISTORIES = int(os.environ.get("DVM_HISTORIES", "3"))
# Both get the retention as an argument; the number of snapshots to keep is an option of the table.
ONE = {"snapshot.num-retained.min": "1", "snapshot.time-retained": "100 d"}


class Vacuumed(History):
    """An append table with deletion vectors of either width, or one with a primary key."""

    def __init__(self, engine: PaimonEngine, path: Path, seed: int) -> None:
        options = {**(DV64 if seed % 2 else DV), **ONE}
        super().__init__(engine, path, random.Random(seed), keyed=seed % 3 == 2, options=options)
        self.append()

    def append(self) -> None:
        self.engine.append(self.path, list(self.rows(self.draw.randint(5, 60))))

    def delete(self) -> None:
        self.delete_some(*self.draw.choice([(3, 1), (5, 2), (7, 4)]))

    def expire(self) -> None:
        self.engine.expire(self.path, keep=self.draw.randint(1, 4))

    def litter(self) -> None:
        """What a writer leaves that died."""
        for folder in ("manifest", "index"):
            if (self.path / folder).is_dir():
                (self.path / folder / f"{folder}-00000000-0000-4000-8000-{self.draw.getrandbits(48):012x}-0").touch()

    def step(self) -> None:
        often = [self.append, self.delete, self.delete, self.compact, self.purge]
        self.draw.choice([*often, *often, self.tag, self.branch, self.expire, self.litter])()


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_it_leaves_what_paimon_leaves(paimon_engine: PaimonEngine, tmp_path: Path, seed: int) -> None:
    engine, path, theirs = paimon_engine, tmp_path / "table", tmp_path / "theirs"
    history = Vacuumed(engine, path, seed)
    for _ in range(12):
        history.step()
    later = time.time_ns() // 1_000_000 + HOUR
    consumer = history.draw.choice([None, engine.version(path)])
    if consumer is not None:
        (path / "consumer").mkdir(exist_ok=True)
        (path / "consumer" / "consumer-one").write_text(json.dumps({"nextSnapshot": consumer}))
    before = in_order(engine.rows(path))
    tagged = {name: in_order(engine.rows(path, tag=name)) for name in history.tags}
    shutil.copytree(path, theirs)
    vacuum(opened(path), VacuumRequest(retention=0, allow_short_retention=True, now=later))
    engine.expire(theirs)
    engine.orphans(theirs, later, dry_run=False)
    assert stored_files(path) == stored_files(theirs)
    assert in_order(judge_rows(engine, path)) == before
    assert {name: in_order(engine.rows(path, tag=name)) for name in history.tags} == tagged
    judge_files(engine, path, engine.version(path))
    # And both go on.
    history.append()
    history.delete()
    history.compact()
    engine.expire(path)
    assert engine.orphans(path, later) == []
    judge_rows(engine, path)


# -- others meanwhile ---------------------------------------------------------------------------------------------


def busy(engine: PaimonEngine, path: Path) -> None:
    engine.create(path, {"id": "INT", "v": "STRING"}, options={**DV, **ONE})
    for start in (0, 20, 40):
        engine.append(path, [(number, f"v{number}") for number in range(start, start + 20)])
        engine.delete(path, lambda row: row["id"] % 4 == 1)
    engine.tag(path, "old")
    assert engine.compact(path, options=ALL_DELETED_FILES)
    engine.delete(path, lambda row: row["id"] % 4 == 2)


def commit_and_expire(engine: PaimonEngine, path: Path) -> None:
    engine.append(path, [(1000, "new")])
    engine.delete(path, lambda row: row["id"] == 0)
    engine.expire(path)


def compact_and_expire(engine: PaimonEngine, path: Path) -> None:
    engine.compact(path, options=ALL_DELETED_FILES)
    engine.expire(path)


def tag_what_is_about_to_go(engine: PaimonEngine, path: Path) -> None:
    oldest = min(int(name.name.rpartition("-")[2]) for name in (path / "snapshot").glob("snapshot-*"))
    engine.tag(path, "late", oldest)


OTHERS = {
    "commits and expires": commit_and_expire,
    "compacts and expires": compact_and_expire,
    "tags": tag_what_is_about_to_go,
    "drops the tag": lambda engine, path: engine.drop_tag(path, "old"),
    "rolls back": lambda engine, path: engine.rollback(path, engine.version(path) - 1),
}


def race(engine: PaimonEngine, folder: Path, intruder: Intruder, what: str, at: int) -> int:
    """A vacuum in whose middle somebody else does something; the number of its calls to the storage."""
    path = folder / f"{what}-{at}".replace(" ", "-")
    busy(engine, path)
    done = [0]
    later = time.time_ns() // 1_000_000 + HOUR

    def other() -> None:
        try:
            OTHERS[what](engine, path)
        except EngineError:  # what it needs went in front of its eyes: then it was too late, and knows
            return
        done[0] += 1

    with suppress(ConflictError):
        intruder.during(
            lambda: vacuum(opened(path), VacuumRequest(retention=0, allow_short_retention=True, now=later)), at, other
        )
    calls = intruder.calls
    for snapshot in (path / "snapshot").glob("snapshot-*"):
        judge_rows(engine, path, int(snapshot.name.rpartition("-")[2]))
    for tag in (path / "tag").glob("tag-*"):
        engine.rows(path, tag=tag.name.removeprefix("tag-"))
    engine.append(path, [(2000, "later")])
    engine.delete(path, lambda row: row["id"] % 4 == 3)
    judge_rows(engine, path)
    return calls


@pytest.mark.parametrize("what", ["commits and expires"])
def test_others_at_some_moments(
    paimon_engine: PaimonEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    intruder = Intruder(monkeypatch)
    calls = race(paimon_engine, tmp_path, intruder, what, 10_000)
    for at in sorted(random.Random(what).sample(range(2, calls + 1), 2)):
        race(paimon_engine, tmp_path, intruder, what, at)


@pytest.mark.deep
@pytest.mark.parametrize("what", OTHERS)
def test_others_at_every_moment(
    paimon_engine: PaimonEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    intruder, at, calls = Intruder(monkeypatch), 1, 1
    while at <= calls:
        calls = max(calls, race(paimon_engine, tmp_path, intruder, what, at))
        at += 1
    assert at > 30

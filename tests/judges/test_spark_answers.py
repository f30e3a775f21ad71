"""Maintenance never changes what a query returns: batteries of queries in real Spark before and after each verb.

``make deep`` asks every table after every verb, in every session. DVM_ANSWERS multiplies how many conditions are
asked (8: a night).
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from answer_extremes import EXTREMES
from answer_faults import FAULTS
from answer_mistakes import MISTAKES, STRING_VIEWS, guessed_keys, string_views_of_arrow
from answer_tables import SPARK, WHOLE, at_random
from answer_writers import CONVERTED, DELTALAKE
from answers import ALL, PAIRS, READER, USUAL, Answers, Session, Verdict, spread
from battery import Battery

from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.merge import merge
from dv_maintenance.dml.update import update
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.spark import SparkEngine
from dv_maintenance.errors import DvMaintenanceError, UnsupportedFeatureError
from dv_maintenance.maintenance.checkpoint import checkpoint
from dv_maintenance.maintenance.convert import convert
from dv_maintenance.maintenance.downgrade import downgrade
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.manifest import write_manifests
from dv_maintenance.maintenance.restore import restore
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.maintenance.zorder import zorder
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MORE = float(os.environ.get("DVM_ANSWERS", "1"))
DELTA = SPARK | DELTALAKE | EXTREMES
TOUCHED = "k < 0"
SOME_DAYS = 10 * 24 * 3_600_000


@pytest.fixture(scope="module")
def answers(delta_spark: SparkSession) -> Answers:
    return Answers(delta_spark)


def source_of(place: Path) -> str:
    """What can stand in FROM: of a table that tracks its rows, with what it knows of each."""
    if not (place / "_delta_log").is_dir():
        return f"parquet.`{place}`"
    if open_table(str(place), "delta").snapshot().properties.get("delta.enableRowTracking") != "true":
        return f"delta.`{place}`"
    tracked = "_metadata.row_id AS tracked_id, _metadata.row_commit_version AS tracked_version"
    return f"(SELECT *, {tracked} FROM delta.`{place}`)"


@dataclass(frozen=True)
class Kept:
    """A table as it was, and the copy of it that is maintained."""

    answers: Answers
    before: Path
    after: Path
    battery: Battery

    @property
    def source(self) -> str:
        return source_of(self.before)

    @property
    def table(self) -> Any:
        return open_table(str(self.after), "delta")

    def judge(
        self,
        conditions: list[str],
        sessions: tuple[Session, ...] = USUAL,
        each: int = 1,
        **options: Any,
    ) -> Verdict:
        asked = spread(conditions, sessions, each)
        return self.answers.compare(self.source, source_of(self.after), asked, **options)

    def totals(self, session: Session = READER) -> Verdict:
        return self.answers.totals(session, self.source, source_of(self.after), self.battery.totals())


Keep = Callable[[str], Kept]


@pytest.fixture(scope="module")
def keep(answers: Answers, tmp_path_factory: pytest.TempPathFactory) -> Keep:
    """A table by its name; it is made once and copied for each test."""
    made: dict[str, tuple[Path, Battery]] = {}

    def kept(name: str) -> Kept:
        folder = tmp_path_factory.mktemp("answers")
        if name not in made:
            place = folder / "before"
            place.mkdir()
            (DELTA | CONVERTED | WHOLE)[name](answers.spark, place)
            made[name] = place, Battery(answers.session(READER), source_of(place), seed=len(name))
        before, battery = made[name]
        shutil.copytree(before, folder / "after")
        return Kept(answers, before, folder / "after", battery)

    return kept


def more(count: int) -> int:
    return max(1, round(count * MORE))


def some_of(conditions: list[str]) -> list[str]:
    return random.Random(0).sample(conditions, min(len(conditions), more(12)))


def same(verdict: Verdict) -> None:
    print(verdict)
    assert verdict.asked
    assert not verdict.differences, str(verdict)


# -- a minute of it ---------------------------------------------------------------------------------------------------


# Old calendars by default: test_statements_about_other_rows, and every value in tests/engine/test_calendars.py.
@pytest.mark.parametrize(
    "name",
    [
        "current",
        *(
            pytest.param(name, marks=pytest.mark.deep)
            for name in ("by time without a zone", "legacy-micros", "deltalake, changed")
        ),
    ],
)
def test_a_purge(keep: Keep, name: str) -> None:
    kept = keep(name)
    report = purge(kept.table, LocalEngine())
    assert report.verified
    assert report.steps
    same(kept.judge(some_of(kept.battery.conditions(1, random_ones=8))))


@pytest.mark.deep
def test_statements_about_other_rows(keep: Keep, delta_spark: SparkSession) -> None:
    kept = keep("legacy-micros")
    for statement in STATEMENTS.values():
        statement(kept, delta_spark)
    same(kept.judge(some_of(kept.battery.conditions(1)), aside=TOUCHED))


@pytest.mark.deep
@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(keep: Keep, name: str) -> None:
    """A table that is right passes, and with the fault it does not."""
    fault = FAULTS[name]
    kept = keep(fault.table)
    conditions = kept.battery.conditions(3 * len(USUAL), leaves=lambda leaf: leaf.sql in fault.leaves)
    fault.plant(kept.after)
    skipping = "in the log" in name
    verdict = kept.judge(conditions, skipping=skipping)
    print(name, verdict)
    assert verdict.differences, f"{verdict.asked} queries do not notice: {name}"


# -- verbs ------------------------------------------------------------------------------------------------------------


def _purge(kept: Kept, _: SparkSession) -> None:
    assert purge(kept.table, LocalEngine()).verified


def _compact(kept: Kept, spark: SparkSession) -> None:
    assert maintain(kept.table, SparkEngine(spark)).verified


def _zorder(kept: Kept, _: SparkSession) -> None:
    assert zorder(kept.table, LocalEngine(), ["k"]).verified


def _checkpoint(kept: Kept, _: SparkSession) -> None:
    later = kept.table.snapshot().timestamp + 100 * SOME_DAYS
    checkpoint(kept.table, clean_log=True, now=later)


def _vacuum(kept: Kept, _: SparkSession) -> None:
    later = kept.table.snapshot().timestamp + SOME_DAYS
    vacuum(kept.table, VacuumRequest(retention=0, allow_short_retention=True, now=later))


def _manifest(kept: Kept, _: SparkSession) -> None:
    mapped = kept.table.snapshot().properties.get("delta.columnMapping.mode", "none") != "none"
    with pytest.raises(UnsupportedFeatureError, match="columnMapping") if mapped else nullcontext():
        write_manifests(kept.table, LocalEngine(), purge_first=True)


def _restore(kept: Kept, _: SparkSession) -> None:
    """Restore the state from before somebody emptied it."""
    version = kept.table.version()
    delete(kept.table, kept.answers.spark)
    assert restore(kept.table, version=version).verified


def _downgrade(kept: Kept, _: SparkSession) -> None:
    downgrade(kept.table, LocalEngine())


def _delete(kept: Kept, spark: SparkSession) -> None:
    assert delete(kept.table, spark, "k = -7").rows_deleted


def _update(kept: Kept, spark: SparkSession) -> None:
    assert update(kept.table, spark, {"k": "k - 1000"}, "k = -19 OR k = -31").rows_updated


def _merge(kept: Kept, spark: SparkSession) -> None:
    source = "SELECT -43 AS k UNION ALL SELECT -55"
    begun = merge(kept.table, spark, source, "target.k = source.k")
    assert begun.when_matched_update({"k": "target.k - 1000"}).execute().rows_updated


Verb = Callable[[Kept, "SparkSession"], None]
STATEMENTS: Mapping[str, Verb] = {"delete": _delete, "update": _update, "merge": _merge}
# In an order in which each finds something to do; a vacuum follows verbs that leave unused files.
VERBS: Mapping[str, Verb] = {
    "purge": _purge,
    "zorder": _zorder,
    "vacuum": _vacuum,
    "checkpoint and log cleanup": _checkpoint,
    "restore": _restore,
    "manifest": _manifest,
    "compact": _compact,
    "downgrade": _downgrade,
}
REWRITES = ("purge", "zorder", "compact")


@pytest.mark.deep
@pytest.mark.parametrize("name", [name for name in DELTA if "whole" not in name])
def test_every_verb(keep: Keep, delta_spark: SparkSession, name: str) -> None:
    """Rewrites are asked about most, each in four other sessions of PAIRS; a sample asks the log which files
    may hold the rows.
    """
    kept, total = keep(name), Verdict()
    draw = random.Random(name)
    turns = draw.sample(PAIRS, len(PAIRS))
    for verb, act in VERBS.items():
        act(kept, delta_spark)
        if verb in REWRITES:
            sessions, turns = tuple(turns[:4]), turns[4:]
            verdict = kept.judge(kept.battery.conditions(more(1), random_ones=more(4)), sessions)
            sample = draw.sample(kept.battery.conditions(1, random_ones=4), more(2))
            verdict += kept.judge(sample, sessions, skipping=True)
            verdict += kept.totals()
        else:
            verdict = kept.judge(draw.sample(kept.battery.conditions(1, random_ones=4), more(4)))
        print(name, verb, verdict)
        total += verdict
    print(f"{name}: {total.asked} answers compared")
    same(total)


@pytest.mark.deep
@pytest.mark.parametrize("name", ["legacy", "legacy-micros", "current", "millis", "deltalake, changed"])
def test_statements_on_every_kind(keep: Keep, delta_spark: SparkSession, name: str) -> None:
    kept = keep(name)
    total = Verdict()
    for statement in STATEMENTS.values():
        statement(kept, delta_spark)
        total += kept.judge(kept.battery.conditions(more(1), random_ones=more(10)), PAIRS, aside=TOUCHED)
    same(total)


@pytest.mark.deep
@pytest.mark.parametrize("name", CONVERTED)
def test_converted_and_maintained(keep: Keep, delta_spark: SparkSession, name: str) -> None:
    kept = keep(name)
    assert convert(kept.table).converted
    same(kept.judge(kept.battery.conditions(more(1), random_ones=more(10)), PAIRS))
    assert maintain(kept.table, LocalEngine()).verified
    same(kept.judge(kept.battery.conditions(more(1), random_ones=more(10)), PAIRS))


@pytest.mark.deep
@pytest.mark.parametrize("name", ["legacy-micros", "current"])
def test_every_session(keep: Keep, name: str) -> None:
    """The full product of settings."""
    kept = keep(name)
    purge(kept.table, LocalEngine())
    some = random.Random(name).sample(kept.battery.conditions(1), more(10))
    same(kept.judge(some, ALL, each=len(ALL)))


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(6))
def test_random_tables_and_conditions(answers: Answers, tmp_path: Path, seed: int) -> None:
    draw, place = random.Random(seed), tmp_path / "before"
    place.mkdir()
    at_random(seed)(answers.spark, place)
    shutil.copytree(place, tmp_path / "after")
    kept = Kept(answers, place, tmp_path / "after", Battery(answers.session(READER), source_of(place), seed))
    print("seed", seed)
    for verb in draw.sample(["purge", "compact", "zorder", "restore", "manifest"], 2):
        VERBS[verb](kept, answers.spark)
        conditions = kept.battery.conditions(more(1), random_ones=more(20))
        same(kept.judge(conditions, tuple(draw.sample(ALL, 4))))


# -- what conditions mean to DELETE ------------------------------------------------------------------------------------


def wrong_deletes(kept: Kept, session: Session, conditions: list[str]) -> list[str]:
    """Those that take other rows than Spark finds, each with both figures."""
    own = kept.answers.session(session)
    if session.quoted:
        conditions = [each.replace("`", '"') for each in conditions]
    counts = kept.answers.true(session, kept.source, conditions)
    wrong = []
    for condition, found in zip(conditions, counts, strict=True):
        if found.startswith("fails"):
            continue
        try:
            ours = str(delete(kept.table, own, condition, dry_run=True).rows_deleted)
        except DvMaintenanceError as error:
            ours = f"fail: {error}"
        if ours != found.split()[0]:
            wrong.append(f"[{session}] WHERE {condition}: Spark finds {found.split()[0]} rows, we {ours}")
    print(f"{len(wrong)} of {len(conditions)} DELETEs differ")
    return wrong


@pytest.mark.deep
@pytest.mark.parametrize(
    "name",
    ["current", "by time without a zone", "by char and decimal", "legacy-micros", "few values a file", "edges"],
)
@pytest.mark.parametrize("session", USUAL[:3], ids=str)
def test_a_delete_takes_the_rows_that_spark_takes(keep: Keep, name: str, session: Session) -> None:
    kept = keep(name)
    wrong = wrong_deletes(kept, session, kept.battery.conditions(1, random_ones=10))
    assert not wrong, "\n".join(wrong[:12])


@pytest.mark.deep
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_of_conditions_are_found(keep: Keep, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """None is found before the mistake is made."""
    mistake = MISTAKES[name]
    kept = keep(mistake.table)
    conditions = kept.battery.conditions(80, leaves=lambda leaf: leaf.sql in mistake.leaves)
    conditions = [each for each in conditions if mistake.about in each][:16]

    def judged() -> list[str]:
        return [each for session in mistake.sessions for each in wrong_deletes(kept, session, conditions)]

    assert not judged()
    mistake.patch(monkeypatch, kept.answers)
    wrong = judged()
    print(name, *wrong, sep="\n")
    assert wrong, f"{len(conditions)} DELETEs do not notice: {name}"


@pytest.mark.deep
@pytest.mark.parametrize("guessed", [False, True])
def test_keys_that_are_guessed_are_found(
    keep: Keep, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, guessed: bool
) -> None:
    kept, listed = keep("legacy-micros"), tmp_path / "keys.csv"
    listed.write_text("s\n007\n")
    if guessed:
        guessed_keys(monkeypatch)
    own = kept.answers.session(READER)  # without ANSI: with it, a guess fails at text that is no number
    assert delete(kept.table, own, keys=str(listed), on=["s"]).rows_deleted
    verdict = kept.judge(kept.battery.conditions(1, random_ones=10), gone="`s` = '007'")
    print(verdict)
    assert bool(verdict.differences) == guessed, str(verdict)


@pytest.mark.deep
def test_views_that_are_believed_are_found(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = keep(STRING_VIEWS)
    string_views_of_arrow(monkeypatch)
    with pytest.raises(NotImplementedError, match="string_view"):
        purge(kept.table, LocalEngine())

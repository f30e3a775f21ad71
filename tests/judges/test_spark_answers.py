"""Maintenance never changes what a query returns: batteries of queries in real Spark before and after each verb.

``make deep`` asks every table after every verb, in every session. DVM_ANSWERS multiplies how many conditions are asked.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from answer_faults import FAULTS
from answer_tables import CONVERTED, DELTALAKE, SPARK, WHOLE, at_random
from answers import ALL, PAIRS, READER, USUAL, Answers, Session, Verdict, spread
from battery import Battery

from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.merge import merge
from dv_maintenance.dml.update import update
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.spark import SparkEngine
from dv_maintenance.maintenance.checkpoint import checkpoint
from dv_maintenance.maintenance.convert import convert
from dv_maintenance.maintenance.downgrade import downgrade
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.manifest import write_manifests
from dv_maintenance.maintenance.restore import restore
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.maintenance.zorder import zorder
from dv_maintenance.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MORE = int(os.environ.get("DVM_ANSWERS", "1"))
DELTA = SPARK | DELTALAKE
TOUCHED = "k < 0"
SOME_DAYS = 10 * 24 * 3_600_000


@pytest.fixture(scope="module")
def answers(delta_spark: SparkSession) -> Answers:
    return Answers(delta_spark)


@dataclass(frozen=True)
class Kept:
    """A table as it was, and the copy of it that is maintained."""

    answers: Answers
    before: Path
    after: Path
    battery: Battery

    @property
    def source(self) -> str:
        return f"{'delta' if (self.before / '_delta_log').is_dir() else 'parquet'}.`{self.before}`"

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
        return self.answers.compare(self.source, f"delta.`{self.after}`", asked, **options)


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
            source = f"{'parquet' if name in CONVERTED else 'delta'}.`{place}`"
            made[name] = place, Battery(answers.session(READER), source, seed=len(name))
        before, battery = made[name]
        shutil.copytree(before, folder / "after")
        return Kept(answers, before, folder / "after", battery)

    return kept


def same(verdict: Verdict) -> None:
    print(verdict)
    assert verdict.asked
    assert not verdict.differences, str(verdict)


# -- a minute of it ---------------------------------------------------------------------------------------------------


# Old calendars by default: test_statements_about_other_rows, and every value in tests/engine/test_calendars.py.
@pytest.mark.parametrize(
    "name",
    [pytest.param("legacy-micros", marks=pytest.mark.deep), "current", "deltalake, changed", "by time without a zone"],
)
def test_a_purge(keep: Keep, name: str) -> None:
    kept = keep(name)
    report = purge(kept.table, LocalEngine())
    assert report.verified
    assert report.steps
    same(kept.judge(kept.battery.conditions(2 if name == "current" else 1, random_ones=8)))


def test_statements_about_other_rows(keep: Keep, delta_spark: SparkSession) -> None:
    kept = keep("legacy-micros")
    for statement in STATEMENTS.values():
        statement(kept, delta_spark)
    same(kept.judge(kept.battery.conditions(1), aside=TOUCHED))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "NaN left out of footers" else pytest.mark.deep) for name in FAULTS],
)
def test_planted_faults_are_found(keep: Keep, name: str) -> None:
    """A table that is right passes, and with the fault it does not."""
    fault = FAULTS[name]
    kept = keep(fault.table)
    conditions = kept.battery.conditions(12, leaves=lambda leaf: leaf.sql in fault.leaves)
    fault.plant(kept.after)
    skipping = "in the log" in name
    verdict = kept.judge(conditions, USUAL, skipping=skipping)
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
    vacuum(kept.table, retention=0, allow_short_retention=True, now=later)


def _manifest(kept: Kept, _: SparkSession) -> None:
    write_manifests(kept.table, LocalEngine(), purge_first=True)


def _restore(kept: Kept, _: SparkSession) -> None:
    """To what it was, after somebody emptied it."""
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
# In an order in which each finds something to do; a vacuum goes after what leaves files behind.
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


@pytest.mark.deep
@pytest.mark.parametrize("name", DELTA)
def test_every_verb(keep: Keep, delta_spark: SparkSession, name: str) -> None:
    """The purge, which rewrites most, is asked about most; a sample asks the log which files may hold the rows."""
    kept = keep(name)
    total = Verdict()
    for verb, act in VERBS.items():
        act(kept, delta_spark)
        verdict = kept.judge(
            kept.battery.conditions((12 if verb == "purge" else 2) * MORE, random_ones=20 * MORE), PAIRS
        )
        verdict += kept.judge(kept.battery.conditions(1, random_ones=4), USUAL, skipping=True)
        print(name, verb, verdict)
        total += verdict
    same(total)


@pytest.mark.deep
@pytest.mark.parametrize("name", ["legacy", "legacy-micros", "current", "millis", "deltalake, changed"])
def test_statements_on_every_kind(keep: Keep, delta_spark: SparkSession, name: str) -> None:
    kept = keep(name)
    total = Verdict()
    for statement in STATEMENTS.values():
        statement(kept, delta_spark)
        total += kept.judge(kept.battery.conditions(5 * MORE, random_ones=20), PAIRS, aside=TOUCHED)
    same(total)


@pytest.mark.deep
@pytest.mark.parametrize("name", CONVERTED)
def test_converted_and_maintained(keep: Keep, delta_spark: SparkSession, name: str) -> None:
    kept = keep(name)
    assert convert(kept.table).converted
    same(kept.judge(kept.battery.conditions(4 * MORE, random_ones=10), PAIRS))
    assert maintain(kept.table, LocalEngine()).verified
    same(kept.judge(kept.battery.conditions(8 * MORE, random_ones=30), PAIRS))


@pytest.mark.deep
@pytest.mark.parametrize("name", ["legacy-micros", "current"])
def test_every_session(keep: Keep, name: str) -> None:
    """The full product of settings."""
    kept = keep(name)
    purge(kept.table, LocalEngine())
    same(kept.judge(kept.battery.conditions(MORE), ALL, each=len(ALL)))


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(6 * MORE))
def test_random_tables_and_conditions(answers: Answers, tmp_path: Path, seed: int) -> None:
    draw, place = random.Random(seed), tmp_path / "before"
    place.mkdir()
    at_random(seed)(answers.spark, place)
    shutil.copytree(place, tmp_path / "after")
    kept = Kept(answers, place, tmp_path / "after", Battery(answers.session(READER), f"delta.`{place}`", seed))
    print("seed", seed)
    for verb in draw.sample(["purge", "compact", "zorder", "restore", "manifest"], 2):
        VERBS[verb](kept, answers.spark)
        same(kept.judge(kept.battery.conditions(3, random_ones=60), tuple(draw.sample(ALL, 5))))


# -- what conditions mean to DELETE ------------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize("name", ["current", "by time without a zone", "by char and decimal", "legacy-micros"])
@pytest.mark.parametrize("session", USUAL[:3], ids=str)
def test_a_delete_takes_the_rows_that_spark_takes(keep: Keep, name: str, session: Session) -> None:
    kept = keep(name)
    own = kept.answers.session(session)
    conditions = kept.battery.conditions(1, random_ones=10)
    counts = kept.answers.true(session, kept.source, conditions)
    wrong = []
    for condition, found in zip(conditions, counts, strict=True):
        if found.startswith("fails"):
            continue
        rows = delete(kept.table, own, condition, dry_run=True).rows_deleted
        if rows != int(found.split()[0]):
            wrong.append(f"WHERE {condition}: Spark finds {found.split()[0]} rows, we {rows}")
    assert not wrong, "\n".join([f"[{session}] {len(wrong)} of {len(conditions)} differ", *wrong[:12]])

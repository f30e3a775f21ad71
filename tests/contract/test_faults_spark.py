"""DELETE, UPDATE and MERGE by a real Spark session, under faults and kills of what the driver reads and writes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.merge import merge
from dv_maintenance.dml.update import update
from dv_maintenance.testing.backends import DeltaBackend, LanceBackend, PaimonBackend, Row, TableBackend
from dv_maintenance.testing.faults import Call, Fault, Faults, Kill, Killed
from dv_maintenance.testing.history import TableHistory
from dv_maintenance.testing.locations import Folder
from dv_maintenance.testing.trials import Trial
from dv_maintenance.testing.verbs import Verb

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.jvm, pytest.mark.usefixtures("quick")]

GONE = (1, 8, 13)
SET = (2, 9, 14)
RUNS = 6
RATES = (0.01, 0.03, 0.1)


def by_condition(spark: SparkSession, backend: TableBackend) -> object:
    return delete(backend.open(), spark, f"id IN {GONE}")


def by_keys(spark: SparkSession, backend: TableBackend) -> object:
    keys = spark.createDataFrame([(number,) for number in GONE], "id long")
    return delete(backend.open(), spark, keys=keys, on=["id"])


def set_values(spark: SparkSession, backend: TableBackend) -> object:
    return update(backend.open(), spark, {"v": "'new'"}, f"id IN {SET}")


def bring_in_line(spark: SparkSession, backend: TableBackend) -> object:
    """Some go, some change, and there is a new one of an old partition, and one of a new one."""
    rows = [
        *((number, "", "", "gone") for number in GONE),
        *((number, "", "new", "set") for number in SET),
        *((number, partition, "merged", "new") for number, partition in ((100, "a"), (101, "c"))),
    ]
    source = spark.createDataFrame(rows, "id long, p string, v string, kind string")
    return (
        merge(backend.open(), spark, source, "target.id = source.id")
        .when_matched_delete("source.kind = 'gone'")
        .when_matched_update({"v": "source.v"})
        .when_not_matched_insert({"id": "source.id", "p": "source.p", "v": "source.v"}, "source.kind = 'new'")
        .execute()
    )


def left(history: TableHistory) -> dict[int, Row]:
    return {number: row for number, row in history.rows.items() if number not in GONE}


def changed(history: TableHistory) -> dict[int, Row]:
    rows = history.rows.items()
    return {number: (number, row[1], "new") if number in SET else row for number, row in rows}


def merged(history: TableHistory) -> dict[int, Row]:
    rows = {number: row for number, row in changed(history).items() if number not in GONE}
    return rows | {100: (100, "a", "merged"), 101: (101, "c", "merged")}


Work = tuple[Callable[["SparkSession", TableBackend], object], Callable[[TableHistory], dict[int, Row]]]
VERBS: dict[str, Work] = {
    "delete by condition": (by_condition, left),
    "delete by keys": (by_keys, left),
    "update": (set_values, changed),
    "merge": (bring_in_line, merged),
}
MAKES: dict[str, Callable[[str], TableBackend]] = {
    "delta": DeltaBackend,
    "lance": LanceBackend,
    "paimon": lambda place: PaimonBackend(place, properties={"deletion-vector.index-file.target-size": "60"}),
}
CASES = [("delta", name) for name in VERBS] + [
    (kind, name) for kind in ("lance", "paimon") for name in ("delete by condition", "delete by keys")
]


@pytest.fixture
def trial(tmp_path: Path, spark: SparkSession, kind: str, name: str) -> Trial:
    work, rows = VERBS[name]
    verb = Verb(name, lambda backend, _: work(spark, backend), rows=rows)
    return Trial(MAKES[kind](str(tmp_path / "table")), Folder(tmp_path / "table"), verb)


class AtItsCommit:
    """At the put-if-absent of the log entry: death before it, or a fault."""

    def __init__(self, fault: Fault | None) -> None:
        self.wanted, self.happened = fault, 0

    def fault(self, call: Call) -> Fault | None:
        if call.operation not in {"create", "link"} or not re.search(r"_delta_log/|snapshot/", call.path):
            return None
        self.happened += 1
        if self.wanted is None:
            raise Killed(call.path)
        return self.wanted

    def done(self, call: Call) -> None:
        pass


@pytest.mark.parametrize(("kind", "name"), [("delta", "update")])
def test_killed_at_its_commit(kind: str, name: str, trial: Trial) -> None:
    """Files and DVs are there, the commit is not."""
    assert trial.kill(AtItsCommit(None))


@pytest.mark.deep
@pytest.mark.parametrize(("kind", "name"), [case for case in CASES if case[0] != "lance"])
def test_known_again(kind: str, name: str, trial: Trial) -> None:
    for fault in (Fault.LOSE_ANSWER, Fault.DUPLICATE):
        assert_known_again(trial, fault)


def assert_known_again(trial: Trial, fault: Fault) -> None:
    assert trial.version is not None
    script = AtItsCommit(fault)
    assert trial.version_after(script) == trial.version + 1, fault
    assert script.happened == 1


@pytest.mark.deep
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_killed_at_every_change(kind: str, name: str, trial: Trial) -> None:
    """Death at a call that only reads leaves what death after the last change leaves."""
    points = trial.points()
    kills = [Kill(point.number) for point in points] + [Kill(points[-1].number, "after")]
    kills += [Kill(point.number, "halfway") for point in points if Fault.FULL_HALFWAY in point.possible]
    for kill in kills:
        assert trial.kill(kill), kill
    print(f"\n{kind} {name}: {len(points)} changes, {len(kills)} kills")


@pytest.mark.deep
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_disturbed_again_and_again(kind: str, name: str, trial: Trial) -> None:
    injected: Counter[Fault] = Counter()
    ended: Counter[str] = Counter()
    for seed in range(RUNS):
        script = Faults(seed, rate=RATES[seed % 3])
        error = trial.disturb(script)
        injected += script.injected
        ended[type(error).__name__ if error else "done"] += 1
    print(f"\n{kind} {name}: {dict(injected)}, {dict(ended)}")

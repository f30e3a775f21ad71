"""What Paimon's own engine, and plain Spark on the files, answer to filters on a table before and after maintenance."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from answers import PAIRS, READER, USUAL, Answers, spread
from battery import Battery
from paimon_engine import DV, PaimonEngine, Row
from paimon_judging import in_order, opened

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import maintain, purge

NAN, INF = float("nan"), float("inf")
VALUES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "f64": ("DOUBLE", (1.5, NAN, -0.0, 7.25, None, 50.0, 0.0)),
    "f32": ("FLOAT", (NAN, 1.5, None, -0.0, 7.0)),
    "dn": ("DOUBLE", (NAN, None)),
    "inf": ("DOUBLE", (INF, -INF, NAN, 3.0, None)),
    "i64": ("BIGINT", (2**53 + 1, -(2**63) + 1, 7, None, 0)),
    "dec": ("DECIMAL(9, 2)", (Decimal("1.00"), Decimal("-9999999.99"), None)),
    "s": ("STRING", ("a", "", None, "007", "é", "x" * 90, "ab ")),
    "c": ("CHAR(4)", ("ab  ", "abcd", None)),
    "b": ("BOOLEAN", (True, False, None)),
    "d": ("DATE", (date(1, 1, 1), date(1500, 3, 1), None, date(2026, 1, 5), date(9999, 12, 31))),
    "ts": ("TIMESTAMP(6)", (datetime(1850, 1, 1), None, datetime(2026, 3, 8, 2, 30), datetime(1, 1, 1))),
}


def row(number: int) -> list[Any]:
    return [number, *(values[number % len(values)] for _, values in VALUES.values())]


def make(engine: PaimonEngine, path: Path, partition: str | None) -> None:
    """The files are deleted from by deletion vectors; the values of one are those of all."""
    columns = {"k": "INT"} | {name: kind for name, (kind, _) in VALUES.items()}
    engine.create(path, columns, partition=[partition] if partition else [], options=DV)
    for first in (0, 40):
        engine.append(path, [row(number) for number in range(first, first + 40)])
    engine.delete(path, lambda each: each["k"] % 10 == 3)


def by_equality(engine: PaimonEngine, path: Path) -> dict[tuple[str, int], list[str]]:
    """The rows that have a value, as Paimon looks for them: not all its readers leave the others out."""

    def has(each: Row, name: str, value: Any) -> bool:
        return repr(each[name]) == repr(wanted[name, value])

    wanted = {}
    everything = engine.rows(path)
    for name, (_, values) in VALUES.items():
        for number, value in enumerate(values):
            if value is not None:
                one = next(each for each in everything if each["k"] % len(values) == number)
                wanted[name, number] = one[name]
    return {
        (name, number): in_order(
            [each for each in engine.rows(path, where=(name, VALUES[name][1][number])) if has(each, name, number)]
        )
        for name, number in wanted
    }


@pytest.mark.parametrize(
    ("partition", "verb"),
    [
        pytest.param(None, "purge"),
        pytest.param("d", "purge", marks=pytest.mark.deep),
        pytest.param("c", "compact", marks=pytest.mark.deep),
        pytest.param("ts", "purge", marks=pytest.mark.deep),
    ],
)
def test_the_same_answers(
    paimon_engine: PaimonEngine, tmp_path: Path, request: pytest.FixtureRequest, partition: str | None, verb: str
) -> None:
    engine, path = paimon_engine, tmp_path / "table"
    make(engine, path, partition)
    rows, before = in_order(engine.rows(path)), by_equality(engine, path)
    table = opened(path)
    report = (purge if verb == "purge" else maintain)(table, LocalEngine())
    assert report.verified, report.problems
    assert in_order(engine.rows(path)) == rows
    after = by_equality(engine, path)
    wrong = [
        f"{name} = {VALUES[name][1][n]}: {len(before[name, n])} -> {len(after[name, n])} rows"
        for name, n in before
        if before[name, n] != after[name, n]
    ]
    assert not wrong, wrong

    # Spark on the files of now: whatever it skips must be nothing that it looks for.
    answers = Answers(request.getfixturevalue("delta_spark"))
    storage = table.storage
    files = [storage.uri_of(each).removeprefix("file://") for each in table.snapshot().files["path"].to_pylist()]
    deep = request.node.get_closest_marker("deep") is not None
    sessions = PAIRS if deep else USUAL
    answers.view_files("paimon_files", files, [*sessions, READER])
    battery = Battery(answers.session(READER), "paimon_files")
    conditions = battery.conditions(12 if deep else 2, random_ones=10)
    verdict = answers.compare("paimon_files", "paimon_files", spread(conditions, sessions, 1))
    assert verdict.as_wrong_as_before == 0, f"{verdict.as_wrong_as_before} of {verdict.asked}"

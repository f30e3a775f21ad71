"""The replay of tables' lives: its bookkeeping, the bound, and an adversary that tries to beat the proof."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from research.rules import by_thresholds
from research.traces import KINDS, trace

from dv_maintenance.maintenance.meter.measure import DAY
from dv_maintenance.maintenance.meter.prices import Prices
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.reads.model import Reads
from dv_maintenance.maintenance.simulation.bound import clairvoyant
from dv_maintenance.maintenance.simulation.replay import Replayed, Rule, replay
from dv_maintenance.maintenance.simulation.rules import by_meter, never, purge_every_night
from dv_maintenance.maintenance.simulation.trace import Trace, TraceBuilder

PRICES = Prices()
TARGET = 256 << 20
SMALL = TARGET * 3 // 4
START = 20_000 * DAY


def run(life: Trace, rule: Rule, **more: int) -> Replayed:
    return replay(life, rule, PRICES, target=TARGET, small=SMALL, **more)


def bound(life: Trace, start: float = 0.0) -> float:
    return clairvoyant(life, PRICES, target=TARGET, small=SMALL, start=start)


def one_delete(per_day: float, days: int = 10) -> Trace:
    """A file of 256 MiB; a tenth of its rows is deleted after a day."""
    builder = TraceBuilder("one", START)
    piece = builder.add(START, TARGET, 1_000_000)
    builder.statement()
    builder.delete(START + DAY, piece, 100_000)
    return builder.build(START + days * DAY, Reads.declared(per_day))


def test_readers_pay_by_the_day() -> None:
    found = run(one_delete(20), never())
    assert found.reading == pytest.approx(9 * 20 * PRICES.decoding(TARGET) * 0.23)
    assert (found.runs, found.rewriting, found.starting) == (0, 0, 0)


def test_a_purge_ends_the_payments() -> None:
    found = run(one_delete(20), purge_every_night(25))
    reads = 20 * 3 / 24  # from midnight to three
    assert found.reading == pytest.approx(reads * PRICES.decoding(TARGET) * 0.23)
    assert found.rewriting == pytest.approx(PRICES.decoding(TARGET) + PRICES.encoding(TARGET * 0.9), rel=1e-6)
    assert (found.runs, found.starting, found.written) == (1, 25, int(TARGET * 0.9))


def test_the_clairvoyant_rewrites_at_once_or_never() -> None:
    rewrite = PRICES.decoding(TARGET) + PRICES.encoding(TARGET * 0.9)
    assert bound(one_delete(1000)) == pytest.approx(rewrite)
    assert bound(one_delete(1000), start=25) == pytest.approx(rewrite + 25)
    rare = 0.1 * 9 * PRICES.decoding(TARGET) * 0.23
    assert bound(one_delete(0.1), start=25) == bound(one_delete(0.1)) == pytest.approx(rare)


@pytest.mark.parametrize("days", [5, 21, 24, 60])
def test_a_file_that_is_alone_pays_the_whole_start_however_long_it_waits(days: int) -> None:
    builder = TraceBuilder("alone", START)
    piece = builder.add(START, TARGET, 1_000_000)
    builder.statement()
    builder.delete(START + DAY // 24, piece, 1)
    life = builder.build(START + days * DAY, Reads.declared(10))
    rewrite = PRICES.decoding(TARGET) + PRICES.encoding(TARGET)
    assert bound(life, start=25) == pytest.approx(min(run(life, never()).cost, rewrite + 25), rel=1e-5)


def test_late_rows_are_counted() -> None:
    found = run(one_delete(20), never(), purge_within=4 * DAY)
    assert (found.late, found.late_days) == (100_000, 5.0)
    assert run(one_delete(20), purge_every_night(25), purge_within=4 * DAY).late == 0


def test_a_statement_that_loses_a_file_to_a_run_is_disturbed() -> None:
    builder = TraceBuilder("busy", START)
    piece = builder.add(START, TARGET, 1_000_000)
    for minute in range(3):
        builder.statement()
        builder.delete(START + DAY + minute * 1000, piece, 100_000)
    life = builder.build(START + 2 * DAY, Reads.declared(1))
    found = run(life, by_thresholds("sensor", Policy(), nightly=False, start=25))
    assert (found.runs, found.disturbed) == (3, 2)


# -- the proof ----------------------------------------------------------------------------------------------------


@st.composite
def lives(draw: st.DrawFn, files: int) -> Trace:
    """Full files, with deletes and reads as an adversary likes them."""
    builder = TraceBuilder("adversary", START)
    pieces = [builder.add(START, TARGET, 1_000_000) for _ in range(files)]
    days = draw(st.integers(1, 30))
    hours = sorted(draw(st.lists(st.integers(1, days * 24), min_size=1, max_size=25)))
    for hour in hours:
        builder.statement()
        for piece in draw(st.sets(st.sampled_from(pieces), min_size=1)):
            builder.delete(START + hour * DAY // 24, piece, draw(st.sampled_from([1, 1_000, 20_000])))
    return builder.build(START + (days + 1) * DAY, Reads.declared(10 ** draw(st.floats(-1, 3))))


@given(lives(1), st.sampled_from([0.0, 1.0, 25.0]))
@settings(max_examples=examples(40))
def test_no_adversary_beats_three_with_one_file(life: Trace, start: float) -> None:
    """The bound of docs/explanation/policy-method.md: rewriting and starting cost at most what readers paid, and they
    paid at most twice what a clairvoyant would have.
    """
    rule = by_meter("meter", Policy(), life.reads, nightly=False, start=start)
    assert run(life, rule).cost <= 3 * bound(life, start) + 1e-6


@given(lives(4), st.sampled_from([0.0, 25.0]))
@settings(max_examples=examples(25))
def test_files_that_share_a_start_stay_close(life: Trace, start: float) -> None:
    """With several files the bound itself is looser, since the shares of a start are guessed."""
    rule = by_meter("meter", Policy(), life.reads, nightly=False, start=start)
    assert run(life, rule).cost <= 4 * bound(life, start) + 1e-6


@given(lives(2), st.sampled_from([0.0, 5.0, 25.0]))
@settings(max_examples=examples(25))
def test_no_rule_pays_less_than_the_bound(life: Trace, start: float) -> None:
    rules = [
        never(),
        purge_every_night(start),
        by_thresholds("sensor", Policy(max_deleted_ratio=0), nightly=False, start=start),
        by_meter("meter", Policy(), life.reads, nightly=False, start=start),
        by_meter("eager", Policy(), Reads.declared(1e6), nightly=False, start=start),
    ]
    least = bound(life, start)
    assert all(run(life, rule).cost >= least * (1 - 1e-6) for rule in rules)


# -- decisions on lives of many kinds -----------------------------------------------------------------------------


def test_decisions_did_not_get_worse() -> None:
    """The short form of benchmarks/bench_policy.py."""
    ratios = {}
    for kind in ("sliding window", "dimension", "commits, small"):
        life = trace(kind, days=14)
        least = bound(life, 25)
        meter = run(life, by_meter("meter", Policy(), life.reads, nightly=False, start=25)).cost
        nightly = run(life, by_thresholds("nightly", Policy(), nightly=True, start=25)).cost
        assert meter <= 1.1 * nightly, kind
        ratios[kind] = meter / least
    assert exp(np.mean([log(ratio) for ratio in ratios.values()])) <= 2.2, ratios


def test_every_kind_of_life_can_be_made() -> None:
    for kind in KINDS:
        life = trace(kind, days=2)
        assert len(life.time)
        assert (np.diff(life.time) >= 0).all()

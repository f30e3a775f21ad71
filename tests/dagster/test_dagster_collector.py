"""The garbage collector while many definitions are made: it looks at each once or twice, and still finds garbage."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from dv_maintenance.dagster import build_dv_assets, collector
from dv_maintenance.service.tables_file import TableSettings


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    gc.unfreeze()  # what the suite has frozen
    before = list(gc.callbacks), gc.get_threshold()
    yield
    assert (list(gc.callbacks), gc.get_threshold()) == before
    gc.freeze()


class Node:
    def __init__(self) -> None:
        self.itself = self


def until_over(most: int) -> list[object]:
    """Makes objects until the hook is gone."""
    kept: list[object] = []
    while collector._Load.left > 0:
        assert len(kept) <= most
        kept.extend([] for _ in range(1000))
    return kept


def test_few_tables_change_nothing() -> None:
    before = list(gc.callbacks)
    collector.expect_definitions(99)
    assert gc.callbacks == before


def test_what_survives_is_not_searched_again() -> None:
    full: list[int] = []

    def count(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            full.append(info["collected"])

    gc.collect()
    gc.callbacks.append(count)
    try:
        collector.expect_definitions(600)
        kept: list[object] = []
        while collector._Load.left > 100_000:
            kept.extend([] for _ in range(1000))
        assert not full, "searched in full"
        made = until_over(2_000_000) + kept
        # Without the hook, as many objects again are searched in full.
        more = [[each] for each in range(2 * len(made))]
        assert full
        del more
    finally:
        gc.callbacks.remove(count)


def test_garbage_is_found_meanwhile() -> None:
    collector.expect_definitions(200)
    garbage = [weakref.ref(Node()) for _ in range(100)]
    until_over(1_000_000)
    assert not [each for each in garbage if each() is not None]


def test_a_full_collection_finds_everything_before_the_load_is_over() -> None:
    """Definitions that are replaced, or a user's own objects that had survived until then."""
    collector.expect_definitions(1000)
    nodes = [Node() for _ in range(60_000)]
    garbage = [weakref.ref(each) for each in nodes]
    del nodes
    assert collector._Load.left > 0
    gc.collect()
    assert not [each for each in garbage if each() is not None]
    del garbage
    until_over(2_000_000)


def test_a_load_that_is_over_early_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "_SECONDS", -5000 * collector._SECONDS_OF_A_TABLE)
    collector.expect_definitions(5000)
    young, rounds, _ = gc.get_threshold()
    made = [[each] for each in range(2 * young * rounds)]  # Python 3.13 has other thresholds
    assert collector._Load.after not in gc.callbacks
    del made


def test_a_threshold_that_somebody_sets_meanwhile_stays() -> None:
    usual = gc.get_threshold()
    collector.expect_definitions(100)
    try:
        gc.set_threshold(700, 10, 5)
        until_over(1_000_000)
        assert gc.get_threshold() == (700, 10, 5)
    finally:
        gc.set_threshold(*usual)


def test_several_components_add_up() -> None:
    before = len(gc.callbacks)
    collector.expect_definitions(100)
    left = collector._Load.left
    collector.expect_definitions(100)
    assert len(gc.callbacks) == before + 1
    assert collector._Load.left > left
    until_over(1_000_000)


def test_many_assets_expect_theirs() -> None:
    assets = build_dv_assets(TableSettings(name=f"lake/t{each}", path=f"/lake/t{each}") for each in range(100))
    assert len(assets) == 300
    assert collector._Load.after in gc.callbacks
    until_over(1_000_000)

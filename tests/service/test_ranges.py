"""Partitions that are due, merged into ranges."""

from __future__ import annotations

import pytest

from dv_maintenance.service.ranges import merged, widest_range


def test_ranges_pass_over_short_gaps_only() -> None:
    order = [f"{number:02}" for number in range(40)]
    assert merged(order, ["00", "01", "03", "11", "20", "39"]) == [(4, "00", "11"), (1, "20", "20"), (1, "39", "39")]
    assert merged(order, []) == []
    assert merged(order, order) == [(40, "00", "39")]


DAYS = [f"{day:02}" for day in range(1, 31)]


@pytest.mark.parametrize(
    ("due", "span"),
    [
        # One run for all lines of a grid that have work.
        (["01|eu", "02|us", "03|eu", "03|us"], ("01|eu", "03|us")),
        # Work that is far apart: one line at a time, the one with the most first.
        (["01|eu", "20|us", "21|us"], ("20|us", "21|us")),
        (["05|us"], ("05|us", "05|us")),
        # No known key holds some of the work: the whole table.
        (["05|us", "05|asia"], None),
        (["05|us", None], None),
    ],
)
def test_a_run_takes_a_rectangle_of_a_grid(due: list[str | None], span: tuple[str, str] | None) -> None:
    grid = [f"{day}|{region}" for day in DAYS for region in ("eu", "us")]
    assert widest_range(grid, due, columns=2) == span


def test_a_run_takes_the_range_with_the_most_work() -> None:
    assert widest_range(DAYS, ["01", "20", "22"]) == ("20", "22")
    assert widest_range(DAYS, ["01", "42"]) is None

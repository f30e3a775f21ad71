"""Partitions that are due, merged into ranges."""

from __future__ import annotations

from dv_maintenance.service.ranges import merged


def test_ranges_pass_over_short_gaps_only() -> None:
    order = [f"{number:02}" for number in range(40)]
    assert merged(order, ["00", "01", "03", "11", "20", "39"]) == [(4, "00", "11"), (1, "20", "20"), (1, "39", "39")]
    assert merged(order, []) == []
    assert merged(order, order) == [(40, "00", "39")]

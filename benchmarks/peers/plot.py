"""The ratios of wall time as a picture: docs/images/peers.svg, from the JSON of a run.

A dot for each median, a line from the least to the greatest ratio, a diamond for the goal. The scale is logarithmic, so
that half and twice are equally far from 1. The background is transparent, and the colours suit light and dark pages.
"""

from __future__ import annotations

import html
import math
from typing import Any, Final

TICKS: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
LABELS: Final = 400
WIDTH: Final = 400
VALUES: Final = 60
ROW: Final = 22
TOP: Final = 46

TEXT: Final = "#737b8a"
GRID: Final = "#737b8a55"
LESS: Final = "#2a9d74"
MORE: Final = "#d1653b"


def svg(found: dict[str, Any]) -> str:
    """The cases that compare with somebody else, the lowest ratio first."""
    cases = sorted(
        (case for case in found["cases"] if not case["peer"].startswith("ours")), key=lambda case: case["ratio"]["wall"]
    )
    bottom = TOP + ROW * len(cases)
    size = f'width="{LABELS + WIDTH + VALUES}" height="{bottom + 8}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" fill="{TEXT}">',
        "<title>Wall time as a share of the peer's, by case</title>",
        f'<text x="{place(1) - 8}" y="14" text-anchor="end">less time than the peer</text>',
        f'<text x="{place(1) + 8}" y="14">more</text>',
    ]
    for tick in TICKS:
        x = place(tick)
        stroke = f'stroke="{TEXT}" stroke-width="1.5"' if tick == 1 else f'stroke="{GRID}"'
        lines.append(f'<path d="M{x} {TOP - 8}V{bottom}" {stroke}/>')
        lines.append(f'<text x="{x}" y="{TOP - 14}" text-anchor="middle">{tick:g}</text>')
    for number, case in enumerate(cases):
        lines += row(case, TOP + ROW * number + ROW // 2)
    return "\n".join([*lines, "</svg>"]) + "\n"


def row(case: dict[str, Any], y: int) -> list[str]:
    ratio = case["ratio"]
    colour = LESS if ratio["wall"] <= 1 else MORE
    name = html.escape(f"{case['what']} / {case['peer']}")
    found = [
        f'<text x="{LABELS - 10}" y="{y + 4}" text-anchor="end">{name}</text>',
        f'<path d="M{place(ratio["least"])} {y}H{place(ratio["greatest"])}" stroke="{colour}" stroke-width="2"/>',
        f'<circle cx="{place(ratio["wall"])}" cy="{y}" r="4.5" fill="{colour}"/>',
        f'<text x="{LABELS + WIDTH + 12}" y="{y + 4}" fill="{colour}">{ratio["wall"]:.2f}</text>',
    ]
    if (goal := wall_goal(case)) is not None:
        x = place(goal)
        found.append(f'<path d="M{x - 5} {y}l5 -5l5 5l-5 5z" fill="none" stroke="{TEXT}" stroke-width="1.5"/>')
    return found


def wall_goal(case: dict[str, Any]) -> float | None:
    """The ratio of wall times to reach; ``None``: the goal is about something else."""
    try:
        return float(case["goal"].partition(",")[0])
    except ValueError:
        return None


def place(ratio: float) -> float:
    """The horizontal place of a ratio, pixels."""
    low, high = math.log(TICKS[0] / 1.6), math.log(TICKS[-1] * 1.3)
    share = (math.log(ratio) - low) / (high - low)
    return round(LABELS + WIDTH * min(max(share, 0), 1), 1)

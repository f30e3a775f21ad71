"""Words for people: lists that fit into a page, numbers, sizes, times, names that are too long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from dv_maintenance.service.chart import fits_inline
from dv_maintenance.units import count, format_size

_SHOWN: Final = 50
_NAME_SHOWN: Final = 80
_REASONS_SHOWN: Final = 10


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def shown(lines: Sequence[str]) -> tuple[str, ...]:
    """The first 50 of them, and how many more there are."""
    hidden = [f"and {len(lines) - _SHOWN:,} more"] if len(lines) > _SHOWN else []
    return (*lines[:_SHOWN], *hidden)


def inline(lines: Iterable[str]) -> str:
    """As many lines as a page shows in place, at least the first; a single line has no bullet."""
    rest = list(lines)
    for shown in range(len(rest), 0, -1):
        hidden = [f"and {len(rest) - shown:,} more"] if shown < len(rest) else []
        text = rest[0] if len(rest) == 1 else bullets([*rest[:shown], *hidden])
        if fits_inline(text):
            return text
    return bullets(rest[:1])


def grouped(reasons: Iterable[str], noun: str) -> list[str]:
    """Each distinct reason once, the most frequent first."""
    counted = Counter(reasons).most_common(_REASONS_SHOWN)
    return [reason if times == 1 else f"{count(times, noun)}: {reason}" for reason, times in counted]


def shortened(text: str, most: int = _NAME_SHOWN) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def has(number: int) -> str:
    """The verb after a number of things: ``1 has``, ``2 have``."""
    return f"{number:,} {'has' if number == 1 else 'have'}"


def was(number: int) -> str:
    """The verb after :func:`count`."""
    return "was" if number == 1 else "were"


def number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def percent(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{ratio:.2%}"


def size(value: int | None) -> str:
    """Bytes in binary units."""
    return "?" if value is None else format_size(value)

"""Cron expressions, checked while the line that they stand on is known. Orchestrators read them later."""

from __future__ import annotations

import re
from typing import Final

_PRESETS: Final = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: Final[tuple[tuple[str, int, int, tuple[str, ...]], ...]] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _DAYS),
)
_RANGE: Final = re.compile(r"(?:\*|([a-z0-9]+)(?:-([a-z0-9]+))?)(?:/([0-9]+))?", re.ASCII)
# The last day of the month, and the second or last Friday of it.
_IN_MONTH: Final = {2: re.compile("l"), 4: re.compile("l?[0-7]|[0-7a-z]{1,3}#[1-5]")}


def checked(text: str) -> str:
    """The expression, of five fields or a preset such as ``@daily``. Raises ValueError that names the wrong field.

    >>> checked("*/5 1-3 * jan mon")
    '*/5 1-3 * jan mon'
    """
    fields = text.lower().split()
    if fields and fields[0].startswith("@"):
        if len(fields) > 1 or fields[0] not in _PRESETS:
            raise ValueError(f"{text!r} is not one of {', '.join(_PRESETS)}")
        return text
    if len(fields) != len(_FIELDS):
        names = ", ".join(name for name, *_ in _FIELDS)
        raise ValueError(f"a cron expression has five fields ({names}), not {len(fields)}: '0 3 * * *'")
    for at, part in enumerate(fields):
        for item in part.split(","):
            _check(item, at)
    return text


def _check(item: str, at: int) -> None:
    name, low, high, words = _FIELDS[at]
    if at in _IN_MONTH and _IN_MONTH[at].fullmatch(item):
        return
    wrong = ValueError(f"{item!r} is not a {name}: {low} to {high}, a range, *, or */n")
    match = _RANGE.fullmatch(item)
    if match is None or match[3] == "0":
        raise wrong
    ends = [
        words.index(end) + low if end in words else int(end) if end.isdecimal() else -1
        for end in match.groups()[:2]
        if end
    ]
    if any(not low <= end <= high for end in ends):
        raise wrong

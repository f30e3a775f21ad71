"""Sizes, durations and instants as people write and read them. Imports nothing heavy."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

DAY = 86_400_000
"""Milliseconds."""
_INT64_MAX = 2**63 - 1
# As many days as Spark's intervals have: six million years. Sums with any time of day or file remain 64-bit integers.
_MAX_MILLIS = (2**31 - 1) * DAY
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  # of the years that datetime knows

# Binary in every spelling, as in Spark and Hadoop: 1mb = 1m = 1MiB.
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_DURATION_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": DAY, "w": 604_800_000}


def count(number: int, noun: str) -> str:
    """The number with its noun.

    >>> count(1, "file"), count(2000, "file")
    ('1 file', '2,000 files')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def first_few(names: Sequence[str], most: int, sep: str = ", ") -> str:
    """The first names, and how many more there are.

    >>> first_few(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return sep.join(names[:most]) + more


def parse_size(value: object) -> int:
    """Bytes, from a number of bytes or text such as ``"256MiB"``. Raises ValueError.

    >>> parse_size("256MiB"), parse_size("1.5g"), parse_size(42)
    (268435456, 1610612736, 42)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return _in_64_bits(value)
    match = re.fullmatch(r"\s*(\d{1,20}(?:\.\d{1,9})?)\s*([kmgtp]?)(?:i?b)?\s*", str(value), re.IGNORECASE | re.ASCII)
    if not isinstance(value, str) or not match:
        raise ValueError(f"not a size: {value!r}; write bytes as a number, or for example 256MiB")
    return _in_64_bits(int(Decimal(match[1]) * _SIZE_UNITS[match[2].lower()]))


def _in_64_bits(size: int) -> int:
    if size > _INT64_MAX:
        raise ValueError(f"the size is too large; the largest is {_INT64_MAX}")
    return size


def format_size(size: float) -> str:
    """A size for people, in binary units.

    >>> format_size(268435456), format_size(1536), format_size(12)
    ('256 MiB', '1.5 KiB', '12 B')
    """
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:,.4g} PiB"


def parse_duration(value: object) -> int:
    """Milliseconds, from text such as ``"168h"``, ``"7d"`` or ``"1d 12h"``; a bare 0 needs no unit. Raises ValueError.

    >>> parse_duration("168h") == parse_duration("7d") == 7 * 24 * 3600 * 1000
    True
    """
    text = str(value).strip().lower()
    if text == "0":
        return 0
    parts = re.findall(r"(\d{1,19})\s*(ms|[smhdw])", text, re.ASCII)
    if not parts or re.sub(r"\d{1,19}\s*(ms|[smhdw])|\s", "", text, flags=re.ASCII):
        raise ValueError(f"not a duration: {value!r}; write for example 168h or 7d")
    millis = sum(int(amount) * _DURATION_UNITS[unit] for amount, unit in parts)
    return limited(millis, value)


def epoch_millis(given: int | None = None) -> int:
    """``given``, by default the time now; epoch milliseconds."""
    return time.time_ns() // 1_000_000 if given is None else given


def limited(millis: int, text: object) -> int:
    """``millis``, unless nothing can hold that many. ``text``: as it was given. Raises ValueError."""
    if millis > _MAX_MILLIS:
        raise ValueError(f"the duration is too long: {str(text)[:100]!r}; the longest is {_MAX_MILLIS // DAY}d")
    return millis


def parse_count(text: str) -> int | None:
    """A whole number of at least 0, of at most 18 digits; ``None`` for any other text.

    >>> parse_count("10"), parse_count("-1"), parse_count("9" * 40)
    (10, None, None)
    """
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def format_duration(millis: int) -> str:
    """A duration as :func:`parse_duration` reads it, in the largest unit that divides it.

    >>> format_duration(604800000), format_duration(5400000), format_duration(0)
    ('7d', '90m', '0')
    """
    for unit in ("d", "h", "m", "s"):
        if millis and millis % _DURATION_UNITS[unit] == 0:
            return f"{millis // _DURATION_UNITS[unit]}{unit}"
    return f"{millis}ms" if millis else "0"


def format_instant(millis: int) -> str:
    """Epoch milliseconds as ISO 8601 in UTC, whole seconds. Beyond the years 1 to 9999, their first or last second.

    >>> format_instant(1999)
    '1970-01-01T00:00:01Z'
    """
    seconds = min(max(millis // 1000, _FIRST_SECOND), _LAST_SECOND)
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"


def day_of(millis: int) -> str:
    """The day of epoch milliseconds in UTC, as people write it; "never" beyond the years 1 to 9999.

    >>> day_of(1795248115190)
    '21 Nov 2026'
    """
    try:
        day = _EPOCH + timedelta(milliseconds=millis)
    except OverflowError:
        return "never"
    return f"{day.day} {day:%b %Y}"


def minute_of(millis: int) -> str:
    """The minute of epoch milliseconds, as people write it; "never" beyond the year 9999.

    >>> minute_of(1795248115190)
    '21 Nov 2026, 08:01 UTC'
    """
    day = day_of(millis)
    return day if day == "never" else f"{day}, {_EPOCH + timedelta(milliseconds=millis):%H:%M} UTC"


def parse_instant(text: str) -> int:
    """Epoch milliseconds, from ISO 8601 with a zone. Without a zone its meaning would depend on the machine.
    Raises ValueError.

    >>> parse_instant("1970-01-01T01:00:01+01:00")
    1000
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    millis = None if moment is None or moment.tzinfo is None else round(moment.timestamp() * 1000)
    # A zone may carry it over the ends of the calendar.
    if millis is None or not _FIRST_SECOND <= millis // 1000 <= _LAST_SECOND:
        raise ValueError(f"{text!r} is not a time with a zone, such as 2026-01-31T09:30:00Z")
    return millis


def iso_timestamp(millis: int) -> str:
    """Epoch milliseconds as ISO 8601 in UTC; the plain number if it is outside the calendar.

    >>> iso_timestamp(1795248115190)
    '2026-11-21T08:01:55.190Z'
    """
    try:
        when = _EPOCH + timedelta(milliseconds=millis)
    except OverflowError:
        return str(millis)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""Timestamps without a time zone in stripes that were written in a time zone other than UTC.

Of some before 1970, Java makes others than ORC's library for C++, and with it Arrow. They are moved, or refused if the
difference is not certain, see ``old_offsets``.

Those within a day of 1970 are corrected. ORC rounds seconds towards zero, and its readers take one off those before
1970 that have a fraction of more than 999,999 nanoseconds. Java decides that by the instant, in the writer's time zone;
the library for C++ by the time of the clock. In between they differ by a second.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
from pyarrow import types

from dv_maintenance.engine.orc.old_offsets import java_less_cpp
from dv_maintenance.engine.parquet.int96 import BYTES, UNITS, from_halves, halves, with_leaves
from dv_maintenance.errors import RefusedError
from dv_maintenance.remedies import Remedy, setting

_DAY: Final = 86_400
_LEAST: Final = 999_999
LEAVE_OUT: Final = Remedy("leave the column out with {}, or read the table with its own engine", (setting("columns"),))
"""What to do about values that are not read."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def zone_of(names: frozenset[str] | None) -> ZoneInfo | None:
    """The one time zone of a file's stripes; ``None`` if it is not known, or there are several."""
    if names is None or len(names) != 1:
        return None
    try:
        return ZoneInfo(*names)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def as_in_java(array: pa.Array, like: pa.DataType, zone: ZoneInfo | None) -> pa.Array:
    """A column as Java reads it, also where timestamps are nested in it.

    like : its type in the file.
    zone : the time zone of the stripe, if it is known.

    Raises
    ------
    RefusedError : a timestamp may be another one in Java. The error does not name the file.
    """
    return with_leaves(array, like, partial(_corrected, zone=zone))


def _corrected(array: pa.Array, kind: pa.DataType, zone: ZoneInfo | None) -> pa.Array:
    if not types.is_timestamp(kind) or kind.tz is not None:
        return array
    seconds, nanos = halves(array)
    near = np.abs(seconds) <= _DAY
    if zone is None:
        _check_recent(seconds, near & (nanos != 0))
        return array
    ahead = _ahead(seconds, zone)
    if ahead is not None:
        seconds += ahead
    found = np.flatnonzero(near & (nanos > _LEAST)).tolist()
    for at in found:
        read = int(seconds[at])
        clock = read + (read < 0)
        offset = (_EPOCH + timedelta(seconds=clock)).replace(tzinfo=zone).utcoffset() or timedelta()
        seconds[at] = clock - (clock < offset.total_seconds())
    if ahead is None and not found:
        return array
    if array.type == BYTES:
        return from_halves(seconds, nanos, array)
    per = UNITS[array.type.unit]
    values = seconds * per + nanos // (UNITS["ns"] // per)
    return pa.array(values, mask=array.is_null().to_numpy(zero_copy_only=False)).view(array.type)


def _check_recent(seconds: Any, broken: Any) -> None:
    if broken.any() or (seconds < -_DAY).any():
        raise RefusedError(
            "it holds a timestamp before 1970 or within a day of it, written in a time zone that is not known: ORC "
            "libraries read such values differently",
            next_step=LEAVE_OUT,
        )


def _ahead(seconds: Any, zone: ZoneInfo) -> Any:
    """How many seconds Java's clocks are ahead; ``None`` if none is."""
    days = seconds // _DAY
    found = java_less_cpp(days, zone)
    for day, ahead in found.items():
        if ahead is None:
            raise RefusedError(
                f"it holds a timestamp of {np.datetime64(day, 'D')}, written in the time zone {zone.key}: in Java its "
                "offset may be another one than in the ORC library for C++",
                next_step=LEAVE_OUT,
            )
    if not found:
        return None
    known = np.array([*found])  # in ascending order
    at = np.minimum(np.searchsorted(known, days), len(known) - 1)
    return np.where(known[at] == days, np.array([*found.values()])[at], 0)

"""Timestamps without a time zone within a day of 1970, in stripes that were written in a time zone other than UTC.

ORC rounds seconds towards zero, and its readers take one off those before 1970 that have a fraction of more than
999,999 nanoseconds. Java decides that by the instant, in the writer's time zone; the library for C++, and with it
Arrow, by the time of the clock. In between they differ by a second.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
from pyarrow import types

from dv_maintenance.engine.parquet.int96 import BYTES, UNITS, from_halves, halves, with_leaves

_DAY: Final = 86_400
_LEAST: Final = 999_999
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
    """A column as Java reads it, also where timestamps are nested in it. ``like``: its type in the file.

    Raises
    ------
    LookupError : the time zone is not known, and there is such a timestamp.
    """
    return with_leaves(array, like, partial(_corrected, zone=zone))


def _corrected(array: pa.Array, kind: pa.DataType, zone: ZoneInfo | None) -> pa.Array:
    if not types.is_timestamp(kind) or kind.tz is not None:
        return array
    seconds, nanos = halves(array)
    near = np.abs(seconds) <= _DAY
    if zone is None:
        if (near & (nanos != 0)).any():
            raise LookupError
        return array
    found = np.flatnonzero(near & (nanos > _LEAST)).tolist()
    for at in found:
        read = int(seconds[at])
        clock = read + (read < 0)
        offset = (_EPOCH + timedelta(seconds=clock)).replace(tzinfo=zone).utcoffset() or timedelta()
        seconds[at] = clock - (clock < offset.total_seconds())
    if not found:
        return array
    if array.type == BYTES:
        return from_halves(seconds, nanos, array)
    per = UNITS[array.type.unit]
    values = seconds * per + nanos // (UNITS["ns"] // per)
    return pa.array(values, mask=array.is_null().to_numpy(zero_copy_only=False)).view(array.type)

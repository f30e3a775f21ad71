"""Timestamps without a time zone within a day of 1970, in stripes that were written in a time zone other than UTC.

ORC rounds seconds towards zero, and its readers take one off those before 1970 that have a fraction of more than
999,999 nanoseconds. Java decides that by the instant, in the writer's time zone; the library for C++, and with it
Arrow, by the time of the clock. In between they differ by a second.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
from pyarrow import types

from dv_maintenance.engine.orc.by_rows import UNITS

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


def as_in_java(array: pa.Array, zone: ZoneInfo) -> pa.Array:
    """A column as Java reads it, also where timestamps are nested in it."""
    kind = array.type
    if types.is_timestamp(kind) and kind.tz is None:
        return _corrected(array, zone)
    mask = array.is_null() if array.null_count else None
    if types.is_struct(kind):
        inner = [as_in_java(array.field(at), zone) for at in range(kind.num_fields)]
        return pa.StructArray.from_arrays(inner, fields=list(kind), mask=mask)
    if types.is_map(kind):
        keys, items = as_in_java(array.keys, zone), as_in_java(array.items, zone)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=mask)
    if types.is_list(kind):
        return pa.ListArray.from_arrays(array.offsets, as_in_java(array.values, zone), type=kind, mask=mask)
    return array


def _corrected(array: pa.Array, zone: ZoneInfo) -> pa.Array:
    per = UNITS[array.type.unit]
    values: Any = np.array(array.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))
    seconds = np.floor_divide(values, per)
    rounded = (values - seconds * per) * (UNITS["ns"] // per) > _LEAST
    for at in np.flatnonzero(rounded & (np.abs(seconds) <= _DAY)).tolist():
        read = int(seconds[at])
        clock = read + (read < 0)
        offset = (_EPOCH + timedelta(seconds=clock)).replace(tzinfo=zone).utcoffset() or timedelta()
        values[at] += (clock - (clock < offset.total_seconds()) - read) * per
    return pa.array(values, pa.int64(), mask=np.array(array.is_null())).view(array.type)

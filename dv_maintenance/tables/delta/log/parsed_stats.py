"""Convert ``stats_parsed`` of a checkpoint back to JSON, the form of statistics everywhere else in a log."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

# From 1582-10-15 (days) and 1900-01-01 (seconds) on, dates and timestamps are the same in every calendar.
_FIRST_DAY: Final = -141_427
_FIRST_SECOND: Final = -2_208_988_800
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def to_json(parsed: pa.StructArray) -> pa.Array:
    """Statistics as JSON strings (protocol: Per-file Statistics), null where the struct is null."""
    kinds = parsed.type
    rows = _certain(parsed).to_pylist()
    texts = [None if row is None else orjson.dumps(_clean(row, kinds), default=_exact).decode() for row in rows]
    return pa.array(texts, pa.string())


def _certain(array: pa.Array) -> pa.Array:
    """The values, with nulls for dates and timestamps from before the calendars agree. Spark's mode LEGACY writes those
    in another calendar. A missing bound costs little: the file is not skipped.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        children = [_certain(array.field(at)) for at in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_date32(kind):
        old = pc.less(array.view(pa.int32()), _FIRST_DAY)
    elif pa.types.is_timestamp(kind):
        old = pc.less(array.view(pa.int64()), _FIRST_SECOND * _PER_SECOND[kind.unit])
    else:
        return array
    return pc.if_else(old, pa.nulls(len(array), kind), array)


def _clean(value: Any, kind: pa.DataType) -> Any:
    """The value without nulls and without types that JSON statistics cannot express."""
    if pa.types.is_struct(kind):
        fields = {child.name: _clean(value[child.name], child.type) for child in kind if value[child.name] is not None}
        return {name: inner for name, inner in fields.items() if inner is not None}
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return text if kind.tz is None else text + "Z"
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    return value if isinstance(value, bool | int | float | str | date | Decimal) else None


def _exact(value: Any) -> Any:
    """Decimals as JSON numbers with all their digits."""
    if isinstance(value, Decimal):
        return orjson.Fragment(f"{value:f}".encode())
    raise TypeError

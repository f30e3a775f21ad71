"""``stats_parsed`` of a checkpoint back to the JSON that other places of a log keep statistics in."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa

__all__ = ["to_json"]


def to_json(parsed: pa.StructArray) -> pa.Array:
    """Statistics as JSON strings (protocol: Per-file Statistics), null where the struct is null."""
    kinds = parsed.type
    texts = [
        None if row is None else orjson.dumps(_clean(row, kinds), default=_exact).decode() for row in parsed.to_pylist()
    ]
    return pa.array(texts, pa.string())


def _clean(value: Any, kind: pa.DataType) -> Any:
    """Without nulls, and without what JSON statistics have no form for."""
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

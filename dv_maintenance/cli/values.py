"""Values of options, from text. Each function raises ArgumentTypeError, and imports what it needs."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["duration", "instant", "names", "natural", "pair", "partition_types", "share"]


def duration(text: str) -> int:
    """Milliseconds."""
    from dv_maintenance.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def instant(text: str) -> int:
    """Epoch milliseconds."""
    from dv_maintenance.units import parse_instant

    try:
        return parse_instant(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (equals and key):
        # Without the text: it may be a secret.
        raise argparse.ArgumentTypeError("expected KEY=VALUE")
    return key, value


def natural(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share above 0 and up to 1")
    return share


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def partition_types(text: str) -> dict[str, pa.DataType]:
    """``day DATE, shop STRING`` by column. Raises argparse.ArgumentTypeError."""
    import pyarrow as pa

    known = {
        **dict.fromkeys(("tinyint", "byte"), pa.int8()),
        **dict.fromkeys(("smallint", "short"), pa.int16()),
        **dict.fromkeys(("int", "integer"), pa.int32()),
        **dict.fromkeys(("bigint", "long"), pa.int64()),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "boolean": pa.bool_(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }
    found: dict[str, pa.DataType] = {}
    for part in re.split(r",(?![^(]*\))", text):
        name, _, kind = part.strip().rpartition(" ")
        decimal = re.fullmatch(r"decimal\((\d{1,2}),(\d{1,2})\)", kind.lower())
        if decimal and 1 <= int(decimal[1]) <= 38 and int(decimal[2]) <= int(decimal[1]):
            found[name.strip(" `")] = pa.decimal128(int(decimal[1]), int(decimal[2]))
        elif name and kind.lower() in known:
            found[name.strip(" `")] = known[kind.lower()]
        else:
            raise argparse.ArgumentTypeError(
                f"{part.strip()!r} is not a column and type; write 'day DATE, shop STRING'"
            )
    return found

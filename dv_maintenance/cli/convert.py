"""The value of ``dvm convert --partition-by``: column types in Spark SQL."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["partition_types"]


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

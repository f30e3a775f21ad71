"""Values of options, from text. Each function raises ArgumentTypeError, and imports what it needs."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

# A name between backticks may hold anything, a backtick doubled: as in Spark SQL. The last one is alone, so that there
# is one way to read a text, and a long one takes no longer.
_QUOTED = r"`(?:[^`]|``)+`(?!`)"


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


def with_sql(text: str) -> str:
    """The name of an engine that evaluates Spark SQL."""
    if text not in ("spark", "auto"):
        raise argparse.ArgumentTypeError(
            f"{text!r} can't evaluate Spark SQL, which this verb needs; choose spark or auto"
        )
    return text


def assignment(text: str) -> tuple[str, str]:
    """``column=SQL``."""
    found = re.fullmatch(rf"\s*({_QUOTED}\s*|[^`=][^=]*)=(.*)", text, re.DOTALL)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not COLUMN=SQL; write a name with '=' in it as `a=b`")
    return _unquoted(found[1]), found[2]


def names(text: str) -> list[str]:
    """Names between commas. One that has a comma itself is quoted: ``id,`a,b```."""
    return [_unquoted(part) for part in _parts(text, "[^,`]") if part.strip()]


def _parts(text: str, plain: str) -> list[str]:
    """The parts between commas outside of quotes. ``plain``: a pattern of what they have besides quoted names."""
    if not re.fullmatch(rf"(?:{_QUOTED}|{plain}|,)*", text):
        raise argparse.ArgumentTypeError(f"{text!r}: backticks enclose a name, and are doubled within it: `a``b`")
    return re.findall(rf"(?:{_QUOTED}|{plain})+", text)


def _unquoted(name: str) -> str:
    name = name.strip()
    return name[1:-1].replace("``", "`") if re.fullmatch(_QUOTED, name) else name


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
    for part in _parts(text, r"\([^()]*\)|[^,`()]"):
        column = re.fullmatch(rf"\s*({_QUOTED}|[^`]+)\s(\w+)\s*(?:\(\s*(\d+)\s*,\s*(\d+)\s*\))?\s*", part)
        name, kind, *digits = column.groups() if column else ("", "")
        precision, scale = (int(digit) if digit and len(digit) < 3 else -1 for digit in digits or (None, None))
        if kind.lower() == "decimal" and 0 <= scale <= precision <= 38 and precision:
            found[_unquoted(name)] = pa.decimal128(precision, scale)
        elif kind.lower() in known and not any(digits):
            found[_unquoted(name)] = known[kind.lower()]
        else:
            raise argparse.ArgumentTypeError(
                f"{part.strip()!r} is not a column and type; write 'day DATE, shop STRING'"
            )
    return found

"""Convert partitions from the binary rows in manifests to names, folders and constants.

Format: partition paths of Paimon (``partition.legacy-name``, ``partition.default-name``). A folder is named
``column=value``, escaped as in Hive. Under the legacy rule, which is the default, the value is Java's text of the
internal form: a date is a number of days.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from dv_maintenance.errors import DamagedTableError, UnsupportedFeatureError
from dv_maintenance.tables.model import partition_name
from dv_maintenance.tables.paimon.log.binary_row import Moment, decode_row
from dv_maintenance.tables.paimon.rows.types import DataType, Field
from dv_maintenance.units import DAY

_DEFAULT_NAME: Final = "__DEFAULT_PARTITION__"
# Characters that Paimon escapes in folder names: those of Hive, and the closing brace.
_SPECIAL: Final = "\"#%'*/:=?\\\x7f{}[]^"
_ESCAPED: Final = str.maketrans({char: f"%{ord(char):02X}" for char in [*map(chr, range(32)), *_SPECIAL]})
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - for timestamps without a zone


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition.

    row : its identity, the binary row in the manifest.
    name : see ``model.partition_name``.
    folder : path relative to the data folder; ``""`` without partition columns.
    constants : see ``work.SourceFile``.
    """

    row: bytes
    name: str
    folder: str
    constants: Mapping[str, Any]


@dataclass(slots=True)
class Partitions:
    """All partitions seen so far. The number of a partition never changes."""

    fields: Sequence[Field]
    options: Mapping[str, str]
    found: list[Partition] = field(default_factory=list)
    _codes: dict[bytes, int] = field(init=False)
    _rows: dict[str, bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._codes = {partition.row: code for code, partition in enumerate(self.found)}
        self._rows = {partition.name: partition.row for partition in self.found}

    def code(self, row: bytes) -> int:
        """The number of a partition.

        Raises
        ------
        DamagedTableError : the row does not fit the partition columns.
        UnsupportedFeatureError : a value can't be named; or two partitions share a name, and their files must never be
            merged.
        """
        code = self._codes.get(row)
        if code is None:
            partition = self._partition(row)
            if self._rows.setdefault(partition.name, row) != row:
                raise UnsupportedFeatureError(
                    f"two partitions share the name {partition.name}",
                    features=("partitions of one name",),
                    next_step="maintain this table with Paimon itself",
                )
            code = self._codes[row] = len(self.found)
            self.found.append(partition)
        return code

    def _partition(self, row: bytes) -> Partition:
        values = decode_row(row, [each.type for each in self.fields])
        legacy = self.options.get("partition.legacy-name", "true").lower() != "false"
        default = self.options.get("partition.default-name", _DEFAULT_NAME)
        parts: list[str] = []
        shown: dict[str, str | None] = {}
        constants: dict[str, Any] = {}
        for each, value in zip(self.fields, values, strict=True):
            text = None if value is None else folder_text(value, each.type, legacy=legacy)
            # Paimon treats a value that consists only of white space as missing.
            spelled = text if text and text.strip() else default
            parts.append(f"{folder_name(each.name)}={folder_name(spelled)}")
            shown[each.name] = None if value is None else value_text(value, each.type)
            constants[each.name] = json_value(value, each.type)
        return Partition(row, partition_name(shown), "/".join(parts), constants)


def folder_name(text: str) -> str:
    """A column name or a value, escaped for a folder name."""
    return text.translate(_ESCAPED)


def value_text(value: Any, type: DataType) -> str:
    """A value as text, as in Paimon's cast. Timestamps with a local time zone are in UTC."""
    match type.root:
        case "BOOLEAN":
            return "true" if value else "false"
        case "DATE":
            return _date(value)
        case "TIME":
            # The fraction without trailing zeros, but with at least one digit, and no more digits than the type has.
            fraction = (f"{value % 1000:03d}".rstrip("0") or "0")[: type.precision]
            return _clock(value - value % 1000, 0, 0) + (f".{fraction}" if fraction else "")
        case "TIMESTAMP" | "TIMESTAMP_LTZ":
            days, millis = divmod(value.millis, DAY)
            return f"{_date(days)} {_clock(millis, value.nanos, type.precision)}"
        case "FLOAT" | "DOUBLE":
            return _java_float(value, single=type.root == "FLOAT")
        case "BINARY" | "VARBINARY":
            return str(value.decode("utf-8", "replace"))
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def folder_text(value: Any, type: DataType, *, legacy: bool) -> str:
    """A value as its folder name spells it, before escaping.

    Raises
    ------
    UnsupportedFeatureError : the value is bytes, and the legacy rule applies: their folder name is not predictable.
    """
    if not legacy:
        return value_text(value, type)
    match type.root:
        case "DATE" | "TIME":
            return str(value)
        case "TIMESTAMP" | "TIMESTAMP_LTZ":
            return _java_timestamp(value)
        case "BINARY" | "VARBINARY":
            raise UnsupportedFeatureError(
                "a partition column holds bytes, and partition.legacy-name is not false",
                features=("partitions by bytes",),
                next_step="maintain this table with Paimon itself",
            )
    return value_text(value, type)


def json_value(value: Any, type: DataType) -> Any:
    """A value in the form of ``work.SourceFile.constants``. A timestamp is in the unit of its Arrow type."""
    match value:
        case Decimal():
            return f"{value:f}"
        case float():
            return repr(value)
        case bytes():
            return b64encode(value).decode()
        case Moment():
            if type.precision <= 3:
                return value.millis
            nanos = value.millis * 1_000_000 + value.nanos
            return nanos if type.precision > 6 else nanos // 1000
    return value


def _date(days: int) -> str:
    try:
        return (_EPOCH + timedelta(days=days)).date().isoformat()
    except OverflowError:
        raise DamagedTableError(f"day {days} is outside the calendar") from None


def _clock(millis: int, nanos: int, digits: int) -> str:
    """``HH:MM:SS`` and the fraction, without trailing zeros but with at least ``digits`` digits."""
    seconds, rest = divmod(millis, 1000)
    fraction = f"{rest * 1_000_000 + nanos:09d}"
    while len(fraction) > digits and fraction.endswith("0"):
        fraction = fraction[:-1]
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{clock}.{fraction}" if fraction else clock


def _java_timestamp(moment: Moment) -> str:
    """The text of Java's ``LocalDateTime``: seconds only if they or the fraction are not zero, then a fraction of 3, 6
    or 9 digits if it is not zero.
    """
    days, millis = divmod(moment.millis, DAY)
    text = f"{_date(days)}T{millis // 3_600_000:02d}:{millis // 60_000 % 60:02d}"
    seconds, rest = divmod(millis % 60_000, 1000)
    nanos = rest * 1_000_000 + moment.nanos
    if seconds or nanos:
        text += f":{seconds:02d}"
    if nanos:
        fraction = f"{nanos:09d}"
        while fraction.endswith("000"):
            fraction = fraction[:-3]
        text += f".{fraction}"
    return text


def _java_float(value: float, *, single: bool) -> str:
    """The fewest digits that identify the number, in Java's notation."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    text = _shortest_single(value) if single else repr(value)
    number = Decimal(text)
    if not number:
        return "-0.0" if struct.pack(">d", value)[0] else "0.0"
    sign, digits, _ = number.normalize().as_tuple()
    exponent = number.adjusted()
    plain = "".join(map(str, digits))
    minus = "-" if sign else ""
    if -3 <= exponent < 7:
        shown = f"{abs(number):f}"
        shown = shown.rstrip("0").rstrip(".") if "." in shown else shown
        return f"{minus}{shown if '.' in shown else shown + '.0'}"
    return f"{minus}{plain[0]}.{plain[1:] or '0'}E{exponent}"


def _shortest_single(value: float) -> str:
    import numpy as np

    return str(np.format_float_scientific(np.float32(value), unique=True))

"""What texts in lines stand for, to Paimon's parsers of CSV and JSON.

These take more than Paimon writes, and make of it what nobody may have meant: ``2026-02-30`` is the 28th of the month,
``1.005`` is rounded. Here a text is read if it is one that Paimon's writers write, or surely means the same.

Source: CsvParser, JsonFileReader and casts of text of Paimon 1.4.2.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.files.arrays import text as scalar
from dv_maintenance.tables.work import DIGITS

_DATE: Final = r"(000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})-\d\d-\d\d"
_BASE64: Final = "[A-Za-z0-9+/]"
_SECONDS: Final = 19  # of the text of a timestamp
_DIGITS: Final = 38  # of a decimal
_UNITS: Final = {0: 3_600_000, 3: 60_000, 6: 1000}  # where hours, minutes and seconds begin: in milliseconds


class OddTextError(Exception):
    """It may mean something else, or nothing, to Paimon. ``at``: its position."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


def unread(type_: pa.DataType) -> str | None:
    """Why texts are not read as values of this type; ``None`` if they are."""
    if types.is_timestamp(type_) and type_.tz is not None:
        return "timestamps with a local time zone, which Paimon reads in the time zone of its JVM"
    return None if _pattern(type_) is not None else f"values of the type {type_}"


def values_of(texts: pa.StringArray, field: pa.Field) -> pa.Array:
    """The values. ``field``: their type, with the DIGITS of timestamps.

    Raises
    ------
    OddTextError : of the first one that is not read.
    """
    pattern = _pattern(field.type)
    if pattern:
        matched = pc.fill_null(pc.match_substring_regex(texts, f"^({pattern})$"), True)
        if (at := pc.index(matched, False).as_py()) >= 0:
            raise OddTextError(at)
    try:
        return _cast(texts, field)
    except pa.ArrowInvalid:
        raise OddTextError(next(at for at in range(len(texts)) if not _fits(texts.slice(at, 1), field))) from None


def _pattern(type_: pa.DataType) -> str | None:
    """Of the texts of this type; ``""``: any."""
    if types.is_string(type_) or types.is_boolean(type_):
        return ""
    if types.is_signed_integer(type_):
        return r"-?\d+"
    if types.is_floating(type_):
        return r"NaN|[+-]?(Infinity|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)"
    if types.is_decimal(type_):
        return _decimals(type_)
    if types.is_date32(type_):
        return _DATE
    if types.is_time32(type_):
        return r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,3})?"
    if types.is_timestamp(type_) and type_.tz is None:
        return rf"{_DATE} \d\d:\d\d:\d\d(\.\d{{1,9}})?"
    if types.is_binary(type_):
        return f"({_BASE64}{{4}})*({_BASE64}{{2}}==|{_BASE64}{{3}}=)?"
    return None


def _decimals(type_: pa.Decimal128Type) -> str:
    """At most 38 digits, and before the point as many as fit: of others Arrow makes other numbers, without an error."""
    whole = type_.precision - type_.scale
    number = rf"(0|[1-9]\d{{0,{whole - 1}}})" if whole else "0"
    rest = _DIGITS - whole
    return rf"-?0*{number}" + (rf"(\.\d{{1,{rest}}})?" if rest else "")


def _cast(texts: pa.StringArray, field: pa.Field) -> pa.Array:
    type_: pa.DataType = field.type
    if types.is_boolean(type_):  # any other text is false
        return pc.equal(pc.ascii_lower(texts), scalar("true"))
    if types.is_time32(type_):
        return _times(texts)
    if types.is_timestamp(type_):  # further digits are cut off
        digits = int(field.metadata[DIGITS])
        texts = pc.utf8_slice_codeunits(texts, 0, _SECONDS + (digits and 1 + digits))
    if types.is_binary(type_):
        return pa.array([None if each is None else b64decode(each) for each in texts.to_pylist()], type_)
    return pc.cast(texts, type_)


def _times(texts: pa.StringArray) -> pa.Array:
    fraction = pc.utf8_rpad(pc.utf8_slice_codeunits(texts, 9, 12), 3, "0")
    millis = pc.cast(fraction, pa.int32())
    for start, unit in _UNITS.items():
        number = pc.cast(pc.utf8_slice_codeunits(texts, start, start + 2), pa.int32())
        millis = pc.add(millis, pc.multiply(number, pa.scalar(unit, pa.int32())))
    return pc.cast(millis, pa.time32("ms"))


def _fits(text: pa.StringArray, field: pa.Field) -> bool:
    try:
        _cast(text, field)
    except pa.ArrowInvalid:
        return False
    return True


def array_of(texts: Sequence[str | None]) -> pa.StringArray:
    """Texts or nulls. Raises OddTextError for one that UTF-8 can't have."""
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        raise OddTextError(next(at for at, each in enumerate(texts) if each and not _encodes(each))) from None


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

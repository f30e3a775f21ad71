"""Protocol Buffers messages, parsed by the wire format alone: without generated code, from untrusted bytes.

Source: the encoding chapter of the Protocol Buffers documentation. benchmarks/README.md compares it with
``google.protobuf``, whose import takes longer than this parser takes for most tables. A message is a sequence of
records: a varint tag, which is ``number << 3 | wire type``, and a value. Numbers that a shape does not name are
skipped, as every reader skips what newer writers added. A number that a shape names must have the wire type of the
shape: a reader that treated such a record as unknown could lose a deletion file, for example.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.varint import read_varint

VARINT: Final = 0
"""Integers, booleans, enumerations."""
BYTES: Final = 2
"""Text, bytes, messages, maps."""
INTS: Final = -1
"""Repeated integers, packed or not."""

_FIXED: Final = {1: 8, 5: 4}  # wire type -> bytes
_MAX_NUMBER: Final = (1 << 29) - 1
_U64: Final = (1 << 64) - 1

Shape = Mapping[int, int]
"""Field number -> VARINT, BYTES or INTS."""


class Message:
    """The known fields of one message. Absent fields have the default of proto3: 0 or empty; ``has`` tests presence."""

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[int, list[Any]]) -> None:
        """``fields``: integers or bytes by number; the shape determines which."""
        self._fields = fields

    def has(self, number: int) -> bool:
        return number in self._fields

    def uint(self, number: int) -> int:
        """An unsigned integer of 64 bits. Of several records the last one counts."""
        value: int = self._fields.get(number, [0])[-1]
        return value

    def optional_uint(self, number: int) -> int | None:
        """``None`` if it is absent or 0, for fields in which 0 means "unknown"."""
        return self.uint(number) or None

    def sint(self, number: int) -> int:
        """A signed integer, of 32 or 64 bits."""
        return _signed(self.uint(number))

    def data(self, number: int) -> bytes:
        """Bytes. Of several records the last one counts."""
        value: bytes = self._fields.get(number, [b""])[-1]
        return value

    def text(self, number: int) -> str:
        """Text. Raises DamagedTableError if it is not UTF-8."""
        return text(self.data(number))

    def each(self, number: int) -> list[bytes]:
        """All records of a repeated field that is not of numbers."""
        return self._fields.get(number, [])

    def ints(self, number: int) -> list[int]:
        """Repeated signed integers."""
        found: list[int] = []
        for value in self._fields.get(number, ()):
            found += map(_signed, _unpacked(value)) if isinstance(value, bytes) else (_signed(value),)
        return found

    def message(self, number: int, shape: Shape) -> Message | None:
        """An embedded message; ``None`` if it is absent. Raises as :func:`parse`."""
        values = self.each(number)
        # Several records of one message are merged, which is the same as joining their bytes.
        return parse(values[0] if len(values) == 1 else b"".join(values), shape) if values else None

    def mapping(self, number: int) -> dict[str, bytes]:
        """A map from text to text or bytes."""
        entries = (parse(entry, _ENTRY) for entry in self.each(number))
        return {entry.text(1): entry.data(2) for entry in entries}


_ENTRY: Final[Shape] = {1: BYTES, 2: BYTES}


def parse(data: bytes, shape: Shape) -> Message:
    """The fields of a message that ``shape`` names.

    Raises
    ------
    DamagedTableError : the bytes are not a message of that shape. The error does not name the table.
    """
    fields: dict[int, list[Any]] = {}
    at, end = 0, len(data)
    while at < end:
        # Most tags, and many values, are a single byte.
        tag = data[at]
        if tag < 0x80:
            at += 1
        else:
            tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if not 0 < number <= _MAX_NUMBER:
            raise DamagedTableError(f"field number {number} does not exist")
        value: int | bytes
        if wire == VARINT:
            if at < end and data[at] < 0x80:
                value = data[at]
                at += 1
            else:
                value, at = _varint(data, at)
        elif wire == BYTES:
            if at < end and data[at] < 0x80:
                start = at + 1
                at = start + data[at]
            else:
                length, start = _varint(data, at)
                at = start + length
            if at > end:
                raise DamagedTableError(f"field {number} ends {at - end} bytes beyond its message")
            value = data[start:at]
        elif wire in _FIXED:
            value = b""
            at += _FIXED[wire]
            if at > end:
                raise DamagedTableError(f"field {number} ends {at - end} bytes beyond its message")
        else:
            raise DamagedTableError(f"field {number} has wire type {wire}, which is not in use")
        known = shape.get(number)
        if known is None:
            continue
        if known != wire and not (known == INTS and wire in {VARINT, BYTES}):
            raise DamagedTableError(f"field {number} has wire type {wire}, not {known}")
        if number in fields:
            fields[number].append(value)
        else:
            fields[number] = [value]
    return Message(fields)


def text(data: bytes) -> str:
    """UTF-8 as text. Raises DamagedTableError."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise DamagedTableError(f"{data[:40]!r} is not UTF-8") from None


def _unpacked(data: bytes) -> Iterable[int]:
    if data.isascii():  # each number is a single byte
        yield from data
        return
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The value at ``at``, and where the next thing begins."""
    try:
        value, end = read_varint(data, at)
    except IndexError:
        raise DamagedTableError("truncated in a number") from None
    except OverflowError:
        raise DamagedTableError("a number does not end") from None
    if value > _U64:
        raise DamagedTableError(f"a number has more than 64 bits: {value}")
    return value, end


def _signed(value: int) -> int:
    """Two's complement: negative numbers of any width are written with all 64 bits."""
    return value - (1 << 64) if value >= 1 << 63 else value

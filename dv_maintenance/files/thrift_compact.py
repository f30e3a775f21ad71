"""Structs of Thrift's compact protocol, parsed without a schema and encoded again.

A value remains encoded until its content is requested. So a change preserves every other byte, including fields that
newer writers added. Source: thrift-compact-protocol.md of Apache Thrift.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from dv_maintenance.files.varint import MAX_BYTES, read_varint, unzigzag, varint, zigzag

I16: Final = 4
I32: Final = 5
I64: Final = 6
BINARY: Final = 8
LIST: Final = 9
STRUCT: Final = 12
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _SET, _MAP, _UUID = 0, 1, 2, 3, 7, 10, 11, 13
_WIDTHS: Final = {_BYTE: 1, _DOUBLE: 8, _UUID: 16}
_INTEGERS: Final = frozenset({4, 5, 6})

# No real footer is nested so deep; damaged bytes may be.
_DEPTH: Final = 32
_SHORT_LIST: Final = 15
_LEAST_ID, _GREATEST_ID = -(1 << 15), (1 << 15) - 1


class ThriftError(ValueError):
    """Bytes that are not valid in the compact protocol."""


class Value(NamedTuple):
    """An encoded value.

    kind : its type in the protocol; for a boolean this is also the value.
    data : encoded.
    """

    kind: int
    data: bytes


@dataclass(slots=True)
class Struct:
    """A struct. ``fields``: by id, in stored order."""

    fields: dict[int, Value]

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The struct that spans all of ``data``. Raises ThriftError."""
        found, end = cls.parse_first(data)
        if end != len(data):
            raise ThriftError(f"{len(data) - end} bytes follow a struct")
        return found

    @classmethod
    def parse_first(cls, data: bytes) -> tuple[Self, int]:
        """The struct that ``data`` begins with, and where it ends. Raises ThriftError."""
        fields: dict[int, Value] = {}
        at, last = 0, 0
        try:
            while (header := data[at]) != _STOP:
                kind = header & 0x0F
                last, at = _field_id(data, at, last)
                if last in fields:
                    raise ThriftError(f"field {last} occurs twice")
                end = _end(data, at, kind, _DEPTH)
                if end > len(data):
                    raise IndexError
                fields[last] = Value(kind, data[at:end])
                at = end
        except IndexError:
            raise ThriftError("a struct is cut off") from None
        except OverflowError as error:
            raise ThriftError(str(error)) from None
        return cls(fields), at + 1

    def encode(self) -> bytes:
        parts, last = [], 0
        for id_, (kind, data) in self.fields.items():
            step = id_ - last
            parts.append(bytes([step << 4 | kind]) if 0 < step <= 0x0F else bytes([kind]) + varint(zigzag(id_)))
            parts.append(data)
            last = id_
        parts.append(bytes([_STOP]))
        return b"".join(parts)

    def copy(self) -> Struct:
        return Struct(dict(self.fields))

    def integer(self, id_: int) -> int | None:
        """The number in a field, ``None`` if it is missing. Raises ThriftError."""
        value = self.fields.get(id_)
        return None if value is None else integer(value)

    def replace(self, id_: int, value: Value) -> None:
        """Set a field; a new one goes to its place by id."""
        known = id_ in self.fields
        self.fields[id_] = value
        if not known:
            self.fields = dict(sorted(self.fields.items()))

    def list(self, id_: int, kind: int) -> list[bytes]:
        """The elements of a list of ``kind``; none if the field is missing. Raises ThriftError."""
        value = self.fields.get(id_)
        return [] if value is None else elements(value, kind)

    def struct(self, id_: int) -> Struct | None:
        """Raises ThriftError."""
        value = self.fields.get(id_)
        if value is None:
            return None
        if value.kind != STRUCT:
            raise ThriftError(f"field {id_} has the type {value.kind}, and is not a struct")
        return Struct.parse(value.data)


def elements(value: Value, kind: int) -> list[bytes]:
    """Each element of a list of ``kind``, encoded. Raises ThriftError."""
    data = value.data
    if value.kind != LIST:
        raise ThriftError(f"a list is a value of type {value.kind}")
    found = []
    size, of, at = list_header(data, 0)
    if size and of != kind:
        raise ThriftError(f"a list holds values of type {of}, not {kind}")
    for _ in range(size):
        end = _end(data, at, kind, _DEPTH)
        found.append(data[at:end])
        at = end
    return found


def list_of(kind: int, items: Iterable[bytes]) -> Value:
    """A list of encoded elements."""
    items = list(items)
    size = len(items)
    header = bytes([size << 4 | kind]) if size < _SHORT_LIST else bytes([0xF0 | kind]) + varint(size)
    return Value(LIST, header + b"".join(items))


def binary(value: Value) -> bytes:
    """The bytes of a binary or text. Raises ThriftError."""
    if value.kind != BINARY:
        raise ThriftError(f"a text is a value of type {value.kind}")
    _, at = read_varint(value.data, 0)
    return value.data[at:]


def integer(value: Value) -> int:
    """A number of 16, 32 or 64 bits. Raises ThriftError."""
    if value.kind not in _INTEGERS:
        raise ThriftError(f"a number is a value of type {value.kind}")
    return unzigzag(read_varint(value.data, 0)[0])


def number(kind: int, value: int) -> Value:
    """``kind``: I16, I32 or I64."""
    return Value(kind, varint(zigzag(value)))


def next_field(data: bytes, at: int, last: int) -> tuple[int, int | None, int]:
    """Id and type of the field after the one with the id ``last``, and where its value begins. At the end of the struct
    the type is ``None``, and the place is where the struct ends. Raises ThriftError, IndexError.
    """
    header = data[at]
    if header == _STOP:
        return last, None, at + 1
    if header >> 4:
        return last + (header >> 4), header & 0x0F, at + 1
    last, at = _field_id(data, at, last)
    return last, header & 0x0F, at


def list_header(data: bytes, at: int) -> tuple[int, int, int]:
    """Size, kind of the elements, and where they begin. Raises IndexError, OverflowError."""
    size, kind, at = data[at] >> 4, data[at] & 0x0F, at + 1
    if size == _SHORT_LIST:
        size, at = read_varint(data, at)
    return size, kind, at


def skip(data: bytes, at: int, kind: int) -> int:
    """Where the value of ``kind`` at ``at`` ends. Raises ThriftError; IndexError if the bytes end earlier."""
    end = _end(data, at, kind, _DEPTH)
    if end > len(data):
        raise IndexError
    return end


def _field_id(data: bytes, at: int, last: int) -> tuple[int, int]:
    """The field id in the header at ``at``, and where the value begins."""
    step = data[at] >> 4
    if step:
        found, at = last + step, at + 1
    else:
        number, at = read_varint(data, at + 1)
        found = unzigzag(number)
    if not _LEAST_ID <= found <= _GREATEST_ID:
        raise ThriftError(f"{found} is not a field id")
    return found, at


def _end(data: bytes, at: int, kind: int, depth: int) -> int:
    """The end of the value that begins at ``at``. If the bytes end earlier, this raises IndexError, or returns an end
    beyond them. Raises ThriftError.
    """
    if kind in _INTEGERS:
        stop = at + MAX_BYTES
        while data[at] & 0x80:
            at += 1
            if at == stop:
                raise ThriftError("a number has too many bytes")
        return at + 1
    if kind == BINARY:
        length, at = read_varint(data, at)
        return at + length
    if kind in (_TRUE, _FALSE):
        return at
    if kind in _WIDTHS:
        return at + _WIDTHS[kind]
    if not depth:
        raise ThriftError("values are nested too deep")
    if kind == STRUCT:
        while (header := data[at]) != _STOP:
            at = at + 1 if header >> 4 else read_varint(data, at + 1)[1]
            of = header & 0x0F
            # Most fields are numbers and short texts: a call for each would take most of the time.
            if of in _INTEGERS:
                stop = at + MAX_BYTES
                while data[at] & 0x80:
                    at += 1
                    if at == stop:
                        raise ThriftError("a number has too many bytes")
                at += 1
            elif of == BINARY and data[at] < 0x80:
                at += 1 + data[at]
            else:
                at = _end(data, at, of, depth - 1)
        return at + 1
    if kind in (LIST, _SET):
        size, of, at = list_header(data, at)
        kinds: tuple[int, ...] = (of,)
    elif kind == _MAP:
        size, at = read_varint(data, at)
        if not size:
            return at
        kinds, at = (data[at] >> 4, data[at] & 0x0F), at + 1
    else:
        raise ThriftError(f"unknown type {kind}")
    # As elements, booleans are a byte each.
    kinds = tuple(_BYTE if each in (_TRUE, _FALSE) else each for each in kinds)
    # Each element takes at least a byte: with a damaged size the loop ends with the bytes.
    for _ in range(size):
        for each in kinds:
            if each in _INTEGERS and data[at] < 0x80:
                at += 1
                continue
            at = _end(data, at, each, depth - 1)
            if at > len(data):
                raise IndexError
    return at

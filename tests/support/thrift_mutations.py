"""Every value of a struct in Thrift's compact protocol, changed in turn, as by damage or an attack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dv_maintenance.files.thrift_compact import BINARY, I16, I32, I64, LIST, STRUCT, list_header, next_field, skip
from dv_maintenance.files.varint import read_varint, varint, zigzag

__all__ = ["mutations"]

_TRUE, _FALSE, _BYTE = 1, 2, 3
_BOOLEANS: Final = (_TRUE, _FALSE)
_NUMBERS: Final = {
    I16: (0, -1, 1, 32767, -32768),
    I32: (0, -1, 1, 2, 3, 5, 8, 9, 100, 2**31 - 1, -(2**31), 1 << 30),
    I64: (0, -1, 1, 100, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)),
}
_STRAY: Final = {
    STRUCT: b"\0",
    I32: varint(14),
    I64: varint(14),
    BINARY: varint(3) + b"abc",
    _TRUE: b"",
    LIST: b"\x15\x02",
}
_LONGEST: Final = 20  # field ids that footers may have

# A struct is a list of (id, type, value), a list (type, values), anything else its bytes.
Value = Any


def mutations(data: bytes) -> Iterator[tuple[str, bytes]]:
    """What was changed, and the struct with this one change."""
    value, _ = _decoded(STRUCT, data, 0)
    yield from _changes(STRUCT, value, "")


def _decoded(kind: int, data: bytes, at: int) -> tuple[Value, int]:
    if kind == STRUCT:
        fields, last = [], 0
        while True:
            last, of, at = next_field(data, at, last)
            if of is None:
                return fields, at
            value, at = _decoded(of, data, at)
            fields.append((last, of, value))
    if kind == LIST:
        size, of, at = list_header(data, at)
        items = []
        for _ in range(size):
            item, at = _decoded(_BYTE if of in _BOOLEANS else of, data, at)
            items.append(item)
        return (of, items), at
    end = skip(data, at, kind)
    return data[at:end], end


def _encoded(kind: int, value: Value) -> bytes:
    if kind == STRUCT:
        return _struct([(id_, of, _encoded(of, each)) for id_, of, each in value])
    if kind == LIST:
        of, items = value
        return _list(of, [_encoded(_BYTE if of in _BOOLEANS else of, item) for item in items])
    raw: bytes = value
    return raw


def _struct(fields: list[tuple[int, int, bytes]]) -> bytes:
    parts, last = [], 0
    for id_, kind, raw in fields:
        step = id_ - last
        parts.append((bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + varint(zigzag(id_))) + raw)
        last = id_
    return b"".join(parts) + b"\0"


def _list(kind: int, items: list[bytes], size: int | None = None) -> bytes:
    size = len(items) if size is None else size
    return (bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + varint(size)) + b"".join(items)


def _others(kind: int, value: Value) -> Iterator[tuple[str, int, bytes]]:
    """Other values for a field, each with its type."""
    for number in _NUMBERS.get(kind, ()):
        yield f"= {number}", kind, varint((number << 1 ^ number >> 63) & (2**64 - 1))
    if kind == BINARY:
        length, at = read_varint(value, 0)
        text = value[at:]
        texts = {
            "empty": b"",
            "cut": text[:-1],
            "no text": b"\xff" * length,
            "longer": text + b"\xff" * 8,
            "huge": b"x" * 99999,
        }
        for label, other in texts.items():
            yield label, BINARY, varint(len(other)) + other
        yield "claims 2 GiB", BINARY, varint(2**31 - 1) + text
    if kind in _BOOLEANS:
        yield "flipped", _TRUE + _FALSE - kind, b""
    if kind == LIST:
        of, items = value
        raw = [_encoded(_BYTE if of in _BOOLEANS else of, item) for item in items]
        lists = {
            "empty": raw[:0],
            "one less": raw[:-1],
            "one more": raw + raw[-1:],
            "50 times": raw * 50,
            "reversed": raw[::-1],
        }
        for label, some in lists.items():
            yield label, LIST, _list(of, some)
        yield "claims 2 G elements", LIST, _list(of, raw, 2**31 - 1)
    for other, raw_value in _STRAY.items():
        if other != kind:
            yield f"of type {other}", other, raw_value


def _changes(kind: int, value: Value, path: str) -> Iterator[tuple[str, bytes]]:
    if kind == STRUCT:
        fields = [(id_, of, _encoded(of, each)) for id_, of, each in value]
        for number, (id_, of, each) in enumerate(value):
            before, after, here = fields[:number], fields[number + 1 :], f"{path}/{id_}"
            yield f"{here} dropped", _struct(before + after)
            for label, other, raw in _others(of, each):
                yield f"{here} {label}", _struct([*before, (id_, other, raw), *after])
            for label, raw in _changes(of, each, here):
                yield label, _struct([*before, (id_, of, raw), *after])
        for id_ in sorted(set(range(1, _LONGEST)) - {field[0] for field in fields}):
            for other, raw in _STRAY.items():
                added = sorted([*fields, (id_, other, raw)], key=lambda field: field[0])
                yield f"{path}/{id_} added, of type {other}", _struct(added)
    elif kind == LIST:
        of, items = value
        raw = [_encoded(_BYTE if of in _BOOLEANS else of, item) for item in items]
        for number, item in enumerate(items):
            here = f"{path}[{number}]"
            some = ((label, changed) for label, other, changed in _others(of, item) if other == of)
            for label, changed in (*some, *_changes(of, item, here)):
                yield (
                    (label if label.startswith("/") else f"{here} {label}"),
                    _list(of, [*raw[:number], changed, *raw[number + 1 :]]),
                )

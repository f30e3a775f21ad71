"""Variants as Spark's ``to_json`` writes them: how the golden tables hash them.

Format: Variant Binary Encoding of Parquet. Only what the golden tables have.
"""

from __future__ import annotations

import json
import struct
from itertools import pairwise

import pyarrow as pa

__all__ = ["as_text"]


def as_text(column: pa.StructArray) -> pa.StringArray:
    rows = ((each and (each["metadata"], each["value"])) for each in column.to_pylist())
    return pa.array([row and _text(_names(row[0]), row[1], 0) for row in rows], pa.string())


def _number(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


def _names(metadata: bytes) -> list[str]:
    size = (metadata[0] >> 6) + 1
    count = _number(metadata, 1, size)
    ends = [_number(metadata, 1 + size * (1 + at), size) for at in range(count + 1)]
    first = 1 + size * (2 + count)
    return [metadata[first + begin : first + end].decode() for begin, end in pairwise(ends)]


def _text(names: list[str], data: bytes, at: int) -> str:
    basic, header = data[at] & 3, data[at] >> 2
    if basic == 1:
        return json.dumps(data[at + 1 : at + 1 + header].decode(), ensure_ascii=False)
    if basic in (2, 3):
        return _nested(names, data, at, header, is_object=basic == 2)
    return _primitive(data, at + 1, header)


def _nested(names: list[str], data: bytes, at: int, header: int, *, is_object: bool) -> str:
    offset = (header & 3) + 1
    large = header >> (4 if is_object else 2) & 1
    size = (header >> 2 & 3) + 1 if is_object else 0
    count = _number(data, at + 1, 4 if large else 1)
    ids = at + (5 if large else 2)
    offsets = ids + size * count
    first = offsets + offset * (count + 1)
    items = [_text(names, data, first + _number(data, offsets + offset * n, offset)) for n in range(count)]
    if not is_object:
        return f"[{','.join(items)}]"
    keys = [names[_number(data, ids + size * n, size)] for n in range(count)]
    return "{" + ",".join(f"{json.dumps(key)}:{item}" for key, item in zip(keys, items, strict=True)) + "}"


def _primitive(data: bytes, at: int, kind: int) -> str:
    if kind in (0, 1, 2):
        return ("null", "true", "false")[kind]
    if kind in (3, 4, 5, 6):
        return str(int.from_bytes(data[at : at + (1, 2, 4, 8)[kind - 3]], "little", signed=True))
    if kind == 7:
        return repr(struct.unpack_from("<d", data, at)[0])
    if kind in (8, 9, 10):
        scale, number = data[at], int.from_bytes(data[at + 1 : at + 1 + (4, 8, 16)[kind - 8]], "little", signed=True)
        digits = str(abs(number)).rjust(scale + 1, "0")
        whole, fraction = (digits[:-scale], digits[-scale:].rstrip("0")) if scale else (digits, "")
        return f"{'-' * (number < 0)}{whole}{'.' * bool(fraction)}{fraction}"
    if kind == 16:
        length = _number(data, at, 4)
        return json.dumps(data[at + 4 : at + 4 + length].decode(), ensure_ascii=False)
    raise NotImplementedError(f"variants of type {kind}")

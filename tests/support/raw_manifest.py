"""Manifests taken apart and put together again, record by record. Nothing of the package under test writes here."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

Record = tuple[int, "int | bytes"]
"""Field number and value: a number goes out as a varint, bytes with their length."""


def varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def message(*records: Record) -> bytes:
    parts = []
    for number, value in records:
        if isinstance(value, int):
            parts.append(varint(number << 3) + varint(value))
        else:
            parts.append(varint(number << 3 | 2) + varint(len(value)) + value)
    return b"".join(parts)


def records(data: bytes) -> list[Record]:
    """The records of a message without fixed-width fields."""
    found: list[Record] = []
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            found.append((tag >> 3, number()))
        else:
            assert tag & 7 == 2
            length = number()
            found.append((tag >> 3, data[at : at + length]))
            at += length
    return found


def manifest_file(body: bytes, before: bytes = b"") -> bytes:
    """A manifest's file: ``before`` are the sections in front of it."""
    return before + struct.pack("<I", len(body)) + body + struct.pack("<QHH4s", len(before), 0, 2, b"LANC")


def patch(path: Path, change: Callable[[list[Record]], list[Record]]) -> None:
    """Rewrite the manifest in a file; what stands in front of it stays."""
    data = path.read_bytes()
    (at,) = struct.unpack_from("<Q", data, len(data) - 16)
    (length,) = struct.unpack_from("<I", data, at)
    body = message(*change(records(data[at + 4 : at + 4 + length])))
    path.write_bytes(manifest_file(body, data[:at]))


def newest_manifest(table: Path) -> Path:
    """Under V2 names the first one is the newest."""
    return min((table / "_versions").glob("*.manifest"))


def without(fields: list[Record], *numbers: int) -> list[Record]:
    return [record for record in fields if record[0] not in numbers]

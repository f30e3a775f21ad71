"""Files of blobs for tests, written after the format's description by code that shares nothing with the reader."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

__all__ = ["PLACEHOLDER", "blob_file"]

PLACEHOLDER = object()
"""Stands for the value of an older file."""


def blob_file(values: Sequence[object]) -> bytes:
    """Of bytes, ``None`` or PLACEHOLDER."""
    records, lengths = b"", []
    for value in values:
        if not isinstance(value, bytes):
            lengths.append(-1 if value is None else -2)
            continue
        body = struct.pack("<I", 1481511375) + value + struct.pack("<Q", len(value) + 16)
        records += body + struct.pack("<I", zlib.crc32(body))
        lengths.append(len(value) + 16)
    index = b""
    for before, after in zip([0, *lengths], lengths, strict=False):
        step = after - before
        number = 2 * step if step >= 0 else -2 * step - 1
        while number >= 128:
            index += bytes([number % 128 + 128])
            number //= 128
        index += bytes([number])
    return records + index + struct.pack("<IB", len(index), 1)

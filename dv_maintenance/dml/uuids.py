"""UUIDs as text, and back. In Spark a UUID is text of 36 characters in lower case, as Iceberg's connector reads it."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

KIND: Final = pa.uuid()
"""The type of UUIDs where no field is at hand whose metadata says so."""

STORED: Final = pa.binary(16)

_LENGTH: Final = 36
_HYPHENS: Final = [8, 13, 18, 23]
_DIGITS: Final = [at for at in range(_LENGTH) if at not in _HYPHENS]
_PAIRS: Final = np.frombuffer(bytes(range(256)).hex().encode(), np.uint8).reshape(256, 2)
_NO_DIGIT: Final = 255
_VALUES: Final = np.full(256, _NO_DIGIT, np.uint8)
for _digit in "0123456789abcdefABCDEF":
    _VALUES[ord(_digit)] = int(_digit, 16)


def canonical(text: str) -> str:
    """Raises ValueError: the text is not a UUID in 36 characters."""
    value = str(UUID(text))
    if value != text.lower():
        raise ValueError
    return value


def texts_of(array: pa.FixedSizeBinaryArray) -> pa.StringArray:
    """The text of each UUID."""
    count = len(array)
    stored = np.frombuffer(array.buffers()[1] or b"", np.uint8, 16 * count, 16 * array.offset)
    texts = np.full((count, _LENGTH), ord("-"), np.uint8)
    texts[:, _DIGITS] = _PAIRS[stored].reshape(count, 32)
    ends = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * _LENGTH)
    return pa.Array.from_buffers(pa.string(), count, [_validity(array), ends, pa.py_buffer(texts)])


def stored_of(texts: pa.StringArray) -> pa.FixedSizeBinaryArray:
    """The UUID of each text, in lower or upper case.

    Raises
    ------
    pyarrow.ArrowInvalid : a text is not a UUID in 36 characters.
    """
    count = len(texts)
    filled = texts.fill_null("0" * 8 + "-0000-0000-0000-" + "0" * 12) if texts.null_count else texts
    long = pc.equal(pc.binary_length(filled), _LENGTH)
    if not pc.all(long, min_count=0).as_py():
        raise _invalid(filled, pc.index(long, False).as_py())
    _, ends, data = filled.buffers()
    first = np.frombuffer(ends, np.int32)[filled.offset] if count else 0
    letters = np.frombuffer(data or b"", np.uint8, _LENGTH * count, first).reshape(count, _LENGTH)
    digits = _VALUES[letters[:, _DIGITS]]
    good = (digits != _NO_DIGIT).all(axis=1) & (letters[:, _HYPHENS] == ord("-")).all(axis=1)
    if not good.all():
        raise _invalid(filled, int(np.argmin(good)))
    stored = (digits[:, ::2] << 4) | digits[:, 1::2]
    return pa.Array.from_buffers(STORED, count, [_validity(texts), pa.py_buffer(np.ascontiguousarray(stored))])


def _validity(array: pa.Array) -> pa.Buffer | None:
    return array.is_valid().buffers()[1] if array.null_count else None


def _invalid(texts: pa.StringArray, at: int) -> pa.ArrowInvalid:
    return pa.ArrowInvalid(f"{texts[at].as_py()!r} is not a UUID")

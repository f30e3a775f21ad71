"""A number for each path. A million numbers are compared in milliseconds; only paths with equal ones are compared as
strings.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from dv_maintenance.tables.delta.log.columns import string_layout, unaligned_words

_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
# A first test of some bits rules out most numbers. It takes more bits when many numbers are wanted.
_FEW, _FEW_BITS, _MANY_BITS = 4096, 16, 22


def fingerprints(path: pa.ChunkedArray | pa.StringArray) -> Any:
    """A number per path, nearly always different for different paths: file names differ in the UUID near their end."""
    if isinstance(path, pa.ChunkedArray):
        return np.concatenate([fingerprints(chunk) for chunk in path.chunks] or [np.zeros(0, np.uint64)])
    starts, ends, data = string_layout(path)
    prints = (ends - starts).astype(np.uint64)
    words = unaligned_words(data)
    long = np.flatnonzero(ends - starts >= 8)
    for back in (24, 32, 40, 48):
        place = np.maximum(starts[long], ends[long] - back)
        prints[long] = prints[long] * _FACTOR + words[place]
    return prints


def among(prints: Any, wanted: Any) -> Any:
    """Positions of all ``prints`` that are ``wanted``, in order."""
    maybe = np.zeros(1 << (_FEW_BITS if len(wanted) < _FEW else _MANY_BITS), bool)
    maybe[_low(wanted, len(maybe))] = True
    found = np.flatnonzero(np.take(maybe, _low(prints, len(maybe))))
    return found[np.isin(prints[found], wanted)]


def _low(prints: Any, size: int) -> Any:
    return prints.view(np.uint16)[::4] if size == 1 << 16 else prints.view(np.uint32)[::2] & np.uint32(size - 1)

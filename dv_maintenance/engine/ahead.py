"""Two cores for one task: a thread decodes what another one encodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

__all__ = ["read_ahead"]

_T = TypeVar("_T")

# While a row group is encoded, the next one is decoded: as many batches as a full one has (``parquet.writer``).
_AHEAD: Final = 16


def read_ahead(items: Iterator[_T]) -> Iterator[_T]:
    """The items in their order, taken from the iterator by another thread, up to 16 before they are asked for. ``None``
    must not be one of them.

    Raises what the iterator raises, after the items before it. Once this iterator is closed, no thread uses the other.
    """
    pool = ThreadPoolExecutor(1)
    try:
        begun = deque(pool.submit(next, items, None) for _ in range(_AHEAD))
        while (item := begun.popleft().result()) is not None:
            begun.append(pool.submit(next, items, None))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)

"""The same small read for many files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from dv_maintenance.storage import Storage

_THREADS: Final = 16
T = TypeVar("T")
R = TypeVar("R")


def in_parallel(storage: Storage, items: Sequence[T], job: Callable[[T], R]) -> Iterable[R]:
    """Results in order. On local disk jobs run lazily and one by one, since threads gain nothing there."""
    if storage.is_local or len(items) < 2:
        return map(job, items)
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(job, items))

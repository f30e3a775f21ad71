"""Going round many tables inside a time budget: side by side, and no table that hangs holds up the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from dv_maintenance.errors import StorageError

__all__ = ["NOT_REACHED", "go_round"]

T = TypeVar("T")
S = TypeVar("S")

# A look at an object store waits most of the time.
_THREADS = 8


class NotReached:
    """The time ran out before there was an answer."""


NOT_REACHED: Final = NotReached()


def go_round(
    tables: Sequence[T], look: Callable[[T], S], *, budget: float, patience: float
) -> Iterator[tuple[T, S | BaseException | NotReached]]:
    """Each table with what ``look`` returned or raised, in order.

    No look but the first starts after ``budget`` seconds; those that have started get ``patience`` seconds more. One
    that has had the whole budget and gives no answer counts as failed (StorageError), so that it can't come first for
    ever.
    """
    deadline = time.monotonic() + budget
    started: dict[int, float] = {}

    def start(number: int) -> S | NotReached:
        if number and time.monotonic() > deadline:
            return NOT_REACHED
        started[number] = time.monotonic()
        return look(tables[number])

    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="dv-look")
    try:
        futures = [pool.submit(start, number) for number in range(len(tables))]
        for number, future in enumerate(futures):
            found = _answer(future, max(deadline + patience - time.monotonic(), 0))
            if found is NOT_REACHED and number in started and time.monotonic() - started[number] >= budget:
                found = StorageError(f"no answer within {budget:g} seconds")
            yield tables[number], found
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _answer(future: Future[S | NotReached], seconds: float) -> S | BaseException | NotReached:
    try:
        error = future.exception(timeout=seconds)
    except TimeoutError:
        return NOT_REACHED
    return future.result() if error is None else error

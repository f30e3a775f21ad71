"""Inspect many tables within a time budget: concurrently, so that a table that hangs does not delay the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, TypeVar

from dv_maintenance.errors import StorageError

__all__ = ["NOT_REACHED", "NotReached", "within_budget"]

T = TypeVar("T")
S = TypeVar("S")

# An inspection of a table in an object store waits most of the time.
_THREADS = 8


class NotReached:
    """The time ran out before there was an answer."""


NOT_REACHED: Final = NotReached()


def within_budget(
    tables: Sequence[T], call: Callable[[T], S], *, budget: float, patience: float
) -> Iterator[tuple[T, S | BaseException | NotReached]]:
    """Each table with what ``call`` returned or raised, in order.

    Except for the first one, no call starts after ``budget`` seconds. Calls already started get ``patience`` seconds
    more. A call that used the whole budget without an answer counts as failed (StorageError), so that its table does
    not come first for ever.
    """
    deadline = time.monotonic() + budget
    started: dict[int, float] = {}

    def start(number: int) -> S | NotReached:
        if number and time.monotonic() > deadline:
            return NOT_REACHED
        started[number] = time.monotonic()
        return call(tables[number])

    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="dv-inspect")
    try:
        futures = [pool.submit(copy_context().run, start, number) for number in range(len(tables))]
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

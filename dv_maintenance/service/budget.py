"""Inspect many tables within a time budget: concurrently, so that a table that hangs does not delay the others."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from threading import Semaphore
from typing import Final, TypeVar

from dv_maintenance.errors import StorageUnavailableError

T = TypeVar("T")
S = TypeVar("S")
P = TypeVar("P")
R = TypeVar("R")

# An inspection of a table in an object store waits most of the time. Each may hold a table of a million files.
_THREADS = 8
# A probe waits for one answer of a store, and holds nothing.
_PROBES = 32
# Tables that were probed and wait for their call.
_AHEAD = 2 * _PROBES


class NotReached:
    """The time ran out before there was an answer."""


NOT_REACHED: Final = NotReached()


def within_budget(
    tables: Sequence[T],
    probe: Callable[[T], P],
    call: Callable[[T, P], S],
    *,
    budget: float,
    patience: float,
) -> Iterator[tuple[T, S | BaseException | NotReached]]:
    """Each table with what ``call`` returned, or with what either raised, in order. ``call`` gets what ``probe``
    returned. Many probes run at once, and few calls.

    Except for the first table, nothing starts after ``budget`` seconds. What has started gets ``patience`` seconds
    more. A probe or a call that used the whole budget without an answer counts as failed (StorageError), so that its
    table does not come first forever.
    """
    deadline = time.monotonic() + budget
    started: dict[int, float] = {}
    context = copy_context()

    def start(number: int, work: Callable[[], R]) -> R | NotReached:
        if number and time.monotonic() > deadline:
            return NOT_REACHED
        started[number] = time.monotonic()
        return context.copy().run(work)

    # Where every table takes a call of seconds, most probes of this round would be in vain.
    ahead = Semaphore(_AHEAD)

    def first(number: int) -> Future[S | NotReached] | NotReached:
        if not ahead.acquire(timeout=max(deadline - time.monotonic(), 0)) and number:
            return NOT_REACHED
        try:
            found = start(number, lambda: probe(tables[number]))
            if isinstance(found, NotReached):
                return found
            del started[number]  # waiting for a thread is not its fault
            future = calls.submit(start, number, lambda: call(tables[number], found))
        except BaseException:
            ahead.release()
            raise
        future.add_done_callback(lambda _: ahead.release())
        return future

    probes = ThreadPoolExecutor(_PROBES, thread_name_prefix="dv-probe")
    calls = ThreadPoolExecutor(_THREADS, thread_name_prefix="dv-inspect")
    try:
        futures = [probes.submit(first, number) for number in range(len(tables))]
        for number, future in enumerate(futures):
            end = deadline + patience
            found: S | BaseException | NotReached
            probed = _answer(future, end)
            if isinstance(probed, Future):
                called = _answer(probed, end)
                found = called
            else:
                found = probed
            if found is NOT_REACHED and time.monotonic() - started.get(number, math.inf) >= budget:
                found = StorageUnavailableError(f"no answer within {budget:g} seconds")
            yield tables[number], found
    finally:
        probes.shutdown(wait=False, cancel_futures=True)
        calls.shutdown(wait=False, cancel_futures=True)


def _answer(future: Future[R], end: float) -> R | BaseException | NotReached:
    try:
        error = future.exception(timeout=max(end - time.monotonic(), 0))
    except TimeoutError:
        return NOT_REACHED
    return future.result() if error is None else error

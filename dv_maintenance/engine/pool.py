"""Several jobs of tasks at a time, in threads that wait for the engine, and an end to all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from threading import Event
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from dv_maintenance.tables.work import RewriteResult

_Job = TypeVar("_Job")
_Item = TypeVar("_Item")

_STOP_SECONDS: Final = 0.5
_end: ContextVar[float | None] = ContextVar("end", default=None)


class OutOfTimeError(Exception):
    """The tasks were stopped because their time was up; see :func:`stopped_at`."""


@contextmanager
def stopped_at(end: float) -> Iterator[None]:
    """Engines that run tasks in here stop them at ``end``, by ``time.monotonic()``, with an OutOfTimeError."""
    token = _end.set(end)
    try:
        yield
    finally:
        _end.reset(token)


def run_all(
    jobs: Sequence[_Job],
    run_one: Callable[[_Job], Iterable[tuple[int, RewriteResult]]],
    *,
    at_once: int,
    on_done: Callable[[RewriteResult], None] | None,
    stop: Callable[[], object] = lambda: None,
) -> list[RewriteResult]:
    """``run_one`` for each job, ``at_once`` of them at the same time. It yields the result of each of the job's tasks
    with the number of the task, in any order; all results are returned in the order of these numbers.

    On the first error no further job begins, and ``stop`` is called to end the running ones. Results that still arrive
    are passed to ``on_done`` before the error is raised, so that their files are known. The same happens when the time
    of :func:`stopped_at` is up, with an OutOfTimeError.
    """
    failed = Event()
    # All of them: a signal may end this thread between taking one from the queue and reporting it.
    results: list[tuple[int, RewriteResult]] = []
    # Results with their numbers. At the end of a job ``None``, or the error that ended it.
    arrived: SimpleQueue[tuple[int, RewriteResult] | BaseException | None] = SimpleQueue()

    def begin(job: _Job) -> None:
        error: BaseException | None = None
        try:
            # The thread of a job that failed is free before the loop below knows.
            if not failed.is_set():
                for each in run_one(job):
                    results.append(each)
                    arrived.put(each)
        except BaseException as raised:  # noqa: BLE001 - raised again below
            failed.set()
            error = raised
        arrived.put(error)

    report = on_done or (lambda _: None)
    found: dict[int, RewriteResult] = {}
    with ThreadPoolExecutor(at_once) as pool:
        begun = [pool.submit(begin, job) for job in jobs]
        left = len(jobs)
        try:
            while left:
                each = _next(arrived)
                if isinstance(each, BaseException):
                    raise each
                if each is None:
                    left -= 1
                    continue
                number, result = each
                report(result)
                found[number] = result
        except BaseException:
            failed.set()
            pool.shutdown(wait=False, cancel_futures=True)
            while True:
                # Again and again: what is about to begin can't be stopped yet.
                stop()
                if not wait([job for job in begun if not job.cancelled()], _STOP_SECONDS).not_done:
                    break
            for number, result in results:
                if number not in found:
                    with suppress(Exception):
                        report(result)
            raise
    return [found[number] for number in sorted(found)]


def _next(arrived: SimpleQueue[_Item]) -> _Item:
    """The next item. Raises OutOfTimeError."""
    end = _end.get()
    try:
        return arrived.get(timeout=None if end is None else max(end - time.monotonic(), 0.0))
    except Empty:
        raise OutOfTimeError("the time is up") from None

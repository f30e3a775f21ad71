"""Several tasks at a time, in threads that wait for the engine, and an end to all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Event
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dv_maintenance.tables.work import RewriteResult, RewriteTask

__all__ = ["OutOfTimeError", "run_all", "stopped_at"]

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
    tasks: Sequence[RewriteTask],
    run_one: Callable[[RewriteTask], RewriteResult],
    *,
    at_once: int,
    on_done: Callable[[RewriteResult], None] | None,
    stop: Callable[[], object] = lambda: None,
) -> list[RewriteResult]:
    """``run_one`` for each task, ``at_once`` of them at the same time; results in the order of the tasks.

    On the first error no further task begins, and ``stop`` is called to end the running ones. Tasks that still finish
    are passed to ``on_done`` before the error is raised, so that their files are known. The same happens when the time
    of :func:`stopped_at` is up, with an OutOfTimeError.
    """
    failed = Event()

    def begin(task: RewriteTask) -> RewriteResult:
        # The thread of a task that failed is free before the loop below knows.
        if failed.is_set():
            raise CancelledError
        try:
            return run_one(task)
        except BaseException:
            failed.set()
            raise

    report = on_done or (lambda _: None)
    reported: set[Future[RewriteResult]] = set()
    with ThreadPoolExecutor(at_once) as pool:
        jobs = [pool.submit(begin, task) for task in tasks]
        try:
            for job in _in_time(jobs):
                if isinstance(job.exception(), CancelledError):
                    continue
                result = job.result()
                reported.add(job)
                report(result)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            begun = [job for job in jobs if not job.cancelled()]
            while True:
                # Again and again: what is about to begin can't be stopped yet.
                stop()
                if not wait(begun, _STOP_SECONDS).not_done:
                    break
            for job in jobs:
                if job not in reported and not job.cancelled() and job.exception() is None:
                    with suppress(Exception):
                        report(job.result())
            raise
    return [job.result() for job in jobs]


def _in_time(jobs: Sequence[Future[RewriteResult]]) -> Iterator[Future[RewriteResult]]:
    """The jobs as they complete. Raises OutOfTimeError."""
    end = _end.get()
    try:
        yield from as_completed(jobs, None if end is None else max(end - time.monotonic(), 0.0))
    except TimeoutError as error:
        raise OutOfTimeError(str(error)) from None

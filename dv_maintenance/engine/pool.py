"""Several tasks at a time, in threads that wait for the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress

from dv_maintenance.tables.work import RewriteResult, RewriteTask

__all__ = ["run_all"]


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
    are passed to ``on_done`` before the error is raised, so that their files are known.
    """
    report = on_done or (lambda _: None)
    reported: set[Future[RewriteResult]] = set()
    with ThreadPoolExecutor(at_once) as pool:
        jobs = [pool.submit(run_one, task) for task in tasks]
        try:
            for job in as_completed(jobs):
                result = job.result()
                reported.add(job)
                report(result)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stop()
            pool.shutdown(wait=True)
            for job in jobs:
                if job not in reported and not job.cancelled() and job.exception() is None:
                    with suppress(Exception):
                        report(job.result())
            raise
    return [job.result() for job in jobs]

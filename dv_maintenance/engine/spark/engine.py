"""Tasks on Spark: it schedules, retries and distributes; Arrow does the work in the Python workers.

A run is one Spark job per task: ``mapInArrow`` over a DataFrame of one row, the task's spec. No RDD is involved, so
it works on Spark Connect and classic Spark. Many jobs are in flight at once: Spark keeps every core busy, places and
retries the tasks, and returns each result as soon as it is known. One job over all specs would not start tasks any
sooner, and classic Spark returns nothing before such a job has ended.

There are three kinds of errors. The worker itself retries failures of the storage, the same on every kind of cluster
(``local[N]`` never retries a task). An error raised on purpose is returned as data, and raised here with its original
class. Spark retries the rest (a lost executor, a worker out of memory): a task is a pure function of storage with new
file names in each attempt.

Storage options reach the workers inside the pickled function, never as data: Spark shows data in plans and event logs.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, ClassVar, Self

from dv_maintenance.engine.pool import run_all
from dv_maintenance.engine.rows_so_far import RowCounts
from dv_maintenance.engine.spark.arrow_table import rows_of
from dv_maintenance.errors import DvMaintenanceError, RefusedError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from dv_maintenance.tables.work import RewriteResult, RewriteTask

    _Worker = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]

__all__ = ["SparkEngine"]

# The maximum number of tasks that run at the same time, however large the cluster: each costs the driver a thread.
_JOBS_IN_FLIGHT = 128
_LOCAL_MASTER = re.compile(r"local\[(\d+|\*)(?:,.*)?\]")
# Messages by which workers reveal a Python without our packages, of another version, or no Python.
_UNFIT_WORKER = (
    "ModuleNotFoundError: ",
    "[PACKAGE_NOT_INSTALLED]",
    "[PYTHON_VERSION_MISMATCH]",
    "Cannot run program ",
)
# An error with a message, or an error of Python without one (MemoryError). A Java class alone has no information.
_RAISED = re.compile(
    r"^(?:: )?([\w.]*(?:Error|Exception|Interrupt): .+|\w*(?:Error|Exception|Interrupt))$", re.MULTILINE
)


class SparkEngine:
    """See ``Engine``. Uses ``session``, or else the active session, or else starts one on ``master`` with ``conf`` on
    first use. Stops only a session that it started.

    Parameters
    ----------
    session : a classic or Connect session, left running.
    master : ``local[N]`` (default ``local[*]``), a cluster's URL, or ``sc://host`` for Spark Connect.
    conf : Spark settings for a session started here; they override the defaults.

    The workers need this package and its dependencies (not pandas) in their Python.
    """

    name: ClassVar[str] = "spark"

    def __init__(
        self,
        session: SparkSession | None = None,
        *,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self._session = session
        self._master = master or "local[*]"
        self._conf = dict(conf or {})
        self._started = False
        self._lock = Lock()
        # Not the session's lock: progress is asked for while a session starts.
        self._counting_lock = Lock()
        self._running: list[RowCounts] = []
        self._rows_before = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def session(self) -> SparkSession:
        """The session, started if there is none yet.

        Raises
        ------
        RefusedError : there is no Java on which Spark could run.
        """
        from dv_maintenance.engine.spark.session import active_session, start_session

        with self._lock:
            if self._session is None:
                self._session = active_session()
            if self._session is None:
                self._session = start_session(self._master, self._conf)
                self._started = True
            return self._session

    @property
    def slots(self) -> int | None:
        """The cores of the session, or of the local master before it has started. A Connect session has no number."""
        session = self._session
        if session is None:
            found = _LOCAL_MASTER.fullmatch(self._master)
            if found is None:
                return None
            return int(found[1]) if found[1] != "*" else _cores()
        context = _context(session)
        return None if context is None else int(context.defaultParallelism)

    def close(self) -> None:
        with self._lock:
            if self._started and self._session is not None:
                self._session.stop()
                self._session = None
                self._started = False

    def run(
        self,
        tasks: Sequence[RewriteTask],
        *,
        storage_options: Mapping[str, str] | None = None,
        on_done: Callable[[RewriteResult], None] | None = None,
    ) -> list[RewriteResult]:
        if not tasks:
            return []
        session = self.session
        tag = f"dv-maintenance-{uuid.uuid4()}"
        options = dict(storage_options or {})
        numbers = {task.id: number for number, task in enumerate(tasks)}
        with self._counting(session, len(tasks)) as counts:
            path = None if counts is None else counts.path

            def done(result: RewriteResult) -> None:
                if counts is not None:
                    counts.set(numbers[result.task_id], result.rows_written)
                if on_done is not None:
                    on_done(result)

            return run_all(
                tasks,
                lambda task: _run_job(session, tag, task, _worker(options, path, numbers[task.id])),
                at_once=min(len(tasks), _JOBS_IN_FLIGHT),
                on_done=done,
                stop=lambda: _interrupt(session, tag),
            )

    @property
    def rows_read(self) -> int | None:
        """``None`` on a cluster and on Spark Connect: workers there share no file with this process."""
        with self._counting_lock:
            rows = self._rows_before + sum(counts.total() for counts in self._running)
            return rows if self._running or rows else None

    @contextmanager
    def _counting(self, session: SparkSession, tasks: int) -> Iterator[RowCounts | None]:
        """The file in which workers count rows; ``None`` if they run elsewhere."""
        if not _is_local(session):
            yield None
            return
        counts = RowCounts(tasks)
        with self._counting_lock:
            self._running.append(counts)
        try:
            yield counts
        finally:
            with self._counting_lock:
                self._running.remove(counts)
                self._rows_before += counts.total()
            counts.close()


def _cores() -> int:
    """The cores that this process may use, as the JVM counts them; all cores if the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _context(session: SparkSession) -> SparkContext | None:
    """``None`` on Spark Connect."""
    from pyspark.errors import PySparkException

    try:
        return session.sparkContext
    except (PySparkException, AttributeError):
        return None


def _interrupt(session: SparkSession, tag: str) -> None:
    """End the jobs with a tag. A classic session interrupts only what the calling thread has tagged (Spark's class
    ``SparkSession``, ``managedJobTags``), so there the tags are the context's.
    """
    context = _context(session)
    if context is None:
        session.interruptTag(tag)
    else:
        context.cancelJobsWithTag(tag)


def _run_job(session: SparkSession, tag: str, task: RewriteTask, worker: _Worker) -> RewriteResult:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    # With all that rewrites, which an engine without work does not need.
    from dv_maintenance.engine.spark import wire

    context = _context(session)
    (session.addTag if context is None else context.addJobTag)(tag)
    try:
        [row] = rows_of(session, wire.specs_of(task)).mapInArrow(worker, "outcome string").collect()
    except (PySparkException, Py4JError) as error:
        raise _failure(str(error)) from error
    finally:
        (session.removeTag if context is None else context.removeJobTag)(tag)
    return wire.result_of(row.outcome)


def _is_local(session: SparkSession) -> bool:
    """Whether the workers run on this machine."""
    from pyspark.errors import PySparkException

    try:
        return str(session.sparkContext.master).startswith("local")
    except (PySparkException, AttributeError):
        return False


def _worker(options: dict[str, str], counts: str | None, number: int) -> _Worker:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        from dv_maintenance.engine.rows_so_far import counting_in
        from dv_maintenance.engine.spark.wire import run_specs

        yield from run_specs(batches, options, counting_in(counts, number) if counts else None)

    return run


def _failure(text: str) -> DvMaintenanceError:
    """The error for a failed job, from Spark's message: a missing package on the workers, or any other cause."""
    cause = _cause(text)
    if any(sign in text for sign in _UNFIT_WORKER):
        return RefusedError(
            f"the Python of Spark's workers can't run the rewrite: {cause}",
            next_step="install dv-maintenance there, on the Python version used here; the Spark setting "
            "spark.sql.execution.pyspark.python selects the Python of the workers",
        )
    return DvMaintenanceError(
        f"Spark could not finish the rewrite: {cause}", next_step="see the logs of Spark's driver and executors"
    )


def _cause(text: str) -> str:
    """The line of a Java or Python stack trace that has the cause."""
    raised: list[str] = _RAISED.findall(text)
    return (raised[-1] if raised else text.strip().split("\n")[0])[:500]

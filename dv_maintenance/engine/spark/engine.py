"""Tasks on Spark: it schedules, retries and distributes; Arrow does the work in the Python workers.

A run is several Spark jobs, each of one Spark task: ``mapInArrow`` over a DataFrame of one row, the specs of a bundle
of rewrites. No RDD is involved, so it works on Spark Connect and classic Spark. Many jobs are in flight at once: Spark
keeps every core busy, places and retries the tasks, and returns each job's results as soon as they are known. One job
over all specs would not start tasks any sooner, and classic Spark returns nothing before such a job has ended.

There are three kinds of errors. The worker itself retries failures of the storage, the same on every kind of cluster
(``local[N]`` never retries a task). An error raised on purpose is returned as data, and raised here with its original
class. Spark retries the rest (a lost executor, a worker out of memory): a task is a pure function of storage with new
file names in each attempt. No other task of a bundle fails with one: see ``jobs`` and ``wire``.

Storage options reach the workers inside the pickled function, never as data: Spark shows data in plans and event logs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, ClassVar, Self

from dv_maintenance.engine.pool import run_all
from dv_maintenance.engine.rows_so_far import RowCounts
from dv_maintenance.engine.spark.jobs import Jobs, context_of
from dv_maintenance.engine.spark.shared import default_master
from dv_maintenance.engine.spark.workers import in_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dv_maintenance.tables.work import RewriteResult, RewriteTask

# The maximum number of bundles that run at the same time, however large the cluster: each costs the driver a thread.
_JOBS_IN_FLIGHT = 128
_LOCAL_MASTER = re.compile(r"local\[(\d+|\*)(?:,.*)?\]")


class SparkEngine:
    """See ``Engine``. Uses ``session``, or else the active session, or else starts one on ``master`` with ``conf`` on
    first use. Stops only a session that it started.

    The workers need this package and its dependencies (not pandas) in their Python.

    Parameters
    ----------
    session
        a classic or Connect session, left running.
    master
        ``local[N]`` (default ``local[*]``), a cluster's URL, or ``sc://host`` for Spark Connect.
    conf
        Spark settings for a session started here; they override the defaults.
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
        self.master = master
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
        RefusedError
            there is no Java on which Spark could run.
        """
        from dv_maintenance.engine.spark.session import active_session, start_session

        with self._lock:
            if self._session is None:
                self._session = active_session()
            if self._session is None:
                self._session = start_session(self.master, self._conf)
                self._started = True
            return self._session

    def setting(self, name: str) -> str | None:
        """A setting of the session, or of the one that would be started; ``None``: Spark's default."""
        session = self._session
        return self._conf.get(name) if session is None else session.conf.get(name, None)

    @property
    def slots(self) -> int | None:
        """The cores of the session, or of the local master before it has started. A Connect session has no number."""
        session = self._session
        if session is None:
            found = _LOCAL_MASTER.fullmatch(self.master or default_master())
            if found is None:
                return None
            return int(found[1]) if found[1] != "*" else _cores()
        context = context_of(session)
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
        # With all that rewrites, which an engine without work does not need.
        from dv_maintenance.engine.spark.bundles import bundled
        from dv_maintenance.engine.spark.wire import run_bundles

        session = self.session
        bundles = bundled(tasks, self.slots)
        with self._counting(session, len(tasks)) as counts:
            worker = in_workers(run_bundles, dict(storage_options or {}), None if counts is None else counts.path)
            jobs = Jobs(session, worker)

            def run_one(bundle: Sequence[int]) -> Iterator[tuple[int, RewriteResult]]:
                for number, result in jobs.results({number: tasks[number] for number in bundle}):
                    if counts is not None:
                        counts.set(number, result.rows_written)
                    yield number, result

            return run_all(
                bundles, run_one, at_once=min(len(bundles), _JOBS_IN_FLIGHT), on_done=on_done, stop=jobs.stop
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


def _is_local(session: SparkSession) -> bool:
    """Whether the workers run on this machine."""
    from pyspark.errors import PySparkException

    try:
        return str(session.sparkContext.master).startswith("local")
    except (PySparkException, AttributeError):
        return False

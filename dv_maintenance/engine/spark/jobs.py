"""The Spark jobs of a run. A job has one Spark task, which runs a bundle of rewrites."""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from threading import Event
from typing import TYPE_CHECKING

from dv_maintenance.engine.spark.arrow_table import rows_of
from dv_maintenance.engine.spark.bundles import parts_of
from dv_maintenance.engine.spark.failures import failure_of, is_cancelled
from dv_maintenance.errors import RefusedError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from dv_maintenance.engine.spark.workers import Worker
    from dv_maintenance.tables.work import RewriteResult, RewriteTask

_log = logging.getLogger(__name__)


class Jobs:
    """Runs bundles of tasks, from any thread.

    worker : ``wire.run_bundles`` for ``mapInArrow``.
    """

    def __init__(self, session: SparkSession, worker: Worker) -> None:
        self._session, self._worker = session, worker
        self._tag = f"dv-maintenance-{uuid.uuid4()}"
        self._stopped = Event()

    def stop(self) -> None:
        """End the jobs that run now; no other begins. A classic session interrupts only what the calling thread has
        tagged (Spark's class ``SparkSession``, ``managedJobTags``), so there the tags are the context's.
        """
        self._stopped.set()
        context = context_of(self._session)
        if context is None:
            self._session.interruptTag(self._tag)
        else:
            context.cancelJobsWithTag(self._tag)

    def results(self, tasks: Mapping[int, RewriteTask]) -> Iterator[tuple[int, RewriteResult]]:
        """The results of the tasks of a bundle, with their numbers, from as many jobs as it takes.

        A job fails if Spark has lost its worker as often as it retries. Its tasks then run in smaller bundles, until
        it is known which of them ends the worker.

        Raises
        ------
        DvMaintenanceError : of a task; or the job of a single task failed.
        RefusedError : the workers' Python can't run any task.
        """
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from dv_maintenance.engine.spark.wire import outcomes_of

        waiting = deque([list(tasks)])
        while waiting and not self._stopped.is_set():
            bundle = waiting.popleft()
            try:
                text = self._run({number: tasks[number] for number in bundle})
            except (PySparkException, Py4JError) as error:
                failure = failure_of(str(error), _named([tasks[number] for number in bundle]))
                final = isinstance(failure, RefusedError) or is_cancelled(str(error)) or self._stopped.is_set()
                if len(bundle) == 1 or final:
                    raise failure from error
                _log.warning("%s. They run again, in smaller bundles", failure.message)
                waiting.extendleft(reversed(parts_of(bundle)))
                continue
            known = set()
            for number, result in outcomes_of(text):
                known.add(number)
                if result is None:
                    waiting.append([number])
                else:
                    yield number, result
            if rest := [number for number in bundle if number not in known]:
                waiting.append(rest)

    def _run(self, tasks: Mapping[int, RewriteTask]) -> str:
        from dv_maintenance.engine.spark.wire import specs_of

        context = context_of(self._session)
        (self._session.addTag if context is None else context.addJobTag)(self._tag)
        try:
            [row] = rows_of(self._session, specs_of(tasks)).mapInArrow(self._worker, "outcomes string").collect()
        finally:
            (self._session.removeTag if context is None else context.removeJobTag)(self._tag)
        return str(row.outcomes)


def _named(tasks: Sequence[RewriteTask]) -> str:
    """What the tasks do, for a message."""
    files = [source.uri for task in tasks for source in task.scan.sources]
    more = f" and {len(files) - 1} more files" if files[1:] else ""
    return f"the rewrite of {files[0]}{more}" if files else "a rewrite"


def context_of(session: SparkSession) -> SparkContext | None:
    """``None`` on Spark Connect."""
    from pyspark.errors import PySparkException

    try:
        return session.sparkContext
    except (PySparkException, AttributeError):
        return None

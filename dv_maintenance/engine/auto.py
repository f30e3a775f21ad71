"""The engine ``auto``: little work runs in this process, the rest on Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from dv_maintenance.engine import rows_read_of, slots_of
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.units import format_size

if TYPE_CHECKING:
    from dv_maintenance.engine import Engine
    from dv_maintenance.tables.work import RewriteResult, RewriteTask

IN_PROCESS: Final = 1 << 30
"""Bytes of files up to which tasks run in this process.

Two threads rewrite 40 to 60 MB of Parquet a second. Spark takes about eight seconds and 20 seconds of CPU time
before its first task. Four cores of Spark catch up at about this size (docs/guides/jobs.md).
"""

_log = logging.getLogger(__name__)


class AutoEngine:
    """See ``Engine``. Decides for all tasks of a ``run`` together, from the bytes of their files.

    spark : runs the others. Once it has ``started``, it runs everything: what was worth deciding was its start.
    in_process : bytes, see ``IN_PROCESS``.
    """

    name: ClassVar[str] = "auto"

    def __init__(self, spark: Engine, *, in_process: int = IN_PROCESS) -> None:
        self.spark = spark
        self.in_process = in_process
        self._local = LocalEngine()
        self.started = False

    @property
    def slots(self) -> int | None:
        """Spark's: a plan with little work is not cut by slots."""
        return slots_of(self.spark)

    @property
    def rows_read(self) -> int | None:
        here = self._local.rows_read
        if not self.started:
            return here
        there = rows_read_of(self.spark)
        return None if there is None else here + there

    def run(
        self,
        tasks: Sequence[RewriteTask],
        *,
        storage_options: Mapping[str, str] | None = None,
        on_done: Callable[[RewriteResult], None] | None = None,
    ) -> list[RewriteResult]:
        return self._engine_for(tasks).run(tasks, storage_options=storage_options, on_done=on_done)

    def close(self) -> None:
        self.spark.close()

    def _engine_for(self, tasks: Sequence[RewriteTask]) -> Engine:
        if self.started:
            return self.spark
        size = sum(source.size for task in tasks for source in task.scan.sources)
        limit = format_size(self.in_process)
        if size <= self.in_process:
            _log.info("engine auto: in this process, since it reads %s, at most %s", format_size(size), limit)
            return self._local
        _log.info("engine auto: on Spark, since it reads %s, more than %s", format_size(size), limit)
        self.started = True
        return self.spark

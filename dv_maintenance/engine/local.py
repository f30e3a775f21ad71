"""Tasks in threads of this process: for tests, and for work that is done before Spark has started."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import ClassVar

from dv_maintenance.engine.cores import default_threads
from dv_maintenance.engine.pool import OutOfTimeError, run_all
from dv_maintenance.engine.rewrite import rewrite_retrying
from dv_maintenance.tables.work import RewriteResult, RewriteTask


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """See ``Engine``. ``threads`` tasks at a time: Arrow leaves the interpreter free while it works. When fewer are
    left, they share the threads.
    """

    threads: int = field(default_factory=default_threads)
    name: ClassVar[str] = "local"
    _rows: list[int] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def slots(self) -> int:
        return self.threads

    @property
    def rows_read(self) -> int:
        return sum(self._rows)

    def run(
        self,
        tasks: Sequence[RewriteTask],
        *,
        storage_options: Mapping[str, str] | None = None,
        on_done: Callable[[RewriteResult], None] | None = None,
    ) -> list[RewriteResult]:
        def run_one(numbered: tuple[int, RewriteTask]) -> Iterator[tuple[int, RewriteResult]]:
            number, task = numbered
            slot = len(self._rows)
            self._rows.append(0)

            def on_rows(rows: int) -> None:
                self._rows[slot] = rows
                if stopping.is_set():
                    raise OutOfTimeError

            try:
                result = rewrite_retrying(task, storage_options, on_rows, lambda: self.threads // max(len(left), 1))
            finally:
                left.discard(task.id)
            yield number, result

        stopping = Event()
        left = {task.id for task in tasks}
        return run_all(list(enumerate(tasks)), run_one, at_once=self.threads, on_done=on_done, stop=stopping.set)

    def close(self) -> None:
        """Nothing to stop."""

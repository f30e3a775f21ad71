"""Engines run rewrite tasks. They know neither a table format nor an orchestrator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from dv_maintenance.errors import UsageError

if TYPE_CHECKING:
    from dv_maintenance.tables.work import RewriteResult, RewriteTask

ENGINES = ("spark", "local", "auto")


class Engine(Protocol):
    """Runs tasks. Keeps its resources (a Spark session) between runs, and releases them on ``close()``."""

    name: ClassVar[str]

    def run(
        self,
        tasks: Sequence[RewriteTask],
        *,
        storage_options: Mapping[str, str] | None = None,
        on_done: Callable[[RewriteResult], None] | None = None,
    ) -> list[RewriteResult]:
        """Run every task and return the results in the order of the tasks.

        on_done : called with each result as soon as it is known, in any order, in the calling thread.

        The first error of a task ends the run: tasks that have not begun are dropped, running ones are stopped as far
        as possible, and the error is raised with its original class. Outputs of finished tasks remain in the storage,
        uncommitted: ``on_done`` may commit or delete them, otherwise vacuum deletes them as orphans.

        Raises
        ------
        DvMaintenanceError : the errors of ``engine.rewrite.rewrite``, and failures of the engine itself.
        """

    def close(self) -> None:
        """Stop only what this engine started."""


@runtime_checkable
class ParallelEngine(Protocol):
    """An engine that knows how many tasks it runs at the same time."""

    @property
    def slots(self) -> int | None:
        """``None``: not known, or not yet. Starts nothing."""


def slots_of(engine: Engine) -> int | None:
    """How many tasks the engine runs at the same time; ``None`` if unknown."""
    return engine.slots if isinstance(engine, ParallelEngine) else None


@runtime_checkable
class CountingEngine(Protocol):
    """An engine that knows how far its tasks are."""

    @property
    def rows_read(self) -> int | None:
        """Live rows that tasks have read so far, in all runs; ``None``: not known where they run."""


def rows_read_of(engine: Engine) -> int | None:
    """How many rows the engine's tasks have read so far; ``None`` if unknown."""
    return engine.rows_read if isinstance(engine, CountingEngine) else None


def get_engine(name: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> Engine:
    """A new engine. Starts nothing before the first run.

    master, conf : see ``SparkEngine``.

    Raises
    ------
    UsageError : the name is unknown.
    """
    if name == "spark":
        from dv_maintenance.engine.spark import SparkEngine

        return SparkEngine(master=master, conf=conf)
    if name == "local":
        from dv_maintenance.engine.local import LocalEngine

        return LocalEngine()
    if name == "auto":
        from dv_maintenance.engine.auto import AutoEngine
        from dv_maintenance.engine.spark import SparkEngine

        return AutoEngine(SparkEngine(master=master, conf=conf))
    raise UsageError(f"unknown engine {name!r}", next_step=f"choose one of {', '.join(ENGINES)}")

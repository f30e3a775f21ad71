"""Engines run rewrite tasks. They know neither a table format nor an orchestrator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from dv_maintenance.errors import UsageError

if TYPE_CHECKING:
    from dv_maintenance.tables.work import RewriteResult, RewriteTask

__all__ = ["ENGINES", "Engine", "get_engine"]

ENGINES = ("spark", "local")


class Engine(Protocol):
    """Runs tasks; holds what they need (a Spark session) between runs, and lets go of it on ``close()``."""

    name: ClassVar[str]

    def run(
        self,
        tasks: Sequence[RewriteTask],
        *,
        storage_options: Mapping[str, str] | None = None,
        on_done: Callable[[RewriteResult], None] | None = None,
    ) -> list[RewriteResult]:
        """Run every task; results in the order of the tasks. ``on_done`` gets each result once it is known, in any
        order, in the calling thread.

        The first error of a task ends the run: what has not begun is dropped, what runs is stopped as far as possible,
        and the error is raised as the class it was. Outputs of tasks that did finish stay in the storage, uncommitted:
        whoever got them by ``on_done`` may commit or delete them, else they are orphans for vacuum.

        Raises
        ------
        DvMaintenanceError : what ``engine.rewrite.rewrite`` raises, or the engine's own trouble.
        """

    def close(self) -> None:
        """Stop what this engine started, and nothing else."""


def get_engine(name: str) -> Engine:
    """A new engine with its default settings. Starts nothing before the first run.

    Raises
    ------
    UsageError : no engine has that name.
    """
    if name == "spark":
        from dv_maintenance.engine.spark import SparkEngine

        return SparkEngine()
    if name == "local":
        from dv_maintenance.engine.local import LocalEngine

        return LocalEngine()
    raise UsageError(f"there is no engine {name!r}", next_step=f"choose one of {', '.join(ENGINES)}")

"""How a verb gets its engine, and the engine that row changes need."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dv_maintenance.errors import UsageError

if TYPE_CHECKING:
    from dv_maintenance.engine import Engine
    from dv_maintenance.engine.spark import SparkEngine
    from dv_maintenance.tables.table import Table

EngineOf = Callable[[], "Engine"]
"""Starts an engine. Called only if there is work, so that a run with nothing to do starts no Spark."""

OnProgress = Callable[[int, int], None]
"""Receives the number of finished and of planned rewrites."""


def spark_of(engine: EngineOf, table: Table, why: str) -> SparkEngine:
    """The engine, if it is Spark. ``why``: what another engine can't do. Raises UsageError."""
    from dv_maintenance.engine.auto import AutoEngine
    from dv_maintenance.engine.spark import SparkEngine

    started = engine()
    if isinstance(started, AutoEngine):
        started = started.spark
    if not isinstance(started, SparkEngine):
        raise UsageError(
            f"the {started.name} engine {why}", table=table.uri, next_step="run this verb on the Spark engine"
        )
    return started

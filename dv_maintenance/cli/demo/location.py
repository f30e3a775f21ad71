"""The repository's code location in a process of its own, whose output goes to a file.

It does what the daemon does when the sensor is on: evaluate the sensor and run what it requests. The daemon would start
a process for every run; here all runs share one process and its Spark session.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from dv_maintenance.errors import DvMaintenanceError

if TYPE_CHECKING:
    import dagster as dg

T = TypeVar("T")

_SENSOR = "dv_accumulation"
_JOB = "dv_maintenance"
# A round is one run per table. Nobody else commits here: work that is left after so many rounds never ends.
_MAX_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Run:
    """A Dagster run.

    asked_by : the sensor or job.
    partitions : as Dagster labels them; ``None``: all.
    """

    run_id: str
    asked_by: str
    assets: tuple[str, ...]
    partitions: str | None
    seconds: float
    success: bool


class Location:
    """``sensors.definitions`` of the checkout ``root`` on the tables of a file, with the Dagster instance in ``home``.

    engine : spark or local.
    log : file for stdout and stderr.

    The process starts at once, while the tables are built.
    """

    def __init__(self, root: str, *, home: str, tables: str, engine: str, log: str) -> None:
        self._log = log
        # Spawned: after a fork, Arrow's threads no longer run.
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=_write_to, initargs=(log,))
        self._ready = self._pool.submit(_open, root, home, tables, engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)

    def tick(self, tables: Sequence[str]) -> list[Run]:
        """Observe the tables and evaluate their checks. Raises DvMaintenanceError: a run failed; the log says why."""
        return self._call(_look, list(tables))

    def maintain(self, doing: Callable[[str], None] = lambda _: None) -> list[Run]:
        """Run what the sensor requests until it requests nothing, then the job for all tables, which also vacuums and
        writes manifests. ``doing`` gets each run in words, before it starts. Raises as :meth:`tick`.
        """
        runs: list[Run] = []
        for _ in range(_MAX_ROUNDS):
            doing("Dagster: evaluating the sensor")
            requested = self._in_process(_requested)
            if not requested:
                doing("Dagster: running the job for all tables")
                return [*runs, *self._call(_all)]
            for at, name in enumerate(requested):
                doing(f"Dagster: run {at + 1} of {len(requested)} of this tick, {name}")
                runs += self._call(_run_requested, at)
        raise DvMaintenanceError(f"{_SENSOR} still requests runs after {_MAX_ROUNDS} rounds")

    def _in_process(self, function: Callable[..., T], *args: Any) -> T:
        try:
            self._ready.result()
            return self._pool.submit(function, *args).result()
        except BrokenProcessPool as error:
            raise DvMaintenanceError("the process that runs Dagster ended", next_step=self._where()) from error

    def _call(self, function: Callable[..., list[Run]], *args: Any) -> list[Run]:
        runs = self._in_process(function, *args)
        failed = next((run for run in runs if not run.success), None)
        if failed is not None:
            raise DvMaintenanceError(f"the Dagster run of {', '.join(failed.assets)} failed", next_step=self._where())
        return runs

    def _where(self) -> str:
        return f"see {self._log}, and 'dvm doctor' for what is missing"


# -- in the other process --------------------------------------------------------------------------------------------


class _Side:
    """The state of that process."""

    current: ClassVar[_Side]

    def __init__(self, engine: str) -> None:
        import dagster as dg

        self.definitions: dg.Definitions = import_module("sensors.definitions").defs()
        self.instance = dg.DagsterInstance.get()
        self.run_config = {"resources": {"spark": {"config": {"engine": engine}}}}
        self.session: object = None
        self.requests: Sequence[dg.RunRequest] = ()
        if engine == "spark":
            from dv_maintenance.engine.spark import SparkEngine

            # An active session is used by all runs, and stopped by none.
            self.session = SparkEngine().session

    def tick(self) -> dg.SensorResult:
        """What the sensor answers when nothing is remembered. Its observations are kept, its requests are not run."""
        import dagster as dg

        context = dg.build_sensor_context(instance=self.instance, definitions=self.definitions)
        result = self.definitions.resolve_sensor_def(_SENSOR)(context)
        if not isinstance(result, dg.SensorResult):
            raise TypeError(f"{_SENSOR} returned {type(result).__name__}")
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        return result

    def run_request(self, request: dg.RunRequest) -> Run:
        job = self.definitions.resolve_implicit_global_asset_job_def()
        tags = {**request.tags, "dagster/sensor_name": _SENSOR}
        return self._run(job, _SENSOR, request.asset_selection, tags)

    def run_job(self, assets: Sequence[str] | None = None) -> Run:
        """``assets``: by name, ``None`` for all of the job's."""
        import dagster as dg

        keys = None if assets is None else [dg.AssetKey(name.split("/")) for name in assets]
        return self._run(self.definitions.resolve_job_def(_JOB), _JOB, keys, {})

    def _run(
        self, job: dg.JobDefinition, asked_by: str, assets: Sequence[dg.AssetKey] | None, tags: dict[str, str]
    ) -> Run:
        started = time.perf_counter()
        result = job.execute_in_process(
            instance=self.instance,
            asset_selection=assets,
            tags=tags,
            run_config=self.run_config,
            raise_on_error=False,
        )
        run = self.instance.get_run_by_id(result.run_id)
        return Run(
            run_id=result.run_id,
            asked_by=asked_by,
            assets=tuple(key.to_user_string() for key in assets or ()),
            partitions=run.tags.get("dv/partitions", run.tags.get("dagster/partition")) if run is not None else None,
            seconds=round(time.perf_counter() - started, 1),
            success=result.success,
        )


def _write_to(log: str) -> None:
    with open(log, "ab") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)


def _open(root: str, home: str, tables: str, engine: str) -> None:
    os.environ |= {"DAGSTER_HOME": home, "DVM_TABLES": tables}
    sys.path.insert(0, root)
    _Side.current = _Side(engine)


def _look(tables: list[str]) -> list[Run]:
    return [_Side.current.run_job(tables)]


def _requested() -> list[str]:
    """The assets of each run that the sensor requests now."""
    side = _Side.current
    side.requests = side.tick().run_requests or ()
    return [", ".join(key.to_user_string() for key in each.asset_selection or ()) for each in side.requests]


def _run_requested(at: int) -> list[Run]:
    side = _Side.current
    return [side.run_request(side.requests[at])]


def _all() -> list[Run]:
    return [_Side.current.run_job()]

"""Triggers that watch tables: an event for each run that work became due for, and one for all vacuums that are due.

They run in the triggerer as long as a DAG is scheduled on their asset. They must not return: Airflow would restart a
watcher that returned, with its first arguments, and the same event would fire every few seconds. What they saw and
fired for is kept in the asset's state store (Airflow 3.3), so that a restart neither repeats an event nor loses one.
Whether to fire is the service's decision, from what became of earlier runs (``outcomes``).
"""

from __future__ import annotations

import logging
import os
import time
from abc import abstractmethod
from asyncio import sleep
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from asgiref.sync import sync_to_async
from pydantic import TypeAdapter

from dv_maintenance.airflow import outcomes, watchers
from dv_maintenance.airflow.bundles import fetched
from dv_maintenance.airflow.outcomes import AnnouncedRun
from dv_maintenance.airflow.tables import watch_config, watched
from dv_maintenance.errors import DvMaintenanceError, redacted
from dv_maintenance.service.decision import Attempts
from dv_maintenance.service.evaluation import Evaluation, Limits, evaluate
from dv_maintenance.service.observe import Observer
from dv_maintenance.service.tables_file import Job, TableSettings
from dv_maintenance.service.verbs.like_sensor import NoOrchestrator

if TYPE_CHECKING:
    from dv_maintenance.service.checks import Finding, Severity
    from dv_maintenance.service.due import RunRequest

_log = logging.getLogger(__name__)
# The triggerer writes an event into the database within a second or two. An event whose mark is written earlier would
# be lost if the triggerer were killed in between; with a later one it may fire again, and its run finds nothing due.
_SECONDS_UNTIL_WRITTEN: Final = 5.0
# At most, else ten inspections: a connection may have credentials that end, and a folder other tables.
_SECONDS_LOADED: Final = 600.0
_STATE: Final = "dv_maintenance"
# Another definition of the table waits so long for a run of an event.
_MILLISECONDS_BEGUN: Final = 600_000
# Seconds: how long new tables are started, and how much longer a started one may take. Events at most.
_LIMITS: Final = Limits(budget=35.0, patience=10.0, requests=100)

Marks = Mapping[str, Mapping[str, tuple[str, int]]]
"""By table and jobs, the newest request that was announced: its key, and when, in epoch milliseconds."""
Runs = Mapping[str, Mapping[Job, AnnouncedRun]]
"""By table and job."""


@dataclass(frozen=True, slots=True)
class _Memory:
    """What a watcher keeps from one inspection to the next, and in a store.

    cursor : of the service's evaluations.
    at : when it was written into the store, epoch milliseconds.
    """

    cursor: str | None = None
    fired: Marks = field(default_factory=dict)
    at: int = field(default=0, compare=False)


_STORED: Final = TypeAdapter(_Memory)


class _Watch(BaseEventTrigger):
    """The loop of both triggers. Tables stay open between two inspections. ``own``: further arguments."""

    own: ClassVar[Sequence[str]]

    def __init__(
        self,
        tables_file: str | None,
        storage_conn_id: str | None,
        every_seconds: float,
        dag_id: str | None,
        *,
        checks: bool = False,
    ) -> None:
        super().__init__()
        self.tables_file = self._file = tables_file
        self.storage_conn_id = storage_conn_id
        self.every_seconds = every_seconds
        self.dag_id = dag_id
        self._observer = Observer(data_versions=True, checks=checks)
        self._checks: dict[tuple[str, str], Severity | None] = {}
        self._loaded: tuple[float | None, list[TableSettings]] | None = None
        self._until = 0.0
        self._lasts = min(_SECONDS_LOADED, 10 * every_seconds)
        self._runs: dict[str, dict[Job, AnnouncedRun]] = {}
        self._active: dict[str, str] = {}
        # Only an inspection of a changed table finds reasons.
        self._reasons: dict[str, Mapping[Job, Sequence[str]]] = {}
        self._said = ""
        self._ended = False
        self._beside: dict[str, str] = {}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("tables_file", "storage_conn_id", "every_seconds", "dag_id", *self.own)
        return f"{__name__}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields an event per inspection that found work to announce, forever. What stands in the way of due work, such
        as a table that can't be read, is a line in the log.
        """
        try:
            async for event in self._events():
                yield event
        finally:
            self._ended = True
            watchers.forget(id(self))

    async def _events(self) -> AsyncIterator[TriggerEvent]:
        memory = await self._restored()
        kept, first = memory, True
        while True:
            try:
                # Airflow's own way into a thread: its API can be called there, in every version.
                found, due = await sync_to_async(self._look)(memory, first)
                first = False
                still = {name: marks for name, marks in memory.fired.items() if name in due or name in self._active}
                memory = _Memory(found.cursor.to_json(), still)
                if found.requests:
                    fired = {name: dict(marks) for name, marks in still.items()}
                    for each in found.requests:
                        fired.setdefault(each.table, {})["+".join(each.jobs)] = _work(each), _now()
                    memory = replace(memory, fired=fired)
                    yield TriggerEvent(self._event([self._payload(each, found) for each in found.requests]))
                    await sleep(_SECONDS_UNTIL_WRITTEN)
                if kept != memory and await self._keep(memory):
                    kept = memory
            except Exception as error:  # noqa: BLE001 (a watcher that fails is started again at once, without end)
                self._warn(self._name(), error)
            await sleep(self.every_seconds)

    def _look(self, memory: _Memory, first: bool) -> tuple[Evaluation, set[str]]:
        """In a thread: it reads the tables' logs. The evaluation, and the tables with due work."""
        now = time.monotonic()
        if self.tables_file and now > self._until:
            self._file = fetched(self.tables_file)
        written = self._written()
        if self._loaded is None or self._loaded[0] != written or now > self._until:
            self._loaded = written, self._tables()
            self._until = now + self._lasts
        tables = self._loaded[1]
        asked = memory.fired.keys() | self._runs.keys() | self._active.keys()
        if chosen := [table for table in tables if first or table.name in asked]:
            self._ask_for_runs(chosen)
        begun = {table.name: self._others(table) for table in tables}
        found = evaluate(
            tables,
            memory.cursor,
            _Airflow(memory.fired, self._runs, self._active, self._checks, begun),
            self._observer,
            _LIMITS,
        )
        if found.reason and found.reason != self._said:
            self.log.info("%s", found.reason)
        self._said = found.reason
        states = found.cursor.tables.items()
        self._reasons |= {name: state.inspection.reasons for name, state in states if state.inspection.reasons}
        due = {name for name, state in states if state.inspection.due or not state.readable}
        fires = {each.table for each in found.requests}
        for table in tables:
            if table.name not in due:
                self._forget(table)
            self._note(table, memory, fires)
        if self._ended:  # while this thread was at work
            watchers.forget(id(self))
        return found, due

    def _others(self, table: TableSettings) -> str:
        """What another definition of the table has begun; "" for nothing."""
        found = watchers.others(self._places(table), self._definition(table))
        named = ", ".join(sorted(found))
        if named and self._beside.get(table.name) != named:
            text = "%s: %s is watched as %s, too. They take turns, but work may be done twice: keep one definition"
            self.log.warning(text, table.name, table.place, named)
        self._beside[table.name] = named
        return next((f"{begun}, for {other}" for other, begun in sorted(found.items()) if begun), "")

    def _note(self, table: TableSettings, memory: _Memory, fires: Collection[str]) -> None:
        # An event that no run came of holds up nobody for long.
        recent = any(_now() - at < _MILLISECONDS_BEGUN for _, at in memory.fired.get(table.name, {}).values())
        begun = self._active.get(table.name) or ("an event" if table.name in fires or recent else "")
        watchers.note(self._places(table), id(self), self._definition(table), begun)

    def _places(self, table: TableSettings) -> set[str]:
        """Where its definition says that it is, and where it was found: a name in a catalog is not a place."""
        return {table.uri, self._observer.place(table)}

    def _definition(self, table: TableSettings) -> str:
        return f"{table.name} of {self.tables_file}" if self.tables_file else table.name

    def _ask_for_runs(self, tables: Sequence[TableSettings]) -> None:
        """Without an answer, what was known of them still holds."""
        name = self._name()
        try:
            of_dag = outcomes.active_of(self.dag_id) if self.dag_id else ""
            for table in tables:
                name = table.name
                runs = {job: run for job in table.jobs if (run := outcomes.newest(table, job)) is not None}
                active = next((str(run) for run in runs.values() if run.active()), of_dag)
                self._runs.pop(name, None)
                self._active.pop(name, None)
                if runs:
                    self._runs[name] = runs
                if active:
                    self._active[name] = active
        except Exception as error:  # noqa: BLE001 (the tables are watched even if Airflow's API is away)
            self._warn(name, error)

    def _forget(self, table: TableSettings) -> None:
        if table.name in self._active:
            return
        try:
            for job in self._runs.pop(table.name, {}):
                outcomes.delete(table, job)
        except Exception as error:  # noqa: BLE001 (a run that is on record and no longer due harms nobody)
            self._warn(table.name, error)

    def _payload(self, request: RunRequest, found: Evaluation) -> dict[str, Any]:
        reasons = self._reasons.get(request.table, {})
        return {
            "table": request.table,
            "version": request.version,
            "data_version": found.cursor.tables[request.table].data_version,
            "due": list(request.jobs),
            "reasons": {job: list(reasons.get(job, ())) for job in request.jobs},
            "checks": {name: each for (table, name), each in self._checks.items() if table == request.table and each},
            "attempt": request.failed + 1,
            "work": _work(request),
        }

    def _warn(self, name: str, error: BaseException) -> None:
        text = str(error) if isinstance(error, DvMaintenanceError) else f"{type(error).__name__}: {error}"
        self.log.warning("%s: %s", name, redacted(text))

    def _written(self) -> float | None:
        """When the file of tables was written: it is read again once it has changed."""
        return os.stat(self._file).st_mtime if self._file else None

    def _stores(self) -> list[Any]:
        """Of the assets that this trigger serves. Assets whose watchers have equal triggers share one, and then the
        store answers only for each asset.
        """
        store = getattr(self, "asset_state_store", None)
        if store is None:
            return []
        return [*getattr(store, "_by_name", {}).values(), *getattr(store, "_by_uri", {}).values()] or [store]

    async def _restored(self) -> _Memory:
        """The newest that one of the stores has. Never fails: the watcher would end."""
        kept = []
        for store in self._stores():
            try:
                if (body := await store.aget(_STATE)) is not None:
                    kept.append(_STORED.validate_python(body))
            except Exception as error:  # noqa: BLE001
                self._warn(f"{self._name()}: what it fired for before is not known", error)
        return max(kept, key=lambda each: each.at, default=_Memory())

    async def _keep(self, memory: _Memory) -> bool:
        """Whether it was kept. Without a store there is nothing to do."""
        body = _STORED.dump_python(replace(memory, at=_now()), mode="json")
        try:
            for store in self._stores():
                await store.aset(_STATE, body)
        except Exception as error:  # noqa: BLE001
            self._warn(f"{self._name()}: what it fired for is not written down yet", error)
            return False
        return True

    @abstractmethod
    def _tables(self) -> list[TableSettings]: ...

    @abstractmethod
    def _event(self, found: list[dict[str, Any]]) -> dict[str, Any]: ...

    @abstractmethod
    def _name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class _Airflow(NoOrchestrator):
    """Answers the queries of an evaluation from what was announced, and what became of it.

    checks : their last severities, by table and name.
    begun : what other definitions of the tables have begun, by table.
    """

    fired: Marks
    runs: Runs
    active: Mapping[str, str]
    checks: dict[tuple[str, str], Severity | None]
    begun: Mapping[str, str]

    def busy(self, table: TableSettings) -> str | None:
        return self.active.get(table.name) or self.begun.get(table.name) or None

    def attempts(self, request: RunRequest) -> Attempts:
        """An event that nothing has come of counts as a run without effect: its run may be in the queue, or its DAG
        does something else.
        """
        work = _work(request)
        runs = [
            run for job, run in self.runs.get(request.table, {}).items() if job in request.jobs and run.work == work
        ]
        last = max(runs, key=lambda run: run.started, default=None)
        announced, at = self.fired.get(request.table, {}).get("+".join(request.jobs), ("", 0))
        if announced == work and (last is None or last.started < at):
            return Attempts(1 if last is None else last.count, at, "was announced, but has not started", idle=True)
        if last is None:
            return Attempts()
        how = "succeeded, but left it due"
        if last.error is not None:
            how = f"failed ({last.error})"
        elif not last.ended:
            how = "was killed, or marked as ended"
        return Attempts(
            last.count,
            last.ended or last.started,
            f"{how} ({last})",
            refusal=last.error if last.recurs else None,
            restorable=last.restorable,
            damage=last.damage,
            idle=last.ended > 0 and last.error is None,
        )

    def last_vacuum(self, table: TableSettings) -> int | None:
        run = self.runs.get(table.name, {}).get("vacuum")
        return run.ended if run is not None and run.ended and run.error is None else None

    def check(self, table: TableSettings, finding: Finding) -> None:
        """Only what is new: an inspection finds the same until the next commit."""
        if self.checks.get((table.name, finding.check)) != finding.severity:
            self.checks[table.name, finding.check] = finding.severity
            level = logging.INFO if finding.severity is None else logging.WARNING
            text = "%s: the check %s %s: %s"
            _log.log(level, text, table.name, finding.check, finding.severity or "passes again", finding.reason)


class DvTrigger(_Watch):
    """Watches a table.

    :param table: as for the operators, like ``tables_file`` and ``storage_conn_id``.
    :param jobs: which work to watch for; by default the table's ``jobs``.
    :param every_seconds: how often the log is probed.
    :param dag_id: the DAG that the events start. After an event, the next one waits while it has a run in the queue or
        at work.
    """

    own = ("table", "jobs")

    def __init__(
        self,
        table: str | dict[str, Any],
        tables_file: str | None = None,
        storage_conn_id: str | None = None,
        jobs: Sequence[Job] | None = None,
        every_seconds: float = 60,
        dag_id: str | None = None,
    ) -> None:
        super().__init__(tables_file, storage_conn_id, every_seconds, dag_id, checks=True)
        self.table = table
        self.jobs = None if jobs is None else list(jobs)

    def _tables(self) -> list[TableSettings]:
        found = watched(self.table, self._file, self.storage_conn_id, max_age=self._lasts / 2)
        return [found if self.jobs is None else found.model_copy(update={"jobs": tuple(self.jobs)})]

    def _event(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        return found[0]

    def _name(self) -> str:
        if isinstance(self.table, str):
            return self.table
        return next((str(self.table[key]) for key in ("name", "table", "path") if self.table.get(key)), "")


class DvVacuumsTrigger(_Watch):
    """Watches all tables of a file for vacuums. Those found due together become one event.

    :param tables_file: as for :class:`DvVacuumsOperator`, like ``name`` and ``storage_conn_id``.
    :param every_seconds: how often the logs are probed.
    :param dag_id: as of :class:`DvTrigger`.
    """

    own = ("name",)

    def __init__(
        self,
        tables_file: str,
        name: str | None = None,
        storage_conn_id: str | None = None,
        every_seconds: float = 60,
        dag_id: str | None = None,
    ) -> None:
        super().__init__(tables_file, storage_conn_id, every_seconds, dag_id)
        self.name = name

    def _tables(self) -> list[TableSettings]:
        tables = watch_config(str(self._file), self.name, self.storage_conn_id, max_age=self._lasts / 2).tables
        return [table.model_copy(update={"jobs": ("vacuum",)}) for table in tables if "vacuum" in table.jobs]

    def _event(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        return {"tables": found}

    def _name(self) -> str:
        return str(self.tables_file)


def _work(request: RunRequest) -> str:
    """The key of the same work at every attempt."""
    return replace(request, failed=0, partitions=None).key


def _now() -> int:
    return time.time_ns() // 1_000_000

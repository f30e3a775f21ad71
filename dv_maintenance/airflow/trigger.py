"""Triggers that watch tables: an event for each data change that made work due, and one for all vacuums that are due.

They run in the triggerer as long as a DAG is scheduled on their asset. They must not return: Airflow would restart a
watcher that returned, with its first arguments, and the same event would fire every few seconds. What they fired for is
kept in the asset's state store (Airflow 3.3), so that a restart neither repeats an event nor loses one.
"""

from __future__ import annotations

import asyncio
import os
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from dv_maintenance.errors import DvMaintenanceError, UsageError, redacted
from dv_maintenance.service.budget import NotReached, within_budget
from dv_maintenance.service.cursor import Cursor, TableState
from dv_maintenance.service.observe import Observer
from dv_maintenance.service.tables_file import Job, TableSettings

__all__ = ["DvTrigger", "DvVacuumsTrigger"]

# The triggerer writes an event into the database within a second or two. An event whose mark is written earlier would
# be lost if the triggerer were killed in between; with a later one it may fire again, and its run finds nothing due.
_SECONDS_UNTIL_WRITTEN: Final = 5.0
_STATE: Final = "dv_maintenance"
# An inspection of many tables: how long new tables are started, and how much longer a started one may take.
_LOOK_SECONDS: Final = 35.0
_PATIENCE_SECONDS: Final = 10.0

# Milliseconds until manifests that an event did not bring up to date get another one.
_MANIFESTS_AGAIN: Final = 600_000

Mark = list[int | None]
Fired = Mapping[str, Mark]
"""By job, what the newest event was fired for; see ``_marks``."""
Seen = tuple[TableState, Mapping[Job, Sequence[str]]]


class _Watch(BaseEventTrigger):
    """The loop of both triggers. Tables stay open between two inspections."""

    def __init__(self, tables_file: str | None, storage_conn_id: str | None, every_seconds: float) -> None:
        super().__init__()
        self.tables_file = tables_file
        self.storage_conn_id = storage_conn_id
        self.every_seconds = every_seconds
        self._observer = Observer(data_versions=True)
        self._loaded: tuple[float | None, list[TableSettings]] | None = None

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields an event per inspection that found new work, forever. A table that can't be read is a line in the
        log.
        """
        states, fired = await self._restored()
        kept = states, fired
        while True:
            try:
                seen = await asyncio.to_thread(self._look, states, await self._storage_options())
                states = {**states, **{name: state for name, (state, _) in seen.items()}}
                marks = {name: _marks(state) for name, (state, _) in seen.items()}
                new = [name for name in seen if self._is_new(name, marks[name], fired.get(name, {}))]
                if new:
                    fired = {**fired, **{name: {**fired.get(name, {}), **marks[name]} for name in new}}
                    yield TriggerEvent(self._event([_payload(*seen[name]) for name in new]))
                    await asyncio.sleep(_SECONDS_UNTIL_WRITTEN)
                if kept != (states, fired):
                    await self._keep(states, fired)
                    kept = states, fired
            except Exception as error:  # noqa: BLE001 (a watcher that fails is started again at once, without end)
                self._warn(self._name(), error)
            await asyncio.sleep(self.every_seconds)

    def _look(self, states: Mapping[str, TableState], options: Mapping[str, str]) -> dict[str, Seen]:
        """In a thread: it reads the tables' logs."""
        if self._loaded is None or self._loaded[0] != self._written():
            self._loaded = self._written(), self._tables(options)
        found: dict[str, Seen] = {}
        looks = within_budget(
            self._loaded[1],
            lambda table: self._observer.probe(table, states.get(table.name)),
            lambda table, version: self._observer.observe(table, states.get(table.name), version, busy=True),
            budget=_LOOK_SECONDS,
            patience=_PATIENCE_SECONDS,
        )
        for table, look in looks:
            if isinstance(look, NotReached):
                continue
            if isinstance(look, BaseException):
                self._warn(table.name, look)
                continue
            state = TableState(replace(look.inspection, health=None), look.data_version)
            found[table.name] = state, look.inspection.reasons
        return found

    def _warn(self, name: str, error: BaseException) -> None:
        text = str(error) if isinstance(error, DvMaintenanceError) else f"{type(error).__name__}: {error}"
        self.log.warning("%s: %s", name, redacted(text))

    def _is_new(self, name: str, marks: Fired, fired: Fired) -> bool:
        every = {table.name: table.policy.vacuum_every for table in (self._loaded or (None, []))[1]}[name]
        return any(_is_new(job, mark, fired.get(job), every) for job, mark in marks.items())

    def _written(self) -> float | None:
        """When the file of tables was written: it is read again once it has changed."""
        return os.stat(self.tables_file).st_mtime if self.tables_file else None

    async def _storage_options(self) -> Mapping[str, str]:
        from dv_maintenance.airflow.hook import DvHook

        return {} if self.storage_conn_id is None else await DvHook(self.storage_conn_id).aget_conn()

    async def _restored(self) -> tuple[dict[str, TableState], dict[str, Fired]]:
        store = getattr(self, "asset_state_store", None)
        kept: Any = None if store is None else await store.aget(_STATE)
        try:
            fired: dict[str, Fired] = {
                str(name): {str(job): [data, other, int(at)] for job, (data, other, at) in marks.items()}
                for name, marks in kept["fired"].items()
            }
            return dict(Cursor.from_json(kept["cursor"]).tables), fired
        except (UsageError, LookupError, TypeError, ValueError, AttributeError):
            return {}, {}

    async def _keep(self, states: Mapping[str, TableState], fired: Mapping[str, Fired]) -> None:
        store = getattr(self, "asset_state_store", None)
        if store is not None:
            await store.aset(_STATE, {"cursor": Cursor(states).to_json(), "fired": dict(fired)})

    @abstractmethod
    def _tables(self, options: Mapping[str, str]) -> list[TableSettings]: ...

    @abstractmethod
    def _event(self, found: list[dict[str, Any]]) -> dict[str, Any]: ...

    @abstractmethod
    def _name(self) -> str: ...


class DvTrigger(_Watch):
    """Watches a table.

    table, tables_file, storage_conn_id : as for the operators.
    jobs : which work to watch for; by default the table's ``jobs``.
    every_seconds : how often the log is probed.
    """

    def __init__(
        self,
        table: str | dict[str, Any],
        tables_file: str | None = None,
        storage_conn_id: str | None = None,
        jobs: Sequence[Job] | None = None,
        every_seconds: float = 60,
    ) -> None:
        super().__init__(tables_file, storage_conn_id, every_seconds)
        self.table = table
        self.jobs = None if jobs is None else list(jobs)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kwargs = {
            "table": self.table,
            "tables_file": self.tables_file,
            "storage_conn_id": self.storage_conn_id,
            "jobs": self.jobs,
            "every_seconds": self.every_seconds,
        }
        return f"{__name__}.{type(self).__name__}", kwargs

    def _tables(self, options: Mapping[str, str]) -> list[TableSettings]:
        from dv_maintenance.airflow.tables import watched

        found = watched(self.table, self.tables_file, options)
        return [found if self.jobs is None else found.model_copy(update={"jobs": tuple(self.jobs)})]

    def _event(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        return found[0]

    def _name(self) -> str:
        return self.table if isinstance(self.table, str) else str(self.table.get("name") or self.table.get("path"))


class DvVacuumsTrigger(_Watch):
    """Watches all tables of a file for vacuums. Those found due together become one event.

    tables_file, name, storage_conn_id : as for :class:`DvVacuumsOperator`.
    every_seconds : how often the logs are probed.
    """

    def __init__(
        self,
        tables_file: str,
        name: str | None = None,
        storage_conn_id: str | None = None,
        every_seconds: float = 60,
    ) -> None:
        super().__init__(tables_file, storage_conn_id, every_seconds)
        self.file = tables_file
        self.name = name

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kwargs = {
            "tables_file": self.file,
            "name": self.name,
            "storage_conn_id": self.storage_conn_id,
            "every_seconds": self.every_seconds,
        }
        return f"{__name__}.{type(self).__name__}", kwargs

    def _tables(self, options: Mapping[str, str]) -> list[TableSettings]:
        from dv_maintenance.airflow.tables import watch_config

        tables = watch_config(self.file, self.name, options).tables
        return [table.model_copy(update={"jobs": ("vacuum",)}) for table in tables if "vacuum" in table.jobs]

    def _event(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        return {"tables": found}

    def _name(self) -> str:
        return self.file


def _marks(state: TableState) -> Fired:
    """By due job: the data change, what else makes it due at the same data, and the present time in milliseconds.
    Maintenance moves the files that manifests list; files expire with time.
    """
    found, now = state.inspection, time.time_ns() // 1_000_000
    others: dict[Job, int | None] = {"optimize": None, "vacuum": found.vacuum_checked, "manifest": found.version}
    return {job: [state.data_version, others[job], now] for job in found.due}


def _is_new(job: str, mark: Mark, fired: Mark | None, vacuum_every: int) -> bool:
    """Another data change. At the same data only after a while: the run of the last event may be at work."""
    if fired is None or mark[0] != fired[0]:
        return True
    return mark[1] != fired[1] and (mark[2] or 0) - (fired[2] or 0) >= (
        vacuum_every if job == "vacuum" else _MANIFESTS_AGAIN
    )


def _payload(state: TableState, reasons: Mapping[Job, Sequence[str]]) -> dict[str, Any]:
    found = state.inspection
    return {
        "table": found.name,
        "version": found.version,
        "data_version": state.data_version,
        "due": list(found.due),
        "reasons": {job: list(why) for job, why in reasons.items()},
    }

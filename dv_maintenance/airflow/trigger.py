"""The trigger that watches one table: an event for each data change that made work due.

It runs in the triggerer for as long as a DAG is scheduled on its asset. It must not return: Airflow starts a watcher
that returned again with its first arguments, and the same event fires every few seconds. What it fired for is kept in
the asset's state store (Airflow 3.3), so that a restart neither repeats an event nor loses one.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from dv_maintenance.errors import DvMaintenanceError, UsageError, redacted
from dv_maintenance.service.cursor import Cursor, TableState
from dv_maintenance.service.observe import Observer
from dv_maintenance.service.tables_file import Job, WatchedTable

__all__ = ["DvTrigger"]

# The triggerer writes an event into the database within a second or two. An event whose mark is written earlier would
# be lost if the triggerer were killed in between; with a later one it may fire again, and its run finds nothing due.
_SECONDS_UNTIL_WRITTEN: Final = 5.0
_STATE: Final = "dv_maintenance"

# Milliseconds until manifests that an event did not bring up to date get another one.
_MANIFESTS_AGAIN: Final = 600_000

Mark = list[int | None]
Fired = dict[str, Mark]
"""By job, what the newest event was fired for; see ``_marks``."""


class DvTrigger(BaseEventTrigger):
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
        super().__init__()
        self.table = table
        self.tables_file = tables_file
        self.storage_conn_id = storage_conn_id
        self.jobs = None if jobs is None else list(jobs)
        self.every_seconds = every_seconds
        self._observer = Observer(data_versions=True)
        self._loaded: tuple[float | None, WatchedTable] | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kwargs = {
            "table": self.table,
            "tables_file": self.tables_file,
            "storage_conn_id": self.storage_conn_id,
            "jobs": self.jobs,
            "every_seconds": self.every_seconds,
        }
        return f"{__name__}.{type(self).__name__}", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """An event per data change that is due, for ever. A table that can't be read is a line in the log."""
        state, fired = await self._restored()
        kept = state, fired
        while True:
            try:
                found, reasons = await asyncio.to_thread(self._observe, state, await self._storage_options())
                state, marks = found, _marks(found)
                if any(_is_new(job, mark, fired.get(job), self._vacuum_every()) for job, mark in marks.items()):
                    fired = {**fired, **marks}
                    yield TriggerEvent(_payload(found, reasons))
                    await asyncio.sleep(_SECONDS_UNTIL_WRITTEN)
                if kept != (state, fired):
                    await self._keep(found, fired)
                    kept = state, fired
            except Exception as error:  # noqa: BLE001 (a watcher that fails is started again at once, without end)
                text = str(error) if isinstance(error, DvMaintenanceError) else f"{type(error).__name__}: {error}"
                self.log.warning("%s: %s", self._name(), redacted(text))
            await asyncio.sleep(self.every_seconds)

    def _observe(
        self, state: TableState | None, options: Mapping[str, str]
    ) -> tuple[TableState, Mapping[Job, Sequence[str]]]:
        """In a thread: it reads the table's log."""
        observation = self._observer.observe(self._watched(options), state, busy=True)
        found = TableState(replace(observation.inspection, health=None), observation.data_version)
        return found, observation.inspection.reasons

    def _watched(self, options: Mapping[str, str]) -> WatchedTable:
        """The table's settings, read again when the file has changed."""
        from dv_maintenance.airflow.tables import watched

        written = os.stat(self.tables_file).st_mtime if self.tables_file else None
        if self._loaded is None or self._loaded[0] != written:
            found = watched(self.table, self.tables_file, options)
            self._loaded = written, found if self.jobs is None else found.model_copy(update={"jobs": tuple(self.jobs)})
        return self._loaded[1]

    def _vacuum_every(self) -> int:
        return 0 if self._loaded is None else self._loaded[1].policy.vacuum_every

    async def _storage_options(self) -> Mapping[str, str]:
        from dv_maintenance.airflow.hook import DvHook

        return {} if self.storage_conn_id is None else await DvHook(self.storage_conn_id).aget_conn()

    async def _restored(self) -> tuple[TableState | None, Fired]:
        store = getattr(self, "asset_state_store", None)
        kept: Any = None if store is None else await store.aget(_STATE)
        try:
            fired: Fired = {str(job): [data, other, int(at)] for job, (data, other, at) in kept["fired"].items()}
            return next(iter(Cursor.from_json(kept["cursor"]).tables.values())), fired
        except (UsageError, LookupError, TypeError, ValueError, StopIteration, AttributeError):
            return None, {}

    async def _keep(self, state: TableState, fired: Fired) -> None:
        store = getattr(self, "asset_state_store", None)
        if store is not None:
            cursor = Cursor({state.inspection.name: state}).to_json()
            await store.aset(_STATE, {"cursor": cursor, "fired": fired})

    def _name(self) -> str:
        return self.table if isinstance(self.table, str) else str(self.table.get("name") or self.table.get("path"))


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

"""What became of the runs that watchers' events started. Operators write it down, and watchers read it.

Airflow passes nothing back to a watcher. A Variable per table and job holds the newest such run; a watcher deletes it
once the work is no longer due. Runs that somebody else started, by hand or by the clock, are not recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

import orjson
from airflow.sdk import Variable
from pydantic import TypeAdapter, ValidationError

from dv_maintenance.errors import (
    DvMaintenanceError,
    FatalError,
    RestorableError,
    RetryableError,
    redacted,
)
from dv_maintenance.service.decision import FILES
from dv_maintenance.service.tables_file import Job, TableSettings
from dv_maintenance.units import epoch_millis

_log = logging.getLogger(__name__)
_MAX_ERROR: Final = 500
_ACTIVE: Final = frozenset({"queued", "running"})


@dataclass(frozen=True, slots=True)
class AnnouncedRun:
    """A run that did one job because of a watcher's event.

    ``work`` : key of the request, from the event.
    ``count`` : runs of this work until now.
    ``started``, ``ended`` : of the task, epoch milliseconds; ``ended`` is 0 until then, and if the task was killed.
    ``error`` : why it failed; ``None``: it did not.
    ``recurs`` : that error would be met again.
    ``restorable`` : somebody can put it right without a commit or other settings.
    ``damage`` : it is about the table's files, or the right to write them: both are restored without a commit.
    """

    work: str
    dag_id: str
    run_id: str
    started: int
    count: int = 1
    ended: int = 0
    error: str | None = None
    recurs: bool = False
    restorable: bool = False
    damage: bool = False

    def __str__(self) -> str:
        return f"run {self.run_id} of {self.dag_id}"

    def active(self) -> bool:
        """Whether Airflow is still at it, or will retry a task of it. Raises errors of Airflow's API."""
        from airflow.sdk.exceptions import AirflowRuntimeError
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        try:
            # An enumeration whose text is DagRunState.RUNNING, and which equals its value.
            return RuntimeTaskInstance.get_dagrun_state(self.dag_id, self.run_id) in _ACTIVE
        except AirflowRuntimeError as error:
            if error.error.error.name != "DAGRUN_NOT_FOUND":
                raise
            return False


def active_of(dag_id: str) -> str:
    """What a DAG has in the queue or at work, "" for nothing. Raises errors of Airflow's API."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    return f"a run of {dag_id}" if RuntimeTaskInstance.get_dr_count(dag_id, states=sorted(_ACTIVE)) else ""


def newest(table: TableSettings, job: Job) -> AnnouncedRun | None:
    """The newest run that is on record. Raises errors of Airflow's API."""
    text = Variable.get(_variable(table, job), default=None)
    if text is None:
        return None
    try:
        return TypeAdapter(AnnouncedRun).validate_json(text)
    except ValidationError:
        _log.warning("the variable %s was edited, or is of another release: it is ignored", _variable(table, job))
        return None


def delete(table: TableSettings, job: Job) -> None:
    """Raises errors of Airflow's API."""
    Variable.delete(_variable(table, job))


@contextmanager
def recorded(context: Any, table: TableSettings, job: Job) -> Iterator[None]:
    """A task of one job. What becomes of it is written down if a watcher's event started its run."""
    work = _work(context, table, job)
    if work is None:
        yield
        return
    task = context["ti"]
    run = _noted(table, job, AnnouncedRun(work, task.dag_id, task.run_id, epoch_millis()))
    try:
        yield
    except Exception as error:
        # Airflow retries the task otherwise: the run is not over.
        if not isinstance(error, RetryableError) or task.try_number > task.max_tries:
            known = isinstance(error, DvMaintenanceError)
            _keep(
                table,
                job,
                replace(
                    run,
                    ended=epoch_millis(),
                    error=redacted(str(error) if known else f"{type(error).__name__}: {error}")[:_MAX_ERROR],
                    recurs=isinstance(error, FatalError),
                    restorable=isinstance(error, RestorableError),
                    damage=isinstance(error, FILES),
                ),
            )
        raise
    _keep(table, job, replace(run, ended=epoch_millis()))


def events_of(context: Any) -> list[Mapping[str, Any]]:
    """What watchers' events said that started the run: a mapping for each table, in order."""
    groups = (context.get("triggering_asset_events") or {}).values()
    payloads = [_payload(event.extra) for group in groups for event in group]
    return [each for payload in payloads for each in payload.get("tables", [payload]) if "table" in each]


def _payload(extra: Any) -> dict[str, Any]:
    """Airflow keeps the payload of a watcher's event under a separate key."""
    body: dict[str, Any] = extra.get("payload", extra) if isinstance(extra, dict) else {}
    return body if isinstance(body, dict) else {}


def _work(context: Any, table: TableSettings, job: Job) -> str | None:
    found = [each for each in events_of(context) if each["table"] == table.name and job in each.get("due", ())]
    return found[-1].get("work") if found else None


def _noted(table: TableSettings, job: Job, run: AnnouncedRun) -> AnnouncedRun:
    """The run with its count; a task that is retried or cleared belongs to the same run."""
    try:
        last = newest(table, job)
    except Exception as error:  # noqa: BLE001 (the work is what matters)
        _log.warning("what became of the last run is not known: %s", redacted(str(error)))
        last = None
    if last is not None and last.work == run.work:
        run = replace(run, count=last.count + (last.run_id != run.run_id))
    _keep(table, job, run)
    return run


def _keep(table: TableSettings, job: Job, run: AnnouncedRun) -> None:
    text = f"The newest run of {job} that a watcher of {table.place} started. Deleted once the work is no longer due."
    try:
        Variable.set(_variable(table, job), orjson.dumps(run).decode(), description=text)
    except Exception as error:  # noqa: BLE001 (the work is what matters)
        _log.warning("the run could not be recorded, and may be announced again: %s", redacted(str(error)))


def _variable(table: TableSettings, job: Job) -> str:
    """Two tables of one name, in two files, are apart."""
    place = sha256(f"{table.name}\n{table.uri}".encode()).hexdigest()[:8]
    return f"dv_maintenance.{table.name}.{job}.{place}"

"""What the tasks on many tables share.

Airflow creates the asset events of a task only if it succeeds. The task itself therefore succeeds, and the task after
it fails if a table failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import BaseOperator

from dv_maintenance.airflow.assets import job_asset
from dv_maintenance.airflow.base import OnFile
from dv_maintenance.airflow.lineage import Writes
from dv_maintenance.airflow.render import as_text, as_xcom, ended, unverified
from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.tables_file import Job, TableSettings

Result = Outcome | DvMaintenanceError
"""What became of a table."""


class OnMany(OnFile, Writes):
    """An operator that does one job on many tables. ``fail``: as of :class:`DvNightOperator`."""

    job: ClassVar[Job]

    def __init__(self, *, fail: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fail = fail

    def note(self, context: Any, table: TableSettings, result: Result) -> None:
        """In the log and, if files changed, as an event."""
        if isinstance(result, DvMaintenanceError):
            self.log.error("%s: %s", table.name, result)
            return
        self.log.info("%s: %s", table.name, as_text(result))
        self.wrote(context, table, job_asset(table, self.job), result)

    def ended(self, context: Any, results: Mapping[str, Result], done: str) -> dict[str, Any]:
        """The XCom: a reason, then a sentence for each table. ``results``: by the table's name."""
        outcomes = {name: each for name, each in results.items() if isinstance(each, Outcome)}
        problems = {
            name: unverified(each) if isinstance(each, Outcome) else str(each) for name, each in results.items()
        }
        failed = {name: problem for name, problem in problems.items() if problem}
        alerts = [line for each in outcomes.values() for line in each.lines.get("alerts", ())]
        shown = {
            "reason": f"{done}, {len(failed)} failed.",
            "failed": failed,
            "alerts": list(dict.fromkeys(alerts)),
            "tables": {name: as_xcom(each)["reason"] for name, each in outcomes.items()},
        }
        return ended(context, shown, _problem_of(shown) if self.fail else "")


class DvTablesCheckOperator(BaseOperator):
    """Fails if a table failed in the task before it, or if somebody has to act on a night: deadlines that the windows
    have no time for, tables that starve, a step too large for every window.

    :param of: the id of a task with a :class:`DvNightOperator` or a :class:`DvVacuumsOperator`.
    :param alerts: ``False``: only a table that failed fails the task.
    """

    def __init__(self, *, of: str, alerts: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.of = of
        self.alerts = alerts

    def execute(self, context: Any) -> None:
        shown = context["ti"].xcom_pull(task_ids=self.of)
        if problem := _problem_of(shown, alerts=self.alerts):
            raise AirflowFailException(problem)


def _problem_of(shown: Mapping[str, Any], *, alerts: bool = True) -> str:
    """What to fail with, from the XCom of a task on many tables; empty if there is nothing."""
    failed = [f"{name}: {why}" for name, why in shown["failed"].items()]
    return "\n".join([*failed, *(shown["alerts"] if alerts else ())])

"""What the tasks on many tables share.

Airflow creates the asset events of a task only if it succeeds. The task itself therefore succeeds, and the task after
it fails if a table failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import BaseOperator


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
        if problem := problem_of(shown, alerts=self.alerts):
            raise AirflowFailException(problem)


def problem_of(shown: Mapping[str, Any], *, alerts: bool = True) -> str:
    """What to fail with, from the XCom of a task on many tables; empty if there is nothing."""
    failed = [f"{name}: {why}" for name, why in shown["failed"].items()]
    return "\n".join([*failed, *(shown["alerts"] if alerts else ())])

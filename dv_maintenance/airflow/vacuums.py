"""The vacuums of many tables in one task, with an asset event for each table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator

from dv_maintenance.airflow.arguments import check_flags, is_true, keys_of, literal
from dv_maintenance.airflow.base import FILE_FIELDS
from dv_maintenance.airflow.many import OnMany, Result
from dv_maintenance.airflow.outcomes import events_of, recorded
from dv_maintenance.airflow.tables import in_airflow_terms
from dv_maintenance.errors import DvMaintenanceError, RetryableError
from dv_maintenance.service import verbs
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.policies import Policy
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.units import count

VACUUM_FIELDS = ("guards", "only_if_due", "dry_run")
"""Templated."""


class Vacuums(BaseOperator):
    """What a vacuum of one table and of many share."""

    def __init__(
        self,
        *,
        guards: Mapping[str, Any] | None = None,
        only_if_due: bool | str = False,
        dry_run: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.guards = guards
        self.only_if_due = only_if_due
        self.dry_run = dry_run
        if literal(guards):
            Policy.from_mapping(keys_of(guards), f"guards of {self.task_id}")
        check_flags(self, "only_if_due", "dry_run")

    def vacuumed(self, context: Any, table: TableSettings) -> Outcome:
        only_if_due, dry_run = is_true(self.only_if_due, "only_if_due"), is_true(self.dry_run, "dry_run")
        with recorded(context, table, "vacuum"):
            opened, guards = verbs.opened(table), keys_of(self.guards)
            clean = verbs.nothing_due(table, opened, "vacuum") if only_if_due else None
            return clean or verbs.vacuum_by_policy(table, opened, guards=guards, dry_run=dry_run)[0]


class DvVacuumsOperator(Vacuums, OnMany):
    """Vacuums every table with ``vacuum`` in the file, one after the other. Needs no Spark.

    :param guards: keys of the policies for this run; lists extend the policies'.
    :param only_if_due: only the tables that the run's events name, and of these only what is still due.
    :param dry_run: only list what would be deleted.
    :param fail: as of :class:`DvNightOperator`.

    A table that fails stops no other. A transient error is retried with the task, as long as it has retries.
    """

    job = "vacuum"
    template_fields: Sequence[str] = (*FILE_FIELDS, *VACUUM_FIELDS)

    def execute(self, context: Any) -> dict[str, Any]:
        with in_airflow_terms():
            named = _named(context) if is_true(self.only_if_due, "only_if_due") else set()
            tables = [each for each in self.config().tables if "vacuum" in each.jobs]
        results: dict[str, Result] = {}
        for table in tables:
            if named and table.name not in named:
                continue
            try:
                result: Result = self.vacuumed(context, table)
            except DvMaintenanceError as error:
                result = error
            self.note(context, table, result)
            results[table.name] = result
        passing = [each for each in results.values() if isinstance(each, RetryableError)]
        if passing and context["ti"].try_number <= context["ti"].max_tries:
            raise passing[0]
        vacuumed = sum(isinstance(each, Outcome) for each in results.values())
        return self.ended(context, results, f"{count(vacuumed, 'table')} vacuumed")


def _named(context: Any) -> set[str]:
    """The tables of the events that started the run; a watcher may have fired again since."""
    return {each["table"] for each in events_of(context)}

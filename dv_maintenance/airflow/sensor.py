"""The sensor: waits until work is due on a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseSensorOperator, PokeReturnValue

from dv_maintenance.airflow.arguments import known, literal
from dv_maintenance.airflow.base import TABLE_FIELDS, OnTable
from dv_maintenance.airflow.tables import in_airflow_terms
from dv_maintenance.airflow.trigger import DvTrigger
from dv_maintenance.engine.spark.shared import only_looking
from dv_maintenance.service import verbs
from dv_maintenance.service.inspection import inspect_table, reads_now
from dv_maintenance.service.settings import JOBS, Job


class DvSensor(BaseSensorOperator, OnTable):
    """Waits until one of ``jobs`` is due; its XCom says what is due and why. Needs no Spark.

    :param jobs: which work to wait for; by default the table's ``jobs``.
    :param deferrable: wait in the triggerer, without a worker slot, instead of poking; by default what
        ``[operators] default_deferrable`` says.
    """

    template_fields: Sequence[str] = (*TABLE_FIELDS, "jobs")

    def __init__(self, *, jobs: Sequence[Job] | None = None, deferrable: bool | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if deferrable is None:
            deferrable = conf.getboolean("operators", "default_deferrable", fallback=False)
        self.jobs = jobs
        if literal(jobs):
            known(jobs or (), JOBS, "jobs")
        self.deferrable = deferrable

    def poke(self, context: Any) -> PokeReturnValue:
        del context
        with in_airflow_terms(), only_looking():
            table = self.watched()
            jobs = self.jobs or table.jobs
            opened = verbs.opened(table)
            found = inspect_table(opened, table.policy, name=table.name, jobs=jobs, reads=reads_now(table))
        reasons = {job: list(why) for job, why in found.reasons.items()}
        self.log.info("%s at version %s: due: %s", table.name, found.version, reasons or "nothing")
        due = {"table": table.name, "version": found.version, "due": list(found.due), "reasons": reasons}
        return PokeReturnValue(bool(found.due), due)

    def execute(self, context: Any) -> Any:
        if not self.deferrable:
            return super().execute(context)
        found = self.poke(context)
        if found.is_done:
            return found.xcom_value
        every = float(self.poke_interval)
        trigger = DvTrigger(self.table, self.tables_file, self.storage_conn_id, self.jobs, every)
        return self.defer(trigger=trigger, method_name="resumed", timeout=timedelta(seconds=float(self.timeout)))

    def resumed(self, context: Any, event: dict[str, Any]) -> dict[str, Any]:
        """Back on a worker, with the trigger's event."""
        del context
        self.log.info("due: %s", event["reasons"])
        return event

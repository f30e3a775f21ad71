"""Tasks that only read logs: the state of all tables, and what their past would have cost under other policies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dv_maintenance.airflow.arguments import keys_of, literal, texts
from dv_maintenance.airflow.base import FILE_FIELDS, OnFile
from dv_maintenance.airflow.links import PLAN, DvPlanLink
from dv_maintenance.airflow.render import as_text, as_xcom, table_text
from dv_maintenance.airflow.tables import in_airflow_terms
from dv_maintenance.errors import UsageError
from dv_maintenance.service.lake import rank, scan
from dv_maintenance.service.local_file import replace_file
from dv_maintenance.service.metrics import exposition, publish
from dv_maintenance.service.policies import Policy
from dv_maintenance.service.reports.lake import of_lake
from dv_maintenance.service.verbs import simulate_tables
from dv_maintenance.units import count, parse_duration

# The page shows a table in full.
_SHOWN: Final = 200


class DvReportOperator(OnFile):
    """Lists all tables of the file, the worst first. A table that can't be read is a row with its error, and fails
    nothing.

    :param metrics: for Prometheus: a ``.prom`` file, or the URL of a push gateway; replaces ``report.metrics`` of the
        file of tables.
    :param path: a local file to write every row to, as JSON.
    """

    template_fields: Sequence[str] = (*FILE_FIELDS, "path")
    operator_extra_links: Sequence[DvPlanLink] = (DvPlanLink(),)

    def __init__(self, *, metrics: str | None = None, path: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.metrics = metrics
        self.path = path

    def execute(self, context: Any) -> dict[str, Any]:
        with in_airflow_terms():
            config = self.config()
            found = rank(scan(config.tables))
            metrics = self.metrics or (config.report.metrics if config.report else None)
            if metrics is not None:
                publish(exposition(found), metrics)
            if self.path:
                replace_file(self.path, json.dumps(of_lake(found).report, indent=2) + "\n")
        outcome = of_lake(found, limit=_SHOWN, stored=True)
        self.log.info("%s", as_text(outcome))
        lines = [each for rows in outcome.tables.values() for each in table_text(rows).splitlines()]
        context["ti"].xcom_push(key=PLAN, value=lines)
        return as_xcom(outcome)


class DvSimulationOperator(OnFile):
    """Replays the logs of tables under their policies and another one, and compares what each would have cost. Changes
    nothing. A table that can't be simulated does not stop the others.

    :param tables: names of tables; by default all of the file.
    :param policy: keys of the other policy; those that it leaves out have their defaults.
    :param since: how far to go back, such as ``30d``.
    """

    template_fields: Sequence[str] = (*FILE_FIELDS, "tables", "policy", "since")
    operator_extra_links: Sequence[DvPlanLink] = (DvPlanLink(),)

    def __init__(
        self,
        *,
        tables: Sequence[str] | str = (),
        policy: Mapping[str, Any] | str | None = None,
        since: str = "30d",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.tables = tables
        self.policy = policy
        self.since = since
        if literal(policy):
            Policy.from_mapping(keys_of(policy), f"policy of {self.task_id}")
        if literal(since):
            parse_duration(since)

    def execute(self, context: Any) -> dict[str, Any]:
        with in_airflow_terms():
            config, wanted, keys = self.config(), texts(self.tables), keys_of(self.policy)
            if unknown := sorted(set(wanted) - {table.name for table in config.tables}):
                raise UsageError(f"the file has no tables named {', '.join(unknown)}")
            chosen = [table for table in config.tables if not wanted or table.name in wanted]
            config = config.model_copy(update={"tables": tuple(chosen)})
            other = [("chosen", Policy.from_mapping(keys, f"policy of {self.task_id}"))] if keys else []
            outcomes = simulate_tables(config, other, since=parse_duration(self.since))
        found = {table.name: outcome for table, outcome in zip(chosen, outcomes, strict=True)}
        parts = [f"{name}: {'; '.join(each.problems) or as_text(each)}" for name, each in found.items()]
        for part in parts:
            self.log.info("%s", part)
        context["ti"].xcom_push(key=PLAN, value="\n\n".join(parts).splitlines())
        failed = {name: "; ".join(each.problems) for name, each in found.items() if each.problems}
        reason = f"{count(len(found) - len(failed), 'table')} simulated, {len(failed)} failed."
        return {"reason": reason, "failed": failed, "tables": {name: each.reason for name, each in found.items()}}

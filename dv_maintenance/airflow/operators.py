"""Operators: each does one verb of the service on one table.

A Spark session starts only if there is something to rewrite. The commit protects the table, no matter what runs at the
same time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from airflow.sdk import Asset

from dv_maintenance.airflow.arguments import check_flags, is_true, keys_of, known, literal, texts
from dv_maintenance.airflow.assets import job_asset, table_asset
from dv_maintenance.airflow.base import TABLE_FIELDS, OnTable
from dv_maintenance.airflow.lineage import Writes
from dv_maintenance.airflow.links import PLAN, DvPlanLink
from dv_maintenance.airflow.outcomes import recorded
from dv_maintenance.airflow.render import as_text, as_xcom, ended, table_text, unverified
from dv_maintenance.airflow.spark import SPARK_FIELDS, OnSpark
from dv_maintenance.airflow.tables import in_airflow_terms, watched
from dv_maintenance.airflow.vacuums import VACUUM_FIELDS, Vacuums
from dv_maintenance.errors import UsageError
from dv_maintenance.service import verbs
from dv_maintenance.service.checks import CHECKS, check, check_names
from dv_maintenance.service.engines import EngineOf
from dv_maintenance.service.erasure import purge_erased_rows
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.policies import Policy
from dv_maintenance.service.tables_file import Job, TableSettings
from dv_maintenance.tables.table import Table

_MAX_PLAN: Final = 20_000
_FAILING: Final[Mapping[str | None, set[str]]] = {"warn": {"warn", "error"}, "error": {"error"}, None: set()}


class _Table(OnTable, Writes):
    """An operator that shows an outcome."""

    def _show(
        self, context: Any, table: TableSettings, outcome: Outcome, asset: Asset, *, changed: bool | None = None
    ) -> dict[str, Any]:
        """Log, plan, event and XCom of an outcome. A result that could not be verified fails the task. ``changed``: of
        ``wrote``.
        """
        self.log.info("%s", as_text(outcome))
        self.wrote(context, table, asset, outcome, changed=changed)
        if plan := outcome.texts.get("explanation"):
            # A list of lines: the page shows a text as one line.
            context["ti"].xcom_push(key=PLAN, value=plan[:_MAX_PLAN].splitlines())
        return ended(context, as_xcom(outcome), unverified(outcome))


@dataclass(frozen=True, slots=True)
class _On:
    """What a verb works on. ``attempt``: from 1."""

    table: TableSettings
    opened: Table
    attempt: int


class _Rewrites(OnSpark, _Table):
    """An operator that may need Spark."""

    template_fields: Sequence[str] = (*TABLE_FIELDS, *SPARK_FIELDS)
    operator_extra_links: Sequence[DvPlanLink] = (DvPlanLink(),)
    job: ClassVar[Job | None] = None

    def execute(self, context: Any) -> dict[str, Any]:
        with in_airflow_terms():
            table = self.watched(context)
            with nullcontext() if self.job is None else recorded(context, table, self.job):
                attempt = context["ti"].try_number
                outcome = self.on_engine(lambda engine: self.work(_On(table, verbs.opened(table), attempt), engine))
                if self.job is not None:
                    return self._show(context, table, outcome, job_asset(table, self.job))
                return self._show(context, table, outcome, table_asset(table), changed=_deleted(outcome, attempt))

    @abstractmethod
    def work(self, on: _On, engine: EngineOf) -> Outcome: ...


class DvOptimizeOperator(_Rewrites):
    """Rewrites files with too many deleted rows and merges small files, by the table's policy.

    :param partitions: only these keys of the table's ``partitions`` setting.
    :param policy: keys of the policy for this run, in place of the table's.
    :param purge: purge every deletion vector, whatever the policy's thresholds.
    :param dry_run: change nothing; the XCom ``plan`` says what would be done.
    """

    job = "optimize"
    template_fields: Sequence[str] = (*_Rewrites.template_fields, "partitions", "policy", "purge", "dry_run")

    def __init__(
        self,
        *,
        partitions: str | Sequence[str] = (),
        policy: Mapping[str, Any] | str | None = None,
        purge: bool | str = False,
        dry_run: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.partitions = partitions
        self.policy = policy
        self.purge = purge
        self.dry_run = dry_run
        if literal(self.table, partitions) and self.tables_file is None and partitions:
            _refuse_without_partitions(watched(self.table))
        if literal(policy):
            Policy.from_mapping(keys_of(policy), f"policy of {self.task_id}")
        check_flags(self, "purge", "dry_run")

    def work(self, on: _On, engine: EngineOf) -> Outcome:
        keys = texts(self.partitions)
        if "" in keys:
            raise UsageError(
                "no partition was chosen", table=on.opened.uri, next_step="give the run partitions, or a logical date"
            )
        if keys:
            _refuse_without_partitions(on.table)
        request = verbs.RewriteRequest(purge=is_true(self.purge, "purge"), dry_run=is_true(self.dry_run, "dry_run"))
        return verbs.optimize(on.table, on.opened, engine, keys, changes=keys_of(self.policy), request=request)


class DvManifestOperator(_Rewrites):
    """Writes symlink manifests; purges deletion vectors first if there are any.

    :param only_if_due: write only if files changed after the manifests were written.
    :param dry_run: change nothing.
    """

    job = "manifest"
    template_fields: Sequence[str] = (*_Rewrites.template_fields, "only_if_due", "dry_run")

    def __init__(self, *, only_if_due: bool | str = False, dry_run: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.only_if_due = only_if_due
        self.dry_run = dry_run
        check_flags(self, "only_if_due", "dry_run")

    def work(self, on: _On, engine: EngineOf) -> Outcome:
        only_if_due = is_true(self.only_if_due, "only_if_due")
        clean = verbs.nothing_due(on.table, on.opened, "manifest") if only_if_due else None
        return clean or verbs.manifest(on.opened, engine, dry_run=is_true(self.dry_run, "dry_run"))


class DvVacuumOperator(Vacuums, _Table):
    """Deletes files that no version inside the retention needs. Needs no Spark.

    :param guards: keys of the policy for this run, such as ``{"protected_versions": [3]}``; lists extend the policy's.
    :param only_if_due: list the table's files only if the log has enough expired ones.
    :param dry_run: only list what would be deleted.
    """

    template_fields: Sequence[str] = (*TABLE_FIELDS, *VACUUM_FIELDS)

    def execute(self, context: Any) -> dict[str, Any]:
        with in_airflow_terms():
            table = self.watched(context)
            return self._show(context, table, self.vacuumed(context, table), job_asset(table, "vacuum"))


class DvDeleteOperator(_Rewrites):
    """DELETE by a condition or by keys, by deletion vectors. Keys, and most conditions, need Spark.

    :param where: a condition in Spark SQL.
    :param keys: where the keys are: a table, or Parquet, CSV or JSON.
    :param on: the key columns.
    :param count_only: delete nothing.
    """

    template_fields: Sequence[str] = (*_Rewrites.template_fields, "where", "keys", "on", "count_only")
    operator_extra_links: Sequence[DvPlanLink] = ()

    def __init__(
        self,
        *,
        where: str | None = None,
        keys: str | None = None,
        on: str | Sequence[str] = (),
        count_only: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.where = where
        self.keys = keys
        self.on = on
        self.count_only = count_only
        if literal(where, keys):
            verbs.check_selection(where, keys)
        check_flags(self, "count_only")

    def work(self, on: _On, engine: EngineOf) -> Outcome:
        count_only = is_true(self.count_only, "count_only")
        self._read = [self.keys] if self.keys else []
        return verbs.delete_rows(
            on.opened, engine, where=self.where, keys=self.keys, on=texts(self.on), dry_run=count_only
        )


class DvErasureOperator(DvDeleteOperator):
    """Deletes rows, then purges the files that held them, and says when a vacuum may delete the last bytes.

    :param purge_all: also purge rows deleted before.
    """

    template_fields: Sequence[str] = (*DvDeleteOperator.template_fields, "purge_all")
    operator_extra_links: Sequence[DvPlanLink] = (DvPlanLink(),)

    def __init__(self, *, purge_all: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.purge_all = purge_all
        check_flags(self, "purge_all")

    def work(self, on: _On, engine: EngineOf) -> Outcome:
        purge_all = is_true(self.purge_all, "purge_all")
        # An earlier attempt may have committed its delete.
        deleted = {**super().work(on, engine).report, "retried": on.attempt > 1}
        return purge_erased_rows(on.table, on.opened, engine, deleted, purge_all)


class DvCheckOperator(_Table):
    """Compares a table's health with the limits of its policy. Needs no Spark.

    :param checks: names of checks; by default all that the table has.
    :param fail_on: the severity from which on the task fails; ``None``: it only warns, in the log and the XCom.

    Each check has an XCom of its name.
    """

    template_fields: Sequence[str] = (*TABLE_FIELDS, "checks", "fail_on")

    def __init__(
        self,
        *,
        checks: Sequence[str] | None = None,
        fail_on: Literal["warn", "error"] | None = "error",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.checks = checks
        self.fail_on = fail_on
        if literal(checks, fail_on):
            self._validated()

    def _validated(self) -> list[str]:
        names = [] if self.checks is None else texts(self.checks)
        known(names, CHECKS, "checks")
        known(self.fail_on, _FAILING, "fail_on")
        return names

    def execute(self, context: Any) -> dict[str, Any]:
        with in_airflow_terms():
            names = self._validated()
            table = self.watched(context)
            findings = check(table, names or check_names(table))
        rows = [{"check": each.check, "severity": each.severity or "ok", "reason": each.reason} for each in findings]
        for each, row in zip(findings, rows, strict=True):
            context["ti"].xcom_push(key=each.check, value={**row, **each.numbers})
        self.log.info("%s", table_text(rows))
        problems = [f"{each.check}: {each.reason}" for each in findings if each.severity]
        for problem in problems:
            self.log.warning("%s: %s", table.name, problem)
        shown = {"reason": "; ".join(problems) or "All checks passed.", "table": table.name, "findings": rows}
        fails = any(each.severity in _FAILING[self.fail_on] for each in findings)
        return ended(context, shown, f"{table.name}: {shown['reason']}" if fails else "")


def _deleted(outcome: Outcome, attempt: int) -> bool:
    """Whether rows were deleted, or may have been by an earlier attempt. ``None`` rows: they were not counted."""
    return not outcome.report["dry_run"] and (outcome.report["rows_deleted"] != 0 or attempt > 1)


def _refuse_without_partitions(table: TableSettings) -> None:
    if table.partitions is None:
        raise UsageError("partitions were chosen, but the table's settings name no partitions", table=table.place)

"""The verbs that an orchestrator runs on an open table. Each does its work and returns its outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from dv_maintenance.config import parse_instant
from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.planning.explain import explain
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.service.data_version import last_data_version
from dv_maintenance.service.outcome import Number, Outcome, TableReport
from dv_maintenance.service.partitions import by_key, chosen_policy
from dv_maintenance.service.progress import progress_log
from dv_maintenance.service.reports import (
    columns_of,
    of_health,
    of_manifest,
    of_partition,
    of_plan,
    of_report,
    of_run,
    of_vacuum,
    work_numbers,
)
from dv_maintenance.tables import open_table

if TYPE_CHECKING:
    from dv_maintenance.dml.operation import DmlReport
    from dv_maintenance.engine import Engine
    from dv_maintenance.engine.spark import SparkEngine
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan
    from dv_maintenance.maintenance.tables_file import WatchedTable
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table

__all__ = [
    "apply_plan",
    "checkpoint",
    "delete_rows",
    "engine_sql",
    "manifest",
    "opened",
    "optimize",
    "report_table",
    "restore",
    "vacuum",
    "zorder",
]

_log = logging.getLogger(__name__)

NO_GUARDS: Final[Mapping[str, Any]] = {}
_PLANNED_ONLY: Final = "Only planned; nothing was changed."

EngineOf = Callable[[], "Engine"]
"""Starts an engine. Called only if there is work, so that a run with nothing to do starts no Spark."""


def opened(watched: WatchedTable) -> Table:
    """Raises what ``open_table`` raises."""
    return open_table(watched.path, watched.format, watched.storage_options)


def report_table(
    watched: WatchedTable,
    table: Table,
    snapshot: Snapshot,
    last_observed: Callable[[], tuple[int, int] | None] = lambda: None,
) -> TableReport:
    """The table's health. ``last_observed``: version and data version of the newest observation."""
    data_version = last_data_version(table, last_observed()) if watched.observe else None
    return TableReport(snapshot.version, data_version, of_health(health(snapshot)), columns_of(snapshot))


# -- the jobs of a tables file -------------------------------------------------------------------------------------


def optimize(watched: WatchedTable, table: Table, engine: EngineOf, keys: Sequence[str] = ()) -> Outcome:
    """Plan by the table's policy and run the plan. ``keys``: only in these partitions; without keys, in all."""
    from dv_maintenance.maintenance.execution.apply import apply

    snapshot = table.snapshot()
    policy = chosen_policy(watched, snapshot, keys) if keys else watched.policy
    plan = report = None
    if policy is None:
        _log.info("nothing to do: no live file is in the chosen partitions")
    else:
        plan = build_plan(snapshot, policy)
        _log.info("%s", explain(plan))
        report = apply(table, engine(), plan, on_progress=progress_log(_log))
    after = health(table.snapshot())
    outcome = of_run(plan, report, after, per_partition=bool(keys))
    outcome = replace(outcome, numbers={**outcome.numbers, "version": after.version})
    if watched.partitions is None or not keys:
        return outcome
    done = by_key(watched.partitions, keys, report.steps if report else (), after)
    return replace(outcome, partitions={key: of_partition(*each) for key, each in done.items()})


def vacuum(
    watched: WatchedTable,
    table: Table,
    last_observed: Callable[[], tuple[int, int] | None] = lambda: None,
    guards: Mapping[str, Any] = NO_GUARDS,
) -> tuple[Outcome, TableReport | None]:
    """Delete the files that the policy no longer keeps.

    guards : policy keys for this run. Lists extend the policy's; ``None`` leaves a key unchanged.

    The outcome has a report of the table only if versions were deleted. It then carries the data version from before,
    since the log no longer says which versions changed data.
    """
    from dv_maintenance.maintenance.vacuum import vacuum as run

    known = None
    if watched.observe:
        version = table.version()
        known = version, last_data_version(table, last_observed())
    policy = _guarded(watched.policy, guards)
    report = run(
        table,
        retention=policy.retention,
        clones=policy.clones,
        clones_under=policy.clones_under,
        guard=policy.guard,
    )
    if known is None or not report.version_files:
        return of_vacuum(report), None
    snapshot = table.snapshot()
    # The next observation continues at that version, even if the snapshot is newer.
    return of_vacuum(report), TableReport(*known, of_health(health(snapshot)), columns_of(snapshot))


def _guarded(policy: Policy, guards: Mapping[str, Any]) -> Policy:
    """Raises UsageError."""
    given = {key: value for key, value in guards.items() if value not in (None, [], ())}
    if not given:
        return policy
    known = policy.model_dump(exclude_unset=True)
    more = {
        key: [*known.get(key, ()), *value] if isinstance(value, list | tuple) else value for key, value in given.items()
    }
    return Policy.from_mapping({**known, **more}, "the run's config")


def manifest(table: Table, engine: EngineOf) -> Outcome:
    """Write symlink manifests. Deletion vectors that the policy left alone are purged first."""
    from dv_maintenance.maintenance.manifest import write_manifests

    return of_manifest(write_manifests(table, engine(), purge_first=True))


# -- verbs with arguments of their own -----------------------------------------------------------------------------


def delete_rows(
    table: Table,
    engine: EngineOf,
    *,
    where: str | None = None,
    keys: str | None = None,
    on: Sequence[str] = (),
    dry_run: bool = False,
    retried: bool = False,
) -> Outcome:
    """DELETE by a condition or by keys. ``retried``: an earlier attempt of this run may have committed.

    Raises
    ------
    UsageError : both or neither are given, or the engine is not Spark.

    Errors of ``dml.delete`` pass through.
    """
    from dv_maintenance.dml.delete import delete

    if (where is None) == (keys is None):
        raise UsageError(
            "'where' and 'keys' exclude each other, and one of them is needed",
            table=table.uri,
            next_step="to delete every row, set where: true",
        )
    spark = _spark(engine(), table, "can't evaluate conditions")
    _log.info("looking for the rows to delete")
    report = delete(table, spark, where, keys=keys, on=on, dry_run=dry_run)
    counts = {} if report.keys is None else {f"keys_{name}": count for name, count in asdict(report.keys).items()}
    return _with(of_report(_deleted(report), {**report.to_json(), "retried": retried}), counts)


def zorder(
    table: Table,
    engine: EngineOf,
    columns: Sequence[str],
    partitions: Iterable[Mapping[str, str | None] | str] = (),
    *,
    target_file_size: str | None = None,
    dry_run: bool = False,
) -> Outcome:
    """Order files by columns. Raises the errors of ``maintenance.zorder`` and ``apply``."""
    from dv_maintenance.maintenance.zorder import plan_zorder

    plan = plan_zorder(table, table.snapshot(), columns, partitions, target_size=target_file_size)
    if not dry_run:
        return apply_plan(table, engine, plan)
    _log.info("%s", explain(plan))
    return replace(of_plan(plan), reason=_PLANNED_ONLY, report=plan.to_json())


def apply_plan(table: Table, engine: EngineOf, plan: MaintenancePlan) -> Outcome:
    """Run a plan that was made for the table. Raises the errors of ``apply``."""
    from dv_maintenance.maintenance.execution.apply import apply

    _log.info("%s", explain(plan))
    report = apply(table, engine(), plan, on_progress=progress_log(_log))
    steps = report.steps
    reason = "There was nothing to do."
    if steps:
        out, new, purged = (
            sum(getattr(step, name) for step in steps) for name in ("files_removed", "files_added", "rows_purged")
        )
        reason = f"{out:,} files were rewritten as {new:,}, without their {purged:,} deleted rows."
    planned = of_plan(plan)
    outcome = _with(of_report(reason, report.to_json()), work_numbers(steps))
    return replace(outcome, tables=planned.tables, texts=planned.texts, problems=report.problems)


def restore(
    table: Table,
    *,
    version: int | None = None,
    timestamp: str | None = None,
    dry_run: bool = False,
    vacuums_over: Sequence[int] = (),
) -> Outcome:
    """Make an older version the newest. ``timestamp``: ISO 8601 with a zone. For ``vacuums_over`` and the errors,
    see ``maintenance.restore``.
    """
    from dv_maintenance.maintenance.restore import restore as run

    moment = None if timestamp is None else _instant(table, timestamp)
    report = run(table, version=version, timestamp=moment, dry_run=dry_run, vacuums_over=vacuums_over)
    result = report.result
    if result.dry_run:
        reason = f"Version {result.restored:,} would be restored; nothing was changed."
    elif result.version_after == result.version_before:
        reason = f"The table is as in version {result.restored:,} already."
    else:
        reason = (
            f"Version {result.restored:,} was restored: {result.files_restored:,} files were added, "
            f"{result.files_removed:,} removed."
        )
    return replace(of_report(reason, report.to_json()), problems=report.problems)


def checkpoint(table: Table, *, clean_log: bool = False, dry_run: bool = False) -> Outcome:
    """Write a checkpoint of the log, and clean the log. Raises the errors of ``maintenance.checkpoint``."""
    from dv_maintenance.maintenance.checkpoint import checkpoint as run

    report = run(table, clean_log=clean_log, dry_run=dry_run)
    result = report.result
    if result.dry_run:
        reason = f"{result.log_files_expired:,} log files would be deleted; nothing was changed."
    else:
        wrote = "was written" if result.written else "existed already"
        deleted = f"{result.log_files_deleted:,} log files were deleted"
        reason = f"The checkpoint of version {result.version:,} {wrote}; {deleted}."
    outcome = of_report(reason, report.to_json())
    return outcome if result.cutoff is None else replace(outcome, moments={"cutoff": result.cutoff})


def engine_sql(
    table: Table, engine: EngineOf, job: Literal["optimize", "purge", "vacuum"], *, catalog: str | None = None
) -> Outcome:
    """Maintenance by the table's own engine. Raises UsageError for an engine that is not Spark, and the errors of
    ``maintenance.engine_sql``.
    """
    from dv_maintenance.maintenance.engine_sql import engine_sql as run

    spark = _spark(engine(), table, "has no SQL")
    report = run(table, lambda: spark.session, job, catalog=catalog)
    reason = (
        f"The table's engine ran its {job}: version {report.version_before:,} became "
        f"{report.version_after:,}, checked by {report.by}."
    )
    return replace(of_report(reason, report.to_json()), problems=report.problems)


def _spark(engine: Engine, table: Table, why: str) -> SparkEngine:
    from dv_maintenance.engine.spark import SparkEngine

    if not isinstance(engine, SparkEngine):
        raise UsageError(
            f"the {engine.name} engine {why}",
            table=table.uri,
            next_step="give the job a spark resource with Spark",
        )
    return engine


def _with(outcome: Outcome, numbers: Mapping[str, Number]) -> Outcome:
    return replace(outcome, numbers={**outcome.numbers, **numbers})


def _deleted(report: DmlReport) -> str:
    keys = "" if report.keys is None else f" {report.keys.told().capitalize()}."
    if report.dry_run:
        return f"{_rows(report.rows_deleted)} would be deleted; nothing was changed.{keys}"
    if report.version_after == report.version_before:
        return f"There are no such rows.{keys}"
    return (
        f"{_rows(report.rows_deleted)} deleted: {report.files_removed:,} files were removed whole, "
        f"{report.dvs_added:,} got a deletion vector. The rows' bytes remain until a purge and a vacuum.{keys}"
    )


def _rows(count: int | None) -> str:
    return "all rows of some files without row counts" if count is None else f"{count:,} rows"


def _instant(table: Table, text: str) -> int:
    try:
        return parse_instant(text)
    except ValueError as error:
        raise UsageError(f"timestamp: {error}", table=table.uri) from None

"""The jobs of a tables file: what a run does for one watched table, by its own policy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.maintenance.execution.rehearsal import rehearsed
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.planning.explain import explain
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.rewriting import RewriteRequest, missing_partitions, requested
from dv_maintenance.service.data_version import last_data_version
from dv_maintenance.service.inspection import inspect_table, reads_now
from dv_maintenance.service.outcome import Outcome, TableReport
from dv_maintenance.service.partitions import by_key, check_columns, chosen_policy, partition_key
from dv_maintenance.service.progress import progress_log
from dv_maintenance.service.reports.health import columns_of, of_health
from dv_maintenance.service.reports.work import KEPT_SHOWN, of_partition, of_run
from dv_maintenance.service.verbs.files import vacuum
from dv_maintenance.service.verbs.rewrites import planned_only
from dv_maintenance.tables.model import parse_partition
from dv_maintenance.units import epoch_millis

if TYPE_CHECKING:
    from dv_maintenance.maintenance.execution.report import StepReport
    from dv_maintenance.maintenance.planning.partitioning import Partitioning
    from dv_maintenance.service.engines import EngineOf
    from dv_maintenance.service.inspection import Downstream
    from dv_maintenance.service.tables_file import Job, TableSettings
    from dv_maintenance.tables.table import Table

_log = logging.getLogger(__name__)

NO_CHANGES: Final[Mapping[str, Any]] = {}
BY_POLICY: Final = RewriteRequest()


def nothing_due(watched: TableSettings, table: Table, job: Job) -> Outcome | None:
    """What to say instead of running a job that is not due; ``None`` if it is due."""
    found = inspect_table(table, watched.policy, name=watched.name, jobs=[job], reads=reads_now(watched))
    if job in found.due:
        return None
    return Outcome(f"Nothing to do: no {job} is due at version {found.version}.", {"version": found.version or 0})


def optimize(
    watched: TableSettings,
    table: Table,
    engine: EngineOf,
    keys: Sequence[str] = (),
    *,
    downstream: Downstream = lambda _now: None,
    changes: Mapping[str, Any] = NO_CHANGES,
    request: RewriteRequest = BY_POLICY,
) -> Outcome:
    """Plan by the table's policy and run the plan.

    keys : only in these partitions; without keys, in all: the outcome then has those that were worked on.
    downstream : returns the reads by downstream assets, if an orchestrator knows them.
    changes : policy keys for this run, in place of the policy's.
    request : what else is different in this run; its policy is the table's. ``missing_ok`` is about partitions in
        ``changes``: ``keys`` may always lack live files.

    Raises
    ------
    UsageError : a change is not one of a policy, or names a partition without a live file; or a key can't be one of
        the table's partitions.

    The errors of ``build_plan`` and ``apply`` pass through.
    """
    from dv_maintenance.maintenance.execution.apply import apply

    if changes:
        watched = watched.model_copy(update={"policy": _changed(watched.policy, changes)})
    snapshot = table.snapshot()
    if "partitions" in changes:
        missing_partitions(snapshot, watched.policy, ok=request.missing_ok)
    if watched.partitions is not None:
        check_columns(watched.partitions, snapshot)
    policy = chosen_policy(watched, snapshot, keys) if keys else watched.policy
    plan = report = None
    if policy is None:
        if request.dry_run:
            return Outcome("Nothing to do: the chosen partitions have no live file.")
        _log.info("nothing to do: no live file is in the chosen partitions")
    else:
        now = epoch_millis()
        reads, warnings = reads_now(watched, downstream)(now)
        for warning in warnings:
            _log.warning("%s: %s", watched.name, warning)
        asked = replace(request, policy=policy)
        plan = requested(table, snapshot, asked, reads=reads, now=now, listed=KEPT_SHOWN)
        if request.dry_run:
            return planned_only(rehearsed(table, snapshot, plan))
        _log.info("%s", explain(plan))
        report = apply(table, engine(), plan, on_progress=progress_log(_log))
    after = health(table.snapshot())
    outcome = of_run(plan, report, after, per_partition=bool(keys))
    outcome = replace(outcome, numbers={**outcome.numbers, "version": after.version})
    if watched.partitions is None:
        return outcome
    steps = report.steps if report else ()
    done = by_key(watched.partitions, keys or _worked_on(watched.partitions, steps), steps, after)
    return replace(outcome, partitions={key: of_partition(*each) for key, each in done.items()})


def _worked_on(partitioning: Partitioning, steps: Iterable[StepReport]) -> list[str]:
    """Keys of the partitions that these steps changed, as far as they have one."""
    found = {partition_key(partitioning, parse_partition(step.partition)) for step in steps}
    return sorted(filter(None, found))


def vacuum_by_policy(
    watched: TableSettings,
    table: Table,
    last_observed: Callable[[], tuple[int, int] | None] = lambda: None,
    guards: Mapping[str, Any] = NO_CHANGES,
    *,
    allow_short_retention: bool = False,
    dry_run: bool = False,
    lite: bool = False,
) -> tuple[Outcome, TableReport | None]:
    """Delete the files that the policy no longer keeps.

    guards : policy keys for this run. Lists extend the policy's; ``None`` leaves a key unchanged.
    allow_short_retention : accept a retention below the table's own property.
    dry_run : only list what would be deleted.
    lite : look only at files that the log names.

    The outcome has a report of the table only if versions were deleted. It then carries the data version from before,
    since the log no longer says which versions changed data.
    """
    known = None
    if watched.observe and not dry_run:
        version = table.version()
        known = version, last_data_version(table, last_observed())
    policy = _guarded(watched.policy, guards)
    request = replace(policy.vacuum_request, dry_run=dry_run, allow_short_retention=allow_short_retention, lite=lite)
    outcome = vacuum(table, request)
    if known is None or not outcome.numbers.get("version_files"):
        return outcome, None
    snapshot = table.snapshot()
    # The next observation continues at that version, even if the snapshot is newer.
    return outcome, TableReport(*known, of_health(health(snapshot)), columns_of(snapshot))


def _guarded(policy: Policy, guards: Mapping[str, Any]) -> Policy:
    """Raises UsageError."""
    given = {key: value for key, value in guards.items() if value not in (None, [], ())}
    known = policy.model_dump(exclude_unset=True)
    more = {
        key: [*known.get(key, ()), *value] if isinstance(value, list | tuple) else value for key, value in given.items()
    }
    return _changed(policy, more)


def _changed(policy: Policy, changes: Mapping[str, Any]) -> Policy:
    """Raises UsageError."""
    if not changes:
        return policy
    return Policy.from_mapping({**policy.model_dump(exclude_unset=True), **changes}, "the run's config")

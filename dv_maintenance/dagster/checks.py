"""Asset checks on the tables: the findings of ``service.checks`` as Dagster shows them.

The checks are on the table's own key and never block: a blocking check would stop the maintenance that it calls for.
In a run that also maintains the table they come last and report the state afterwards. Those that need only the log are
evaluated without a run of their own, too: by the sensor, and by each op that maintains a table.
"""

# Without `from __future__ import annotations`: Dagster reads the annotations of checks.

from collections.abc import Iterable, Iterator
from typing import Any, cast

import dagster as dg

from dv_maintenance.dagster import naming, nodes
from dv_maintenance.dagster.downstream import asset_graph, reads_downstream
from dv_maintenance.errors import redacted
from dv_maintenance.service.checks import (
    CHECKS,
    FSCK,
    READABLE,
    Finding,
    by_partition,
    check,
    check_names,
    check_opened,
    has_partitions,
)
from dv_maintenance.service.inspection import Downstream
from dv_maintenance.service.tables_file import WatchedTable
from dv_maintenance.service.verbs import opened
from dv_maintenance.tables.table import Table

__all__ = ["build_dv_checks", "check_evaluation", "check_result", "checked_after"]

# The page shows a table in full, however long.
_ROWS_SHOWN = 50


def build_dv_checks(tables: Iterable[WatchedTable]) -> list[dg.AssetChecksDefinition]:
    """The checks of each table, one op per table that reads its log once. Needs no Spark and opens nothing yet.
    ``fsck``, which reads every footer and deletion vector, has an op of its own; see ``build_dv_fsck_job``.

    A check fails with severity WARN or ERROR by the limits in the table's policy, and with WARN if the log has no
    answer. If the table can't be read, only ``readable`` is evaluated, and fails.
    """
    return [each for table in tables for each in (_checks(table), _fsck(table))]


def check_result(table: WatchedTable, finding: Finding) -> dg.AssetCheckResult:
    """A finding as the result of the check of that name. Checks that passed have the severity WARN, too."""
    return dg.AssetCheckResult(**_of(table, finding))


def check_evaluation(table: WatchedTable, finding: Finding) -> dg.AssetCheckEvaluation:
    """The same for a sensor's tick, or for an op that is not the check's own."""
    return dg.AssetCheckEvaluation(**_of(table, finding), blocking=False)


def checked_after(context: dg.OpExecutionContext, watched: WatchedTable, table: Table | None = None) -> list[Finding]:
    """Evaluate the checks that need only the log after work on a table: work that cured it turns them to passed. They
    never fail the run.
    """
    try:
        table = table or opened(watched)
        found = check_opened(watched, table)
        if has_partitions(watched):
            found.append(by_partition(watched, _downstream(context, watched), table))
    except Exception as error:  # noqa: BLE001 (the work is done, whatever becomes of the checks)
        context.log.warning("%s: the checks were not evaluated: %s", watched.name, redacted(str(error)))
        return []
    for finding in found:
        # Recorded in every supported release; only the annotation lacks this kind of event.
        context.log_event(cast("Any", check_evaluation(watched, finding)))
    return found


def _downstream(context: dg.OpExecutionContext, table: WatchedTable) -> Downstream:
    return lambda now: reads_downstream(context.instance, asset_graph(context), table, now)


def _of(table: WatchedTable, finding: Finding) -> dict[str, Any]:
    error = finding.severity == "error"
    rows = [dg.TableRecord(dict(row)) for row in finding.rows[:_ROWS_SHOWN]]
    return {
        "asset_key": naming.table_key(table),
        "check_name": finding.check,
        "passed": finding.severity is None,
        "severity": dg.AssetCheckSeverity.ERROR if error else dg.AssetCheckSeverity.WARN,
        "description": finding.reason,
        "metadata": {**finding.numbers, **({"rows": dg.MetadataValue.table(rows)} if rows else {})},
    }


def _checks(table: WatchedTable) -> dg.AssetChecksDefinition:
    key = naming.table_key(table)
    jobs = [dg.AssetDep(job) for job in naming.job_keys(table, table.jobs)]
    specs = [
        dg.AssetCheckSpec(
            name=name,
            asset=key,
            description=CHECKS[name],
            additional_deps=jobs,
            blocking=False,
        )
        for name in check_names(table)
    ]

    def checks(context: dg.AssetCheckExecutionContext, _: Any) -> Iterator[dg.AssetCheckResult]:
        asked = [key.name for key in context.selected_asset_check_keys]
        for finding in check(table, asked, _downstream(context.op_execution_context, table)):
            if finding.check == READABLE and finding.severity is not None:
                context.log.warning("%s: %s", table.name, finding.reason)
            yield check_result(table, finding)

    description = "Compares the newest version with the limits of the policy, without Spark."
    return nodes.checks(checks, name=naming.op_name(table, "checks"), specs=specs, description=description)


def _fsck(table: WatchedTable) -> dg.AssetChecksDefinition:
    spec = dg.AssetCheckSpec(name=FSCK, asset=naming.table_key(table), description=CHECKS[FSCK], blocking=False)

    def fsck(context: dg.AssetCheckExecutionContext, _: Any) -> Iterator[dg.AssetCheckResult]:
        # Whoever observes a table on its page gets all its checks, and did not ask for this one.
        if context.job_def.asset_layer.selected_asset_keys:
            context.log.info("%s: fsck reads every file, and only runs by itself", table.name)
            return
        for finding in check(table, [FSCK]):
            yield check_result(table, finding)

    description = "Reads every data file's footer and every deletion vector, without Spark. Repairs nothing."
    return nodes.checks(fsck, name=naming.op_name(table, FSCK), specs=[spec], description=description)

"""Asset checks on the tables: the findings of ``service.checks`` as Dagster shows them.

The checks are on the table's own key and never block: a blocking check would stop the maintenance that it calls for.
The op that observes a table evaluates them: three ops a table instead of four take a quarter less of Dagster's time to
load. Those that need only the log are also evaluated by the sensor and, after its work, by each op that maintains a
table: the state afterwards is what a run reports last.
"""

# Without `from __future__ import annotations`: Dagster reads the annotations of checks.

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, cast

import dagster as dg

from dv_maintenance.dagster import naming, nodes
from dv_maintenance.dagster.downstream import asset_graph, reads_downstream
from dv_maintenance.dagster.internals import public
from dv_maintenance.dagster.logs import without_omissions
from dv_maintenance.errors import redacted
from dv_maintenance.service.checks import (
    CHECKS,
    FSCK,
    PARTITIONS,
    READABLE,
    Finding,
    by_partition,
    check,
    check_names,
    check_opened,
    has_partitions,
)
from dv_maintenance.service.inspection import Downstream
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.service.verbs import opened
from dv_maintenance.tables.table import Table

# The page shows a table in full, however long.
_ROWS_SHOWN = 50


@public
def build_dv_checks(tables: Iterable[TableSettings]) -> list[dg.AssetChecksDefinition]:
    """The checks of each table with ``observe: false``, whose asset is another's: one op per table, which reads its log
    once. The checks of other tables come with their assets; see ``build_dv_assets``. Needs no Spark and opens nothing
    yet. ``fsck``, which reads every footer and deletion vector, is left out of runs that have assets; see
    ``build_dv_fsck_job``.

    A check fails with severity WARN or ERROR by the limits in the table's policy, and with WARN if the log has no
    answer. If the table can't be read, only ``readable`` is evaluated, and fails.
    """
    return [_checks(table) for table in tables if not table.observe]


def check_result(table: TableSettings, finding: Finding) -> dg.AssetCheckResult:
    """A finding as the result of the check of that name. Checks that passed have the severity WARN, too."""
    return dg.AssetCheckResult(**_of(table, finding))


def check_evaluation(table: TableSettings, finding: Finding) -> dg.AssetCheckEvaluation:
    """The same for a sensor's tick, or for an op that is not the check's own."""
    return dg.AssetCheckEvaluation(**_of(table, finding), blocking=False)


def checked_after(
    context: dg.OpExecutionContext, watched: TableSettings, table: Table | None = None, besides: Collection[str] = ()
) -> list[Finding]:
    """Evaluate the checks that need only the log after work on a table: work that cured it turns them to passed. They
    never fail the run. ``besides``: checks to leave out.
    """
    try:
        table = table or opened(watched)
        found = check_opened(watched, table, besides)
        if has_partitions(watched) and PARTITIONS not in besides:
            found.append(by_partition(watched, _downstream(context, watched), table))
    except Exception as error:  # noqa: BLE001 (the work is done, whatever becomes of the checks)
        context.log.warning("%s: the checks were not evaluated: %s", watched.name, redacted(str(error)))
        return []
    for finding in found:
        # Recorded in every supported release; only the annotation lacks this kind of event.
        context.log_event(cast("Any", check_evaluation(watched, finding)))
    return found


def _downstream(context: dg.OpExecutionContext | dg.AssetExecutionContext, table: TableSettings) -> Downstream:
    return lambda now: reads_downstream(context.instance, asset_graph(context), table, now)


def _of(table: TableSettings, finding: Finding) -> dict[str, Any]:
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


def asked_of(context: dg.OpExecutionContext | dg.AssetExecutionContext) -> list[str]:
    """The checks that this step evaluates. ``fsck`` only in runs without assets: whoever observes a table on its page
    gets all its checks, and did not ask for that one.
    """
    without_omissions(context.log)
    names = [key.name for key in context.selected_asset_check_keys]
    if FSCK in names and context.job_def.asset_layer.selected_asset_keys:
        context.log.info("fsck reads every file, and only runs without assets")
        names.remove(FSCK)
    return names


def evaluated(
    context: dg.OpExecutionContext | dg.AssetExecutionContext,
    table: TableSettings,
    names: Sequence[str],
    opened: Callable[[], Table],
) -> Iterator[tuple[Finding, dg.AssetCheckResult]]:
    """What these checks of the step found."""
    if not names:
        return
    for finding in check(table, names, _downstream(context, table), opened):
        if finding.check == READABLE and finding.severity is not None:
            context.log.warning("%s: %s", table.name, finding.reason)
        yield finding, check_result(table, finding)


def check_specs(table: TableSettings, additional_deps: Sequence[dg.AssetKey] = ()) -> list[dg.AssetCheckSpec]:
    """Of all its checks, ``fsck`` included. ``additional_deps``: assets whose work they wait for in a run."""
    key = naming.table_key(table)
    return [
        dg.AssetCheckSpec(
            name,
            asset=key,
            description=CHECKS[name],
            additional_deps=[dg.AssetDep(key) for key in additional_deps],
            blocking=False,
        )
        for name in (*check_names(table), FSCK)
    ]


def _checks(table: TableSettings) -> dg.AssetChecksDefinition:
    def checks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        step = context.op_execution_context
        yield from (result for _, result in evaluated(step, table, asked_of(step), lambda: opened(table)))

    return nodes.checks(
        checks,
        name=naming.op_name(table, "checks"),
        specs=check_specs(table, naming.job_keys(table, table.jobs)),
        description="Compares the newest version with the limits of the policy, without Spark.",
    )

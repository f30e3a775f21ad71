"""Asset checks on the tables: the findings of ``service.checks`` as Dagster shows them.

The checks are on the table's own key and never block: a blocking check would stop the maintenance that it calls for.
In a run that also maintains the table they come last and report the state afterwards.
"""

# Without `from __future__ import annotations`: Dagster reads the annotations of checks.

from collections.abc import Iterable, Iterator

import dagster as dg

from dv_maintenance.dagster import naming
from dv_maintenance.service.checks import CHECKS, READABLE, Finding, check, check_names
from dv_maintenance.service.tables_file import WatchedTable

__all__ = ["build_dv_checks", "check_result"]

# The page shows a table in full, however long.
_ROWS_SHOWN = 50


def build_dv_checks(tables: Iterable[WatchedTable]) -> list[dg.AssetChecksDefinition]:
    """The checks of each table, one op per table that reads its log once. Needs no Spark and opens nothing yet.

    A check fails with severity WARN or ERROR by the limits in the table's policy, and with WARN if the log has no
    answer. If the table can't be read, only ``readable`` is evaluated, and fails.
    """
    return [_checks(table) for table in tables]


def check_result(table: WatchedTable, finding: Finding) -> dg.AssetCheckResult:
    """A finding as the result of the check of that name. Checks that passed have the severity WARN, too."""
    error = finding.severity == "error"
    rows = [dg.TableRecord(dict(row)) for row in finding.rows[:_ROWS_SHOWN]]
    return dg.AssetCheckResult(
        asset_key=naming.table_key(table),
        check_name=finding.check,
        passed=finding.severity is None,
        severity=dg.AssetCheckSeverity.ERROR if error else dg.AssetCheckSeverity.WARN,
        description=finding.reason,
        metadata={**finding.numbers, **({"rows": dg.MetadataValue.table(rows)} if rows else {})},
    )


def _checks(table: WatchedTable) -> dg.AssetChecksDefinition:
    jobs = naming.job_keys(table, table.jobs)
    specs = [
        dg.AssetCheckSpec(
            name=name,
            asset=naming.table_key(table),
            description=CHECKS[name],
            additional_deps=jobs,
            blocking=False,
        )
        for name in check_names(table)
    ]

    @dg.multi_asset_check(
        name=naming.op_name(table, "checks"),
        specs=specs,
        can_subset=True,
        description="Compares the newest version with the limits of the policy, without Spark.",
    )
    def checks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        asked = [key.name for key in context.selected_asset_check_keys]
        for finding in check(table, asked):
            if finding.check == READABLE and finding.severity is not None:
                context.log.warning("%s: %s", table.name, finding.reason)
            yield check_result(table, finding)

    return checks

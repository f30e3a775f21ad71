"""What the past of tables would have cost under several policies. Reads logs only; never starts an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dv_maintenance.errors import DvMaintenanceError, UsageError
from dv_maintenance.maintenance.reads import Reads
from dv_maintenance.maintenance.simulation.compare import compare
from dv_maintenance.maintenance.simulation.from_log import past_of
from dv_maintenance.service.inspection import reads_now
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.reports.simulation import of_comparison
from dv_maintenance.service.verbs.state import opened
from dv_maintenance.units import epoch_millis

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.service.inspection import Downstream
    from dv_maintenance.service.tables_file import TableSettings, WatchConfig
    from dv_maintenance.tables.table import Table

# Without any knowledge of reads, what readers would have paid is charged at this rate only to build the trace.
_NO_READS = Reads.declared(1e-9)


def simulate(
    table: Table,
    policies: Sequence[tuple[str, Policy]],
    *,
    since: int,
    reads: Reads | None = None,
) -> Outcome:
    """Replay a table's own log under policies, by name.

    since : milliseconds to go back from the newest version.
    reads : observed ones; by default the first ``reads_per_day`` among the policies.

    Raises
    ------
    UsageError : no policy was given, or the log has no commit since then.
    DamagedTableError, StorageError : the log can't be read.
    """
    if not policies:
        raise UsageError("there is no policy to simulate", next_step="give at least one")
    snapshot = table.snapshot()
    declared = next((policy.reads_per_day for _, policy in policies if policy.reads_per_day is not None), None)
    if reads is None and declared is not None:
        reads = Reads.declared(declared)
    past = past_of(table, snapshot, snapshot.timestamp - since, reads or _NO_READS)
    return of_comparison(snapshot, compare(snapshot, past, policies, reads))


def simulate_watched(
    watched: TableSettings,
    policies: Sequence[tuple[str, Policy]] = (),
    *,
    since: int,
    downstream: Downstream = lambda _now: None,
) -> Outcome:
    """As :func:`simulate`, for a watched table under its own policy and others. Raises the errors of both."""
    reads, warnings = reads_now(watched, downstream)(epoch_millis())
    named = [("configured", watched.policy), *policies]
    outcome = simulate(opened(watched), named, since=since, reads=reads)

    return replace(outcome, lines={**outcome.lines, "warnings": warnings}) if warnings else outcome


def simulate_tables(config: WatchConfig, policies: Sequence[tuple[str, Policy]] = (), *, since: int) -> list[Outcome]:
    """As :func:`simulate_watched`, for every table of a file, in its order. A table that can't be simulated has the
    reason as its problem, and does not stop the others.
    """
    return [_safely(watched, policies, since) for watched in config.tables]


def _safely(watched: TableSettings, policies: Sequence[tuple[str, Policy]], since: int) -> Outcome:
    try:
        return simulate_watched(watched, policies, since=since)
    except (DvMaintenanceError, OSError) as error:
        return Outcome("not simulated", problems=(str(error),), report={"table": watched.name, "error": str(error)})

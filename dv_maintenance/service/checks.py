"""The checks of a watched table: which ones it has, and what they found.

Every inspection of a changed table, and every run that maintained it, evaluates the checks that need only the log, so
their results are never older than the last of these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.maintenance.checks import CHECKS as TABLE_CHECKS
from dv_maintenance.maintenance.checks import (
    ERASE_WITHIN,
    FSCK,
    READABLE,
    RETENTION,
    Finding,
    Known,
    check_snapshot,
    check_table,
)
from dv_maintenance.maintenance.meter.decide import is_due
from dv_maintenance.maintenance.meter.of_table import decide_for, due_for
from dv_maintenance.maintenance.planning.limits import Severity
from dv_maintenance.service.inspection import Downstream, reads_now
from dv_maintenance.service.partitions import live_keys, partition_key
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.service.text import shortened
from dv_maintenance.tables.model import parse_partition
from dv_maintenance.tables.registry import known_format
from dv_maintenance.units import count, epoch_millis

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.maintenance.planning.steps import MaintenancePlan
    from dv_maintenance.service.inspection import Seen
    from dv_maintenance.tables.model import OldestDv, Snapshot
    from dv_maintenance.tables.table import Table

__all__ = [
    "CHECKS",
    "ERASE_WITHIN",
    "FSCK",
    "PARTITIONS",
    "READABLE",
    "Finding",
    "RepeatedChecks",
    "Severity",
    "by_partition",
    "check",
    "check_names",
    "check_opened",
    "due_plan",
    "has_partitions",
    "work_left",
]

PARTITIONS: Final = "partitions"
# The question that each check answers.
CHECKS: Mapping[str, str] = {
    **TABLE_CHECKS,
    PARTITIONS: "Which partitions have work due under the policy?",
}
_NAMED: Final = 5


def check_names(watched: TableSettings) -> list[str]:
    """The checks of a table, in the order of ``CHECKS``: the one for manifests only if the table has that job, the one
    for deletion files unless its format is known to have checksums, the one for deadlines only if the policy has one,
    the one for partitions only if they can be optimized. Without ``FSCK``, which reads far more than the others and has
    its own schedule.
    """
    without = {FSCK} if "manifest" in watched.jobs else {FSCK, "manifest_lag"}
    known = known_format(watched.format)
    without |= {"deletion_files"} if known is not None and known.dv_checksums else set()
    without |= {ERASE_WITHIN} if watched.policy.erase_within is None else set()
    without |= set() if has_partitions(watched) else {PARTITIONS}
    return [name for name in CHECKS if name not in without]


def has_partitions(watched: TableSettings) -> bool:
    """Whether an orchestrator has partitions of the table that can be optimized."""
    return watched.partitions is not None and "optimize" in watched.jobs


def check(
    watched: TableSettings,
    names: Iterable[str],
    downstream: Downstream = lambda _now: None,
    opened: Callable[[], Table] | None = None,
) -> list[Finding]:
    """The findings of these checks by the limits of the table's policy. If the table can't be read, see
    ``maintenance.checks.check_table``.

    downstream : the reads by downstream assets, if an orchestrator knows them.
    opened : the table, for who opens it anyway; may raise the errors of ``open_table``.
    """
    names = list(names)
    opened = opened or (lambda: _opened(watched))
    found = check_table(opened, watched.policy, checks=names)
    if PARTITIONS not in names or any(each.check == READABLE and "error" in each.numbers for each in found):
        return found
    return [*found, by_partition(watched, downstream)]


def by_partition(
    watched: TableSettings, downstream: Downstream = lambda _now: None, table: Table | None = None
) -> Finding:
    """Which partitions have work now; an error of the table is a finding, too."""
    try:
        table = table or _opened(watched)
        snapshot = table.snapshot()
        return work_left(watched, snapshot, due_plan(watched, table, snapshot, downstream))
    except (DvMaintenanceError, OSError) as error:
        return Finding(PARTITIONS, "warn", f"unknown: {error}", {"error": type(error).__name__})


def due_plan(
    watched: TableSettings, table: Table, snapshot: Snapshot, downstream: Downstream = lambda _now: None
) -> MaintenancePlan | None:
    """The plan of a run that is due now; ``None`` if none is. Raises the errors of ``decide_for``."""
    now = epoch_millis()
    reads = reads_now(watched, downstream)(now)[0]
    if not is_due(due_for(table, snapshot, watched.policy, reads=reads, now=now), now):
        return None
    return decide_for(table, snapshot, watched.policy, reads=reads, now=now)


def work_left(watched: TableSettings, snapshot: Snapshot, plan: MaintenancePlan | None) -> Finding:
    """What the plan of a due run would do in each partition. Raises UsageError if the table is not partitioned by these
    columns.
    """
    assert watched.partitions is not None
    live = live_keys(watched.partitions, snapshot)
    rows: dict[str | None, dict[str, Any]] = {}
    for step in plan.steps if plan is not None else ():
        key = partition_key(watched.partitions, parse_partition(step.partition))
        row = rows.setdefault(
            key,
            {"partition": key or "in no partition of the orchestrator", "files": 0, "deletion_vectors": 0, "why": ""},
        )
        row["files"] += len(step.inputs)
        row["deletion_vectors"] += step.expected.dvs_removed
        row["why"] = row["why"] or step.reason
    numbers = {"partitions_with_files": len(live), "partitions_with_work": len(rows)}
    if not rows:
        reason = f"no work is due in the {count(len(live), 'partition')} with files"
        return Finding(PARTITIONS, None, reason, numbers)
    names = sorted(key for key in rows if key is not None)
    said = [shortened(name) for name in names[:_NAMED]]
    said += [f"{len(names) - _NAMED:,} more"] if len(names) > _NAMED else []
    said += ["files in no partition of the orchestrator"] if None in rows else []
    reason = f"{len(rows):,} of {count(len(live), 'partition')} with files have work due: {', '.join(said)}"
    listed = [rows[name] for name in (*names, *(key for key in rows if key is None))]
    return Finding(PARTITIONS, "warn", reason, numbers, listed)


def _opened(watched: TableSettings) -> Table:
    return watched.open()


def check_opened(watched: TableSettings, table: Table, besides: Collection[str] = ()) -> list[Finding]:
    """The findings of the checks that need only the log, at the newest version. Raises the errors of reading it.

    besides : checks to leave out.
    """
    names = [name for name in check_names(watched) if name not in besides]
    return check_snapshot(table, table.snapshot(), watched.policy, checks=names)


class RepeatedChecks:
    """Checks of one table at each inspection, with what the last one found out. Not thread-safe.

    The age of the oldest deletion vector (DV) is the only answer that needs older commits. It is looked up again only
    if a file lost its DV since the last inspection: other DVs are younger.
    """

    def __init__(self) -> None:
        self._files: pa.ChunkedArray | None = None
        self._oldest: OldestDv | None = None
        self._retention: tuple[Severity | None, Any] | None = None

    def forget(self) -> None:
        """Another table has taken the place of the table."""
        self._files = self._oldest = self._retention = None

    def findings(self, watched: TableSettings, table: Table, seen: Seen, now: int) -> list[Finding]:
        """The findings of the checks that need only the log, for the version of ``seen``, which must have one."""
        snapshot = seen.snapshot
        assert snapshot is not None
        known = Known(lambda: self._oldest_dv(table, snapshot), seen.expired)
        found = check_snapshot(table, snapshot, watched.policy, checks=check_names(watched), now=now, known=known)
        return [each for each in found if each.check != RETENTION or self._says_more(each, seen)]

    def _says_more(self, finding: Finding, seen: Seen) -> bool:
        """Whether a finding about the retention may replace the last one, which may name the unneeded files."""
        last, self._retention = self._retention, (finding.severity, finding.numbers.get("retention_seconds"))
        return seen.expired is not None or last != self._retention

    def _oldest_dv(self, table: Table, snapshot: Snapshot) -> OldestDv | None:
        files = snapshot.files["path"].filter(pc.is_valid(snapshot.files["dv_id"]))
        last = self._files
        if not last or not pc.all(pc.is_in(last, value_set=files.combine_chunks())).as_py():
            self._oldest = table.oldest_dv(snapshot)
        self._files = files
        return self._oldest

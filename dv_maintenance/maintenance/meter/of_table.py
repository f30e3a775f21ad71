"""Decide for a table: gather what a decision needs, reading as little of the log as possible."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from dv_maintenance.maintenance.meter.decide import QUIET, decide, is_due
from dv_maintenance.maintenance.meter.timeline import Timeline, from_snapshot, timeline
from dv_maintenance.maintenance.planning.deadlines import erasure_of
from dv_maintenance.maintenance.planning.facts import ints, valid
from dv_maintenance.maintenance.planning.left_alone import EXAMPLES
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.planning.run_limits import NOTHING_SPENT, Spent, spent_in
from dv_maintenance.maintenance.reads.model import Reads
from dv_maintenance.tables.file_log import FileLogTable
from dv_maintenance.units import DAY, epoch_millis

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.deadlines import Deadlines, Erasure
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table

_log = logging.getLogger(__name__)

# How far back the log is read. What readers paid before that is not charged.
_PAST: Final = 90 * DAY
# Old copies are kept this long where neither policy nor caller says otherwise: Delta's own default.
_RETENTION: Final = 7 * DAY


def decide_for(
    table: Table,
    snapshot: Snapshot,
    policy: Policy | None = None,
    *,
    reads: Reads | None = None,
    now: int | None = None,
    start: float | None = None,
    listed: int = 0,
) -> MaintenancePlan:
    """The plan for a table at a snapshot; see ``meter.decide``.

    reads : observed ones; by default the policy's ``reads_per_day``, if it is set.
    now : epoch milliseconds; by default the clock.
    listed : how many of the files left alone the plan lists one by one.

    Raises
    ------
    UsageError, DamagedTableError : as ``build_plan``, or a commit can't be read.
    """
    return _decide(table, snapshot, policy, reads, now, start, listed, EXAMPLES, exact=True)


def due_for(
    table: Table,
    snapshot: Snapshot,
    policy: Policy | None = None,
    *,
    reads: Reads | None = None,
    now: int | None = None,
) -> MaintenancePlan:
    """As :func:`decide_for`, for an inspection that only has to know whether a run is due. If even an upper bound of
    what readers paid does not make it due, the log is not read, and the plan's numbers are that bound's. The plan has
    no examples of files left alone.
    """
    return _decide(table, snapshot, policy, reads, now, None, 0, 0, exact=False)


def _decide(
    table: Table,
    snapshot: Snapshot,
    policy: Policy | None,
    reads: Reads | None,
    now: int | None,
    start: float | None,
    listed: int,
    examples: int,
    *,
    exact: bool,
) -> MaintenancePlan:
    policy = policy or Policy()
    now = epoch_millis(now)
    if policy.cluster:
        from dv_maintenance.maintenance.cluster import clustered_too

        def others(files: Snapshot, limits: Policy) -> MaintenancePlan:
            plain = limits.model_copy(update={"cluster": False})
            return _decide(table, files, plain, reads, now, start, listed, examples, exact=exact)

        return clustered_too(table, snapshot, policy, _spent(table, snapshot, policy, now), others)
    if reads is None and policy.reads_per_day is not None:
        reads = Reads.declared(policy.reads_per_day)
    retention = _RETENTION if policy.retention is None else policy.retention
    spent = _spent(table, snapshot, policy, now)

    erasure = erasure_of(table, snapshot, policy)
    if exact and erasure is not None and erasure.problem is not None:
        _log.warning("%s: %s", snapshot.table, erasure.problem)
    # Thresholds don't ask for the past.
    timeless = erasure is None and (reads is None or "max_deleted_ratio" in policy.model_fields_set)
    if timeless or not exact:
        bound = decide(
            snapshot,
            policy,
            now=now,
            reads=reads,
            deadlines=None if erasure is None else _deadlines(erasure, snapshot, from_snapshot(snapshot)),
            spent=spent,
            retention=retention,
            start=start,
            listed=listed,
            examples=examples,
        )
        if timeless or not is_due(bound, now) or not isinstance(table, FileLogTable):
            return bound
    life = from_snapshot(snapshot)
    if isinstance(table, FileLogTable):
        life = timeline(snapshot, table.file_log(snapshot, _since(snapshot, now, erasure)))
    return decide(
        snapshot,
        policy,
        now=now,
        reads=reads,
        timeline=life,
        quiet=0 if exact else QUIET,
        deadlines=_deadlines(erasure, snapshot, life),
        spent=spent,
        retention=retention,
        start=start,
        listed=listed,
        examples=examples,
    )


def _deadlines(erasure: Erasure | None, snapshot: Snapshot, life: Timeline) -> Deadlines | None:
    """Of a file whose first delete is older than the log: as if its rows were deleted when it was written."""
    return None if erasure is None else erasure.of_files(life.first_delete, valid(snapshot.files["dv_id"]))


def _since(snapshot: Snapshot, now: int, erasure: Erasure | None) -> int:
    """From when on the log matters: the birth of the oldest file that readers may have paid for, or that has a
    deadline.
    """
    with_dv = ints(snapshot.files["modified"])[valid(snapshot.files["dv_id"])]
    oldest = int(with_dv.min()) if len(with_dv) else now
    return max(oldest, now - (_PAST if erasure is None else max(_PAST, erasure.erase_within)))


def _spent(table: Table, snapshot: Snapshot, policy: Policy, now: int) -> Spent:
    limited = policy.max_bytes is not None or policy.max_files is not None or policy.max_tasks is not None
    if not limited or not isinstance(table, FileLogTable):
        return NOTHING_SPENT
    return spent_in(table.file_log(snapshot, now - DAY), now)

"""What a run rewrites: the request that a face makes, and the plan that it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan
    from dv_maintenance.maintenance.reads.model import Reads
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table


@dataclass(frozen=True, slots=True)
class RewriteRequest:
    """Which files a run rewrites, and how. By default, those that the policy says.

    policy : thresholds, limits and sizes; ``None``: their defaults.
    partitions : only these, such as ``"day=2026-11-20"`` or ``{"day": "2026-11-20"}``, in place of the policy's.
    missing_ok : accept ``partitions`` that no live file has.
    purge : every file with a deletion vector, even a single one, and no other.
    order_by : files that are not ordered by these columns, with their rows along a space-filling curve.
    cluster : files that are not clustered yet, by the table's own columns.
    recluster : with ``cluster``, also files that were clustered by other columns.
    target_file_size : bytes of a new file, or a text such as ``"256MiB"``, in place of the policy's.
    dry_run : only make the plan.
    """

    policy: Policy | None = None
    partitions: tuple[Mapping[str, str | None] | str, ...] = ()
    missing_ok: bool = False
    purge: bool = False
    order_by: tuple[str, ...] | None = None
    cluster: bool = False
    recluster: bool = False
    target_file_size: int | str | None = None
    dry_run: bool = False


PURGE = RewriteRequest(purge=True)


def requested(
    table: Table,
    snapshot: Snapshot,
    request: RewriteRequest,
    *,
    reads: Reads | None = None,
    now: int | None = None,
    listed: int = 0,
) -> MaintenancePlan:
    """The plan for a snapshot. ``reads``, ``now`` and ``listed`` are those of ``meter.decide_for``.

    Raises
    ------
    UsageError : a partition or a column is not known to the table, or a chosen partition has no live file.
    RefusedError, UnsupportedFeatureError : files of the table may not be rewritten.
    """
    from dv_maintenance.maintenance.meter.of_table import decide_for
    from dv_maintenance.maintenance.planning.plan import purge_plan
    from dv_maintenance.maintenance.planning.policy import Policy

    policy = request.policy or Policy()
    chosen = {"partitions": list(request.partitions), "target_file_size": request.target_file_size}
    if given := {key: value for key, value in chosen.items() if value not in ([], None)}:
        policy = Policy.from_mapping({**policy.model_dump(exclude_unset=True), **given}, "the selection")
    if request.partitions:
        missing_partitions(snapshot, policy, ok=request.missing_ok)
    table.check_writable(snapshot, "rewrite")
    if request.cluster:
        from dv_maintenance.maintenance.cluster import plan_cluster

        return plan_cluster(table, snapshot, full=request.recluster, target_size=request.target_file_size)
    if request.order_by is not None:
        from dv_maintenance.maintenance.zorder import plan_zorder

        return plan_zorder(table, snapshot, request.order_by, policy)
    if request.purge:
        return purge_plan(snapshot, policy)
    return decide_for(table, snapshot, policy, reads=reads, now=now, listed=listed)


def missing_partitions(snapshot: Snapshot, policy: Policy, *, ok: bool = True) -> tuple[str, ...]:
    """The policy's partitions that no live file has. Raises UsageError for them unless they are ``ok``."""
    if not policy.partitions:
        return ()
    from dv_maintenance.maintenance.planning.selection import refuse_missing, select

    live = snapshot.files["partition"].unique().to_pylist()
    missing = select(snapshot, live, policy.partitions).missing
    if not ok:
        refuse_missing(snapshot, live, missing)
    return missing

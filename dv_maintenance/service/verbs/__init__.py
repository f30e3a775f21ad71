"""The verbs that faces run: each does its work on an open table and returns an :class:`~..outcome.Outcome`.

Names are loaded on first use, so that a face pays only for what it runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dv_maintenance.service.verbs.files import manifest, rename_manifests, undelete, vacuum
    from dv_maintenance.service.verbs.jobs import nothing_due, optimize, vacuum_by_policy
    from dv_maintenance.service.verbs.like_sensor import plan_like_sensor
    from dv_maintenance.service.verbs.rewrites import apply, apply_plan, downgrade
    from dv_maintenance.service.verbs.rewriting import PURGE, RewriteRequest, rewrite
    from dv_maintenance.service.verbs.rows import delete_rows, merge_rows, update_rows
    from dv_maintenance.service.verbs.simulation import simulate, simulate_tables, simulate_watched
    from dv_maintenance.service.verbs.state import fsck, health, history, opened, plan, quick_check, report_table
    from dv_maintenance.service.verbs.versions import checkpoint, convert, engine_sql, publish, recount, restore

__all__ = [
    "PURGE",
    "RewriteRequest",
    "apply",
    "apply_plan",
    "check_selection",
    "checkpoint",
    "convert",
    "delete_rows",
    "downgrade",
    "engine_sql",
    "fsck",
    "health",
    "history",
    "manifest",
    "merge_rows",
    "nothing_due",
    "opened",
    "optimize",
    "plan",
    "plan_like_sensor",
    "publish",
    "quick_check",
    "recount",
    "rename_manifests",
    "report_table",
    "restore",
    "rewrite",
    "simulate",
    "simulate_tables",
    "simulate_watched",
    "undelete",
    "update_rows",
    "vacuum",
    "vacuum_by_policy",
]

_HOMES = {
    "PURGE": "rewriting",
    "RewriteRequest": "rewriting",
    "apply": "rewrites",
    "apply_plan": "rewrites",
    "check_selection": "rows",
    "checkpoint": "versions",
    "convert": "versions",
    "delete_rows": "rows",
    "downgrade": "rewrites",
    "engine_sql": "versions",
    "fsck": "state",
    "health": "state",
    "history": "state",
    "quick_check": "state",
    "manifest": "files",
    "merge_rows": "rows",
    "nothing_due": "jobs",
    "opened": "state",
    "optimize": "jobs",
    "plan": "state",
    "plan_like_sensor": "like_sensor",
    "publish": "versions",
    "recount": "versions",
    "rename_manifests": "files",
    "report_table": "state",
    "restore": "versions",
    "rewrite": "rewriting",
    "simulate": "simulation",
    "simulate_tables": "simulation",
    "simulate_watched": "simulation",
    "undelete": "files",
    "update_rows": "rows",
    "vacuum": "files",
    "vacuum_by_policy": "jobs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

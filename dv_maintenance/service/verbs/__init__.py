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
    name: home
    for home, names in {
        "files": "manifest rename_manifests undelete vacuum",
        "jobs": "nothing_due optimize vacuum_by_policy",
        "like_sensor": "plan_like_sensor",
        "rewrites": "apply apply_plan downgrade",
        "rewriting": "PURGE RewriteRequest rewrite",
        "rows": "check_selection delete_rows merge_rows update_rows",
        "simulation": "simulate simulate_tables simulate_watched",
        "state": "fsck health history opened plan quick_check report_table",
        "versions": "checkpoint convert engine_sql publish recount restore",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

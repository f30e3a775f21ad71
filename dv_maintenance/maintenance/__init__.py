"""Decisions and their execution: health, plan, explain or apply, verify. Knows no table format and no engine by name.

Names are loaded when they are first used: a look at a table's health must not pay for what writes. Functions with the
name of their module (``health``, ``explain``, ``apply``, ``read``, ``vacuum``) are imported from there: as names of
this package they would be the function or the module, depending on who imported what before.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dv_maintenance.maintenance.execution.apply import ApplyReport, maintain, purge
    from dv_maintenance.maintenance.health import Health
    from dv_maintenance.maintenance.planning.plan import build_plan
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan
    from dv_maintenance.maintenance.read import write_rows
    from dv_maintenance.maintenance.tables_file import WatchConfig

__all__ = [
    "ApplyReport",
    "Health",
    "MaintenancePlan",
    "Policy",
    "WatchConfig",
    "build_plan",
    "maintain",
    "purge",
    "write_rows",
]

_HOMES = {
    "ApplyReport": "execution.apply",
    "Health": "health",
    "MaintenancePlan": "planning.steps",
    "Policy": "planning.policy",
    "WatchConfig": "tables_file",
    "build_plan": "planning.plan",
    "maintain": "execution.apply",
    "purge": "execution.apply",
    "write_rows": "read",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

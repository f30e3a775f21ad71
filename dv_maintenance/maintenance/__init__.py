"""Decisions and their execution: health, plan, explain or apply, verify. Independent of table formats and engines.

Names are loaded on first use, so that reading a table's health does not import the writers. A function that shares
its module's name (``health``, ``explain``, ``apply``, ``read``, ``vacuum``) is imported from that module: as a name of
this package it would be the function or the module, depending on the order of imports.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dv_maintenance.maintenance.execution.apply import maintain, purge
    from dv_maintenance.maintenance.execution.report import ApplyReport
    from dv_maintenance.maintenance.health import Health
    from dv_maintenance.maintenance.planning.plan import build_plan
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan
    from dv_maintenance.maintenance.read import write_rows

__all__ = [
    "ApplyReport",
    "Health",
    "MaintenancePlan",
    "Policy",
    "build_plan",
    "maintain",
    "purge",
    "write_rows",
]

_HOMES = {
    "ApplyReport": "execution.report",
    "Health": "health",
    "MaintenancePlan": "planning.steps",
    "Policy": "planning.policy",
    "build_plan": "planning.plan",
    "maintain": "execution.apply",
    "purge": "execution.apply",
    "write_rows": "read",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

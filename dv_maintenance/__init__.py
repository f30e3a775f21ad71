"""Purge deletion vectors, vacuum expired files and write manifests, as Dagster assets on Spark."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_HOMES = {
    # dg looks for components here.
    "DvMaintainedTables": "dv_maintenance.dagster.component",
    "delete": "dv_maintenance.dml.delete",
    "merge": "dv_maintenance.dml.merge",
    "update": "dv_maintenance.dml.update",
    "register": "dv_maintenance.spark_source",
}


def __getattr__(name: str) -> Any:
    # By name only: what lies below must not depend on Dagster or PySpark by importing this.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])

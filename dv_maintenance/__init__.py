"""Purge deletion vectors, vacuum expired files and write manifests for merge-on-read tables.

``import dv_maintenance as dvm`` has a function for each verb; see docs/guides/python.md.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from dv_maintenance import errors

if TYPE_CHECKING:
    from dv_maintenance.api import (
        apply,
        changes,
        checkpoint,
        cluster,
        convert,
        delete,
        downgrade,
        example_table,
        fsck,
        health,
        history,
        manifest,
        merge,
        plan,
        publish,
        purge,
        read,
        recount,
        restore,
        undelete,
        update,
        vacuum,
        zorder,
    )
    from dv_maintenance.dagster.component import DvMaintainedTablesComponent
    from dv_maintenance.engine.local import LocalEngine
    from dv_maintenance.engine.spark import SparkEngine
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan
    from dv_maintenance.service.tables_file import TableSettings, WatchConfig
    from dv_maintenance.spark_source import register
    from dv_maintenance.tables import open_table

__all__ = [
    "DvMaintainedTablesComponent",
    "LocalEngine",
    "MaintenancePlan",
    "Policy",
    "SparkEngine",
    "TableSettings",
    "WatchConfig",
    "apply",
    "changes",
    "checkpoint",
    "cluster",
    "convert",
    "delete",
    "downgrade",
    "errors",
    "example_table",
    "fsck",
    "health",
    "history",
    "manifest",
    "merge",
    "open_table",
    "plan",
    "publish",
    "purge",
    "read",
    "recount",
    "register",
    "restore",
    "undelete",
    "update",
    "vacuum",
    "zorder",
]

__version__ = "0.2.0"

# Quiet unless the application listens: `dvm -v`, Dagster, or a handler of your own.
logging.getLogger(__name__).addHandler(logging.NullHandler())

_HOMES = {
    # dg looks for components here. The second is the first's old name, which is not in `__all__`.
    "DvMaintainedTablesComponent": "dv_maintenance.dagster.component",
    "DvMaintainedTables": "dv_maintenance.dagster.component",
    "LocalEngine": "dv_maintenance.engine.local",
    "MaintenancePlan": "dv_maintenance.maintenance.planning.steps",
    "Policy": "dv_maintenance.maintenance.planning.policy",
    "SparkEngine": "dv_maintenance.engine.spark",
    "WatchConfig": "dv_maintenance.service.tables_file",
    "TableSettings": "dv_maintenance.service.tables_file",
    "open_table": "dv_maintenance.tables",
    "register": "dv_maintenance.spark_source",
}


def __getattr__(name: str) -> Any:
    # On first use only: this import costs nothing, and the layers below do not depend on Dagster or PySpark.
    if name in __all__ or name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES.get(name, "dv_maintenance.api")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_HOMES})

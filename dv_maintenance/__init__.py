"""Purge deletion vectors, vacuum expired files and write manifests, as Dagster assets on Spark."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dv_maintenance.dagster.component import DvMaintainedTables
    from dv_maintenance.dml.delete import delete
    from dv_maintenance.dml.merge import merge
    from dv_maintenance.dml.update import update
    from dv_maintenance.spark_source import register

__all__ = ["DvMaintainedTables", "delete", "merge", "register", "update"]

__version__ = "0.2.0"

# Quiet unless the application listens: `dvm -v`, Dagster, or a handler of your own.
logging.getLogger(__name__).addHandler(logging.NullHandler())

_HOMES = {
    # dg looks for components here.
    "DvMaintainedTables": "dv_maintenance.dagster.component",
    "delete": "dv_maintenance.dml.delete",
    "merge": "dv_maintenance.dml.merge",
    "register": "dv_maintenance.spark_source",
    "update": "dv_maintenance.dml.update",
}


def __getattr__(name: str) -> Any:
    # On first use only: this import costs nothing, and the layers below do not depend on Dagster or PySpark.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

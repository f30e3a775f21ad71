"""The Dagster face: a table becomes an observable source asset with maintenance assets below it, which a sensor and a
schedule launch. ``dv_maintenance.service`` makes the decisions.

Names are loaded on first use, so that importing this package does not import Dagster.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dv_maintenance.remedies import speak

if TYPE_CHECKING:
    from dv_maintenance.dagster.assets import build_dv_assets
    from dv_maintenance.dagster.automation import build_dv_fsck_job, build_dv_job, build_dv_presets, build_dv_schedule
    from dv_maintenance.dagster.backfills import build_dv_backfills
    from dv_maintenance.dagster.checks import build_dv_checks
    from dv_maintenance.dagster.component import DvMaintainedTablesComponent
    from dv_maintenance.dagster.costs import costs_by_month
    from dv_maintenance.dagster.erasure import build_erasure_job
    from dv_maintenance.dagster.lake import build_dv_lake_report
    from dv_maintenance.dagster.night import build_dv_night
    from dv_maintenance.dagster.ops import (
        checkpoint_op,
        cluster_op,
        delete_rows_op,
        engine_sql_op,
        restore_op,
        zorder_op,
    )
    from dv_maintenance.dagster.resources import SparkResource
    from dv_maintenance.dagster.sensor import build_dv_sensor
    from dv_maintenance.dagster.simulation import build_dv_simulations
    from dv_maintenance.dagster.translator import DvTranslator

__all__ = [
    "DvMaintainedTablesComponent",
    "DvTranslator",
    "SparkResource",
    "build_dv_assets",
    "build_dv_backfills",
    "build_dv_checks",
    "build_dv_fsck_job",
    "build_dv_job",
    "build_dv_lake_report",
    "build_dv_night",
    "build_dv_presets",
    "build_dv_schedule",
    "build_dv_sensor",
    "build_dv_simulations",
    "build_erasure_job",
    "checkpoint_op",
    "cluster_op",
    "costs_by_month",
    "delete_rows_op",
    "engine_sql_op",
    "restore_op",
    "zorder_op",
]

if find_spec("dagster") is None:
    raise ModuleNotFoundError(
        "dv_maintenance.dagster needs Dagster: pip install 'dv-maintenance[dagster]'", name="dagster"
    )

_HOMES = {
    "DvMaintainedTablesComponent": "component",
    "DvMaintainedTables": "component",  # its old name
    "DvTranslator": "translator",
    "SparkResource": "resources",
    "build_dv_assets": "assets",
    "build_dv_backfills": "backfills",
    "build_dv_checks": "checks",
    "build_dv_fsck_job": "automation",
    "build_dv_job": "automation",
    "build_dv_lake_report": "lake",
    "build_dv_night": "night",
    "build_dv_presets": "automation",
    "build_dv_schedule": "automation",
    "build_dv_sensor": "sensor",
    "build_dv_simulations": "simulation",
    "build_erasure_job": "erasure",
    "checkpoint_op": "ops",
    "cluster_op": "ops",
    "costs_by_month": "costs",
    "delete_rows_op": "ops",
    "engine_sql_op": "ops",
    "restore_op": "ops",
    "zorder_op": "ops",
}


speak("dagster")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

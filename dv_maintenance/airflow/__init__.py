"""The Airflow face: a provider with operators, a sensor, a trigger that watches tables, and DAGs from the tables' file.
``dv_maintenance.service`` makes the decisions.

Names are loaded on first use, so that importing this package does not import Airflow.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dv_maintenance.remedies import speak

if TYPE_CHECKING:
    from dv_maintenance.airflow.assets import due_asset, job_asset, table_asset
    from dv_maintenance.airflow.dags import dv_maintenance_dags
    from dv_maintenance.airflow.hook import DvHook
    from dv_maintenance.airflow.many import DvTablesCheckOperator
    from dv_maintenance.airflow.night import DvNightOperator
    from dv_maintenance.airflow.operators import (
        DvCheckOperator,
        DvDeleteOperator,
        DvErasureOperator,
        DvManifestOperator,
        DvOptimizeOperator,
        DvVacuumOperator,
    )
    from dv_maintenance.airflow.reports import DvReportOperator, DvSimulationOperator
    from dv_maintenance.airflow.sensor import DvSensor
    from dv_maintenance.airflow.trigger import DvTrigger, DvVacuumsTrigger
    from dv_maintenance.airflow.vacuums import DvVacuumsOperator

__all__ = [
    "DvCheckOperator",
    "DvDeleteOperator",
    "DvErasureOperator",
    "DvHook",
    "DvManifestOperator",
    "DvNightOperator",
    "DvOptimizeOperator",
    "DvReportOperator",
    "DvSensor",
    "DvSimulationOperator",
    "DvTablesCheckOperator",
    "DvTrigger",
    "DvVacuumOperator",
    "DvVacuumsOperator",
    "DvVacuumsTrigger",
    "due_asset",
    "dv_maintenance_dags",
    "job_asset",
    "table_asset",
]

_HOMES = {
    "DvHook": "hook",
    "DvNightOperator": "night",
    "DvReportOperator": "reports",
    "DvSensor": "sensor",
    "DvSimulationOperator": "reports",
    "DvTablesCheckOperator": "many",
    "DvTrigger": "trigger",
    "DvVacuumsOperator": "vacuums",
    "DvVacuumsTrigger": "trigger",
    "due_asset": "assets",
    "dv_maintenance_dags": "dags",
    "job_asset": "assets",
    "table_asset": "assets",
}


speak("airflow")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("airflow") is None:
        raise ModuleNotFoundError(
            "dv_maintenance.airflow needs Airflow: pip install 'dv-maintenance[airflow]'", name="airflow"
        )
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'operators')}"), name)

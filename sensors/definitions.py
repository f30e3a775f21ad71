"""Everything in one code location: a sensor must be in the code location of the assets that it requests.

``DVM_TABLES`` names the tables to maintain; by default those of ``make demo``, which may not exist yet.
"""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg

from dv_maintenance import WatchConfig
from dv_maintenance.dagster import SparkResource, build_dv_assets, build_dv_checks, build_dv_job, build_dv_schedule
from sensors.dv_accumulation import dv_accumulation
from sensors.manifest_due import manifest_due
from sensors.vacuum_due import vacuum_due

TABLES = os.environ.get("DVM_TABLES") or str(Path(__file__).with_name("tables.yaml"))


@dg.definitions
def defs() -> dg.Definitions:
    tables = WatchConfig.load(TABLES).tables
    job = build_dv_job(tables)
    return dg.Definitions(
        assets=build_dv_assets(tables),
        asset_checks=build_dv_checks(tables),
        jobs=[job],
        schedules=[build_dv_schedule(job)],
        sensors=[dv_accumulation(tables), vacuum_due(tables), manifest_due(tables)],
        resources={"spark": SparkResource()},
        # One process per run: one Spark session for all its steps.
        executor=dg.in_process_executor,
    )

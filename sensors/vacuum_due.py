"""Watches for files that no version needs any more.

Once an hour it probes each table for a new version. Files also expire by time alone, so it searches the log for expired
files every `vacuum_every` of the table's policy, even without a new commit. It fires on `vacuum_min_bytes` of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from dv_maintenance import TableSettings
from dv_maintenance.dagster import build_dv_sensor


def vacuum_due(tables: Sequence[TableSettings]) -> dg.SensorDefinition:
    return build_dv_sensor(
        tables, description=__doc__, name="vacuum_due", jobs=["vacuum"], minimum_interval_seconds=3600
    )

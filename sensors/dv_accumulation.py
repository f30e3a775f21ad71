"""Watches the table logs for deletion vectors that pile up.

Every minute it probes each table for a new version. A new version is observed (version, share of deleted rows) and
compared with the table's policy. The sensor fires on files with more deleted rows than the policy allows and on small
files worth merging, with one run per table at a time. A table that can't be read fails its check `readable`.
"""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from dv_maintenance import TableSettings
from dv_maintenance.dagster import build_dv_sensor


def dv_accumulation(tables: Sequence[TableSettings]) -> dg.SensorDefinition:
    return build_dv_sensor(
        tables, description=__doc__, name="dv_accumulation", jobs=["optimize"], minimum_interval_seconds=60
    )

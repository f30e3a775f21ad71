"""Watches for symlink manifests that no longer list the table's files.

Every five minutes it probes each table whose jobs include `manifest`. It fires when a commit added or removed files
after the manifests were written, or when there are none; a vacuum or a new property does not outdate a manifest.
"""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from dv_maintenance import TableSettings
from dv_maintenance.dagster import build_dv_sensor


def manifest_due(tables: Sequence[TableSettings]) -> dg.SensorDefinition:
    return build_dv_sensor(
        tables, description=__doc__, name="manifest_due", jobs=["manifest"], minimum_interval_seconds=300
    )

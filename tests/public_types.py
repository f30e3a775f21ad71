"""What a user's type checker sees of the lazily imported names. `make types` checks this file; nothing runs it."""

from __future__ import annotations

from typing import assert_type

import pyarrow as pa
from pyspark.sql import SparkSession

import dv_maintenance as dvm
from dv_maintenance.dml.operation import DmlReport
from dv_maintenance.maintenance.execution.report import ApplyReport
from dv_maintenance.maintenance.health import Health


def types_survive(spark: SparkSession) -> None:
    table = dvm.open_table("/lake/orders")
    assert_type(dvm.health(table), Health)
    assert_type(dvm.plan(table, dvm.Policy()), dvm.MaintenancePlan)
    assert_type(dvm.purge("/lake/orders", engine="local"), ApplyReport)
    assert_type(dvm.delete(table, "id = 1", engine=spark), DmlReport)
    assert_type(dvm.update(table, {"id": "2"}, "id = 1"), DmlReport)
    assert callable(dvm.merge)
    assert callable(dvm.register)
    rows: pa.RecordBatchReader = dvm.read(table)
    assert rows

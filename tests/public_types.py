"""What a user's type checker sees of the lazily imported names. `make types` checks this file; nothing runs it."""

from __future__ import annotations

from typing import assert_type

from pyspark.sql import SparkSession

from dv_maintenance import delete, merge, register, update
from dv_maintenance.dml.operation import DmlReport
from dv_maintenance.tables import open_table


def types_survive(spark: SparkSession) -> None:
    table = open_table("/lake/orders")
    assert_type(delete(table, spark, "id = 1"), DmlReport)
    assert_type(update(table, spark, {"id": "2"}, "id = 1"), DmlReport)
    assert callable(merge)
    assert callable(register)

"""Resources of others in the place of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from dagster_pyspark import LazyPySparkResource, PySparkResource

from dv_maintenance.maintenance.health import health
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("resource", [PySparkResource, LazyPySparkResource])
def test_a_pyspark_resource_can_stand_in(
    make_table: Callable[..., TableSettings],
    make_definitions: Callable[..., dg.Definitions],
    instance: dg.DagsterInstance,
    spark: SparkSession,
    resource: Any,
) -> None:
    table = make_table(jobs=["optimize"])
    # Such a resource asks for a session with these settings, and gets the one that there is.
    defs = make_definitions(table, resource=resource(spark_config={"spark.sql.shuffle.partitions": "2"}))
    assert defs.resolve_job_def("dv_maintenance").execute_in_process(instance=instance).success
    assert health(open_table(table.path).snapshot()).counts.files_with_dv == 0
    assert spark.range(3).count() == 3, "a session of others is left running"

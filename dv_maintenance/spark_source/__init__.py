"""Tables with deletion vectors as a data source of plain PySpark: ``spark.read.format("dv_delta").load(path)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PUSH_FILTERS = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession, *, push_filters: bool = False) -> None:
    """Make the format ``dv_delta`` known to a session, classic or Connect.

    Parameters
    ----------
    push_filters
        enable the session's setting ``spark.sql.python.filterPushdown.enabled``, which concerns all Python data
        sources, and push filters down (PySpark 4.1 on). Only for sessions in which no query uses one DataFrame or
        view twice with different filters: Spark 4.1 keeps one reader for both, with the filter that it pushed last,
        and rows are missing from the other.
    """
    from dv_maintenance.spark_source.source import CAN_PUSH_FILTERS, DvDeltaFilteringSource, DvDeltaSource

    if push_filters and CAN_PUSH_FILTERS:
        spark.conf.set(_PUSH_FILTERS, "true")
        spark.dataSource.register(DvDeltaFilteringSource)
    else:
        spark.dataSource.register(DvDeltaSource)

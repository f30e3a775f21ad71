"""Tables with deletion vectors as a data source of plain PySpark: ``spark.read.format("dv_delta").load(path)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]

_PUSH_FILTERS = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession, *, push_filters: bool = True) -> None:
    """Make the format ``dv_delta`` known to a session, classic or Connect.

    Filters are handed down from PySpark 4.1 on, once the session allows it: the setting
    ``spark.sql.python.filterPushdown.enabled`` is switched on. It concerns all Python data sources of the session;
    ``push_filters=False`` leaves it alone and does without.
    """
    from dv_maintenance.spark_source.source import CAN_PUSH_FILTERS, DvDeltaFilteringSource, DvDeltaSource

    if push_filters and CAN_PUSH_FILTERS:
        spark.conf.set(_PUSH_FILTERS, "true")
        spark.dataSource.register(DvDeltaFilteringSource)
    else:
        spark.dataSource.register(DvDeltaSource)

"""Tables with deletion vectors as a data source of plain PySpark: ``spark.read.format("dv_delta").load(path)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]

_PUSH_FILTERS = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession, *, push_filters: bool = True) -> None:
    """Make the format ``dv_delta`` known to a session, classic or Connect.

    PySpark pushes filters down from 4.1 on, if the session allows it: this function enables the setting
    ``spark.sql.python.filterPushdown.enabled``, which concerns all Python data sources of the session.
    ``push_filters=False`` leaves the setting unchanged, and no filter is pushed down.
    """
    from dv_maintenance.spark_source.source import CAN_PUSH_FILTERS, DvDeltaFilteringSource, DvDeltaSource

    if push_filters and CAN_PUSH_FILTERS:
        spark.conf.set(_PUSH_FILTERS, "true")
        spark.dataSource.register(DvDeltaFilteringSource)
    else:
        spark.dataSource.register(DvDeltaSource)

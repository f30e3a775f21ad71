"""DataFrames that are computed once and queried several times."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FEW_PARTITIONS: Final = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"
_SETTING: Final = Lock()  # another thread must not take this module's value for the session's own


def cached(rows: DataFrame) -> DataFrame:
    """``rows.cache()``, with no more partitions than the rows are worth. By default Spark (4.1) keeps the 200 of a
    shuffle, so that each query of a short list would run 200 tasks, and the first one 200 for each shuffle.
    """
    conf = rows.sparkSession.conf
    with _SETTING:
        before = conf.get(_FEW_PARTITIONS, None)
        conf.set(_FEW_PARTITIONS, "true")
        try:
            return rows.cache()
        finally:
            if before is None:
                conf.unset(_FEW_PARTITIONS)
            else:
                conf.set(_FEW_PARTITIONS, before)

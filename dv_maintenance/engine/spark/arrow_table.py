"""Arrow tables of the driver as DataFrames, whatever the session's settings."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_BATCH_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_DEFAULT: Final = "10000"
# Another thread must neither take this module's value for the session's own, nor restore the session's value while
# this module's is needed.
_SETTING: Final = Lock()


def rows_of(session: SparkSession, table: pa.Table, schema: StructType | None = None) -> DataFrame:
    """``session.createDataFrame(table, schema)``, also for sessions without a limit of rows per Arrow batch (0 or
    less). Spark documents that setting, but PySpark divides the table by it. So the setting temporarily has Spark's
    default. A query that runs later uses the session's own value.
    """
    with _SETTING:
        limit = session.conf.get(_BATCH_ROWS, _DEFAULT) or _DEFAULT
        if int(limit) > 0:
            return _created(session, table, schema)
        session.conf.set(_BATCH_ROWS, _DEFAULT)
        try:
            return _created(session, table, schema)
        finally:
            session.conf.set(_BATCH_ROWS, limit)


def _created(session: SparkSession, table: pa.Table, schema: StructType | None) -> DataFrame:
    return session.createDataFrame(table) if schema is None else session.createDataFrame(table, schema)

"""Arrow tables of the driver as rows of a session, whatever the session's settings are."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["rows_of"]

_BATCH_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_DEFAULT: Final = "10000"
# Another thread must not take our value for the session's own, nor restore the session's while we rely on ours.
_SETTING: Final = Lock()


def rows_of(session: SparkSession, table: pa.Table, schema: StructType | None = None) -> DataFrame:
    """``session.createDataFrame(table, schema)``, also where Arrow batches have no limit (0 or less): Spark documents
    that, but PySpark cuts the table by this number. There the setting has Spark's default for as long as that takes;
    how the rows travel later, when the query runs, follows the session's own.
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

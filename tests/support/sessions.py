"""Sessions that do without what pays off only for long queries."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CHEAP", "cheap"]

# Plans run once: compiling them would take longer than running them. One task reads all the small files.
CHEAP = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.files.openCostInBytes": "1",
    "spark.sql.files.minPartitionNum": "1",
}


@cache
def cheap(spark: SparkSession) -> SparkSession:
    """A session of the same JVM with its defaults otherwise. What is judged runs in ``spark``, as users have it."""
    session = spark.newSession()
    for key, value in CHEAP.items():
        session.conf.set(key, value)
    return session

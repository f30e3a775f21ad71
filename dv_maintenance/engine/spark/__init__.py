"""Tasks on Spark: classic sessions, Spark Connect, and sessions started here."""

from dv_maintenance.engine.spark.engine import SparkEngine

__all__ = ["SparkEngine"]

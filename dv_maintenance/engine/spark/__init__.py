"""Tasks on Spark: classic sessions, Spark Connect, and sessions of our own."""

from dv_maintenance.engine.spark.engine import SparkEngine

__all__ = ["SparkEngine"]

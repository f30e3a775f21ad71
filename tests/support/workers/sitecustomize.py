"""Spark's daemons of Python workers import what our tasks need, for all the workers that they fork: otherwise each of
them imports it again, and collects garbage among it after each task.
"""

import sys

if "pyspark.daemon" in sys.orig_argv:
    import gc
    from contextlib import suppress
    from importlib import import_module

    # Not every Python that workers run on has the package.
    with suppress(ImportError):
        import_module("pyspark.worker")
        for module in ("dml.keys", "dml.write", "engine.spark.wire", "spark_source.source", "tables.delta.table"):
            import_module(f"dv_maintenance.{module}")
    gc.collect()
    gc.freeze()

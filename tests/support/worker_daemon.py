"""PySpark's daemon of Python workers, after it has imported what our tasks need: otherwise each worker imports that
again, and collects garbage among it after each task.
"""

import gc
from contextlib import suppress
from importlib import import_module

from pyspark.daemon import manager

if __name__ == "__main__":
    # Not every Python that workers run on has the package.
    with suppress(ImportError):
        for module in ("dml.keys", "dml.write", "engine.spark.wire", "spark_source.source", "tables.delta.table"):
            import_module(f"dv_maintenance.{module}")
    gc.collect()
    gc.freeze()
    manager()

"""Spark's daemons of Python workers import what our tasks need, for all the workers that they fork: otherwise each of
them imports it again, and collects garbage among it after each task. PySpark comes from its package: of archives on the
path Python would compile it for each daemon, and read their directories before each task.
"""

import sys

if "pyspark.daemon" in sys.orig_argv:
    import gc
    from contextlib import suppress
    from importlib import import_module
    from importlib.util import find_spec

    path = [*sys.path]
    sys.path[:] = [place for place in path if not place.endswith((".jar", ".zip"))]
    # Not every Python that workers run on has the packages.
    if find_spec("pyspark") is None:
        sys.path[:] = path
    for place in {*sys.path_importer_cache} - {*sys.path}:
        if place.endswith((".jar", ".zip")):
            del sys.path_importer_cache[place]
    with suppress(ImportError):
        for module in ("pyspark.worker", "obstore.store", "pyarrow.parquet"):
            import_module(module)
        of_rows, of_tables = ("dml.keys", "dml.write"), ("spark_source.source", "tables.delta.table")
        for module in (*of_rows, *of_tables, "engine.parquet.writer", "engine.spark.wire"):
            import_module(f"dv_maintenance.{module}")
    gc.collect()
    gc.freeze()

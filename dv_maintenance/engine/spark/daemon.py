"""PySpark's daemon of Python workers for local sessions of ours: it imports what our tasks need before it forks any.

Otherwise each worker imports that again, and collects garbage among it after each task. Spark also puts archives on the
path of workers (pyspark.zip, py4j's, one of its jars). PySpark forgets Python's caches of the path before each task, so
each task would read the directories of all three, 6,700 names.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec

# By what they import, these bring the rest of what tasks use.
_MODULES = ("pyspark.worker", "dv_maintenance.engine.spark.wire", "dv_maintenance.dml.write")


def _without_archives() -> None:
    """Take PySpark from its package, if there is one."""
    path = [*sys.path]
    sys.path[:] = [place for place in path if not _is_archive(place)]
    if find_spec("pyspark") is None:
        sys.path[:] = path
        return
    for place in filter(_is_archive, [*sys.path_importer_cache]):
        del sys.path_importer_cache[place]


def _is_archive(place: str) -> bool:
    """Of Spark's own; those of users stay."""
    folder, name = os.path.split(place)
    ours = name == "pyspark.zip" or (name.startswith("py4j-") and name.endswith(".zip"))
    return ours or (name.endswith(".jar") and os.path.basename(folder) == "jars")


if __name__ == "__main__":
    _without_archives()
    for _module in _MODULES:
        with suppress(ImportError):  # the task that needs it says so
            import_module(_module)
    gc.collect()
    gc.freeze()
    import_module("pyspark.daemon").manager()

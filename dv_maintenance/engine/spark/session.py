"""A Spark session for users without one: local, quiet, bound to this machine, on the running interpreter."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dv_maintenance.engine.spark.connect import connect
from dv_maintenance.engine.spark.shared import completed, default_master, started_here
from dv_maintenance.engine.spark.start import ended_if_interrupted
from dv_maintenance.errors import MissingSoftwareError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA = 17
_LOCAL_TRIES = 3
_WORKER_PYTHON = "spark.sql.execution.pyspark.python"

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
_LOG_SETTINGS = os.path.join(os.path.dirname(__file__), "log4j2.properties")
# The optimizing compiler takes a quarter of a short session's CPU time, and pays off only for queries of many seconds:
# code has to run ten times as often as usual before it is compiled once more. Without that compiler such queries would
# take three times as long. A Java without these options ignores them.
_COMPILE_LATER = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": f'"-Dlog4j2.configurationFile={_LOG_SETTINGS}" {_COMPILE_LATER}',
}


def active_session() -> SparkSession | None:
    """The session already started by other code in this thread, or for a catalog, if any."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or started_here()


def start_session(master: str | None, conf: Mapping[str, str]) -> SparkSession:
    """Start a session; ``conf`` overrides the defaults. It also has what the catalogs of this process need.

    Raises
    ------
    MissingSoftwareError : Java is missing or too old; for Spark Connect, which needs no local Java, as ``connect``.
    UsageError : as ``connect``; as ``shared.completed``.
    """
    from pyspark.sql import SparkSession

    master = master or default_master()
    if master.startswith("sc://"):
        return connect(master, conf)
    require_java()
    builder: SparkSession.Builder = SparkSession.builder
    settings = {"spark.master": master, **_DEFAULTS}
    if master.startswith("local"):
        settings = local_settings(master)
        if "PYSPARK_PYTHON" not in os.environ and _WORKER_PYTHON not in conf:  # it has the package: it is this one
            settings["spark.python.daemon.module"] = "dv_maintenance.engine.spark.daemon"
    for key, value in {"spark.app.name": "dv-maintenance", **settings, **completed(conf)}.items():
        builder = builder.config(key, value)
    with worker_python(master), ended_if_interrupted():
        return builder.getOrCreate()


def local_settings(master: str) -> dict[str, str]:
    """Settings of local Spark: no web page, no port that other machines reach, a few attempts for each task, and a JVM
    for short sessions.

    master : ``local``, ``local[4]`` or ``local[*]``.
    """
    return {"spark.master": _retrying(master), **_DEFAULTS, **_LOCAL}


def _retrying(master: str) -> str:
    """Allow retries of tasks: local Spark makes only one attempt, but its pipe to a Python worker sometimes breaks."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    return f"local[{found[1] or 1},{_LOCAL_TRIES}]" if found else master


def java_version() -> int | None:
    """Major version of the Java that Spark would start, ``None`` without one."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not java or not os.access(java, os.X_OK):
        return None
    found = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
    number = re.search(r'version "(?:1\.)?(\d+)', found.stderr)
    return int(number[1]) if number else None


def require_java() -> None:
    """Raise MissingSoftwareError if Java is missing or too old."""
    version = java_version()
    if version is not None and version >= MIN_JAVA:
        return
    have = "no Java was found" if version is None else f"the Java found is version {version}"
    raise MissingSoftwareError(
        f"Spark needs Java {MIN_JAVA} or newer to start, but {have}",
        next_step=f"install it (Debian, Ubuntu: apt-get install openjdk-{MIN_JAVA}-jre-headless; macOS: brew install "
        f"openjdk@{MIN_JAVA}) and set JAVA_HOME, or choose the local engine for a small table",
    )


@contextmanager
def worker_python(master: str) -> Iterator[None]:
    """Local workers run this interpreter: PySpark would use the first python3 of the PATH, without our packages. A
    cluster has its own settings for Python.
    """
    if not master.startswith("local") or "PYSPARK_PYTHON" in os.environ:
        yield
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    try:
        yield
    finally:
        del os.environ["PYSPARK_PYTHON"]

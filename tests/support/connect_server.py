"""A Spark Connect server of our own, as a process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["connect_server"]

SERVER = """
import sys
from pyspark.sql import SparkSession

settings = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
builder = SparkSession.builder.master("local[2]")
for key, value in settings.items():
    builder = builder.config(key, value)
session = builder.getOrCreate()
service = getattr(session._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
print(getattr(service, "MODULE$").localPort(), flush=True)
sys.stdin.read()
session.stop()
"""


@contextmanager
def connect_server(home: Path, python: str | Path) -> Iterator[int]:
    """Its port on 127.0.0.1. ``python``: an interpreter with PySpark; workers run it too."""
    log = home / "log"
    with log.open("w") as errors:
        started = subprocess.Popen(
            [python, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=home,
            # Without what would lead its workers to this package.
            env={**os.environ, "PYSPARK_PYTHON": str(python), "PYTHONPATH": ""},
        )
        assert started.stdout is not None
        port = started.stdout.readline().strip()
        assert port, log.read_text()
        yield int(port)
        started.communicate("")

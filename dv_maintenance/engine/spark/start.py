"""The Java process of classic Spark, while it starts: it ends with a start that is interrupted.

PySpark waits for the new process to report its port in a temporary folder, and removes the folder when it is
interrupted. Java then fails to report, but its other threads keep it alive for good: it never comes to the point where
it watches whether Python still lives.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.RLock()


@contextmanager
def ended_if_interrupted() -> Iterator[None]:
    """To be entered before a session is started. If that fails or is interrupted before Java is connected, Java is
    killed. From then on Java ends by itself when this process does.
    """
    try:
        from pyspark import SparkContext, java_gateway
    except ImportError:  # a client of Spark Connect starts no Java
        yield
        return
    pyspark: Any = java_gateway
    begun: list[subprocess.Popen[bytes]] = []

    def popen(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        with _uninterrupted():
            begun.append(subprocess.Popen(*args, **kwargs))  # noqa: S603 (what PySpark starts)
        return begun[-1]

    with _lock:
        known, pyspark.Popen = pyspark.Popen, popen
        try:
            yield
        except BaseException:
            if SparkContext._gateway is None:  # noqa: SLF001 (there is no other way to know)
                for process in begun:
                    process.kill()
                    process.wait()
            raise
        finally:
            pyspark.Popen = known


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Handle signals afterwards: an exception in between would lose a process that runs already."""
    wanted = (signal.SIGINT, signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or None in map(signal.getsignal, wanted):
        yield  # handlers run in the main thread only, and those of other languages can't be set again
        return
    came: list[int] = []
    handlers = [(each, signal.signal(each, lambda number, _: came.append(number))) for each in wanted]
    try:
        yield
    finally:
        for each, handler in handlers:
            signal.signal(each, handler)
        for number in came:
            signal.raise_signal(number)

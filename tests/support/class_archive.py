"""Spark's classes, loaded and verified once for all JVMs that tests start (Java: class data sharing).

A JVM with Spark and delta-spark loads 20,000 classes, a quarter of the CPU time that its first statements take. The
first run of the whole suite writes them to an archive of 200 MB when its JVM ends, and later JVMs map it. A JVM starts
without the archive if it has another class path.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from support.places import ROOT

__all__ = ["keep", "mapped", "recording"]

_OPTIONS = "SPARK_SUBMIT_OPTS"


def _place() -> Path | None:
    """The archive of this Java and this Spark, which may not exist yet; ``None`` if one of the two is missing."""
    home, spark = os.environ.get("JAVA_HOME"), find_spec("pyspark")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None or spark is None or spark.origin is None:
        return None
    parts = [Path(java).resolve(), Path(spark.origin).with_name("jars")]
    known = [(str(part), part.stat().st_mtime_ns) for part in parts if part.exists()]
    return ROOT / ".cache" / f"spark-{sha256(repr(known).encode()).hexdigest()[:16]}.jsa"


def mapped() -> str:
    """Options of a JVM that shares the classes, if there is an archive."""
    place = _place()
    return f"-XX:SharedArchiveFile={place} -Xlog:cds*=off" if place is not None and place.exists() else ""


@contextmanager
def recording() -> Iterator[None]:
    """A JVM that is started inside writes the archive when it ends, unless there is one; see ``keep``."""
    place, before = _place(), os.environ.get(_OPTIONS, "")
    if place is not None and not place.exists():
        os.environ[_OPTIONS] = f"{before} -XX:ArchiveClassesAtExit={_unfinished(place)} -Xlog:cds*=off"
    try:
        yield
    finally:
        os.environ[_OPTIONS] = before


def keep() -> None:
    """To be called once that JVM has ended: others map no archive that is being written."""
    place = _place()
    if place is not None and _unfinished(place).exists():
        _unfinished(place).replace(place)


def _unfinished(place: Path) -> Path:
    return place.with_suffix(f".{os.getpid()}")

"""Processes by a text in their environment, which every process passes on to those that it starts."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

__all__ = ["java_with", "slow_java"]


def java_with(mark: str) -> list[int]:
    """Processes of Java, or on their way to it, whose environment has the text; see :func:`slow_java`."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("this system does not show the environment of processes")
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (folder / "cmdline").read_bytes()
            if mark.encode() in (folder / "environ").read_bytes() and any(
                each in command for each in (b"java", b"spark", b"sleep")
            ):
                found.append(int(folder.name))
    return found


def slow_java(folder: Path, seconds: int) -> str:
    """A JAVA_HOME whose Java takes its time to start Spark, as on a busy machine; everything else is the real one's."""
    real = shutil.which("java", path=f"{os.environ['JAVA_HOME']}/bin" if "JAVA_HOME" in os.environ else None)
    assert real is not None
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f'#!/bin/bash\n[[ "$*" == *org.apache.spark.deploy.SparkSubmit* ]] && sleep {seconds}\nexec {real} "$@"\n'
    )
    java.chmod(0o755)
    return str(folder)

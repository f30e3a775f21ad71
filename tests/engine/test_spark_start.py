"""A start of Spark that is interrupted leaves no Java process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from support.dagster_deployment import eventually
from support.process_marks import java_with, slow_java

from dv_maintenance.engine.spark import start

pyspark = pytest.importorskip("pyspark")

START = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from dv_maintenance.engine.spark.session import start_session\n"
    "start_session('local[1]', {})\n"
)


@pytest.mark.jvm
def test_an_interrupted_start_leaves_no_java(tmp_path: Path) -> None:
    mark = f"DVM_MARK={uuid4()}"
    name, _, value = mark.partition("=")
    process = subprocess.Popen(
        [sys.executable, "-c", START],
        cwd=tmp_path,
        env={**os.environ, name: value, "JAVA_HOME": slow_java(tmp_path / "java", 2)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    eventually("Java is about to start", lambda: java_with(mark) or process.poll(), every=0.02)
    process.send_signal(signal.SIGINT)
    process.wait(60)
    try:
        eventually("Java is gone", lambda: not java_with(mark), seconds=15)
    finally:
        for left in java_with(mark):
            os.kill(left, signal.SIGKILL)


@pytest.fixture
def python_handles_sigint() -> Iterator[None]:
    """A library may have put a handler of its own in its place."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    if before is not None:
        signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_handles_sigint")
def test_a_process_is_known_before_a_signal_is_handled() -> None:
    """PySpark has its process in no variable yet when the handler raises."""
    seen: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        with start._uninterrupted():
            signal.raise_signal(signal.SIGINT)
            seen.append("it goes on")
        seen.append("too late")
    assert seen == ["it goes on"]


def test_java_is_ended_only_if_it_was_not_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkContext, java_gateway

    known = java_gateway.Popen
    for gateway, ended in ((None, True), (object(), False)):
        monkeypatch.setattr(SparkContext, "_gateway", gateway)
        process = None
        with pytest.raises(KeyboardInterrupt), start.ended_if_interrupted():
            process = java_gateway.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
            raise KeyboardInterrupt
        assert process is not None
        assert (process.poll() is not None) is ended
        process.communicate()
        assert java_gateway.Popen is known

"""What crosses to a worker and back, and the local engine, which has no such border."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dv_maintenance import errors
from dv_maintenance.engine import ENGINES, get_engine, slots_of
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.pool import OutOfTimeError, run_all, stopped_at
from dv_maintenance.engine.spark import SparkEngine, wire
from dv_maintenance.engine.spark.failures import failure_of
from dv_maintenance.engine.spark.session import java_version, local_settings, start_session
from dv_maintenance.errors import DamagedDeletionVectorError, DamagedTableError, DvMaintenanceError, RefusedError
from dv_maintenance.testing.memory_engine import MemoryEngine

TABLE = pa.table({"id": range(100)})


def outcomes(*tasks: Any) -> list[tuple[int, Any]]:
    """What a worker makes of a bundle."""
    [answer] = wire.run_bundles(wire.specs_of(dict(enumerate(tasks, 7))).to_batches(), {})
    [row] = answer.to_pylist()
    return list(wire.outcomes_of(row["outcomes"]))


def test_specs_become_results(lake: Any) -> None:
    tasks = [lake.task([lake.write(TABLE)], TABLE.schema, id=name) for name in ("a", "b")]
    assert [(number, result.task_id) for number, result in outcomes(*tasks)] == [(7, "a"), (8, "b")]


def test_an_unforeseen_error_costs_a_bundle_only_its_task(lake: Any) -> None:
    """Alone, it is Spark's to retry."""
    good = lake.task([lake.write(TABLE)], TABLE.schema, id="good")
    bad = replace(good, id="bad", target_bytes="not a number")
    assert [(number, result and result.task_id) for number, result in outcomes(good, bad, good)] == [
        (7, "good"),
        (8, None),
        (9, "good"),
    ]
    with pytest.raises(TypeError):
        outcomes(bad)


def test_a_bundle_ends_with_the_first_error(lake: Any) -> None:
    good = lake.task([lake.write(TABLE)], TABLE.schema)
    bad = replace(good, scan=replace(good.scan, sources=(replace(good.scan.sources[0], rows=1),)))
    done = []
    with pytest.raises(DamagedTableError):
        done += wire.outcomes_of(
            next(iter(wire.run_bundles(wire.specs_of({0: good, 1: bad, 2: good}).to_batches(), {})))["outcomes"][
                0
            ].as_py()
        )
    assert len(lake.outputs()) == 1


def test_a_bundle_that_takes_longer_than_estimated_leaves_the_rest(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_PATIENCE_SECONDS", 0)
    good = lake.task([lake.write(TABLE)], TABLE.schema)
    assert [number for number, _ in outcomes(good, good, good)] == [7]


@pytest.mark.parametrize(
    "error",
    [
        RefusedError("no", table="t", version=3, done="half", next_step="wait"),
        errors.UnsupportedFeatureError("no", features=("a", "b")),
        DamagedDeletionVectorError("bad magic", file="f", offset=7),
        errors.TableNotFoundError("gone"),
        errors.ConflictError("lost"),
        type("Private", (DamagedTableError,), {})("of a module that the driver may not have"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_come_back_as_what_they_were(
    error: DvMaintenanceError, monkeypatch: pytest.MonkeyPatch, lake: Any
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(wire, "rewrite_retrying", fail)
    with pytest.raises(DvMaintenanceError) as caught:
        outcomes(lake.task([], TABLE.schema))
    known = DamagedTableError if type(error).__name__ == "Private" else type(error)
    assert type(caught.value) is known
    assert str(caught.value) == str(error)
    assert json.dumps(caught.value.to_json()) == json.dumps({**error.to_json(), "error": known.__name__})


def test_the_cause_of_a_stack_trace_is_one_line() -> None:
    trace = (
        "An exception was thrown from the Python worker. Please see the stack trace below.\n"
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1, in <module>\n'
        "ValueError: first\n\nDuring handling of the above exception, another exception occurred:\n\n"
        '  File "x.py", line 2, in <module>\n'
        "pyarrow.lib.ArrowMemoryError: malloc of size 5 failed\n\n SQLSTATE: 38000"
    )
    assert failure_of(trace).message.endswith(": pyarrow.lib.ArrowMemoryError: malloc of size 5 failed")
    assert failure_of("Job 3 cancelled\nmore").message.endswith(": Job 3 cancelled")


# -- the local engine --------------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_the_tasks(lake: Any) -> None:
    source = lake.write(TABLE)
    tasks = [lake.task([source] * (9 - i), TABLE.schema, id=str(i)) for i in range(9)]
    done: list[str] = []
    results = LocalEngine(threads=3).run(tasks, on_done=lambda result: done.append(result.task_id))
    assert [result.task_id for result in results] == [str(i) for i in range(9)]
    assert sorted(done) == [result.task_id for result in results]
    assert LocalEngine().run([]) == []


def test_the_first_error_ends_a_local_run(lake: Any) -> None:
    source = lake.write(TABLE)
    bad = lake.task([replace(source, rows=1)], TABLE.schema, id="bad")
    good = [lake.task([source], TABLE.schema, id=str(i)) for i in range(50)]
    done: list[Any] = []
    with pytest.raises(DamagedTableError):
        LocalEngine(threads=1).run([good[0], bad, *good[1:]], on_done=done.append)
    # Not all were begun, and every file was reported.
    assert len(done) == len(lake.outputs()) < 50


def test_what_finished_before_an_error_is_still_reported() -> None:
    begun = threading.Event()

    def run_one(job: Any) -> Any:
        if job == "bad":
            begun.wait(10)
            yield 0, "before the error"
            raise RefusedError("bad")
        begun.set()
        stopped.wait(10)
        yield 1, job

    stopped = threading.Event()
    done: list[Any] = []
    with pytest.raises(RefusedError):
        run_all(["slow", "bad", "never"], run_one, at_once=2, on_done=done.append, stop=stopped.set)
    assert done == ["before the error", "slow"]


def test_results_are_reported_while_their_job_still_runs() -> None:
    seen = threading.Event()

    def run_one(job: Any) -> Any:
        yield 1, "second"
        assert seen.wait(10)
        yield 0, "first"

    assert run_all(["job"], run_one, at_once=1, on_done=lambda _: seen.set()) == ["first", "second"]


def test_the_end_of_the_time_stops_what_runs_and_what_is_about_to() -> None:
    stops: list[float] = []

    def run_one(job: Any) -> Any:
        # The first call comes too early for it, as for a query that Spark is still planning.
        while len(stops) < 2:
            time.sleep(0.01)
        raise RefusedError("cancelled")
        yield

    with pytest.raises(OutOfTimeError), stopped_at(time.monotonic() + 0.05):
        run_all(["a", "b"], run_one, at_once=1, on_done=None, stop=lambda: stops.append(1))
    assert len(stops) == 2
    assert run_all(["a"], lambda job: [(0, job)], at_once=1, on_done=None) == ["a"]


def test_a_signal_loses_no_result() -> None:
    """One that ends this thread after a result was taken from the queue and before it was noted: its file stayed."""
    noted: list[Any] = []
    signals = iter([SystemExit("killed")])

    def on_done(result: Any) -> None:
        for signal in signals:
            raise signal
        noted.append(result)

    with pytest.raises(SystemExit):
        run_all(["a"], lambda job: [(0, job)], at_once=1, on_done=on_done)
    assert noted == ["a"]


def test_an_error_of_the_caller_ends_a_run_too() -> None:
    done: list[Any] = []

    def report(result: Any) -> None:
        done.append(result)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(list(range(50)), lambda job: [(job, job)], at_once=1, on_done=report)
    assert done


def test_engines_have_names() -> None:
    assert [get_engine(name).name for name in ENGINES] == list(ENGINES)
    with pytest.raises(errors.UsageError, match="unknown engine 'flink'"):
        get_engine("flink")


# -- Java --------------------------------------------------------------------------------------------------------


def fake_java(home: Path, version: str) -> None:
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    java.chmod(0o755)


@pytest.mark.parametrize(("version", "major"), [("1.8.0_402", 8), ("11.0.2", 11), ("17", 17), ("21.0.1", 21)])
def test_java_tells_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, major: int) -> None:
    fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_version() == major
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    assert java_version() == major


@pytest.mark.parametrize(("version", "have"), [(None, "no Java was found"), ("11.0.2", "the Java found is version 11")])
def test_without_java_spark_is_refused_and_the_way_out_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, have: str
) -> None:
    if version:
        fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(RefusedError, match=have) as caught:
        start_session("local[1]", {})
    assert "apt-get install openjdk-17-jre-headless" in str(caught.value)
    assert "PYSPARK_PYTHON" not in os.environ or os.environ["PYSPARK_PYTHON"]


class ConnectSession:
    @property
    def sparkContext(self) -> Any:  # noqa: N802
        from pyspark.errors import PySparkAttributeError

        raise PySparkAttributeError("[JVM_ATTRIBUTE_NOT_SUPPORTED] sparkContext")


def test_how_many_tasks_run_at_the_same_time() -> None:
    """Asking starts no JVM."""
    assert slots_of(LocalEngine(threads=3)) == 3
    assert slots_of(SparkEngine(master="local[3]")) == 3
    assert slots_of(SparkEngine(master="local[3,2]")) == 3
    assert 1 <= (slots_of(SparkEngine()) or 0) <= (os.cpu_count() or 1)
    assert slots_of(SparkEngine(master="spark://host:7077")) is None
    session: Any = ConnectSession()
    assert slots_of(SparkEngine(session)) is None
    assert slots_of(MemoryEngine()) is None


@pytest.mark.skipif(java_version() is None, reason="there is no Java")
def test_java_knows_the_options_of_local_sessions() -> None:
    """It would ignore an option that it does not know, and take the time."""
    options = shlex.split(local_settings("local[2]")["spark.driver.extraJavaOptions"])
    ours = [option for option in options if option.startswith("-XX:") and "Ignore" not in option]
    assert len(ours) == 4
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    subprocess.run([java, *ours, "-version"], check=True, capture_output=True)

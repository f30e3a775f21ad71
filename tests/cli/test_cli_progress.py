"""The line of progress: one line on a terminal, whole lines elsewhere, and no noise of the JVM in it."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import textwrap
import time

import pytest

from dv_maintenance.cli import progress as module
from dv_maintenance.cli.progress import Progress
from dv_maintenance.cli.terminal import Terminal

NOISE = (
    "WARNING: Using incubator modules: jdk.incubator.vector",
    'Setting default log level to "WARN".',
    "To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).",
    'Setting Spark log level to "ERROR".',
    "WARNING: A terminally deprecated method in sun.misc.Unsafe has been called",
    "WARNING: Please consider reporting this to the maintainers of class io.netty.util.internal.PlatformDependent0",
)
ERRORS = (
    "10:14:03 ERROR Executor: Exception in task 0.0 in stage 0.0 (TID 0)",
    "java.lang.OutOfMemoryError: Java heap space",
    "WARNING: something else",
)
# Prints as a JVM does, from another process, while progress is shown.
COMMAND = """
import subprocess, sys, time
from dv_maintenance.cli import progress
from dv_maintenance.cli.output import Output
progress._SECONDS_ON_TERMINAL = progress._SECONDS_IN_LOG = 0.02
out = Output(sys.stdout, json=False)
out.hide(["s3cr3t-value"])
out.verbose = {verbose}
with out.progress("purging") as line:
    line(1, 4)
    time.sleep(0.1)
    subprocess.run(["sh", "-c", 'printf "%s\\n" "$@" >&2', "-", *{lines!r}], check=True)
    print("from Python, s3cr3t-value", file=sys.stderr)
    line(4, 4)
    time.sleep(0.1)
out.text("the result")
"""


def run(*, verbose: bool = False, terminal: bool = False) -> tuple[str, str]:
    """stdout and stderr of a command."""
    code = textwrap.dedent(COMMAND).format(lines=[*NOISE, *ERRORS], verbose=verbose)
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    if not terminal:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
        return done.stdout, done.stderr
    ours, theirs = os.openpty()
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment, check=True
    )
    os.close(theirs)
    found = b""
    try:
        while chunk := os.read(ours, 65536):
            found += chunk
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return done.stdout, found.decode().replace("\r\n", "\n")


def test_a_terminal_shows_one_line_and_errors_above_it() -> None:
    stdout, stderr = run(terminal=True)
    assert stdout == "the result\n"
    assert not any(line in stderr for line in NOISE)
    lines = [re.split(r"\r\x1b\[2K", line)[-1] for line in stderr.split("\n")]
    assert lines == [*ERRORS, "from Python, ***", ""], "each line of others is whole, and nothing of ours remains"
    assert "purging  [#####...............]  1/4 rewrites  0:00" in stderr
    assert "purging  [####################]  4/4 rewrites  committing  0:00" in stderr


def test_elsewhere_there_are_lines_without_control_characters() -> None:
    _, stderr = run()
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", stderr)
    lines = stderr.splitlines()
    assert "purging: 1 of 4 rewrites done, 0:00" in lines
    assert "purging: 4 of 4 rewrites done, committing, 0:00" in lines
    assert [line for line in lines if not line.startswith("purging")] == [*ERRORS, "from Python, ***"]


def test_verbose_shows_what_the_start_of_spark_prints() -> None:
    _, stderr = run(verbose=True)
    assert set(NOISE) <= set(stderr.splitlines())


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_that_is_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    terminal = Terminal()
    terminal.stream = Screen()
    terminal.show("0123456789abc")
    terminal.line("above")
    terminal.show("")
    assert terminal.stream.getvalue() == "012345678\r\x1b[2Kabove\n012345678\r\x1b[2K"


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    terminal.stream = Screen()
    monkeypatch.setenv("TERM", "xterm")
    assert terminal.live
    monkeypatch.setenv("TERM", "dumb")
    assert not terminal.live


def test_the_line_has_rows_and_time_inside_a_long_task() -> None:
    now = [0.0]
    line = Progress("rewriting", clock=lambda: now[0])
    line(0, 1)
    line.rows = lambda: 31_250_000
    now[0] = 4000
    assert line.sentence() == "rewriting: 0 of 1 rewrites done, 31,250,000 rows read, 1:06:40"
    assert line.bar() == "rewriting  [....................]  0/1 rewrites  31,250,000 rows read  1:06:40"


def test_a_log_gets_a_line_every_ten_seconds() -> None:
    assert module._SECONDS_IN_LOG == 10


def test_nothing_is_shown_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(module, "_SECONDS_ON_TERMINAL", 0.01)
    terminal = Terminal()
    terminal.stream = Screen()

    def fail() -> None:
        with Progress("purging").shown(terminal):
            while "purging" not in terminal.stream.getvalue():
                time.sleep(0.01)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    shown = terminal.stream.getvalue()
    assert shown.endswith("\r\x1b[2K")

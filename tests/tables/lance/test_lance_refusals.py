"""What is not done to Lance tables is refused with a way out, and leaves them as they are."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from dv_maintenance.cli import main


@pytest.mark.parametrize(
    "line",
    [
        "checkpoint",
        "downgrade",
        "zorder --columns id",
        "restore --version 1",
        "changes --from 1",
    ],
)
def test_refused(line: str, golden_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    place = golden_copy("lance/array_small")
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    verb, *options = shlex.split(line)
    assert main([verb, str(place), *options]) == 3
    assert "lance" in capsys.readouterr().err.lower()
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before


@pytest.mark.usefixtures("spark")  # the session that they use
@pytest.mark.parametrize("line", ["engine-sql purge", "update --set id=1"])
def test_refused_on_spark(line: str, golden_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    test_refused(line, golden_copy, capsys)


def test_shown_as_well(golden_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    place = str(golden_copy("lance/array_small"))
    assert main(["health", place]) == 0
    assert "11.10%" in capsys.readouterr().out
    assert main(["history", place]) == 0
    assert "Overwrite" in capsys.readouterr().out

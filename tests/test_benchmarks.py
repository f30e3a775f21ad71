"""The comparison with peers works, and the page shows what its last run measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def test_the_page_shows_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from peers import page, plot  # type: ignore[import-not-found]

    found = json.loads(page.RESULTS.read_text())
    for place, table in ((page.PAGE, page.summary(found)), (page.LAB_BOOK, page.rendered(found))):
        text = place.read_text()
        assert page.BEGIN in text
        assert page.with_results(text, table) == text
        assert f"images/{page.PICTURE.name})" in text
    assert page.PICTURE.read_text() == plot.svg(found)


def test_both_sides_run(tmp_path: Path) -> None:
    """Two cases on small tables, one of them warm: the whole harness."""
    found = tmp_path / "found.json"
    command = [sys.executable, str(BENCHMARKS / "bench_peers.py"), "--quick", "--json", str(found)]
    command += ["--only", "random", "--only", "scan-10"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert said.startswith("purge, 30 % at random")
    random, scan = json.loads(found.read_text())["cases"]
    assert random["ratio"]["least"] <= random["ratio"]["wall"] <= random["ratio"]["greatest"]
    assert all(random[side][key] > 0 for side in ("ours", "theirs") for key in ("wall", "cpu", "peak"))
    # Imports are done before the work of a warm side is measured.
    assert scan["ours"]["wall"] < random["ours"]["wall"]


@pytest.mark.deep
def test_purges_in_an_object_store(tmp_path: Path) -> None:
    """Ours and deltalake's both commit to the server that answers late, and ours copies row groups there."""
    found = tmp_path / "found.json"
    command = [sys.executable, str(BENCHMARKS / "bench_store.py"), "--quick", "--json", str(found)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.startswith("30 % at random")
    for case in json.loads(found.read_text()):
        assert case["least"] == case["greatest"] > 0
        # Of 16 or 4 sources each: its size, footer, deletion vector and row groups, and the log.
        assert case["ours"]["requests"] <= case["deltalake"]["requests"] * 1.1


@pytest.mark.deep
def test_writers_beside_compactions(tmp_path: Path) -> None:
    """Lance's writers lose no row, whoever compacts, and end with their account."""
    found = tmp_path / "found.json"
    command = [sys.executable, str(BENCHMARKS / "bench_aborts.py"), "lance", "--quick", "--json", str(found)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.startswith("lance: ")
    lanes = json.loads(found.read_text())["lance"]
    assert list(lanes) == ["none", "ours", "theirs"]
    assert all(lane["statements"] > 0 and not any(lane["rows"].values()) for lane in lanes.values())
    assert lanes["none"]["aborted"] == 0
    assert not lanes["none"]["compactions"]
    assert lanes["ours"]["compactions"]["commits"] > 0

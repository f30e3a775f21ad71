"""The command line: reports, reads, and refusals that name an alternative and change nothing."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dv_maintenance.cli import main


@pytest.mark.parametrize(
    "line",
    [
        "manifest",
        "checkpoint",
        "downgrade",
        "zorder --columns id",
        "restore --version 1",
        "changes --from 1",
        "rename-manifests",
    ],
)
def test_refused(line: str, golden_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    place = golden_copy("paimon/append_dv/table")
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    verb, *options = shlex.split(line)
    assert main([verb, str(place), *options]) == 3
    assert "paimon" in capsys.readouterr().err.lower()
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before


@pytest.mark.usefixtures("spark")  # the session that they use
@pytest.mark.parametrize("line", ["engine-sql purge", "update --set id=1"])
def test_refused_on_spark(line: str, golden_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    test_refused(line, golden_copy, capsys)


def test_health(golden_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    place = str(golden_copy("paimon/append_dv_part/table"))
    assert main(["health", place, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["format"], found["version"], found["live_rows"], found["files_with_dv"]) == ("paimon", 5, 216, 6)
    assert [each["partition"] for each in found["partitions"]] == [{"pt": "a"}, {"pt": "b"}]
    assert main(["health", place, "--format", "paimon", "--version", "3"]) == 0
    assert main(["health", place, "--version", "9"]) == 2
    assert "snapshots 1 to 5 exist" in capsys.readouterr().err


def test_history_and_read(golden_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    place = golden_copy("paimon/append_dv_part/table")
    assert main(["history", str(place)]) == 0
    assert "COMPACT" in capsys.readouterr().out
    output = place.parent / "rows.jsonl"
    assert main(["read", str(place), "-o", str(output)]) == 0
    assert len(output.read_text().splitlines()) == 216


def test_damaged(golden_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    place = golden_copy("paimon/append_dv/table")
    (place / "snapshot" / "snapshot-7").write_bytes(b"{")
    assert main(["health", str(place), "--json"]) == 5
    assert json.loads(capsys.readouterr().out)["error"] == "DamagedTableError"


def test_health_loads_no_heavy_modules(golden: Path) -> None:
    place = golden / "paimon" / "append_dv_part" / "table"
    code = f"""
import sys
from dv_maintenance.files.avro import columns
from dv_maintenance.tables import open_table
columns._WORTH_IT = 0  # manifests are read by columns, as large ones are
table = open_table({str(place)!r})
assert table.version() == 5
assert "fastavro" not in sys.modules
assert table.snapshot().files.num_rows == 6
assert not {{"pandas", "pyspark", "pypaimon", "dagster"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)

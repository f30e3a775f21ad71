"""The demo, small and without Spark: table, Dagster job in its own process and instance, comparison."""

from __future__ import annotations

import json
from pathlib import Path

import dagster as dg
import pytest

from dv_maintenance import cli


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a demo"
    argv = ["demo", "--rows", "6000", "--dir", str(folder), "--engine", "local"]
    assert cli.main([*argv, "--json"]) == 0
    out, err = capsys.readouterr()
    body = json.loads(out)
    before, after = body["before"], body["after"]
    assert (before["files_with_dv"], after["files_with_dv"]) == (24, 0)
    assert (before["rows"], before["content"]) == (after["rows"], after["content"])
    assert after["disk_bytes"] < before["disk_bytes"]
    assert list(Path(body["manifests"]).rglob("manifest"))
    assert "3/3" in err
    with dg.DagsterInstance.from_config(str(folder / "dagster")) as instance:
        (run,) = instance.get_runs()
    assert run.is_success
    assert run.job_name == "dv_maintenance"


def test_demo_replaces_nothing_but_a_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious").write_text("data")
    assert cli.main(["demo", "--dir", str(tmp_path), "--json"]) == 3
    assert "not empty" in json.loads(capsys.readouterr().out)["message"]
    assert (tmp_path / "precious").read_text() == "data"
    assert cli.main(["demo", "--rows", "1", "--dir", str(tmp_path)]) == 2

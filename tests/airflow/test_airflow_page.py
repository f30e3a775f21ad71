"""Airflow's page in a browser: the launch dialog, and a backfill."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.places import ROOT


@pytest.mark.deep
def test_a_dry_run_and_a_backfill_from_the_page(airflow_environment: Path, tmp_path: Path) -> None:
    """The script that takes the pictures fails if a run did anything else than what the page asked for."""
    pytest.importorskip("playwright", reason="uv sync --group screenshots")
    script = ROOT / "scripts" / "airflow_pictures"
    done = subprocess.run(
        [sys.executable, script, "--images", tmp_path], capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert {each.name for each in tmp_path.glob("*.png")} == {
        "airflow-dialog.png",
        "airflow-backfill.png",
        "airflow-backfill-done.png",
    }

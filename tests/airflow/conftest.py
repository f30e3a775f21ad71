"""Airflow's own environment; what runs in it is a process of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.airflow_stack import Airflow, without_airflow
from support.places import ROOT

Script = Callable[[str], str]


@pytest.fixture
def in_airflow(airflow_environment: Path, tmp_path: Path) -> Script:
    """Runs Python in Airflow's environment, without a database; what it prints."""

    def run(text: str) -> str:
        env = without_airflow(os.environ)
        env |= {"PYTHONPATH": str(ROOT)}  # not the checkout that the environment was made for
        env |= {"AIRFLOW_HOME": str(tmp_path / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
        done = subprocess.run(
            [airflow_environment / "bin" / "python", "-W", "ignore", "-c", text],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
        return done.stdout

    return run


@pytest.fixture(scope="module")
def airflow(airflow_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """A scheduler, triggerer, DAG processor and API server."""
    with Airflow(tmp_path_factory.mktemp("stack")) as made:
        made.start()
        yield made

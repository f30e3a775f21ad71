"""Airflow's own environment; what runs in it is a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.airflow_stack import Airflow, without_airflow
from support.places import ROOT

Script = Callable[[str], str]


# It takes seconds to import Airflow: once for all scripts, each of which runs in a fork.
_SERVER = """
import json, os, sys, traceback
import dv_maintenance.airflow.dags, dv_maintenance.airflow.sensor
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if not child:
        code = 1
        try:
            os.chdir(asked["cwd"])
            for number, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            exec(compile(asked["text"], "<script>", "exec"), {"__name__": "__main__"})
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="session")
def airflow_server(
    airflow_environment: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[subprocess.Popen[str]]:
    env = without_airflow(os.environ)
    env |= {"PYTHONPATH": str(ROOT)}  # not the checkout that the environment was made for
    env |= {"AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow")), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    with subprocess.Popen(
        [airflow_environment / "bin" / "python", "-W", "ignore", "-c", _SERVER],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        yield server
        assert server.stdin is not None
        server.stdin.close()


@pytest.fixture
def in_airflow(airflow_server: subprocess.Popen[str], tmp_path: Path) -> Script:
    """Runs Python in Airflow's environment, without a database; what it prints."""
    asked, answers = airflow_server.stdin, airflow_server.stdout
    assert asked is not None
    assert answers is not None

    def run(text: str) -> str:
        out, err = tmp_path / "script.out", tmp_path / "script.err"
        asked.write(json.dumps({"text": text, "cwd": str(tmp_path), "out": str(out), "err": str(err)}) + "\n")
        asked.flush()
        assert answers.readline() == "0\n", out.read_text()[-1000:] + err.read_text()[-4000:]
        return out.read_text()

    return run


@pytest.fixture(scope="module")
def airflow(airflow_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """A scheduler, triggerer, DAG processor and API server."""
    with Airflow(tmp_path_factory.mktemp("stack")) as made:
        made.start()
        yield made

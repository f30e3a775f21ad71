"""The tools as a user has them, in processes of their own: ``dg`` on a fresh project, both tools on this repository.

Each call takes seconds, so the tests are few and each walks a user's whole way.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from packaging.version import Version
from support.places import ROOT

from dv_maintenance.testing.delta_builder import DeltaBuilder

pytestmark = pytest.mark.processes

Run = Callable[..., str]
COMPONENT = "dv_maintenance.DvMaintainedTablesComponent"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a tool of this environment; it has to succeed, and to warn of nothing that is ours to mend."""
    tools = Path(sys.executable).parent
    home = tmp_path / "home"
    home.mkdir()
    environment = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "HOME": str(home), "DAGSTER_HOME": str(home)}

    def call(tool: str, *words: str, cwd: Path, **more: str) -> str:
        done = subprocess.run(
            [tools / tool, *words],
            cwd=cwd,
            env={**environment, "DAGSTER_DISABLE_TELEMETRY": "yes", **more},
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        assert [line for line in said.splitlines() if "Warning: " in line and is_ours(line)] == []
        return done.stdout

    return call


def is_ours(warning: str) -> bool:
    """``FILE:LINE: CATEGORY: TEXT``, where the file is the one that uses what is warned of."""
    file, _, text = warning.partition(": ")
    places = (str(ROOT / "dv_maintenance"), str(ROOT / "sensors"))
    # A component of dagster-spark that is installed with us is ours to keep off the screen, too.
    return file.startswith(places) or any(
        word in text for word in ("dv_maintenance", "DvMaintainedTablesComponent", "PreviewWarning")
    )


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.deep)], ids=["short", "whole"])
def test_a_fresh_project(run: Run, tmp_path: Path, whole: bool) -> None:
    """``dg`` finds the component through the entry point alone, and scaffolds it; the whole of it also lists, explains
    and checks the component. In short, test_dagster_component.py loads what is scaffolded, and test_docs.py checks a
    project.
    """
    project = tmp_path / "project"
    package = project / "src" / "lakehouse"
    (package / "defs").mkdir(parents=True)
    for module in (package, package / "defs"):
        (module / "__init__.py").touch()
    (package / "definitions.py").write_text(
        "import pathlib\nimport dagster as dg\n\n@dg.definitions\ndef defs():\n"
        "    return dg.load_from_defs_folder(project_root=pathlib.Path(__file__).parents[2])\n"
    )
    (project / "pyproject.toml").write_text(
        '[project]\nname = "lakehouse"\nversion = "0"\n[tool.dg]\ndirectory_type = "project"\n'
        '[tool.dg.project]\nroot_module = "lakehouse"\n'
    )

    def dg(*words: str) -> str:
        return run("dg", *words, cwd=project, PYTHONPATH=str(package.parent))

    if whole:
        assert COMPONENT in dg("list", "components")
        schema = json.loads(dg("utils", "inspect-component", COMPONENT).partition("Component schema:")[2])
        assert {"tables", "folders", "defaults", "spark"} <= schema["properties"].keys()
    dg("scaffold", "defs", COMPONENT, "lake")
    written = package / "defs" / "lake" / "defs.yaml"
    body = yaml.safe_load(written.read_text())
    if not whole:
        return
    # Sizes and durations are text to a reader of the schema, too.
    body["attributes"]["defaults"]["policy"] |= {
        "target_file_size": "512MiB",
        "retention": "168h",
        "partitions": ["a=1"],
    }
    written.write_text(yaml.safe_dump(body))
    # It checks the YAML files first.
    assert re.search(r"(?s)YAML.*valid.*loaded successfully", dg("check", "defs"))
    if Version(version("dagster")) >= Version("1.12"):
        # What a refresh found outlives the folder.
        table = tmp_path / "tables" / "orders"
        DeltaBuilder(str(table)).create(pa.schema([("id", pa.int64())]))
        folders = {"folders": [{"path": str(table.parent)}], "spark": {"engine": "local"}}
        written.write_text(yaml.safe_dump({"type": COMPONENT, "attributes": folders}))
        dg("utils", "refresh-defs-state")
        table.rename(tmp_path / "gone")
        assert "orders_optimize" in dg("list", "defs", "--json")


@pytest.mark.deep
@pytest.mark.skipif(Version(version("dagster")) < Version("1.13"), reason="dg wants a folder defs in every project")
def test_this_repository_by_dg(run: Run) -> None:
    assert "loaded successfully" in run("dg", "check", "defs", cwd=ROOT)


def test_this_repositorys_workspace(run: Run) -> None:
    run("dagster", "definitions", "validate", "-w", "workspace.yaml", cwd=ROOT)

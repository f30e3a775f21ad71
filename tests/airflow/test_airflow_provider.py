"""What Airflow finds of the provider, without Airflow: the entry point, its modules, and what is missing."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import entry_points

from support.places import ROOT

from dv_maintenance.airflow.provider import provider_info


def test_the_entry_point_is_the_provider() -> None:
    (entry,) = entry_points(group="apache_airflow_provider", name="provider_info")
    assert entry.load() is provider_info


def test_what_it_names_exists() -> None:
    info = provider_info()
    (connection,) = info["connection-types"]
    (plugin,) = entry_points(group="airflow.plugins", name="dv_maintenance")
    named = [connection["hook-class-name"], *info["extra-links"], f"{plugin.module}.{plugin.attr}"]
    modules = [
        module
        for kind in ("operators", "sensors", "hooks", "triggers")
        for entry in info[kind]
        for module in entry["python-modules"]
    ]
    for module, _, name in [*(path.rpartition(".") for path in named), *((module, "", "") for module in modules)]:
        source = ROOT / f"{module.replace('.', '/')}.py"
        classes = {node.name for node in ast.parse(source.read_text()).body if isinstance(node, ast.ClassDef)}
        assert not name or name in classes


def test_airflow_says_which_extra_it_needs() -> None:
    script = (
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'airflow' else real(name, package)\n"
        "import dv_maintenance.airflow\n"
        "try:\n    dv_maintenance.airflow.DvTrigger\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "pip install 'dv-maintenance[airflow]'" in done.stdout, done.stderr

"""The line between public and private: docs/reference/api.md names it, imports keep it, types survive it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module

import pytest
from support.places import ROOT

PAGE = ROOT / "docs" / "reference" / "api.md"


def public() -> dict[str, set[str]]:
    """Module -> names, as the page's table has them."""
    rows = re.findall(r"^\| `(dv_maintenance[\w.]*)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    return {module: set(re.findall(r"`(\w+)`", names)) for module, names in rows}


# tests/airflow loads its names, in Airflow's environment.
@pytest.mark.parametrize("module", sorted(public().keys() - {"dv_maintenance.airflow"}))
def test_public_names_exist(module: str) -> None:
    loaded = import_module(module)
    missing = {name for name in public()[module] if not hasattr(loaded, name)}
    assert not missing


@pytest.mark.parametrize(
    "module",
    [
        "dv_maintenance",
        "dv_maintenance.airflow",
        "dv_maintenance.dagster",
        "dv_maintenance.errors",
        "dv_maintenance.formats",
    ],
)
def test_public_modules_export_what_the_page_lists(module: str) -> None:
    assert set(import_module(module).__all__) == public()[module]


def test_below_the_public_modules_only_reexports_are_listed() -> None:
    """There an underscore marks what a module keeps to itself, and a list would only repeat the others."""
    listed_by_us = public().keys()
    for path in sorted((ROOT / "dv_maintenance").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if module in listed_by_us or "__all__" not in (text := path.read_text()):
            continue
        tree = ast.parse(text)
        lists = [
            node.value for node in tree.body if isinstance(node, ast.Assign) and _named(node.targets[0], "__all__")
        ]
        if not lists:
            continue
        imported = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert imported & set(ast.literal_eval(lists[0])), f"{module} exports only its own names: take its __all__ out"


def _named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def test_documentation_imports_public_names_only() -> None:
    """What a user copies from a page must be what a release keeps."""
    allowed = public()
    found = 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dv_maintenance"):
                    found += 1
                    private = {alias.name for alias in node.names} - allowed.get(node.module or "", set())
                    assert not private, f"{page.name}: {node.module} {private}"
    assert found > 10


def test_the_example_location_imports_public_names_only() -> None:
    allowed = public()
    for source in sorted((ROOT / "sensors").rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dv_maintenance"):
                assert {alias.name for alias in node.names} <= allowed[node.module or ""], source.name


def test_dagster_says_which_extra_it_needs() -> None:
    """Without Dagster the package works, and its Dagster face names the extra."""
    script = (
        "import sys; sys.modules['dagster'] = None\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'dagster' else real(name, package)\n"
        "import dv_maintenance.cli\n"
        "try:\n    from dv_maintenance import DvMaintainedTablesComponent\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "pip install 'dv-maintenance[dagster]'" in done.stdout, done.stderr

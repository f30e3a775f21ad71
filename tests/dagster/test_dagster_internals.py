"""Dagster's own names that it does not promise to keep."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from support.places import ROOT

from dv_maintenance.dagster.internals import guarded

HOMES = {"internals.py", "state.py"}


def _imports(file: Path) -> Iterator[tuple[str, bool, bool]]:
    """Module, whether it is imported under a guard, whether for type checkers only."""
    tree = ast.parse(file.read_text())
    inside = {
        id(each): node for node in ast.walk(tree) if isinstance(node, ast.With | ast.If) for each in ast.walk(node)
    }
    for node in ast.walk(tree):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [each.name for each in node.names] if isinstance(node, ast.Import) else []
        block = inside.get(id(node))
        for module in modules:
            if module.startswith(("dagster._", "dagster_shared")):
                guard = isinstance(block, ast.With) and "guarded()" in ast.unparse(block.items[0])
                typing = isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
                yield module, guard, typing


def test_they_are_imported_in_one_place_and_under_its_guard() -> None:
    found = {}
    for file in [*(ROOT / "dv_maintenance").rglob("*.py"), *(ROOT / "sensors").rglob("*.py")]:
        bad = [module for module, guard, typing in _imports(file) if not typing and not (guard and file.name in HOMES)]
        found |= {str(file): bad} if bad else {}
    assert not found


def test_the_guard_says_which_release_is_wanted() -> None:
    with pytest.raises(ImportError, match=rf"made for Dagster 1.11.7 to 1.13, and Dagster {dg.__version__}"), guarded():
        raise ImportError("cannot import name 'gone'", name="dagster._core")

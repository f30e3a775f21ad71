"""Dagster's own names that it does not promise to keep."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._annotations import is_beta, is_public
from dagster_shared.libraries import DagsterLibraryRegistry
from support.places import ROOT

from dv_maintenance import __version__
from dv_maintenance.dagster.internals import guarded

HOMES = {"internals.py", "state.py"}


def _imports(file: Path) -> Iterator[tuple[str, bool, bool]]:
    """Module, whether it is imported under a guard, whether for type checkers only."""
    text = file.read_text()
    if "dagster._" not in text and "dagster_shared" not in text:
        return
    tree = ast.parse(text)
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


def test_every_name_of_the_api_is_marked_as_public_or_beta() -> None:
    """As in Dagster's own libraries: what has no mark may change."""
    import dv_maintenance.dagster as face

    marks = {name: (is_public(each), is_beta(each)) for name in face.__all__ for each in [getattr(face, name)]}
    assert [name for name, found in marks.items() if not any(found)] == []
    assert {name for name, (_, beta) in marks.items() if beta} == {"build_dv_simulations"}


def test_dagster_knows_the_library() -> None:
    assert DagsterLibraryRegistry.get()["dv-maintenance"] == __version__

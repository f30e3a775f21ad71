"""Methods that are bound by name: each target exists, and takes what the protocol passes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

from dv_maintenance.storage import Storage
from dv_maintenance.tables import capabilities, file_log, fsck, incremental, rows, table
from dv_maintenance.tables.binding import Method, Receiver, deferred
from dv_maintenance.tables.registry import Location, formats

PROTOCOLS = [
    each
    for module in (table, capabilities, file_log, fsck, incremental, rows)
    for each in vars(module).values()
    if getattr(each, "_is_protocol", False) and each.__name__.endswith("Table")
]
FORMATS = [each.name for each in formats()]


def opened(name: str, tmp_path: Path) -> Any:
    (found,) = (each for each in formats() if each.name == name)
    return found.open(Location(Storage(str(tmp_path))))


def function_of(method: Any) -> Callable[..., Any]:
    """The function behind a method, imported if it is deferred."""
    found = method.function if isinstance(method, Method) else getattr(method, "__func__", method)
    return getattr(import_module(found.module), found.name) if hasattr(found, "module") else found


def methods_of(protocol: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in protocol.__mro__[::-1]:
        if getattr(each, "_is_protocol", False):
            found |= {name: value for name, value in vars(each).items() if inspect.isfunction(value)}
    return {name: value for name, value in found.items() if not name.startswith("_")}


def parameters(function: Callable[..., Any], skip: int) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())[skip:]


@pytest.mark.parametrize("name", FORMATS)
def test_functions_take_what_the_protocols_pass(name: str, tmp_path: Path) -> None:
    class_ = type(opened(name, tmp_path))
    checked = set()
    for protocol in PROTOCOLS:
        methods = methods_of(protocol)
        if not all(hasattr(class_, each) for each in methods):
            continue
        for each, declared in methods.items():
            attribute = inspect.getattr_static(class_, each)
            taken = parameters(function_of(attribute), 0 if isinstance(attribute, staticmethod) else 1)
            passed = parameters(declared, 1)
            assert [(at.name, at.kind) for at in taken[: len(passed)]] == [(at.name, at.kind) for at in passed], each
            # What callers may leave out, they may leave out of every format.
            for ours, theirs in zip(taken, passed, strict=False):
                assert ours.default is not ours.empty or theirs.default is theirs.empty, (each, ours)
            assert all(more.default is not more.empty for more in taken[len(passed) :]), each
            checked.add(each)
    assert {"snapshot", "commit", "file_log", "needed_files", "may_match"} <= checked


@pytest.mark.parametrize("name", FORMATS)
def test_opening_a_table_imports_none_of_its_verbs(name: str, tmp_path: Path) -> None:
    program = f"""
import sys
from dv_maintenance.storage import Storage
from dv_maintenance.tables.registry import Location, format_called
format_called({name!r}).open(Location(Storage({str(tmp_path)!r})))
print([each for each in sys.modules if ".verbs" in each or ".commit." in each or ".vacuum." in each])
"""
    done = run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_method_can_be_called_replaced_and_inherited() -> None:
    class Counted:
        text = "a,b"
        of_text = Receiver[str]("text")
        split = of_text(str.split)

    class Other(Counted):
        def split(self, sep: str) -> list[str]:  # type: ignore[override]
            return [*super().split(sep), "c"]

    assert Counted().split(",") == ["a", "b"]
    assert Counted.split(Counted(), ",") == ["a", "b"]
    assert Other().split(",") == ["a", "b", "c"]


def test_a_module_is_imported_by_the_first_call() -> None:
    (missing,) = deferred("dv_maintenance.tables", "no_such_module")
    function = missing.function
    with pytest.raises(ModuleNotFoundError):
        function()

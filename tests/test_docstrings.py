"""Docstrings of the public API are numpydoc: IDEs and the site read them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module

import pytest
from support.places import ROOT

API = (ROOT / "docs" / "reference" / "api.md").read_text()
# `name : meaning` would be read as a type, and a field outside of a section as prose.
FIELD = re.compile(r"^([\w*]+(?:, [\w*]+)*) : ", re.MULTILINE)
SECTION = re.compile(r"^(\w+)\n(-{3,})$", re.MULTILINE)
# Airflow has an environment of its own, and its users read `:param`.
MODULES = [each for each in re.findall(r"^\| `(dv_maintenance[\w.]*)` \|", API, re.MULTILINE) if "airflow" not in each]


def _documented(module: str) -> Iterator[tuple[str, str]]:
    names = re.search(rf"^\| `{re.escape(module)}` \| (.+) \|$", API, re.MULTILINE)
    assert names is not None
    for name in re.findall(r"`(\w+)`", names[1]):
        found = getattr(import_module(module), name)
        yield name, inspect.getdoc(found) or ""
        for method, each in vars(found).items() if inspect.isclass(found) else ():
            if not method.startswith("_") and inspect.isfunction(each) and each.__doc__:
                yield f"{name}.{method}", inspect.cleandoc(each.__doc__)


@pytest.mark.parametrize("module", MODULES)
def test_docstrings_are_numpydoc(module: str) -> None:
    for name, text in _documented(module):
        assert text or module == "dv_maintenance.formats", name
        assert not FIELD.findall(text), name
        for title, line in SECTION.findall(text):
            assert title in {"Parameters", "Attributes", "Returns", "Yields", "Raises", "Notes", "Examples"}, name
            assert len(line) == len(title), name

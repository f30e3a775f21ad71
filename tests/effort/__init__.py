"""How hard the tests try: how many examples, and how many of like cases.

A property takes few examples in the suite that runs many times a day, fewer still in ``make check``, and many more in
``make deep``. They set ``DVM_EFFORT``: a factor on the number of examples of each property.

Of many cases that walk the same code, the default suite runs a sample, and ``make deep`` the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["examples", "sampled"]

_FACTOR = float(os.environ.get("DVM_EFFORT", "1"))


def examples(count: int) -> int:
    """How many examples a property takes whose share of the default suite is ``count``."""
    return max(1, round(count * _FACTOR))


def sampled(cases: Iterable[Any], every: int, *, first: int = 0) -> list[Any]:
    """Parameters: one case in ``every`` is for the default suite, beginning with the ``first``; the others are deep.

    A case is a value, a tuple of values, or what ``pytest.param`` returns.
    """
    return [case if number % every == first else _deep(case) for number, case in enumerate(cases)]


def _deep(case: Any) -> Any:
    if hasattr(case, "marks"):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.deep])
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.deep)

"""How hard the random tests try.

A property takes few examples in the suite that runs many times a day, and many more in ``make deep``, which sets
``DVM_EFFORT``: a factor on the number of examples of each property.
"""

from __future__ import annotations

import os

__all__ = ["examples"]

_FACTOR = float(os.environ.get("DVM_EFFORT", "1"))


def examples(count: int) -> int:
    """How many examples a property takes whose share of the default suite is ``count``."""
    return max(1, round(count * _FACTOR))

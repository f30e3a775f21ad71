"""Parameters that come from the folder of golden tables.

Where a folder is missing, its tests have one parameter each, ``NotThere``: the setup hook of ``conftest.py`` skips them
by name, and fails them where ``CI`` is set. An empty set of parameters would pass in silence.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["NotThere", "names_in"]


class NotThere(str):
    """The folder below the golden tables that is missing, or empty."""

    __slots__ = ()


def names_in(folder: str, found: Iterable[str]) -> list[str]:
    """The names ``found`` in a folder of golden tables, sorted, or what stands for a folder that has none."""
    return sorted(found) or [NotThere(folder)]

"""Names of columns in Spark: quoting in SQL, lookup in any case, and new names without conflicts."""

from __future__ import annotations

from collections.abc import Iterable

from dv_maintenance.tables.rows import unused

__all__ = ["alike", "quoted", "unused"]


def quoted(*parts: str) -> str:
    """A quoted path of a column: its qualifiers, the column and its fields, with any characters in the names."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def alike(name: str, names: Iterable[str]) -> list[str]:
    """The entries of ``names`` that match ``name``: the one spelt like it, or else all that Spark treats as equal."""
    names = list(names)
    return [each for each in names if each == name] or [each for each in names if each.lower() == name.lower()]

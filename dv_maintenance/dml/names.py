"""Names of columns in Spark: quoted in SQL, whatever their case, and new ones that are nobody's."""

from __future__ import annotations

from collections.abc import Iterable

from dv_maintenance.tables.rows import unused

__all__ = ["alike", "quoted", "unused"]


def quoted(*parts: str) -> str:
    """A column, and what it is a column or field of, as SQL takes it whatever is in the names."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def alike(name: str, names: Iterable[str]) -> list[str]:
    """Those of ``names`` that are ``name``: the one that is spelt like it, or else any that Spark takes for it."""
    names = list(names)
    return [each for each in names if each == name] or [each for each in names if each.lower() == name.lower()]

"""Names of columns in Spark: quoting in SQL, lookup in any case, and new names without conflicts."""

from __future__ import annotations

from collections.abc import Iterable


def quoted(*parts: str) -> str:
    """A quoted path of a column: its qualifiers, the column and its fields, with any characters in the names."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def alike(name: str, names: Iterable[str]) -> list[str]:
    """The entries of ``names`` that match ``name``: the one spelt like it, or else all that Spark treats as equal."""
    names = list(names)
    return [each for each in names if each == name] or [each for each in names if each.lower() == name.lower()]


def parts_of(text: str) -> list[str]:
    """The parts of a path as :func:`quoted` writes it, with or without backticks; the text as the only one if it is
    none.
    """
    import sqlglot

    try:
        names, dots = (sqlglot.tokenize(text, read="spark")[first::2] for first in (0, 1))
    except sqlglot.errors.SqlglotError:
        return [text]
    if len(names) != len(dots) + 1 or any(each.text != "." for each in dots):
        return [text]
    return [str(each.text) for each in names]

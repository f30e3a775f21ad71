"""A condition in Spark SQL: the columns of the table that it names.

Only Spark decides what a condition means, see ``dml.catalyst``. The analysis here, without Spark, only reduces what has
to be read: whatever it does not understand is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dv_maintenance.errors import UsageError

# Expressions that name no column, but may differ between the rows of a partition.
_VOLATILE: Final = re.compile(
    r"\b(rand\w*|random|uniform|uuid|shuffle|monotonically_increasing_id|spark_partition_id|input_file_\w+|reflect|"
    r"java_method|try_reflect|select)\b",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"\w+")
_ODD: Final = re.compile(r"""["\\$]|--|/\*""")


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition.

    tree : the syntax tree; ``None`` if it can't be parsed here.
    columns : the table's columns that the condition may name, in the table's order; all of them if that is unknown.
    """

    sql: str
    tree: Any
    columns: tuple[str, ...]

    @classmethod
    def parse(cls, sql: str, columns: Sequence[str]) -> Condition:
        """``columns``: those of the table. Names are compared as Spark compares them, whatever their case.

        Raises UsageError: the condition is empty.
        """
        import sqlglot
        from sqlglot import exp

        if not sql.strip():
            raise UsageError("the condition is empty", next_step="give one in Spark SQL, or true for every row")
        try:
            tree = sqlglot.parse_one(sql, dialect="spark")
        except (sqlglot.errors.SqlglotError, RecursionError):
            return cls(sql, None, tuple(columns))
        # `a.b` may be field b of column a, or column b of a table a: each part counts. So does each word: one parser
        # may read it as a function, another one as a column (user, date).
        named = {part.name.lower() for column in tree.find_all(exp.Column) for part in column.parts}
        named.update(_WORD.findall(sql.lower()))
        text = sql.lower()
        # Quoted names may contain anything, and the session's settings decide how names are quoted.
        return cls(
            sql,
            tree,
            tuple(
                name
                for name in columns
                if name.lower() in named
                or (not _WORD.fullmatch(name) and (name.lower() in text or "`" in name or '"' in name))
            ),
        )

    def only_about(self, columns: Sequence[str]) -> bool:
        """Whether its result is the same for all rows with equal values in these columns."""
        return self.tree is not None and set(self.columns) <= {*columns} and not _VOLATILE.search(self.sql)


def equal_columns(sql: str, target: tuple[str, Sequence[str]], source: tuple[str, Sequence[str]]) -> Mapping[str, str]:
    """Equalities implied by the condition of a MERGE: columns of the target -> columns of the source.

    ``target`` and ``source``: the alias and the columns. Only names with an alias are understood. A text that Spark
    could read differently (quotes, escapes, comments) yields nothing.
    """
    from sqlglot import exp

    tree = None if _ODD.search(sql) else Condition.parse(sql, ()).tree
    equal = {}
    for part in () if tree is None else _demands(tree):
        if isinstance(part, exp.EQ):
            for one, other in ((part.left, part.right), (part.right, part.left)):
                if (name := _column(one, *target)) and (of_source := _column(other, *source)):
                    equal[name] = of_source
    return equal


def _demands(tree: Any) -> Iterator[Any]:
    """The conjuncts: conditions that must all be true."""
    from sqlglot import exp

    if isinstance(tree, exp.Paren):
        yield from _demands(tree.this)
    elif isinstance(tree, exp.And):
        yield from _demands(tree.left)
        yield from _demands(tree.right)
    else:
        yield tree


def _column(node: Any, alias: str, columns: Sequence[str]) -> str | None:
    """The column of ``alias`` that a node names, in that side's spelling."""
    from sqlglot import exp

    if not isinstance(node, exp.Column) or [part.name.lower() for part in node.parts[:-1]] != [alias.lower()]:
        return None
    found = [name for name in columns if name.lower() == node.name.lower()]
    return found[0] if len(found) == 1 else None

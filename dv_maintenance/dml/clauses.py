"""WHEN clauses of a MERGE, parsed from SQL text: ``MATCHED AND source.gone THEN DELETE``.

Only the keywords of a clause are parsed here. The conditions and values between them are passed to Spark unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

from dv_maintenance.dml.names import parts_of, quoted
from dv_maintenance.errors import UsageError

if TYPE_CHECKING:
    from dv_maintenance.dml.merge import Merge

# The longest first, as they share a prefix.
_KINDS: Final = (
    ("NOT MATCHED BY SOURCE", "not_matched_by_source"),
    ("NOT MATCHED BY TARGET", "not_matched"),
    ("NOT MATCHED", "not_matched"),
    ("MATCHED", "matched"),
)
_OPENING: Final = frozenset({"(", "[", "{", "CASE"})
_CLOSING: Final = frozenset({")", "]", "}", "END"})


def with_clauses(begun: Merge, clauses: Sequence[str]) -> Merge:
    """``begun`` with these clauses added: ``[WHEN] kind [AND condition] THEN action``.

    kind : MATCHED, NOT MATCHED [BY TARGET] or NOT MATCHED BY SOURCE.
    action : DELETE; ``UPDATE SET *`` or ``column = value, ...``; ``INSERT *`` or
        ``INSERT (column, ...) VALUES (value, ...)``.

    Raises
    ------
    UsageError : a text is not a clause, or its kind does not allow the action.
    """
    for text in clauses:
        begun = _Clause.parse(text).added_to(begun)
    return begun


@dataclass(frozen=True, slots=True)
class _Clause:
    text: str
    kind: str
    condition: str | None
    action: str
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> _Clause:
        words = _Words.of(text)
        words.skip("WHEN")
        kind = next((name for wanted, name in _KINDS if words.skip(*wanted.split())), None)
        if kind is None:
            _fail(text)
        condition = words.until("THEN") if words.skip("AND") else None
        if not words.skip("THEN"):
            _fail(text)
        if words.skip("DELETE"):
            found = cls(text, kind, condition, "delete")
        elif words.skip("UPDATE", "SET"):
            found = cls(text, kind, condition, *words.all_or("update", "set", words.assignments))
        elif words.skip("INSERT"):
            found = cls(text, kind, condition, *words.all_or("insert", "values", words.row))
        else:
            _fail(text)
        if words.left:
            _fail(text)
        return found

    def added_to(self, begun: Merge) -> Merge:
        add = getattr(begun, f"when_{self.kind}_{self.action}", None)
        if add is None:
            _fail(self.text)
        added: Merge = add(**self.values, condition=self.condition)
        return added


@dataclass(slots=True)
class _Words:
    """The tokens of a clause, and the reading position."""

    text: str
    tokens: Sequence[Any]
    at: int = 0

    @classmethod
    def of(cls, text: str) -> _Words:
        import sqlglot

        try:
            return cls(text, sqlglot.tokenize(text, read="spark"))
        except sqlglot.errors.SqlglotError:
            _fail(text)

    @property
    def left(self) -> bool:
        return self.at < len(self.tokens)

    def skip(self, *words: str) -> bool:
        """Skip these words if they are next."""
        # A token may have two words (``GROUP BY``); none of these keywords does.
        following = [self._word(token) for token in self.tokens[self.at : self.at + len(words)]]
        if following != list(words):
            return False
        self.at += len(words)
        return True

    def until(self, *ends: str) -> str:
        """The text up to the first of these words outside brackets and CASE ... END."""
        depth, first = 0, self.at
        while self.left:
            word = self._word(self.tokens[self.at])
            if depth == 0 and word in ends:
                break
            if self.at == first or self.tokens[self.at - 1].text != ".":  # a field may be named end
                depth += (word in _OPENING) - (word in _CLOSING)
            self.at += 1
        if first == self.at:
            _fail(self.text)
        return self.text[self.tokens[first].start : self.tokens[self.at - 1].end + 1]

    def all_or(
        self, action: str, argument: str, read: Callable[[], dict[str, str]]
    ) -> tuple[str, dict[str, dict[str, str]]]:
        return (f"{action}_all", {}) if self.skip("*") else (action, {argument: read()})

    def assignments(self) -> dict[str, str]:
        found: dict[str, str] = {}
        while True:
            column = self._column(self.until("="))
            if not self.skip("=") or column in found:
                _fail(self.text)
            found[column] = self.until(",")
            if not self.skip(","):
                return found

    def row(self) -> dict[str, str]:
        columns = [self._column(each) for each in self._list()]
        if not self.skip("VALUES"):
            _fail(self.text)
        values = self._list()
        if len(values) != len(columns) or len(set(columns)) < len(columns):
            _fail(self.text)
        return dict(zip(columns, values, strict=True))

    def _list(self) -> list[str]:
        if not self.skip("("):
            _fail(self.text)
        found = [self.until(",", ")")]
        while self.skip(","):
            found.append(self.until(",", ")"))
        if not self.skip(")"):
            _fail(self.text)
        return found

    def _word(self, token: Any) -> str:
        # Compared as written: a quoted "then" includes its quotes.
        return self.text[token.start : token.end + 1].upper()

    def _column(self, text: str) -> str:
        """A name without backticks, or the path of a field, which may begin with an alias."""
        parts = parts_of(text)
        return parts[0] if len(parts) == 1 else quoted(*parts)


def _fail(text: str) -> NoReturn:
    raise UsageError(
        f"{text!r} is not a MERGE clause",
        next_step="write for example: MATCHED AND source.gone THEN DELETE, MATCHED THEN UPDATE SET *, "
        "NOT MATCHED THEN INSERT (id, name) VALUES (source.id, 'x')",
    )

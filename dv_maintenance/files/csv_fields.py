"""The fields of a line of CSV, as Paimon's ``CsvParser`` splits it. It knows quotes, doubled quotes and an escape
character, tolerates all of them in odd places, and reads no line as malformed.

Source: CsvParser of Paimon 1.4.2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

# What Java's Character.isWhitespace accepts.
_SPACES: Final = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2008\u2009\u200a"
    "\u2028\u2029\u205f\u3000"
)
# It was a space until Unicode 6.3: to Java 8, not to Java 11.
_ONCE_A_SPACE: Final = "\u180e"
# An embedded quote is not among the first three characters of a line, as Java counts them.
_FIRST: Final = 2
_UNIT: Final = 2  # bytes


@dataclass(frozen=True, slots=True)
class Dialect:
    """Characters with a meaning; each of them is one of Java's."""

    delimiter: str
    quote: str
    escape: str

    def fields(self, line: str, count: int) -> list[str | None]:
        r"""The first ``count`` fields; ``None`` where the line has none, or one whose quote is not closed.

        Raises
        ------
        ValueError : versions of Java differ.

        >>> Dialect(",", '"', "\\").fields('1,"a,""b",c', 4)
        ['1', 'a,"b', 'c', None]
        """
        if not line[:1].isalnum() and is_blank(line):
            return [None] * count
        if self.quote not in line and self.escape not in line:
            found: list[str | None] = [*line.split(self.delimiter, count)[:count]]
            return found + [None] * (count - len(found))
        return self._well_quoted(line, count) or self._by_character(line, count)

    def _well_quoted(self, line: str, count: int) -> list[str | None] | None:
        """The same as ``_by_character``, several times faster; ``None`` if a field is partly in quotes, or has an
        escape character without use.
        """
        field, escaped = _patterns(self)
        found: list[str | None] = []
        at = 0
        while len(found) < count and at <= len(line):
            match = field.match(line, at)
            if match is None:
                return None
            quoted, plain = match.groups()
            found.append(plain if quoted is None else escaped.sub(r"\1", quoted))
            at = match.end() + 1
        return found + [None] * (count - len(found))

    def _by_character(self, line: str, count: int) -> list[str | None]:
        found: list[str | None] = []
        text = ""
        # ``solid``: the text is known not to be blank, and is not looked through again at each quote.
        in_quotes = in_field = solid = False
        last, at = len(line) - 1, 0
        while at <= last and len(found) < count:
            each = line[at]
            following = line[at + 1] if at < last else ""
            if each == self.escape:
                if (in_quotes or in_field) and following in (self.quote, self.escape):
                    text += following
                    at += 1
            elif each == self.quote:
                if (in_quotes or in_field) and following == self.quote:
                    text += following
                    at += 1
                else:
                    if (
                        (at > _FIRST or len(line[:at].encode("utf-16-le")) > _FIRST * _UNIT)
                        and line[at - 1] != self.delimiter
                        and following not in ("", self.delimiter)
                    ):
                        if text and not solid and is_blank(text):
                            text = ""
                        else:
                            solid = text != ""
                            text += each
                    in_quotes = not in_quotes
                in_field = not in_field
            elif each == self.delimiter and not in_quotes:
                found.append(text)
                text, in_field, solid = "", False, False
            else:
                text += each
                in_field = True
            at += 1
        if len(found) < count and not in_quotes:
            found.append(text)
        return found + [None] * (count - len(found))


@lru_cache
def _patterns(dialect: Dialect) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Of a field that is in quotes or has none, and of a quote or an escape character in quotes."""
    delimiter, quote, escape = map(re.escape, (dialect.delimiter, dialect.quote, dialect.escape))
    if quote == escape:  # no field can be quoted
        return re.compile(r"(?!)"), re.compile(r"(?!)")
    pair = f"(?:{escape}[{quote}{escape}]|{quote}{quote})"
    other = f"[^{quote}{escape}]*"
    field = f"(?:{quote}({other}(?:{pair}{other})*){quote}|([^{delimiter}{quote}{escape}]*))(?={delimiter}|\\Z)"
    return re.compile(field), re.compile(f"[{quote}{escape}]([{quote}{escape}])")


def is_blank(text: str) -> bool:
    """Whether it is of Java's whitespace only, or empty. Raises ValueError if versions of Java differ."""
    rest = text.lstrip(_SPACES)
    if rest.startswith(_ONCE_A_SPACE) and not rest.strip(_SPACES + _ONCE_A_SPACE):
        raise ValueError("versions of Java differ about U+180E")
    return not rest

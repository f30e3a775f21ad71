"""Fields of CSV. What Paimon makes of odd lines is judged by ``tests/judges/test_paimon_lines_judged.py``."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dv_maintenance.files import csv_fields
from dv_maintenance.files.csv_fields import Dialect, is_blank

PLAIN = Dialect(",", '"', "\\")


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("", [None, None, None]),
        ("\u2003\t", [None, None, None]),
        ("\xa0", ["\xa0", None, None]),
        ("a", ["a", None, None]),
        (",", ["", "", None]),
        ("a,b,", ["a", "b", ""]),
        ("a,b,c,d", ["a", "b", "c"]),
        ('"a,""b""",\'', ['a,"b"', "'", None]),
        ('"a\\"b\\\\","",x', ['a"b\\', "", "x"]),
        ("a\\b,\\c,\\", ["ab", "c", ""]),
        ('a,"b,c', ["a", None, None]),
        ('a,bc"d"ef,g', ["a", 'bc"d"ef', "g"]),
        (' "a"', [" a", None, None]),
        ('\U0001f600"a"', ["\U0001f600a", None, None]),
        ('\U0001f600 "a"b', ['\U0001f600 "a"b', None, None]),
        ('abc "d"e,f', ['abc "d"e', "f", None]),
        ('a,  "b"c', ["a", 'b"c', None]),
    ],
)
def test_fields(line: str, fields: list[str | None]) -> None:
    assert PLAIN.fields(line, 3) == fields


@given(
    st.text(alphabet='ab \u2003,,,""""\\\\\\;\'\U0001f600', max_size=12),
    st.integers(1, 4),
    st.sampled_from(
        [PLAIN, Dialect(";", "'", "^"), Dialect("a", "b", "\\"), Dialect(",", "]", "^"), Dialect(",", "\0", "\0")]
    ),
)
@example(line='"a""",\\', count=2, dialect=PLAIN)
def test_both_ways_are_the_same(line: str, count: int, dialect: Dialect) -> None:
    at_once = dialect._well_quoted(line, count)
    assert at_once in (None, dialect._by_character(line, count))
    if not any(each in line for each in (dialect.quote, dialect.escape)) and not is_blank(line):
        assert dialect.fields(line, count) == dialect._by_character(line, count)


def test_a_space_of_some_versions() -> None:
    assert PLAIN.fields("\u180ea", 1) == ["\u180ea"]
    for line in ("\u180e", " \u180e\t"):
        with pytest.raises(ValueError, match="versions of Java"):
            PLAIN.fields(line, 1)


def test_a_field_is_not_looked_through_at_each_quote(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long line would take hours."""
    seen = 0

    def counting(text: str) -> bool:
        nonlocal seen
        seen += len(text)
        return is_blank(text)

    monkeypatch.setattr(csv_fields, "is_blank", counting)
    line = " " * 1000 + 'a"' * 1000 + "b"
    assert PLAIN.fields(line, 1) == [line]
    assert seen < 3 * len(line)

"""Random tables, conditions and assignments over every type that Delta has, as SQL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

__all__ = ["COLUMNS", "FILES", "PARTITIONED", "ROWS", "Column", "assignment", "condition", "rows_of_file", "settings"]

FILES: Final = 5
ROWS: Final = 8


@dataclass(frozen=True)
class Column:
    """``values`` a table holds, and what else it is compared with, as SQL."""

    name: str
    type: str
    values: Sequence[str]
    more: Sequence[str] = ()


def _times(kind: str, *texts: str) -> list[str]:
    return [f"{kind}'{text}'" for text in texts]


_MOMENTS: Final = (
    "2026-01-01 00:00:00",
    "2026-01-01 05:00:00.123456",
    "2025-10-26 02:30:00",
    "1969-12-31 23:59:59.999999",
    "1883-11-18 12:03:58",
    "1582-10-04 00:00:00",
    "1500-03-01 00:00:00",
    "0001-01-01 00:00:00",
    "9999-12-31 23:59:59.999999",
    "1937-07-01 00:00:00",
)
_LONG: Final = "x" * 40

COLUMNS: Final = (
    Column("tiny", "TINYINT", ("-128Y", "-1Y", "0Y", "5Y", "127Y"), ("300", "'5'", "5.5", "' 5 '")),
    Column(
        "num", "INT", ("-2147483648", "-1", "0", "7", "16777217", "2147483647"), ("7L", "'7'", "7.0D", "2147483648")
    ),
    Column(
        "big",
        "BIGINT",
        ("-9223372036854775808L", "-1L", "7L", "9007199254740993L", "9223372036854775807L"),
        ("9007199254740993.0D", "'7'", "9223372036854775808", "700e-2BD"),
    ),
    Column(
        "f",
        "FLOAT",
        ("FLOAT('NaN')", "FLOAT('-Infinity')", "FLOAT('Infinity')", "-0.0F", "0.0F", "0.1F", "16777216F", "-7.5F"),
        ("16777217", "0.1", "0.1D", "0.1F", "'NaN'", "0", "16777216L"),
    ),
    Column(
        "d",
        "DOUBLE",
        (
            "DOUBLE('NaN')",
            "DOUBLE('-Infinity')",
            "DOUBLE('Infinity')",
            "-0.0D",
            "0.0D",
            "0.1D",
            "1e300D",
            "-7.5D",
            "7D",
        ),
        ("0.1BD", "0.1F", "7", "'0.1'", "'Infinity'", "100", "9007199254740993L"),
    ),
    Column(
        "n", "DECIMAL(10, 2)", ("-1.50BD", "0.00BD", "7.00BD", "99999999.99BD"), ("7", "7.001BD", "7.0D", "'7'", "1e1")
    ),
    Column(
        "wide",
        "DECIMAL(38, 10)",
        ("-0.0000000001BD", "1234567890123456789012345678.0123456789BD", "7BD"),
        ("7", "7D", "12345678901234567890123456789012345678BD"),
    ),
    Column(
        "s",
        "STRING",
        (
            "''",
            "'a'",
            "'A'",
            "'ab'",
            "'ab '",
            "'é'",
            "'\\U0001F600'",
            "'it\\'s'",
            "'7'",
            "'07'",
            f"'{_LONG}'",
            f"'{_LONG}y'",
        ),
        ("'zz'", "7", "'a\\\\b'", '"ab"', "r'a\\d'", "concat('a', 'b')"),
    ),
    Column(
        "c",
        "CHAR(4)",
        ("'ab'", "'abcd'", "'zz'", "''", "'b'", "'a b'"),
        ("'ab '", "'ab   '", "'ab      '", "'q'", "'abcde'"),
    ),
    Column("v", "VARCHAR(5)", ("'ab'", "'ab  '", "'x'", "''", "'7'"), ("'ab '", "'abcdefgh'", "7")),
    Column("x", "BINARY", ("X''", "X'6162'", "X'FF00'", "X'80'"), ("X'61'", "'ab'")),
    Column("o", "BOOLEAN", ("true", "false"), ("'true'", "1 = 1")),
    Column(
        "day",
        "DATE",
        _times(
            "DATE", "2026-01-01", "1969-12-31", "1582-10-04", "1582-10-15", "1500-02-28", "0001-01-01", "9999-12-31"
        ),
        ("'2026-01-01'", "'2026-1-1'", "TIMESTAMP'2026-01-01 00:00:00'", "DATE'2026-01-01' + INTERVAL 1 DAY"),
    ),
    Column(
        "t",
        "TIMESTAMP",
        _times("TIMESTAMP", *(f"{each}Z" for each in _MOMENTS)),
        (
            *_times("", *_MOMENTS, "2026-01-01", "2026-01-01T05:00:00Z", "1937-07-01 00:19:32"),
            *_times("TIMESTAMP", *_MOMENTS),
            "DATE'2026-01-01'",
            "TIMESTAMP_NTZ'2026-01-01 00:00:00'",
            "TIMESTAMP'2026-01-01 00:00:00' - INTERVAL '5' HOUR",
        ),
    ),
    Column(
        "z",
        "TIMESTAMP_NTZ",
        _times("TIMESTAMP_NTZ", *_MOMENTS),
        (*_times("", *_MOMENTS), "DATE'2026-01-01'", "TIMESTAMP'2026-01-01 00:00:00'"),
    ),
)
NESTED: Final = (
    ("st", "STRUCT<a: INT, b: STRING>", ("named_struct('a', 7, 'b', 'x')", "named_struct('a', NULL, 'b', 'ab')")),
    ("ar", "ARRAY<INT>", ("array(1, NULL, 7)", "array()")),
    ("m", "MAP<STRING, INT>", ("map('k', 7)", "map()")),
)
PARTITIONED: Final = ("t", "c", "s")
"""Columns that a partitioned table is by."""

_NESTED: Final = re.compile(r"\b(st|ar|m)\b")
_OPERATORS: Final = ("=", "<", "<=", ">", ">=", "<>", "<=>", "!=", "==")
_OTHERS: Final = (
    "length(c) = 4",
    "length(v) > 2",
    "c || 'x' = 'ab  x'",
    "c LIKE 'ab'",
    "c LIKE 'ab%'",
    "c LIKE '% '",
    "s LIKE 'a%'",
    "s LIKE '%b'",
    "s RLIKE '^a'",
    "upper(c) = 'AB'",
    "upper(s) = 'A'",
    "trim(c) = 'ab'",
    "c = v",
    "c = s",
    "v = s",
    "s IN (c, v)",
    "c IN ('ab', v)",
    "num = big",
    "f = d",
    "n < wide",
    "num < f",
    "day = t",
    "t = z",
    "day < z",
    "t < day",
    "year(t) = 2026",
    "hour(t) >= 12",
    "date(t) = '2026-01-01'",
    "date_format(t, 'HH') = '00'",
    "CAST(t AS STRING) LIKE '2026-01-01%'",
    "day + INTERVAL 1 DAY > DATE'2026-01-01'",
    "t - INTERVAL '5' HOUR < TIMESTAMP'2026-01-01 00:00:00'",
    "t < current_timestamp()",
    "isnan(d) OR isnan(f)",
    "d + f > 0",
    "coalesce(num, 0) = 0",
    "CASE WHEN o THEN num ELSE tiny END > 0",
    "if(o, c, s) = 'ab'",
    "st.a = 7",
    "st.b < 'b'",
    "st IS NULL",
    "size(ar) = 0",
    "array_contains(ar, 7)",
    "m['k'] = 7",
    "try_divide(num, tiny) > 1",
    "abs(n) > 1",
    "o",
    "NOT o",
    "o <=> NULL",
    "hex(x) = '6162'",
    "s < 'a' COLLATE UTF8_LCASE",
    "NUM = 7 AND `Big` > 0",
    "num & 1 = 1",
    "id % 3 = 1",
    "s LIKE '!%a%' ESCAPE '!'",
    "s LIKE 'a/_' ESCAPE '/' OR s LIKE '/%%' ESCAPE '/'",
    "s LIKE ANY ('a%', '_b')",
    "s NOT LIKE ALL ('%b', '0_')",
    "s ILIKE 'A%'",
    "c ILIKE 'AB__'",
    "c LIKE 'ab  '",
    "v RLIKE '^.b'",
    "c RLIKE '^ab *$'",
    "s RLIKE '[0-9]+'",
    "num IN (7, NULL)",
    "num NOT IN (7, NULL)",
    "c IN ('ab', NULL)",
    "c NOT IN ('ab', NULL)",
    "NOT (s IN ('a', NULL))",
    "x IN (X'6162', NULL)",
    "t NOT IN (TIMESTAMP'2026-01-01 00:00:00', NULL)",
    "f IN (FLOAT('NaN'), NULL)",
    "d NOT IN (DOUBLE('NaN'), -0.0D)",
    "d <=> DOUBLE('NaN')",
    "c <=> 'ab'",
    "NOT (c <=> NULL)",
    "s <=> v",
    "day <=> NULL OR num <=> 7",
    "n > 1E1BD",
    "n <= -15E-1BD",
    "wide < 1E28BD",
    "n BETWEEN -1e1 AND 7E0",
    "wide = -1E-10BD",
    "n * 1.1 > 7",
    "n / 3 < 1",
    "`s` = 'a' AND `c` = 'ab'",
    "t BETWEEN '2025' AND '2027'",
    "z > '2026-01-01' AND z <= '9999-12-31'",
    "CAST(day AS TIMESTAMP) = t",
    "CAST(t AS DATE) <= DATE'1582-10-15'",
    "date_trunc('DAY', t) = TIMESTAMP'2026-01-01 00:00:00'",
    "substr(c, 1, 2) = 'ab'",
    "char_length(rtrim(c)) < 3",
    "concat(c, v) = 'ab  ab'",
    "c < v",
    "c BETWEEN 'a' AND 'b'",
    "(num, big) IN ((7, 7L), (0, -1L))",
    "named_struct('a', 7, 'b', 'x') = st",
    "st.b = c",
    "ar[0] = 1",
    "true",
    "NULL",
    "1 = 0",
)
_ERRORS: Final = ("num + 1 > 0", "1 / tiny > 0", "CAST(s AS INT) = 7", "big * 2 > 0", "no_such = 1", "num > (", "v = 7")

_RARE: Final = (
    ("spark.sql.legacy.charVarcharAsString", ("true",)),
    ("spark.sql.legacy.noCharPaddingInPredicate", ("true",)),
    ("spark.sql.legacy.timeParserPolicy", ("LEGACY", "EXCEPTION")),
    ("spark.sql.legacy.nullInEmptyListBehavior", ("true", "false")),
    ("spark.sql.legacy.inFalseForNullField", ("true",)),
    ("spark.sql.legacy.literal.pickMinimumPrecision", ("false",)),
    ("spark.sql.legacy.typeCoercion.datetimeToString.enabled", ("true",)),
    ("spark.sql.legacy.castComplexTypesToString.enabled", ("true",)),
    ("spark.sql.legacy.allowNegativeScaleOfDecimal", ("true",)),
    ("spark.sql.legacy.exponentLiteralAsDecimal.enabled", ("true",)),
    ("spark.sql.legacy.decimal.retainFractionDigitsOnTruncate", ("true",)),
    ("spark.sql.decimalOperations.allowPrecisionLoss", ("false",)),
    ("spark.sql.optimizer.inSetConversionThreshold", ("0", "2")),
    ("spark.sql.datetime.java8API.enabled", ("true",)),
    ("spark.sql.execution.arrow.useLargeVarTypes", ("true",)),
    ("spark.sql.execution.arrow.maxRecordsPerBatch", ("0", "1", "2")),
    ("spark.sql.constraintPropagation.enabled", ("false",)),
    ("spark.sql.cbo.enabled", ("true",)),
)
"""Settings that few sessions have, with values that are not the defaults."""


def settings(random: Random) -> dict[str, str]:
    """Of a session, as they matter to what a condition means, and to how rows travel."""
    rare = random.sample(_RARE, 2)
    return {
        "spark.sql.ansi.doubleQuotedIdentifiers": random.choice(("false", "false", "false", "true")),
        "spark.sql.caseSensitive": random.choice(("false", "false", "false", "true")),
        **{key: random.choice(values) for key, values in rare},
        "spark.sql.session.timeZone": random.choice(("UTC", "America/New_York", "Asia/Kolkata", "Europe/Amsterdam")),
        "spark.sql.ansi.enabled": random.choice(("true", "false")),
        "spark.sql.parser.escapedStringLiterals": random.choice(("false", "false", "false", "true")),
        "spark.sql.timestampType": random.choice(("TIMESTAMP_LTZ", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ")),
        "spark.sql.readSideCharPadding": random.choice(("true", "true", "true", "false")),
    }


def condition(random: Random, depth: int = 2, *, nested: bool = True) -> str:
    """``nested``: also about fields of structs, arrays and maps."""
    if depth and random.random() < 0.5:
        one, other = (condition(random, depth - 1, nested=nested) for _ in range(2))
        return random.choice(
            (f"({one}) AND ({other})", f"({one}) OR ({other})", f"NOT ({one})", f"({one}) AND {other}")
        )
    if random.random() < 0.3:
        return random.choice(_OTHERS if nested else [each for each in _OTHERS if not _NESTED.search(each)])
    if random.random() < 0.03:
        return random.choice(_ERRORS)
    column = random.choice(COLUMNS)

    def value() -> str:
        return random.choice((*column.values, *column.values, *column.more))

    form = random.randrange(10)
    if form < 5:
        return f"{column.name} {random.choice(_OPERATORS)} {value()}"
    if form == 5:
        return f"{value()} {random.choice(_OPERATORS)} {column.name}"
    if form == 6:
        return f"{column.name} BETWEEN {value()} AND {value()}"
    if form == 7:
        return f"{column.name} IS {random.choice(('', 'NOT '))}NULL"
    values = ", ".join(value() for _ in range(random.choice((1, 2, 3, 14))))
    return f"{column.name} {random.choice(('', 'NOT '))}IN ({values})"


def assignment(random: Random) -> tuple[str, str]:
    """A column and what it is set to: of its own type, most often."""
    column = random.choice(COLUMNS)
    name, values = column.name, column.values
    return name, random.choice(
        (
            random.choice(values),
            random.choice(values),
            random.choice((*values, *column.more)),
            {
                "c": "upper(c)",
                "v": "concat(v, 'x')",
                "s": "concat(c, v)",
                "num": "num + 1",
                "t": "t + INTERVAL 1 HOUR",
            }.get(name, name),
        )
    )


def rows_of_file(random: Random, number: int, count: int = ROWS) -> str:
    """A SELECT of the rows of one file, in the order of COLUMNS and NESTED after ``id``. Each file has few values of a
    column, so that its bounds leave something out."""
    few = {
        name: random.sample(list(values), min(len(values), random.choice((1, 2, 4))))
        for name, values in (
            *((each.name, each.values) for each in COLUMNS),
            *((name, values) for name, _, values in NESTED),
        )
    }
    lines = []
    for row in range(count):
        picked = ["NULL" if random.random() < 0.12 else random.choice(values) for values in few.values()]
        lines.append(f"({number * ROWS + row}, {', '.join(picked)})")
    return "VALUES " + ", ".join(lines)

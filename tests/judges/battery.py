"""Conditions on a table, made of its own values: at, just above and just below them, and what SQL is odd about."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

__all__ = ["Battery", "Leaf"]

_WIDTHS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


@dataclass(frozen=True)
class Leaf:
    """A column or what lies in one. ``values``: different ones, bounds of files first, so many: ``bounds``."""

    sql: str
    type: str
    values: tuple[Any, ...]
    bounds: int


def quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


class Battery:
    """``source``: what can stand in FROM; read once, in a session in UTC that reads everything."""

    def __init__(self, spark: SparkSession, source: str, seed: int = 0) -> None:
        self.random = random.Random(seed)
        table = spark.sql(f"SELECT * FROM {source}")
        found = list(_leaves(table.schema))
        aliased = [f"{_printable(sql, kind)} AS v{number}" for number, (sql, kind) in enumerate(found)]
        rows = table.selectExpr("input_file_name() AS file", *aliased).collect()
        self.leaves = [
            self._leaf(sql, kind, [(row["file"], row[f"v{number}"]) for row in rows])
            for number, (sql, kind) in enumerate(found)
        ]

    def _leaf(self, sql: str, kind: str, rows: list[tuple[str, Any]]) -> Leaf:
        by_file: dict[str, list[Any]] = {}
        for file, value in rows:
            value = bytes(value) if isinstance(value, bytearray) else value
            if value is not None and value == value:
                by_file.setdefault(file, []).append(value)
        bounds = [value for each in by_file.values() for value in (min(each), max(each))]
        bounds = sorted(dict.fromkeys(bounds), key=bounds.index)
        others = [value for each in by_file.values() for value in each if value not in bounds]
        others = list(dict.fromkeys(others))
        self.random.shuffle(others)
        return Leaf(sql, kind, (*bounds, *others), len(bounds))

    def conditions(
        self, per_leaf: int, *, random_ones: int = 0, leaves: Callable[[Leaf], bool] | None = None
    ) -> list[str]:
        """So many conditions on each leaf: at the ends of its values, odd and usual ones in turn; and random ones."""
        chosen = [leaf for leaf in self.leaves if leaves is None or leaves(leaf)]
        found: list[str] = []
        for number, leaf in enumerate(chosen):
            kinds = [list(kind(leaf)) for kind in (_sharp, _odd, _usual)]
            for kind in kinds:
                self.random.shuffle(kind)
            turns = zip_longest(*kinds[number % 3 :], *kinds[: number % 3])
            found += [condition for turn in turns for condition in turn if condition][:per_leaf]
        found += [self._nested(chosen, 3) for _ in range(random_ones)]
        return list(dict.fromkeys(found))

    def totals(self) -> list[str]:
        """Aggregates over all rows: each column's, and all together for columns whose bounds in a log are exact."""
        columns = [leaf for leaf in self.leaves if leaf.sql.startswith("`") and "`.`" not in leaf.sql]
        known = [leaf.sql for leaf in columns if leaf.type in {*_WIDTHS, "float", "double", "date"}]
        together = ", ".join(f"min({column}), max({column})" for column in known)
        singly = [f"count({leaf.sql}), min({leaf.sql}), max({leaf.sql})" for leaf in columns]
        return ["count(*)", f"count(*), {together}", *singly, *(f"min({column})" for column in known)]

    def _nested(self, leaves: Sequence[Leaf], depth: int) -> str:
        roll = self.random.random()
        if depth == 0 or roll < 0.3:
            leaf = self.random.choice(leaves)
            return self.random.choice([*_odd(leaf), *_usual(leaf)])
        if roll < 0.45:
            return f"NOT ({self._nested(leaves, depth - 1)})"
        joined = self.random.choice([" AND ", " OR "])
        return joined.join(f"({self._nested(leaves, depth - 1)})" for _ in range(2))


# -- where values are ---------------------------------------------------------------------------------------------


def _leaves(schema: StructType, prefix: str = "") -> Iterator[tuple[str, str]]:
    for field in schema:
        sql = f"{prefix}`{field.name.replace('`', '``')}`"
        yield from _inside(sql, field.dataType)


def _inside(sql: str, type: DataType) -> Iterator[tuple[str, str]]:
    name = type.typeName()
    if name == "struct":
        yield from _leaves(type, f"{sql}.")
    elif name == "array":
        yield f"size({sql})", "int"
        yield from _inside(f"get({sql}, 0)", type.elementType)
    elif name == "map":
        yield f"size({sql})", "int"
        yield from _inside(f"get(map_values({sql}), 0)", type.valueType)
    elif name not in {"variant", "void"}:
        yield sql, type.simpleString()


def _printable(sql: str, kind: str) -> str:
    """As Python holds it whatever the calendar."""
    if kind == "date":
        return f"unix_date({sql})"
    if kind == "timestamp":
        return f"unix_micros({sql})"
    if kind == "timestamp_ntz":
        return f"unix_micros(CAST({sql} AS TIMESTAMP))"  # the reader's zone is UTC
    return sql


# -- values as SQL ------------------------------------------------------------------------------------------------


def _literal(value: Any, kind: str) -> str:
    if kind in _WIDTHS:
        return (
            f"CAST({value} AS {kind})"
            if -(2 ** (_WIDTHS[kind] - 1)) < value < 2 ** (_WIDTHS[kind] - 1)
            else f"{value}BD"
        )
    if kind in {"float", "double"}:
        return f"{kind}('{value!r}')"
    if kind.startswith("decimal"):
        return f"CAST('{value:f}' AS {kind})"
    if kind == "date":
        return f"date_from_unix_date({value})"
    if kind == "timestamp":
        return f"timestamp_micros({value})"
    if kind == "timestamp_ntz":
        return f"TIMESTAMP_NTZ'{_text_of_micros(value)}'"
    if kind == "binary":
        return f"X'{value.hex()}'"
    if kind == "boolean":
        return str(value).upper()
    return quoted(value)


def _text_of_micros(micros: int) -> str:
    moment = np.datetime64(micros, "us")
    return str(moment).replace("T", " ")


def _next(value: Any, kind: str, step: int) -> Any:
    """The next value of its type, or ``None``."""
    if kind in _WIDTHS or kind in {"date", "timestamp", "timestamp_ntz"}:
        return value + step
    if kind in {"float", "double"}:
        width: Any = np.float32 if kind == "float" else np.float64
        return float(np.nextafter(width(value), width(step * math.inf))) if math.isfinite(value) else None
    if kind.startswith("decimal"):
        digits, scale = map(int, kind[8:-1].split(","))
        near = value + step * Decimal(1).scaleb(-scale)
        return near if abs(near) < Decimal(10) ** (digits - scale) else None
    if kind == "binary":
        return value + b"\x00" if step > 0 else value[:-1] or None
    if kind == "boolean":
        return not value
    return value + "\x01" if step > 0 else value[:-1]


# -- conditions -----------------------------------------------------------------------------------------------------


def _sharp(leaf: Leaf) -> Iterator[str]:
    """At the ends of what there is, where a wrong bound or calendar shows at once."""
    c, kind = leaf.sql, leaf.type
    if kind in {"float", "double"}:
        yield from (f"{c} = {kind}('NaN')", f"{c} > {kind}('Infinity')", f"{c} >= {kind}('NaN')")
    if leaf.values:
        least, greatest = (_literal(end(leaf.values), kind) for end in (min, max))
        yield from (f"{c} = {least}", f"{c} <= {least}", f"NOT ({c} > {least})", f"{c} = {greatest}")
        yield from (f"{c} > {greatest}", f"{c} >= {greatest}", f"NOT ({c} <= {greatest})", f"NOT ({c} < {greatest})")
    if kind in {"date", "timestamp"}:
        yield from (f"{c} < DATE'1582-10-15'", f"{c} < TIMESTAMP'1900-01-01 00:00:00'")


def _usual(leaf: Leaf) -> Iterator[str]:
    """At, just above and just below values, bounds more often than others."""
    c, kind = leaf.sql, leaf.type
    values = leaf.values[: leaf.bounds + 6]
    for number, value in enumerate(values):
        at = _literal(value, kind)
        other = _literal(values[(number + 1) % len(values)], kind)
        yield from (f"{c} {operator} {at}" for operator in ("=", "<=>", "<", "<=", ">", ">=", "<>"))
        yield f"NOT ({c} <= {at})"
        yield f"NOT ({c} > {at})"
        yield f"NOT ({c} = {at})"
        yield f"{c} IN ({at}, {other})"
        yield f"NOT ({c} IN ({at}, {other}))"
        yield f"{c} = {at} OR {c} IS NULL"
        yield f"{c} BETWEEN least({at}, {other}) AND greatest({at}, {other})"
        for step, outside, inside in ((-1, "<=", ">"), (1, ">=", "<")):
            near = _next(value, kind, step)
            if near is not None:
                beside = _literal(near, kind)
                yield f"{c} {outside} {beside}"
                yield f"{c} {inside} {beside}"
                yield f"{c} = {beside}"
                yield f"NOT ({c} {outside} {beside})"
                low, high = (beside, at) if step < 0 else (at, beside)
                yield f"{c} BETWEEN {low} AND {high}"
                yield f"NOT ({c} BETWEEN {low} AND {high})"


_ODD: Mapping[str, tuple[str, ...]] = {
    "float": (
        *("{c} = float('NaN')", "{c} > float('Infinity')", "{c} >= float('NaN')", "{c} < float('NaN')", "isnan({c})"),
        *("{c} = float('Infinity')", "{c} = float('-Infinity')", "{c} = float('-0.0')", "{c} < float('0.0')"),
        *("{c} <=> float('-0.0')", "{c} > float('-0.0')", "{c} <> float('NaN')", "NOT isnan({c})", "{c} > 1e5"),
        *("{c} IN (float('NaN'), float('0'))", "NOT ({c} <= 50)", "{c} = 16777217", "{c} > 0.1D", "{c} >= 7"),
    ),
    "double": (
        *(
            "{c} = double('NaN')",
            "{c} > double('Infinity')",
            "{c} >= double('NaN')",
            "{c} < double('NaN')",
            "isnan({c})",
        ),
        *("{c} = double('Infinity')", "{c} = double('-Infinity')", "{c} = -0.0D", "{c} < 0.0D", "{c} <=> -0.0D"),
        *("{c} > -0.0D", "{c} <> double('NaN')", "NOT isnan({c})", "{c} > 100", "{c} IN (double('NaN'), 0.0D)"),
        *("NOT ({c} <= 50)", "{c} = 9007199254740993", "{c} > float('0.1')", "{c} > 5"),
    ),
    "string": (
        *("{c} = ''", "{c} > ''", "{c} LIKE '%'", "length({c}) > 3", "upper({c}) = 'A'", "{c} LIKE '_'"),
        *("{c} >= '\ud7ff'", "{c} < '\uffff'", "{c} >= '\U0001f600'", "{c} = 'a '", "rtrim({c}) = 'a'", "{c} < 'b'"),
        *("{c} RLIKE '^a'", "try_cast({c} AS INT) = 7", "try_cast({c} AS DATE) = DATE'2026-01-05'"),
    ),
    "date": (
        *("{c} < DATE'1582-10-15'", "{c} <= DATE'1582-10-04'", "{c} = DATE'0001-01-01'", "{c} = DATE'9999-12-31'"),
        *("{c} < TIMESTAMP'1900-01-01 00:00:00'", "year({c}) = 1500", "CAST({c} AS TIMESTAMP) < TIMESTAMP'1600-01-01'"),
        *("CAST({c} AS STRING) LIKE '1500%'", "{c} > '2020-01-01'", "{c} < '1500-03-02'"),
    ),
    "timestamp": (
        *(
            "{c} < TIMESTAMP'1900-01-01 00:00:00'",
            "{c} < TIMESTAMP'1582-10-15 00:00:00'",
            "CAST({c} AS DATE) = '1500-03-01'",
        ),
        *("{c} = TIMESTAMP'1850-01-01 00:00:00'", "{c} >= TIMESTAMP'2026-03-29 02:30:00'", "year({c}) < 1000"),
        *(
            "{c} = TIMESTAMP'2026-10-25 02:30:00'",
            "hour({c}) = 2",
            "{c} < DATE'1884-01-01'",
            "CAST({c} AS STRING) < '19'",
        ),
        "{c} = TIMESTAMP'9999-12-31 23:59:59.999999'",
    ),
    "timestamp_ntz": (
        *("{c} < TIMESTAMP_NTZ'1900-01-01 00:00:00'", "{c} < TIMESTAMP_NTZ'1582-10-15 00:00:00'", "year({c}) < 1000"),
        *("{c} >= TIMESTAMP_NTZ'2026-03-29 02:30:00'", "CAST({c} AS TIMESTAMP) < TIMESTAMP'1900-01-01 00:00:00'"),
    ),
    "binary": ("{c} = X''", "{c} >= X''", "{c} > X'FF'", "length({c}) > 2", "{c} < X'80'"),
    "boolean": ("{c}", "NOT {c}", "{c} < TRUE", "{c} IS NOT TRUE"),
    "tinyint": ("{c} > 1000", "{c} = 1.0", "{c} >= -0.5"),
    "smallint": ("{c} > 100000", "{c} = 1.0", "{c} >= -0.5"),
    "int": ("{c} > 3000000000L", "{c} = 1.0D", "{c} >= -0.5", "{c} % 2 = 0", "CAST({c} AS STRING) LIKE '1%'"),
    "bigint": ("{c} = 9007199254740993D", "{c} = '7'", "{c} >= 0.5", "{c} % 3 = 1", "CAST({c} AS STRING) LIKE '1%'"),
    "decimal": (
        "{c} > 0",
        "{c} = 1",
        "{c} >= 0.005",
        "{c} < 1e3",
        "CAST({c} AS DOUBLE) > 1",
        "{c} > 12345678901234567890",
    ),
}


def _odd(leaf: Leaf) -> Iterator[str]:
    c, kind = leaf.sql, leaf.type
    yield from (f"{c} IS NULL", f"{c} IS NOT NULL", f"{c} <=> NULL", f"NOT ({c} IS NULL)")
    if leaf.values:
        at = _literal(leaf.values[0], kind)
        yield from (
            f"{c} NOT IN ({at}, NULL)",
            f"{c} IN ({at}, NULL)",
            f"NOT ({c} <=> {at})",
            f"coalesce({c} = {at}, TRUE)",
        )
    odd = _ODD.get("decimal" if kind.startswith("decimal") else kind, ())
    yield from (each.replace("{c}", c) for each in odd)
    if kind == "string" and leaf.values:
        for value in leaf.values[: leaf.bounds + 2]:
            prefix = quoted(value[: max(1, len(value) // 2)])
            yield from (f"startswith({c}, {prefix})", f"NOT startswith({c}, {prefix})", f"contains({c}, {prefix})")
            yield f"endswith({c}, {quoted(value[-1:])})"
            if not set(value) & set("%_\\"):
                yield from (f"{c} LIKE {quoted(value[:3] + '%')}", f"{c} NOT LIKE {quoted(value[:2] + '%')}")
                yield f"{c} LIKE {quoted(value)}"

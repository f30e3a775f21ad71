"""Shapes in expressions. Spark gets the bytes of shapes, see ``carried``; where an expression looks at them, they are
shapes, within the same query, and its new values become bytes again.

Spark has shapes since 4.1, but passes none to Python, and caches none. Spark 4.2 takes only what is well-known binary,
and what it returns is in little-endian order. So a shape that an expression leaves as it was keeps the bytes it had.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import types

from dv_maintenance.dml.carried import assigned, carriers, holds_shapes, only_shapes, refused, refused_value, touched
from dv_maintenance.dml.condition import Condition
from dv_maintenance.dml.names import quoted
from dv_maintenance.dml.store_assignment import stored
from dv_maintenance.tables.model import SHAPES, logical_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.rows import RowRules

_SETTING: Final = "spark.sql.geospatial.enabled"
_SINCE: Final = (4, 1)


@dataclass(frozen=True, slots=True)
class Shapes:
    """Columns whose shapes the expressions of one statement may name.

    target, source : aliases, which may be before a name.
    """

    fields: Mapping[str, pa.Field]
    target: str = ""
    source: str = ""

    def bytes_in(self, schema: pa.Schema) -> pa.Schema:
        """``schema`` with these columns as Spark gets them."""
        fields = zip(schema, carriers(schema), strict=True)
        return pa.schema([carrier if each.name in self.fields else each for each, carrier in fields])

    def shown(self, rows: DataFrame, names: Mapping[str, str] | None = None) -> DataFrame:
        """``rows`` with these columns as shapes, as far as they are there.

        names : of the columns with the bytes, if these have others, see ``carried``.
        """
        from pyspark.sql import functions as f

        names = names or {}
        for name, field in self.fields.items():
            if (carrier := names.get(name, name)) in rows.columns:
                rows = rows.withColumn(name, _as_shapes(f.col(quoted(carrier)), field))
        return rows

    def stored(
        self, rows: DataFrame, values: Mapping[str, str], kinds: StructType, rules: RowRules, old: Mapping[str, Column]
    ) -> dict[str, Column]:
        """As ``store_assignment.stored``, with shapes as bytes.

        kinds : the columns' types, with bytes for shapes.
        old : the bytes of the row that is changed, by column; none for a new row.
        """
        from pyspark.sql.types import StructField, StructType

        given = assigned(rules, self.fields, values)

        def wanted(of: StructField) -> DataType:
            return _with_shapes(of.dataType, self.fields[of.name]) if of.name in given else of.dataType

        with_shapes = StructType([StructField(each.name, wanted(each)) for each in kinds])
        new = stored(rows, values, with_shapes, spark_rules=rules.spark_rules)
        for name in given:
            new[name] = _as_bytes(new[name], self.fields[name], old.get(name) if self._may_keep(name, values) else None)
        return new

    def _may_keep(self, name: str, values: Mapping[str, str]) -> bool:
        """Whether the new value of a column may have shapes of the old one."""
        unknown = Condition.parse(values[name], ()).tree is None
        return unknown or touched(values[name], [name], self.target, self.source) is not None


def shapes_in(
    session: SparkSession,
    snapshot: Snapshot,
    texts: Collection[str],
    given: Iterable[str] = (),
    target: str = "",
    source: str = "",
) -> Shapes:
    """What the expressions ``texts`` may name of the table's shapes, and the columns that get new values (``given``).

    Raises
    ------
    RefusedError : the session lacks these shapes.
    """
    schema, given = snapshot.schema, {*given}
    found = {}
    for field in schema:
        if not only_shapes(field):
            continue
        by = next((sql for sql in texts if touched(sql, [field.name], target, source)), None)
        # One parser may read a word as a column that another one takes for a function.
        maybe = field.name in given or any(field.name in Condition.parse(sql, schema.names).columns for sql in texts)
        if not maybe and by is None:
            continue
        lacking = _lacking(session, field)
        if lacking is None:
            found[field.name] = field
        elif field.name in given:
            raise refused_value(snapshot, field.name, *lacking)
        elif by is not None:
            raise refused(snapshot, field.name, by, *lacking)
    return Shapes(found, target, source)


def _lacking(session: SparkSession, field: pa.Field) -> tuple[str, str] | None:
    """Why a session can't look at the shapes of a column, and what to do."""
    from pyspark.errors import AnalysisException, PySparkException

    if tuple(map(int, re.findall(r"\d+", session.version)[:2])) < _SINCE:
        return f", which Spark {session.version} lacks", f"use Spark 4.1 or newer, with {_SETTING} set to true"
    try:
        _ = session.sql("SELECT ST_AsBinary(ST_GeomFromWKB(X''))").schema
    except AnalysisException:
        return ", which the session has turned off", f"set {_SETTING} to true in the Spark session"
    try:
        known = all(_type(each).srid >= 0 for each in _leaves(field))  # below: shapes of mixed reference systems
    except PySparkException:
        known = False
    return None if known else (" of a type that Spark lacks", "leave it out: rows keep what they have there")


def _leaves(field: pa.Field) -> Iterator[pa.Field]:
    """The shapes in a column."""
    if logical_type(field) == "geo":
        yield field
    for at in range(field.type.num_fields):
        yield from _leaves(field.type.field(at))


def _type(field: pa.Field) -> Any:
    """Spark's type of shapes. Raises PySparkException: it has no such reference system, or no such edges."""
    from pyspark.sql.types import StructType

    edges, reference = (field.metadata or {})[SHAPES].decode().split(" ", 1)
    name = f"geometry({reference})" if edges == "planar" else f"geography({reference}, {edges.upper()})"
    # Types in SQL have numbers, those in JSON the names of reference systems.
    body = {"name": "shape", "type": name, "nullable": True, "metadata": {}}
    return StructType.fromJson({"type": "struct", "fields": [body]})["shape"].dataType


def _with_shapes(kind: Any, field: pa.Field) -> Any:
    """``kind``, a type with bytes, as it is in expressions."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    inside = field.type
    if logical_type(field) == "geo":
        return _type(field)
    if isinstance(kind, StructType):
        pairs = zip(kind, inside, strict=True)
        return StructType([StructField(each.name, _with_shapes(each.dataType, inner)) for each, inner in pairs])
    if isinstance(kind, MapType):
        key = _with_shapes(kind.keyType, inside.key_field)
        return MapType(key, _with_shapes(kind.valueType, inside.item_field))
    if isinstance(kind, ArrayType):
        return ArrayType(_with_shapes(kind.elementType, inside.value_field))
    return kind


def _as_shapes(column: Column, field: pa.Field) -> Column:
    from pyspark.sql import functions as f

    kind = field.type
    if not holds_shapes(field):
        return column
    if logical_type(field) == "geo":
        planar = (field.metadata or {})[SHAPES].startswith(b"planar ")
        made = f.call_function("st_geomfromwkb" if planar else "st_geogfromwkb", column)
        return f.call_function("st_setsrid", made, f.lit(_type(field).srid))
    if types.is_struct(kind):
        inner = [_as_shapes(column.getField(each.name), each).alias(each.name) for each in kind]
        return f.when(column.isNotNull(), f.struct(*inner))
    if types.is_map(kind):
        keyed = f.transform_keys(column, lambda key, _: _as_shapes(key, kind.key_field))
        return f.transform_values(keyed, lambda _, value: _as_shapes(value, kind.item_field))
    return f.transform(column, lambda each: _as_shapes(each, kind.value_field))


def _as_bytes(value: Column, field: pa.Field, old: Column | None) -> Column:
    """``value`` with bytes instead of shapes: of ``old`` where that has the same shape at the same place."""
    from pyspark.sql import functions as f

    kind = field.type
    if not holds_shapes(field):
        return value
    if logical_type(field) == "geo":
        new = f.call_function("st_asbinary", value)
        if old is None:
            return new
        return f.when(new.eqNullSafe(f.call_function("st_asbinary", _as_shapes(old, field))), old).otherwise(new)
    if types.is_struct(kind):
        pairs = [(each, None if old is None else old.getField(each.name)) for each in kind]
        inner = [_as_bytes(value.getField(each.name), each, kept).alias(each.name) for each, kept in pairs]
        return f.when(value.isNotNull(), f.struct(*inner))
    if types.is_map(kind):
        entry = pa.field("entry", pa.struct([kind.key_field.with_name("key"), kind.item_field.with_name("value")]))
        before = None if old is None else f.map_entries(old)
        entries = _as_bytes(f.map_entries(value), pa.field("entries", pa.list_(entry)), before)
        return f.map_from_entries(entries)
    if old is None:
        return f.transform(value, lambda each: _as_bytes(each, kind.value_field, None))
    return f.transform(value, lambda each, at: _as_bytes(each, kind.value_field, f.get(old, at)))

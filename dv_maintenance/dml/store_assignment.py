"""Casts of new values to the types of their columns: Spark's rules of store assignment, as in delta-spark's UPDATE and
MERGE, or in Spark's own.

delta-spark (``UpdateExpressionsSupport.castIfNeeded``) casts by ``spark.sql.storeAssignmentPolicy``, whatever the ANSI
mode of the session. Under ANSI, the default, a value that does not fit is an error; under LEGACY it wraps or becomes
null; under STRICT only casts that lose nothing are allowed. delta-spark matches fields of structs by name, Spark's cast
by position: if the results would differ, the value is refused here.

Where Spark's own UPDATE and MERGE write a table, as with Iceberg (``TableOutputResolver``), the types decide before the
values: under ANSI a text becomes no number, no date and no boolean, and LEGACY is not allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from dv_maintenance.errors import RefusedError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

Mode = Literal["ansi", "legacy"]

_POLICY: Final = "spark.sql.storeAssignmentPolicy"
_ANSI: Final = "spark.sql.ansi.enabled"
_FOLLOWS_ANSI: Final = "spark.databricks.delta.updateAndMergeCastingFollowsAnsiEnabledFlag"


def stored(rows: DataFrame, values: Mapping[str, str], types: StructType, *, spark_rules: bool) -> dict[str, Column]:
    """``values``, SQL over ``rows`` by column, cast to the columns' ``types``.

    spark_rules : as in ``RowRules``.

    Raises
    ------
    RefusedError : a struct whose fields are not those of the column in the same order; shapes of another type; under
        STRICT a value of another type; with ``spark_rules`` a type that Spark does not store in the column's, and the
        policy LEGACY.
    """
    from pyspark.sql import functions as f

    session = rows.sparkSession
    policy = _conf(session, _POLICY, "ANSI").upper()
    if policy == "LEGACY" and spark_rules:
        raise RefusedError(
            f"{_POLICY} is LEGACY, which Spark does not allow for such a table",
            next_step=f"set {_POLICY} to ANSI in the session",
        )
    strict = policy == "STRICT" and not (_follows_ansi(session) and not spark_rules)
    seen = [name for name in values if strict or spark_rules or _has_inside(types[name].dataType)]
    # The analyzer's types, under numbers as aliases, since names may differ only in case.
    given = rows.select(*[f.expr(values[name]).alias(f"_{at}") for at, name in enumerate(seen)]).schema if seen else ()
    for name, found in zip(seen, given, strict=True):
        _check(name, found.dataType, types[name].dataType, strict)
        if spark_rules and not _assignable(found.dataType, types[name].dataType):
            raise RefusedError(
                f"column {name} is {types[name].dataType.simpleString()}, but its new value "
                f"{found.dataType.simpleString()}, which Spark does not store in it",
                next_step="cast the value to the column's type",
            )
    mode = _session_mode(session, "ansi") if spark_rules else _mode(session)
    return {name: _cast(session, f.expr(sql), types[name].dataType, mode) for name, sql in values.items()}


def _check(name: str, given: DataType, wanted: DataType, strict: bool) -> None:
    from pyspark.sql.types import NullType

    if not _same_fields(given, wanted):
        raise RefusedError(
            f"column {name} is {wanted.simpleString()}, but its new value {given.simpleString()} has other fields or "
            "another order",
            next_step="build the value with named_struct, with the column's fields in their order",
        )
    if not _same_shapes(given, wanted):
        raise RefusedError(
            f"column {name} is {wanted.simpleString()}, but its new value {given.simpleString()}, "
            "and shapes are not cast",
            next_step="give shapes of the column's type, as ST_SetSrid(ST_GeomFromWKB(bytes), srid)",
        )
    if strict and not isinstance(given, NullType) and given.simpleString() != wanted.simpleString():
        raise RefusedError(
            f"column {name} is {wanted.simpleString()}, but its new value {given.simpleString()}: {_POLICY} is STRICT",
            next_step="cast the value to the column's type",
        )


def _assignable(given: DataType, wanted: DataType) -> bool:
    """``Cast.canANSIStoreAssign`` of Spark. Fields of structs have the same names, see :func:`_same_fields`."""
    from pyspark.sql import types as t

    if given == wanted or isinstance(given, t.NullType):
        return True
    if isinstance(given, t.ArrayType) and isinstance(wanted, t.ArrayType):
        return _assignable(given.elementType, wanted.elementType)
    if isinstance(given, t.MapType) and isinstance(wanted, t.MapType):
        return _assignable(given.keyType, wanted.keyType) and _assignable(given.valueType, wanted.valueType)
    if isinstance(given, t.StructType) and isinstance(wanted, t.StructType):
        pairs = zip(given.fields, wanted.fields, strict=True)
        return all(_assignable(one.dataType, other.dataType) for one, other in pairs)
    if isinstance(wanted, t.StringType):
        return not isinstance(given, (t.ArrayType, t.MapType, t.StructType))
    return any(isinstance(given, kind) and isinstance(wanted, kind) for kind in (t.NumericType, t.DatetimeType))


def _has_inside(kind: DataType) -> bool:
    """Whether structs or shapes are in a type."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, ArrayType):
        return _has_inside(kind.elementType)
    if isinstance(kind, MapType):
        return _has_inside(kind.keyType) or _has_inside(kind.valueType)
    return isinstance(kind, StructType) or _srid(kind) is not None


def _srid(kind: DataType) -> int | None:
    """The number of the reference system, if the type is one of shapes. Spark before 4.1 has none."""
    return getattr(kind, "srid", None)


def _same_fields(given: DataType, wanted: DataType) -> bool:
    """Whether structs have the same names in the same order. Spark compares other types."""
    from pyspark.sql.types import StructType

    if isinstance(given, StructType) and isinstance(wanted, StructType):
        names = [[name.lower() for name in each.names] for each in (given, wanted)]
        if names[0] != names[1]:
            return False
    return all(_same_fields(*pair) for pair in _pairs(given, wanted))


def _same_shapes(given: DataType, wanted: DataType) -> bool:
    """Whether shapes are of the same kind and reference system. Spark 4.2 casts some from plane to sphere."""
    from pyspark.sql.types import NullType

    if (srid := _srid(wanted)) is not None and not isinstance(given, NullType):
        return type(given) is type(wanted) and _srid(given) == srid
    return all(_same_shapes(*pair) for pair in _pairs(given, wanted))


def _pairs(given: DataType, wanted: DataType) -> list[tuple[DataType, DataType]]:
    """The types within two types of the same kind."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(given, StructType) and isinstance(wanted, StructType):
        return [(one.dataType, other.dataType) for one, other in zip(given.fields, wanted.fields, strict=False)]
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        return [(given.elementType, wanted.elementType)]
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        return [(given.keyType, wanted.keyType), (given.valueType, wanted.valueType)]
    return []


def _mode(session: SparkSession) -> Mode | None:
    """The evaluation mode of casts; ``None``: the session's own."""
    if _follows_ansi(session):
        return None
    return _session_mode(session, "legacy" if _conf(session, _POLICY, "ANSI").upper() == "LEGACY" else "ansi")


def _session_mode(session: SparkSession, wanted: Mode) -> Mode | None:
    return None if (_conf(session, _ANSI, "true") == "true") == (wanted == "ansi") else wanted


def _follows_ansi(session: SparkSession) -> bool:
    return _conf(session, _FOLLOWS_ANSI, "false") == "true"


def _conf(session: SparkSession, key: str, default: str) -> str:
    return str(session.conf.get(key, default)).strip()


def _cast(session: SparkSession, column: Column, kind: DataType, mode: Mode | None) -> Column:
    """A cast in a given mode. PySpark's own cast uses the session's mode; only plan nodes can set another one."""
    if mode is None:
        return column.cast(kind)
    inner: Any = column
    if not hasattr(column, "_jc"):
        from pyspark.sql.connect.column import Column as ConnectColumn
        from pyspark.sql.connect.expressions import CastExpression

        return ConnectColumn(CastExpression(inner._expr, kind, mode))  # noqa: SLF001
    from pyspark.sql.classic.column import Column as ClassicColumn

    jvm: Any = session._jvm  # noqa: SLF001
    evaluation = getattr(getattr(jvm.org.apache.spark.sql.internal, f"Cast${mode.capitalize()}$"), "MODULE$")
    node = inner._jc.node()  # noqa: SLF001
    target = session._jsparkSession.parseDataType(kind.json())  # noqa: SLF001
    cast = jvm.org.apache.spark.sql.internal.Cast(node, target, jvm.scala.Some(evaluation), node.origin())
    return ClassicColumn(jvm.org.apache.spark.sql.Column(cast))

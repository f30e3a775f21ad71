"""New rows that follow the table's rules: cast to its types, with generated columns, checked against its constraints.

All expressions are evaluated by Spark SQL. A row that violates a rule stops the whole operation. Rules hold for what is
stored, not for what an expression returned: a partition value that is empty or Hive's name for null is null, and a CHAR
is read with spaces at its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from dv_maintenance.dml.carried import carriers
from dv_maintenance.dml.names import quoted
from dv_maintenance.dml.padding import as_in_catalog, char_length, marked, reads_padded
from dv_maintenance.dml.spark_types import spark_schema
from dv_maintenance.tables.model import NULL_PARTITION
from dv_maintenance.tables.rows import row_id_name, unused

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.rows import RowRules

TARGET_BYTES: Final = 128 << 20


def spark_types(schema: pa.Schema) -> StructType:
    """The types that new values are cast to. All may be null: Spark casts nothing to a NOT NULL field, and the table's
    rules refuse nulls by name. Of types that Spark lacks, those in which it carries them. Raises RefusedError for
    others.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(spark_schema(carriers(schema)), prefer_timestamp_ntz=True)


def scanned(schema: pa.Schema, rules: RowRules) -> pa.Schema:
    """The columns that have to be read of changed rows."""
    return schema.append(pa.field(row_id_name(schema), pa.int64())) if rules.row_ids else schema


def held_to(snapshot: Snapshot, rules: RowRules, rows: DataFrame, types: StructType, changed: Column) -> DataFrame:
    """``rows`` as they are stored, with generated columns computed. A violation among the ``changed`` rows stops the
    whole operation.
    """
    from pyspark.sql import functions as f

    computed = {name: f.expr(sql).cast(types[name].dataType) for name, sql in rules.generated.items()}
    for name, value in computed.items():
        rows = rows.withColumn(name, f.when(changed, value).otherwise(f.col(quoted(name))))
    for name in rules.empty_is_null:
        column = f.col(quoted(name))
        rows = rows.withColumn(name, f.when((f.length(column) > 0) & (column != f.lit(NULL_PARTITION)), column))
    rows = _checked(
        marked(rows, snapshot.schema),
        changed,
        {
            **{f"NOT NULL column {name}": f.col(name).isNotNull() for name in rules.not_null},
            **_checks(rules),
            # Both were computed from the same values: they differ only if one of these is stored as another one.
            **{
                f"generated column {name} ({rules.generated[name]})": f.col(quoted(name)).eqNullSafe(value)
                for name, value in (computed if rules.empty_is_null else {}).items()
            },
        },
    )
    if not reads_padded(rows, snapshot.schema):
        return rows
    # delta-spark checks the text as it was given. Readers see it padded, and what they see must follow the rules too.
    given = {field.name: unused(f"_dvm_{field.name}", rows.columns) for field in snapshot.schema if char_length(field)}
    both = rows.select("*", *[f.col(quoted(name)).alias(copy) for name, copy in given.items()])
    checked = _checked(as_in_catalog(both, snapshot.schema), changed, _checks(rules))
    return checked.select(*[f.col(quoted(given.get(name, name))).alias(name) for name in rows.columns])


def _checks(rules: RowRules) -> dict[str, Column]:
    from pyspark.sql import functions as f

    return {f"constraint {name} ({sql})": f.expr(sql) for name, sql in rules.checks.items()}


def _checked(rows: DataFrame, changed: Column, demands: Mapping[str, Column]) -> DataFrame:
    """``demands`` : by description; each must be true for every changed row."""
    from pyspark.sql import functions as f

    for what, holds in demands.items():
        stop = f.raise_error(f.lit(f"a new row breaks {what}")).cast("boolean")
        rows = rows.where(f.when(changed & ~f.coalesce(holds, f.lit(False)), stop).otherwise(f.lit(True)))
    return rows

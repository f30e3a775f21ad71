"""CHAR columns as Spark reads them in a table of a catalog.

Files hold the text as it was written. Spark pads it with spaces to the column's length on reading
(``spark.sql.readSideCharPadding``), and pads text that a CHAR column is compared with (``ApplyCharTypePadding``). Spark
does the second here as well, because the metadata of the column identify it as CHAR.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import RefusedError
from dv_maintenance.tables.model import LIMITED

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

SPARK_KEY: Final = "__CHAR_VARCHAR_TYPE_STRING"
_CHAR: Final = re.compile(r"char\((\d+)\)")
_INNER_CHAR: Final = re.compile(r"\bchar\(")
_PADS: Final = "spark.sql.readSideCharPadding"
_AS_STRING: Final = "spark.sql.legacy.charVarcharAsString"


def char_length(field: pa.Field) -> int | None:
    """The length of a CHAR column; ``None`` for other columns."""
    found = _CHAR.fullmatch(_limited(field))
    return int(found[1]) if found else None


def as_in_catalog(rows: DataFrame, schema: pa.Schema) -> DataFrame:
    """``rows`` with their CHAR columns, according to ``schema``, padded as by Spark.

    Raises
    ------
    RefusedError : a column has CHARs in an array, a map or a struct.
    """
    return _marked(rows, schema, padded=reads_padded(rows, schema))


def marked(rows: DataFrame, schema: pa.Schema) -> DataFrame:
    """``rows`` with the text of CHAR columns unchanged, so that Spark pads only what it is compared with.

    Raises
    ------
    RefusedError : as ``as_in_catalog``.
    """
    return _marked(rows, schema, padded=False)


def reads_padded(rows: DataFrame, schema: pa.Schema) -> bool:
    """Whether there are CHAR columns and the session pads them when it reads."""
    conf = rows.sparkSession.conf
    return any(map(char_length, schema)) and conf.get(_PADS) == "true" and conf.get(_AS_STRING) == "false"


def _marked(rows: DataFrame, schema: pa.Schema, *, padded: bool) -> DataFrame:
    from pyspark.sql import functions as f

    lengths = {field.name: _length(field) for field in schema}
    if not any(lengths.values()):
        return rows
    columns = []
    for name in rows.columns:
        column = f.col("`" + name.replace("`", "``") + "`")
        if length := lengths.get(name):
            if padded:
                column = f.when(f.char_length(column) < length, f.rpad(column, length, " ")).otherwise(column)
            column = column.alias(name, metadata={SPARK_KEY: f"char({length})"})
        columns.append(column)
    return rows.select(*columns)


def _length(field: pa.Field) -> int | None:
    length = char_length(field)
    if length is None and _INNER_CHAR.search(_limited(field)):
        raise RefusedError(
            f"column {field.name} has CHARs in an array, a map or a struct, which Spark pads and this tool does not",
            next_step="leave it out of the condition; UPDATE and MERGE read it anyway: use the engine that wrote it",
        )
    return length


def _limited(field: pa.Field) -> str:
    return str((field.metadata or {}).get(LIMITED, b"").decode())

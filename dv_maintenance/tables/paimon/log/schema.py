"""Schema files: columns, keys and options of a table.

Format: schema of Paimon's specification. Each schema change writes the next ``schema-N``, starting with 0. The newest
schema has the current options. A snapshot names the schema of its columns. A manifest entry names the schema that its
data file was written with. Fields of two schemas are the same if their ids are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, TableNotFoundError, UnsupportedFeatureError
from dv_maintenance.tables.model import LIMITED
from dv_maintenance.tables.paimon.layout import Layout
from dv_maintenance.tables.paimon.log.documents import Document
from dv_maintenance.tables.paimon.rows.types import DataType, Field, arrow_field, holds, parse_field

_MAX_VERSION = 3


@dataclass(frozen=True, slots=True)
class Schema:
    """One schema file. ``timestamp``: epoch milliseconds."""

    id: int
    fields: tuple[Field, ...]
    partition_keys: tuple[str, ...]
    primary_keys: tuple[str, ...]
    options: Mapping[str, str]
    timestamp: int

    def arrow(self) -> pa.Schema:
        return pa.schema([_marked(arrow_field(each), each.type) for each in self.fields])

    def partition_fields(self) -> tuple[Field, ...]:
        """The partition columns in the order of the keys, as in partition rows."""
        by_name = {each.name: each for each in self.fields}
        return tuple(by_name[name] for name in self.partition_keys)


def _marked(field: pa.Field, type: DataType) -> pa.Field:
    """The field, marked if its type holds a CHAR: Spark pads these, and Arrow's types do not identify them."""
    if type.root == "CHAR":
        limited = f"char({type.precision or 1})"
    elif holds(type, "CHAR"):
        limited = f"{type.root.lower()} of char(n)"
    else:
        return field
    return field.with_metadata({**(field.metadata or {}), LIMITED: limited.encode()})


def newest_schema(layout: Layout) -> Schema:
    """Read the newest schema, which has the current options. Costs one listing and one read.

    Raises
    ------
    TableNotFoundError : there is no schema.
    StorageError : as :meth:`Layout.schemas`.
    DamagedTableError, UnsupportedFeatureError : as :func:`read_schema`.
    """
    ids = layout.schemas()
    if not ids:
        raise TableNotFoundError("no schema file here", table=layout.uri, next_step="check the table's path")
    return read_schema(layout, max(ids))


def read_schema(layout: Layout, schema_id: int) -> Schema:
    """Read one schema file. A branch has its own copies of all schemas that its snapshots need.

    Raises
    ------
    DamagedTableError : the file is damaged or missing; the message names it.
    UnsupportedFeatureError : an unknown type or version.
    """
    path = layout.schema(schema_id)
    try:
        document = Document.parse(layout.uri, path, layout.storage.get(path))
    except FileNotFoundError:
        raise DamagedTableError(f"{path} does not exist", table=layout.uri) from None
    if (document.optional_integer("version") or 1) > _MAX_VERSION:
        raise UnsupportedFeatureError(
            f"{path} has format version {document.integer('version')}; this release reads up to {_MAX_VERSION}",
            features=(f"schema version {document.integer('version')}",),
            table=layout.uri,
            next_step="use a newer release of this tool",
        )
    try:
        fields = tuple(parse_field(each) for each in document.objects("fields"))
    except DvMaintenanceError as error:
        if isinstance(error, DamagedTableError):
            raise document.damaged(error.message) from None
        error.table = layout.uri
        raise
    schema = Schema(
        id=document.integer("id"),
        fields=fields,
        partition_keys=document.texts("partitionKeys"),
        primary_keys=document.texts("primaryKeys"),
        options=document.options("options"),
        timestamp=document.optional_integer("timeMillis") or 0,
    )
    if schema.id != schema_id:
        raise document.damaged(f"it holds schema {schema.id}")
    names = [each.name for each in fields]
    if not names:
        raise document.damaged("it has no columns")
    if len(set(names)) < len(names) or len({each.id for each in fields}) < len(names):
        raise document.damaged("two columns have the same name or id")
    if unknown := {*schema.partition_keys, *schema.primary_keys} - set(names):
        raise document.damaged(f"its keys name missing columns: {', '.join(sorted(unknown))}")
    return schema

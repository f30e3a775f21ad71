"""New rows of a table: the rules that they must satisfy, and the tasks that write them to files."""

from __future__ import annotations

from collections.abc import Iterator
from secrets import randbits
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import types

from dv_maintenance.tables.iceberg.commit.metrics import stats_columns
from dv_maintenance.tables.iceberg.log.types import LINEAGE, ROW_ID, constant, without_unknown
from dv_maintenance.tables.iceberg.rows.formats import codec_of, file_schema, format_of
from dv_maintenance.tables.iceberg.rows.tasks import scan_metadata
from dv_maintenance.tables.iceberg.rows.transforms import NewPartitions
from dv_maintenance.tables.model import logical_type
from dv_maintenance.tables.rows import RowRules, RowWriteTask, row_id_name

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.layout import Layout
    from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot

_SPREAD: Final = "write.object-storage.enabled"


def row_rules(snapshot: IcebergSnapshot) -> RowRules:
    """See ``RowLevelTable.row_rules``.

    Specification: Schemas (required fields), Default Values, Row Lineage.
    """
    not_null, checks = [], {}
    for field in snapshot.table_schema.arrow:
        name = _quoted(field.name)
        if not field.nullable:
            not_null.append(name)
        if demands := list(_demands(name, field, 0)):
            checks[f"required fields within {field.name}"] = " AND ".join(demands)
    defaults, fixed = {}, {}
    schemas = snapshot.metadata.body.get("schemas") or []
    current: Any = next((each for each in schemas if each.get("schema-id") == snapshot.table_schema.id), {"fields": []})
    for body, field in zip(current["fields"], snapshot.table_schema.arrow, strict=False):
        if (value := body.get("write-default")) is None:
            continue
        # A UUID is text in Spark.
        literal = _literal(value, pa.string() if logical_type(field) == "uuid" else field.type)
        if literal is None:
            fixed[field.name] = "it has a default value of a nested type"
        else:
            defaults[field.name] = literal
    return RowRules(
        checks=checks,
        not_null=tuple(not_null),
        defaults=defaults,
        fixed=fixed,
        row_ids=snapshot.metadata.format_version > 2,
        spark_rules=True,
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _demands(value: str, field: pa.Field, depth: int) -> Iterator[str]:
    """Conditions that a value must fulfil because of required fields within it. One that is null fulfils them."""
    kind = field.type
    if logical_type(field) == "variant":
        return  # Spark writes both of its parts
    if types.is_struct(kind):
        for each in kind:
            inner = f"{value}.{_quoted(each.name)}"
            if not each.nullable:
                yield f"({value} IS NULL OR {inner} IS NOT NULL)"
            yield from _demands(inner, each, depth)
        return
    if types.is_map(kind):
        parts = [(f"map_keys({value})", kind.key_field), (f"map_values({value})", kind.item_field)]
    elif types.is_list(kind):
        parts = [(value, kind.value_field)]
    else:
        return
    for array, each in parts:
        one = f"x{depth}"
        demands = list(_demands(one, each, depth + 1))
        if not each.nullable:
            demands.append(f"{one} IS NOT NULL")
        if demands:
            yield f"coalesce(forall({array}, {one} -> {' AND '.join(demands)}), true)"


def _literal(value: Any, kind: pa.DataType) -> str | None:
    """A default value in Spark's SQL, from its JSON (specification: JSON Single-Value Serialization)."""
    text = f"CAST(unhex('{str(value).encode().hex()}') AS STRING)"
    if types.is_nested(kind):
        return None
    if types.is_time(kind) or (types.is_timestamp(kind) and kind.unit == "ns"):
        return f"{constant(value, kind)}L"  # as Spark carries such columns
    if types.is_boolean(kind) or types.is_integer(kind):
        return str(value)
    if types.is_string(kind):
        return text
    if types.is_binary(kind) or types.is_fixed_size_binary(kind):
        return f"unhex('{value}')"
    if types.is_timestamp(kind):
        return f"CAST({text} AS TIMESTAMP{'' if kind.tz else '_NTZ'})"
    sql = "DATE" if types.is_date(kind) else "FLOAT" if types.is_float32(kind) else "DOUBLE"
    return f"CAST({text} AS {f'DECIMAL({kind.precision}, {kind.scale})' if types.is_decimal(kind) else sql})"


def row_write_tasks(layout: Layout, snapshot: IcebergSnapshot, target_bytes: int) -> tuple[RowWriteTask, RowWriteTask]:
    """See ``RowLevelTable.row_write_tasks``; there is no change data.

    Of row lineage, only the ids are stored. The commit of the file is the one that updated its rows last, and readers
    assume that if nothing is stored (specification: Row Lineage).

    Raises
    ------
    RefusedError : the folder of new files is a link.
    """
    metadata = snapshot.metadata
    columns = pa.schema([*filter(None, map(without_unknown, snapshot.table_schema.arrow))])
    names, partitions = columns.names, NewPartitions.of(metadata, columns)
    if metadata.format_version > 2:
        names = [*names, row_id_name(snapshot.schema)]
        columns = columns.append(LINEAGE.field(ROW_ID))
    folder = layout.path(new_files_folder(layout, snapshot))
    layout.storage.check_target(f"{folder}/new")
    stats = tuple(each for each in stats_columns(snapshot) if each[0] in columns.names)
    task = RowWriteTask(
        tuple(names),
        file_schema(snapshot, columns.with_metadata(scan_metadata(snapshot))),
        layout.storage.uri_of(folder),
        hive_folders=True,
        target_bytes=target_bytes,
        compression=codec_of(snapshot),
        stats_columns=stats,
        partitions=partitions,
        format=format_of(snapshot),
    )
    return task, task


def new_files_folder(layout: Layout, snapshot: IcebergSnapshot) -> str:
    """The folder of files that replace no others, as the table spells it. Those of one operation share a prefix that
    differs from that of others if the table wants its files spread (``write.object-storage.enabled``).
    """
    folder = layout.data_folder(snapshot.metadata)
    if snapshot.properties.get(_SPREAD, "false").strip().lower() != "true":
        return folder
    bits = f"{randbits(20):020b}"
    return f"{folder}/{bits[:4]}/{bits[4:8]}/{bits[8:12]}/{bits[12:]}"

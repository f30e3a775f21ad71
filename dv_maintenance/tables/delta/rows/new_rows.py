"""New rows of a table: the rules that they must satisfy, and the tasks that write them to files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import orjson
import pyarrow as pa

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.tables.delta.rows.clustering import clustering_columns
from dv_maintenance.tables.delta.rows.layout import file_schema
from dv_maintenance.tables.delta.rows.row_tracking import stored_columns
from dv_maintenance.tables.delta.rows.schema import arrow_schema, column_mapping_mode, physical_name, physical_schema
from dv_maintenance.tables.delta.rows.stats import stats_columns
from dv_maintenance.tables.delta.rows.tasks import codec_of
from dv_maintenance.tables.rows import RowRules, RowWriteTask, row_id_name

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot

_CHECK: Final = "delta.constraints."
_CHANGE_TYPE: Final = "_change_type"
_LIMITED: Final = re.compile(r"(?:var)?char\((\d+)\)")


def row_rules(snapshot: DeltaSnapshot) -> RowRules:
    """See ``RowLevelTable.row_rules``.

    Protocol: CHECK Constraints, Column Invariants, Generated Columns, Identity Columns, Default Columns,
    Partition Value Serialization.
    """
    metadata = snapshot.metadata
    checks = {key[len(_CHECK) :]: sql for key, sql in metadata.configuration.items() if key.lower().startswith(_CHECK)}
    not_null: list[str] = []
    generated, defaults, fixed = {}, {}, {}
    identity: list[str] = []
    schema = orjson.loads(metadata.schema_string)  # checked when the snapshot was loaded
    for path, body in _fields(schema, ()):
        name, notes = ".".join(path), body.get("metadata") or {}
        if body.get("nullable") is False:
            not_null.append(".".join("`" + part.replace("`", "``") + "`" for part in path))
        if invariant := notes.get("delta.invariants"):
            checks[f"invariant of {name}"] = _invariant(invariant, snapshot, name)
        if "delta.generationExpression" in notes:
            generated[name] = str(notes["delta.generationExpression"])
        if any(key.startswith("delta.identity.") for key in notes):
            identity.append(name)
        if "CURRENT_DEFAULT" in notes:
            defaults[name] = str(notes["CURRENT_DEFAULT"])
        if limited := notes.get("__CHAR_VARCHAR_TYPE_STRING"):
            # As in delta-spark (CharVarcharConstraint): spaces count, and nothing is padded.
            length = _LIMITED.fullmatch(str(limited).lower())
            if length and len(path) == 1:
                column = f"`{name.replace('`', '``')}`"
                checks[f"{limited} of {name}"] = f"{column} IS NULL OR char_length({column}) <= {length[1]}"
            else:
                fixed[name] = "the length of text in it is limited (char or varchar)"
    change_data = metadata.configuration.get("delta.enableChangeDataFeed", "").lower() == "true"
    row_ids = stored_columns(snapshot.protocol, metadata) is not None
    texts = tuple(name for name in snapshot.partition_columns if _is_text(snapshot.schema.field(name).type))
    return RowRules(checks, tuple(not_null), generated, tuple(identity), defaults, fixed, texts, change_data, row_ids)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _fields(struct: Mapping[str, Any], parent: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Fields, and the fields of structs in them. A NOT NULL field in a struct that may be null keeps it from being
    null, as in delta-spark (``Constraints.NotNull``).
    """
    for field in struct["fields"]:
        path = (*parent, field["name"])
        yield path, field
        inside = field["type"]
        if isinstance(inside, dict) and inside.get("type") == "struct":
            yield from _fields(inside, path)


def _invariant(text: Any, snapshot: DeltaSnapshot, column: str) -> str:
    """From ``{"expression": {"expression": "x > 3"}}``, as the schema's metadata holds it."""
    try:
        return str(orjson.loads(text)["expression"]["expression"])
    except (ValueError, KeyError, TypeError):
        raise DamagedTableError(
            f"the invariant of column {column} is not an expression",
            table=snapshot.table,
            version=snapshot.version,
            next_step="correct the column's delta.invariants with the table's engine",
        ) from None


def row_write_tasks(storage: Storage, snapshot: DeltaSnapshot, target_bytes: int) -> tuple[RowWriteTask, RowWriteTask]:
    """See ``RowLevelTable.row_write_tasks``. Change data goes to ``_change_data`` (protocol: Add CDC File).

    For tracked rows, only the ids are stored. The version that last changed them is the one that commits the file, and
    readers assume that version if none is stored (protocol: Row Tracking).

    Raises
    ------
    RefusedError : the table requires a compression that we can't write.
    DamagedTableError : rows are tracked, but the table does not name the columns.
    """
    metadata = snapshot.metadata
    by_physical = {physical_name(field): field.name for field in arrow_schema(metadata)}
    schema = file_schema(snapshot.protocol, metadata)
    tracked = stored_columns(snapshot.protocol, metadata)
    if tracked is not None:
        by_physical[tracked.row_id] = row_id_name(arrow_schema(metadata))
        schema = schema.remove(schema.get_field_index(tracked.commit_version))
    columns = tuple(by_physical[name] for name in schema.names)
    plain = physical_schema(metadata)
    spread = metadata.configuration.get("delta.randomizeFilePrefixes", "").lower() == "true"
    hive = not spread and column_mapping_mode(metadata) == "none"
    prefix = "" if hive else f"/{uuid4().hex[:2]}"
    codec, stats = codec_of(metadata), stats_columns(metadata, clustering_columns(snapshot.domains))
    rows = RowWriteTask(columns, schema, storage.uri + prefix, hive, target_bytes, codec, stats)
    changes = RowWriteTask(
        (*[by_physical[name] for name in plain.names], _CHANGE_TYPE),
        plain.append(pa.field(_CHANGE_TYPE, pa.string())),
        f"{storage.uri}/_change_data",
        hive,
        target_bytes,
        codec,
    )
    return rows, changes

"""Shredded variants: parts of a variant that a file stores in typed columns of their own (Parquet: Variant Shredding).

Each file has its own typed part. A rewrite moves it as it is: as columns of the types that the file declares, which
hold a variant together with its binary rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import types

from dv_maintenance.errors import RefusedError
from dv_maintenance.files.variants import TYPED
from dv_maintenance.remedies import Remedy, run
from dv_maintenance.tables.model import has_variant, logical_type
from dv_maintenance.tables.parquet_schema import stored_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.work import SourceFile

_ID: Final = b"PARQUET:field_id"
# Nothing in the typed part has an id.
_BY_NAME: Final = {b"dvm:match": b"name"}


def as_stored(storage: Storage, schema: pa.Schema, sources: Sequence[SourceFile]) -> list[pa.Schema]:
    """For each Parquet file, ``schema`` with variants that are shredded as in that file. Reads the footers.

    Raises
    ------
    RefusedError : variants are shredded in types that a rewrite here would change; names the file.
    DamagedTableError : a file can't be read.
    """
    return [
        _with_typed_parts(schema, stored_schema(storage, storage.path_of_uri(source.uri)), source.key.path)
        for source in sources
    ]


def _with_typed_parts(schema: pa.Schema, stored: pa.Schema, file: str) -> pa.Schema:
    return pa.schema([_field(field, _child(stored, field), file) for field in schema], schema.metadata)


def _child(stored: Any, wanted: pa.Field) -> pa.Field | None:
    """The field of a file with the id of ``wanted``; of one without ids, that with its name."""
    fields = [stored.field(at) for at in range(len(stored.names))]
    ids = [(each.metadata or {}).get(_ID) for each in fields]
    own = (wanted.metadata or {}).get(_ID)
    if own is not None and any(ids):
        return next((each for each, found in zip(fields, ids, strict=True) if found == own), None)
    return next((each for each in fields if each.name == wanted.name), None)


def _field(field: pa.Field, stored: pa.Field | None, file: str) -> pa.Field:
    if stored is None or not has_variant(field):
        return field
    if logical_type(field) == "variant":
        if not types.is_struct(stored.type) or TYPED not in stored.type.names:
            return field
        _check(stored.type, f"{file}: column {field.name}")
        return field.with_type(_by_name(stored.type))
    kind, other = field.type, stored.type
    if types.is_struct(kind) and types.is_struct(other):
        return field.with_type(pa.struct([_field(each, _child(other, each), file) for each in kind]))
    if types.is_list(kind) and types.is_list(other):
        return field.with_type(pa.list_(_field(kind.value_field, other.value_field, file)))
    if types.is_map(kind) and types.is_map(other):
        return field.with_type(pa.map_(kind.key_field, _field(kind.item_field, other.item_field, file)))
    return field


def _by_name(kind: pa.DataType) -> pa.DataType:
    if types.is_struct(kind):
        return pa.struct([each.with_type(_by_name(each.type)).with_metadata(_BY_NAME) for each in kind])
    return pa.list_(kind.value_field.with_type(_by_name(kind.value_type))) if types.is_list(kind) else kind


def _check(kind: pa.DataType, where: str) -> None:
    """Refuse types that Arrow would store in another way than the file does."""
    if types.is_struct(kind) or types.is_list(kind):
        for at in range(kind.num_fields):
            _check(kind.field(at).type, where)
    elif not (
        types.is_boolean(kind)
        or types.is_signed_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal128(kind)
        or types.is_string(kind)
        or types.is_binary(kind)
        or types.is_date32(kind)
        or (types.is_timestamp(kind) and kind.unit == "us")
    ):
        raise left_to_the_engine(f"{where} has variants that are shredded as {kind}, which a rewrite here would change")


def left_to_the_engine(problem: str) -> RefusedError:
    return RefusedError(
        problem, next_step=Remedy("rewrite the table with its engine, which {} does and checks", (run("engine-sql"),))
    )

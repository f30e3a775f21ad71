"""Shredded variants: parts of a variant that a file stores in typed columns of their own (protocol: Variant Shredding).

Each file has its own typed part. A rewrite moves it as it is: as columns of the types that the file declares, which
hold a variant together with its binary rest. So files share a new one only if their variants are shredded alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import types

from dv_maintenance.errors import RefusedError
from dv_maintenance.files.variants import TYPED
from dv_maintenance.remedies import Remedy, run
from dv_maintenance.tables.delta.rows.schema import delta_kind
from dv_maintenance.tables.model import has_variant
from dv_maintenance.tables.parquet_schema import stored_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.log.actions import Metadata, Protocol
    from dv_maintenance.tables.work import SourceFile

SHREDDING: Final = frozenset({"variantShredding", "variantShredding-preview"})


def may_be_shredded(protocol: Protocol) -> bool:
    return not SHREDDING.isdisjoint(protocol.features("writer"))


def as_shredded(storage: Storage, schema: pa.Schema, sources: Sequence[SourceFile], metadata: Metadata) -> pa.Schema:
    """The schema of files whose variants are shredded as those of the sources. Reads their footers.

    Raises
    ------
    RefusedError : they are shredded differently, or in types that a rewrite here would change; names the files.
    DamagedTableError : a file can't be read.
    """
    if not any(map(has_variant, schema)):
        return schema
    found = [
        _with_typed_parts(schema, stored_schema(storage, storage.path_of_uri(source.uri)), source.key.path)
        for source in sources
    ]
    for source, each in zip(sources, found, strict=True):
        if each != found[0]:
            raise _left(f"{sources[0].key.path} and {source.key.path} hold variants that are shredded differently")
    on = metadata.configuration.get("delta.enableVariantShredding", "").lower() == "true"
    if not on and found[0] != schema:
        raise _left(
            f"{sources[0].key.path} holds shredded variants, which delta.enableVariantShredding no longer allows"
        )
    return found[0]


def _with_typed_parts(schema: pa.Schema, stored: pa.Schema, file: str) -> pa.Schema:
    return pa.schema([_field(field, _child(stored, field.name), file) for field in schema], schema.metadata)


def _child(stored: Any, name: str) -> pa.Field | None:
    at = stored.get_field_index(name)
    return stored.field(at) if at >= 0 else None


def _field(field: pa.Field, stored: pa.Field | None, file: str) -> pa.Field:
    if stored is None or not has_variant(field):
        return field
    if delta_kind(field) == "variant":
        if not types.is_struct(stored.type) or _child(stored.type, TYPED) is None:
            return field
        _check(stored.type, f"{file}: column {field.name}")
        return field.with_type(stored.type)
    kind, other = field.type, stored.type
    if types.is_struct(kind) and types.is_struct(other):
        return field.with_type(pa.struct([_field(each, _child(other, each.name), file) for each in kind]))
    if types.is_list(kind) and types.is_list(other):
        return field.with_type(pa.list_(_field(kind.value_field, other.value_field, file)))
    if types.is_map(kind) and types.is_map(other):
        return field.with_type(pa.map_(kind.key_field, _field(kind.item_field, other.item_field, file)))
    return field


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
        raise _left(f"{where} has variants that are shredded as {kind}, which a rewrite here would change")


def _left(problem: str) -> RefusedError:
    return RefusedError(
        problem, next_step=Remedy("rewrite the table with its engine, which {} does and checks", (run("engine-sql"),))
    )

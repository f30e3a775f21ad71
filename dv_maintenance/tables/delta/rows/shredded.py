"""Shredded variants in Delta tables (protocol: Variant Shredding). Files share a new one only if theirs are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dv_maintenance.tables.model import has_variant
from dv_maintenance.tables.shredded import as_stored, left_to_the_engine

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

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
    found = as_stored(storage, schema, sources)
    for source, each in zip(sources, found, strict=True):
        if each != found[0]:
            raise left_to_the_engine(
                f"{sources[0].key.path} and {source.key.path} hold variants that are shredded differently"
            )
    on = metadata.configuration.get("delta.enableVariantShredding", "").lower() == "true"
    if not on and found[0] != schema:
        raise left_to_the_engine(
            f"{sources[0].key.path} holds shredded variants, which delta.enableVariantShredding no longer allows"
        )
    return found[0]

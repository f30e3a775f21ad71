"""Summaries of partitions in a manifest list, by which readers skip manifests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types

from dv_maintenance.tables.iceberg.commit.values import encoded
from dv_maintenance.tables.iceberg.log.metadata import Metadata
from dv_maintenance.tables.iceberg.rows.partitions import Partitions

_INT: frozenset[str] = frozenset({"bucket", "year", "month", "hour"})


def partition_summaries(
    metadata: Metadata, spec_id: int, values: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]] | None:
    """One summary for each field of a specification, by field id; ``None`` if the order of a field's values is unknown
    here. Without summaries readers skip nothing; a missing bound would say that all values are null.

    values : partitions of the manifest's entries, by field id.
    """
    kinds = Partitions.of(metadata).types
    found = []
    for field in metadata.specs[spec_id]:
        there = [each.get(str(field.id)) for each in values]
        filled = [each for each in there if each is not None]
        kind = result_type(field.transform, kinds.get(field.source or -1))
        nan = [each for each in filled if each != each]
        ordered = [each for each in filled if each == each]
        summary: dict[str, Any] = {"509": len(filled) < len(there), "518": bool(nan), "510": None, "511": None}
        if ordered:
            if kind is None or not _ordered(kind):
                return None
            order = (lambda each: int.from_bytes(each, "big", signed=True)) if types.is_decimal(kind) else None
            low, high = encoded(min(ordered, key=order), kind), encoded(max(ordered, key=order), kind)
            if low is None or high is None:
                return None
            summary |= {"510": low, "511": high}
        found.append(summary)
    return found


def result_type(transform: str, source: pa.DataType | None) -> pa.DataType | None:
    """The type of a transform's values; ``None`` if it is unknown here."""
    name = transform.partition("[")[0]
    if name in _INT:
        return pa.int32()
    if name == "day":
        return pa.date32()
    return source if name in {"identity", "truncate", "void"} else None


def _ordered(kind: pa.DataType) -> bool:
    """UUIDs have two orders: early releases of the Java library compared them as signed numbers."""
    return not types.is_nested(kind) and not types.is_fixed_size_binary(kind)

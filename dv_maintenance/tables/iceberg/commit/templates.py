"""Avro schemas of manifests and manifest lists where a table has none yet to take them from: it has no snapshot, or its
partition specification is new.

Format: Iceberg specification, Manifests, Manifest Lists; Appendix A, Avro.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from dv_maintenance.files.avro.writer import Template
from dv_maintenance.tables.iceberg.commit.summaries import result_type
from dv_maintenance.tables.iceberg.rows.avro_schema import plain_type
from dv_maintenance.tables.iceberg.rows.partitions import Partitions

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.log.metadata import Metadata, SpecField


def _field(number: int, name: str, kind: Any, *, optional: bool = True) -> dict[str, Any]:
    null = {"type": ["null", kind], "default": None} if optional else {"type": kind}
    return {"name": name, **null, "field-id": number}


def _record(name: str, fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": fields}


def _map(key: int, kind: str) -> dict[str, Any]:
    """A map with field ids as keys."""
    fields = [_field(key, "key", "int", optional=False), _field(key + 1, "value", kind, optional=False)]
    return {"type": "array", "logicalType": "map", "items": _record(f"k{key}_v{key + 1}", fields)}


def _list(number: int, kind: Any) -> dict[str, Any]:
    return {"type": "array", "items": kind, "element-id": number}


_SUMMARY: Final = _record(
    "r508",
    [
        _field(509, "contains_null", "boolean", optional=False),
        _field(518, "contains_nan", "boolean"),
        _field(510, "lower_bound", "bytes"),
        _field(511, "upper_bound", "bytes"),
    ],
)
NEW_LIST: Final = Template(
    json.dumps(
        _record(
            "manifest_file",
            [
                _field(500, "manifest_path", "string", optional=False),
                _field(501, "manifest_length", "long", optional=False),
                _field(502, "partition_spec_id", "int", optional=False),
                _field(517, "content", "int", optional=False),
                _field(515, "sequence_number", "long", optional=False),
                _field(516, "min_sequence_number", "long", optional=False),
                _field(503, "added_snapshot_id", "long", optional=False),
                *(
                    _field(number, f"{name}_count", kind, optional=False)
                    for first, what, kind in ((504, "files", "int"), (512, "rows", "long"))
                    for number, name in enumerate((f"added_{what}", f"existing_{what}", f"deleted_{what}"), first)
                ),
                _field(507, "partitions", _list(508, _SUMMARY)),
                _field(519, "key_metadata", "bytes"),
            ],
        )
    ),
    "deflate",
    by_id=True,
)
"""``schemas.for_lists`` adds what newer format versions have."""


def partition_fields(metadata: Metadata, spec_id: int) -> list[dict[str, Any]]:
    """The fields of partition values, as the types of columns are now."""
    sources = Partitions.of(metadata).types
    kinds = (
        (each, result_type(each.transform, sources.get(each.source or -1)) or pa.string())
        for each in metadata.specs[spec_id]
    )
    return [_partition_field(each, kind) for each, kind in kinds]


def new_manifest(metadata: Metadata, spec_id: int) -> Template:
    """A template for manifests of a specification. ``schemas.for_manifests`` adds what newer format versions have."""
    partition = _record("r102", partition_fields(metadata, spec_id))
    file = _record(
        "r2",
        [
            _field(134, "content", "int", optional=False),
            _field(100, "file_path", "string", optional=False),
            _field(101, "file_format", "string", optional=False),
            _field(102, "partition", partition, optional=False),
            _field(103, "record_count", "long", optional=False),
            _field(104, "file_size_in_bytes", "long", optional=False),
            _field(108, "column_sizes", _map(117, "long")),
            _field(109, "value_counts", _map(119, "long")),
            _field(110, "null_value_counts", _map(121, "long")),
            _field(137, "nan_value_counts", _map(138, "long")),
            _field(125, "lower_bounds", _map(126, "bytes")),
            _field(128, "upper_bounds", _map(129, "bytes")),
            _field(131, "key_metadata", "bytes"),
            _field(132, "split_offsets", _list(133, "long")),
            _field(135, "equality_ids", _list(136, "int")),
        ],
    )
    fields = [_field(0, "status", "int", optional=False), _field(2, "data_file", file, optional=False)]
    schemas = {each.get("schema-id", 0): each for each in metadata.body.get("schemas") or []}
    schema = schemas.get(metadata.current_schema, metadata.body.get("schema"))
    header = {"schema": json.dumps(schema), "schema-id": str(metadata.current_schema)}
    pairs = tuple((key, value.encode()) for key, value in header.items())
    return Template(json.dumps(_record("manifest_entry", fields)), "deflate", pairs, by_id=True)


def _partition_field(field: SpecField, kind: pa.DataType) -> dict[str, Any]:
    name = field.name if re.fullmatch(r"[A-Za-z_]\w*", field.name, re.ASCII) else f"f{field.id}"
    return _field(field.id, name, plain_type(kind, field.id))

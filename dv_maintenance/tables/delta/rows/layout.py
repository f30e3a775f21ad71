"""The columns and tags of data files that table features require beyond the table's own columns.

(protocol: Materialize Partition Columns, IcebergCompat V1 to V3, Row Tracking)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from dv_maintenance.tables.delta.log.actions import Metadata, Protocol
from dv_maintenance.tables.delta.rows.row_tracking import StoredColumns, stored_columns
from dv_maintenance.tables.delta.rows.schema import physical_schema

# Feature -> tag of its files, as in delta-spark. icebergCompatV1 has no tag.
_ICEBERG_TAGS: Final = {"icebergCompatV2": "2", "icebergCompatV3": "3"}
_STORING_PARTITIONS: Final = frozenset({"materializePartitionColumns", "icebergCompatV1", *_ICEBERG_TAGS})


def stores_partitions(protocol: Protocol) -> bool:
    """Whether files also store the partition columns."""
    return not _STORING_PARTITIONS.isdisjoint(protocol.features("writer"))


def file_schema(protocol: Protocol, metadata: Metadata) -> pa.Schema:
    """Columns of a rewritten file. Raises as ``schema.physical_schema`` and ``row_tracking.stored_columns``."""
    schema = physical_schema(metadata, partitions=stores_partitions(protocol))
    tracked = stored_columns(protocol, metadata)
    return schema if tracked is None else pa.schema([*schema, *_row_columns(tracked)])


def file_tags(protocol: Protocol) -> Mapping[str, str]:
    """Tags of the ``add`` action of a new file."""
    versions = [_ICEBERG_TAGS[name] for name in protocol.features("writer") & _ICEBERG_TAGS.keys()]
    return {"ICEBERG_COMPAT_VERSION": max(versions)} if versions else {}


def row_id_field(tracked: StoredColumns) -> pa.Field:
    """The column of stored row ids; null in files that store none."""
    return _row_columns(tracked)[0]


def _row_columns(tracked: StoredColumns) -> list[pa.Field]:
    names = (tracked.row_id, tracked.commit_version)
    ids = (None, None) if tracked.field_ids is None else tracked.field_ids
    # Matched by name, even if other columns are matched by id: older files store these without an id.
    return [
        pa.field(
            name,
            pa.int64(),
            metadata={
                "dvm:source": name,
                "dvm:match": "name",
                **({} if number is None else {"PARQUET:field_id": str(number)}),
            },
        )
        for name, number in zip(names, ids, strict=True)
    ]

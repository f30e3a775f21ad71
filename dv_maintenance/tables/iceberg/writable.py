"""What may be changed, and why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dv_maintenance.errors import UnsupportedFeatureError

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot

__all__ = ["refused"]


def refused(snapshot: IcebergSnapshot, operation: str) -> UnsupportedFeatureError:
    """The error for an operation that this release does not have for Iceberg."""
    what = {"manifest": "write manifests for other readers of"}.get(operation, operation)
    return UnsupportedFeatureError(
        f"this release reads Iceberg tables; it does not {what} them",
        features=(f"{operation} of Iceberg tables",),
        table=snapshot.table,
        version=snapshot.version,
        next_step="use the procedures of the table's engine, such as rewrite_data_files and expire_snapshots of Spark",
    )

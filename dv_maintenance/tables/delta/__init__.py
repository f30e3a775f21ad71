"""Delta Lake: the log, its snapshots, commits, vacuum and manifests (protocol: PROTOCOL.md of the Delta project)."""

from dv_maintenance.tables.delta.table import DeltaTable

__all__ = ["DeltaTable"]

"""Delta Lake: the log, its snapshots, commits, vacuum and manifests (protocol: PROTOCOL.md of the Delta project)."""

from __future__ import annotations

from dv_maintenance.tables.registry import TableFormat, at_location
from dv_maintenance.units import DAY

FORMAT = TableFormat(
    name="delta",
    title="Delta",
    marker="_delta_log",
    open=at_location("dv_maintenance.tables.delta.table:opened"),
    dv_codecs={"delta": "dv_maintenance.dv.delta:read"},
    commits="_delta_log",
    symlink_manifests=True,
    kind="deltalake",
    compression=True,
    size_property="delta.targetFileSize",
    retention=7 * DAY,
)

"""Apache Paimon tables on a file system or in object storage, read from their own files."""

from __future__ import annotations

from dv_maintenance.tables.registry import TableFormat, at_location

FORMAT = TableFormat(
    name="paimon",
    title="Paimon",
    # No folder name is unique to Paimon, but its schema files are. A table without snapshots has one, too.
    marker="schema",
    marker_file=r"schema-\d+",
    open=at_location("dv_maintenance.tables.paimon.table:open_at"),
    dv_codecs={"paimon": "dv_maintenance.dv.paimon:read"},
    commits="snapshot",
    commits_also=("manifest", "index"),
    kind="paimon",
    compression=True,
    size_property="target-file-size",
    retention=3_600_000,
    extra="paimon",
)

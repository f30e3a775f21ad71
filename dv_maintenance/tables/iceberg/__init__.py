"""Apache Iceberg tables up to format version 3, read from their own files."""

from __future__ import annotations

from dv_maintenance.tables.registry import TableFormat, at_location

FORMAT = TableFormat(
    name="iceberg",
    title="Iceberg",
    marker="metadata",
    # The first thousand names of a large table's folder may be those of manifests.
    marker_file=r".+\.metadata\.json(\.gz)?|version-hint\.text|snap-.+\.avro|.+-m\d+\.avro",
    marker_of_file=r".+\.metadata\.json(\.gz)?",
    locate="dv_maintenance.tables.iceberg.catalog:located",
    listed="dv_maintenance.tables.iceberg.catalog:listed",
    open=at_location("dv_maintenance.tables.iceberg.table:open_at"),
    dv_codecs={"iceberg": "dv_maintenance.dv.iceberg:read"},
    commits="metadata",
    commits_also=("data",),
    kind="iceberg",
    compression=True,
    size_property="write.target-file-size-bytes",
    retention=432_000_000,
    extra="iceberg",
)

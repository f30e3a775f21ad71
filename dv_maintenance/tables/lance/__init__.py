"""Lance tables. Reading rows, rewriting and committing need Lance's library. Everything else works without it."""

from __future__ import annotations

from dv_maintenance.tables.registry import TableFormat, at_root
from dv_maintenance.units import DAY

FORMAT = TableFormat(
    name="lance",
    title="Lance",
    marker="_versions",
    open=at_root("dv_maintenance.tables.lance.table:LanceTable"),
    dv_codecs={
        "lance-array": "dv_maintenance.dv.lance:read_array",
        "lance-bitmap": "dv_maintenance.dv.lance:read_bitmap",
    },
    commits="_transactions",
    commits_also=("_versions",),
    partitions=False,
    dv_checksums=False,
    kind="lance",
    retention=14 * DAY,
    extra="lance",
)

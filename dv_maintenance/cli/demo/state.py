"""The state of a table as its readers see it, and its cost in storage."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from dv_maintenance.tables.table import Table


@dataclass(frozen=True, slots=True)
class State:
    """The table at one moment.

    versions : the number of readable versions.
    disk_bytes : size of its folder.
    scan_seconds : time to read every row.
    content : SHA-256 of all rows in the order of their key.
    """

    version: int
    versions: int
    rows: int
    files: int
    files_with_dv: int
    deleted_rows: int
    deleted_ratio: float | None
    size_bytes: int
    disk_bytes: int
    scan_seconds: float
    content: str


def measure(table: Table, place: str) -> State:
    """``place``: the table's folder. Reads every row. Raises what the table raises."""
    from dv_maintenance.maintenance.health import health
    from dv_maintenance.maintenance.read import read

    counts = health(snapshot := table.snapshot()).counts
    started = time.perf_counter()
    schema, batches = read(table)
    rows = pa.Table.from_batches(batches, schema)
    seconds = time.perf_counter() - started
    return State(
        version=snapshot.version,
        versions=len(table.history()),
        rows=rows.num_rows,
        files=counts.files,
        files_with_dv=counts.files_with_dv,
        deleted_rows=counts.deleted_rows,
        deleted_ratio=counts.deleted_ratio,
        size_bytes=counts.size_bytes,
        disk_bytes=sum(
            os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(place) for name in names
        ),
        scan_seconds=round(seconds, 3),
        content=_content(rows),
    )


def _content(rows: pa.Table) -> str:
    """SHA-256 of the rows in the order of the first column, which is a key, as the order of files is arbitrary.
    Metadata of columns, such as their names in files, are not content.
    """
    plain = rows.cast(pa.schema([field.remove_metadata() for field in rows.schema]))
    ordered = plain.combine_chunks().sort_by(rows.column_names[0])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ordered.schema) as writer:
        writer.write_table(ordered.combine_chunks(), max_chunksize=1 << 20)
    return hashlib.sha256(sink.getvalue()).hexdigest()

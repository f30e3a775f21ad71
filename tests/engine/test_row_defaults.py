"""What null stands for in a row: a number that follows from where the row is, or one for all rows of the file."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dv_maintenance.dv import DeletionVector, delta
from dv_maintenance.engine.scan import scan
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.work import DvRef, RowDefault, ScanTask, SourceFile

SCHEMA = pa.schema([("id", pa.int64()), ("row", pa.int64()), ("version", pa.int64())])
DEFAULTS = {"row": RowDefault(100, counts=True), "version": RowDefault(7)}


def scanned(path: Path, table: pa.Table, deleted: list[int], schema: pa.Schema = SCHEMA) -> list[tuple[object, ...]]:
    pq.write_table(table, path, row_group_size=3)
    ref = None
    if deleted:
        made = delta.inline(DeletionVector.from_positions(deleted))
        ref = DvRef("delta", made.cardinality, made.size_in_bytes, inline=made.path_or_inline)
    source = SourceFile(FileKey("a"), f"file://{path}", path.stat().st_size, dv=ref, row_defaults=DEFAULTS)
    task = ScanTask((source,), schema)
    task = ScanTask.from_json(json.loads(json.dumps(task.to_json())))
    return [tuple(row.values()) for batch in scan(task) for row in batch.to_pylist()]


def test_positions_are_physical_whatever_is_deleted_before(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array(range(8), pa.int64())})
    rows = scanned(tmp_path / "a.parquet", table, [0, 4, 6])
    assert rows == [(at, 100 + at, 7) for at in (1, 2, 3, 5, 7)]


def test_what_is_stored_wins(tmp_path: Path) -> None:
    table = pa.table({"id": [0, 1, 2], "row": [None, 5, None], "version": [3, None, None]}, schema=SCHEMA)
    assert scanned(tmp_path / "a.parquet", table, []) == [(0, 100, 3), (1, 5, 7), (2, 102, 7)]
    assert scanned(tmp_path / "a.parquet", table, [0]) == [(1, 5, 7), (2, 102, 7)]


def test_nothing_of_the_file_need_be_read(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array(range(4), pa.int64())})
    rows = scanned(tmp_path / "a.parquet", table, [1], pa.schema([SCHEMA.field("row")]))
    assert rows == [(100,), (102,), (103,)]


def test_a_column_that_nobody_asked_for(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array(range(2), pa.int64())})
    assert scanned(tmp_path / "a.parquet", table, [], pa.schema([SCHEMA.field("id")])) == [(0,), (1,)]

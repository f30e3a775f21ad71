"""What a Paimon table is to Paimon's own engine, and to us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from paimon_engine import PaimonEngine, Row, plain_rows

from dv_maintenance.dv import load
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.tables.paimon import PaimonTable
from dv_maintenance.tables.work import DvRef

__all__ = ["in_order", "judge_files", "judge_rows", "opened", "our_rows"]


def opened(path: Path) -> PaimonTable:
    table = open_table(str(path))
    assert isinstance(table, PaimonTable)
    return table


def our_rows(path: Path, version: int | None = None) -> list[Row]:
    schema, batches = read(opened(path), version)
    return plain_rows(pa.Table.from_batches(batches, schema))


def in_order(rows: list[Row]) -> list[str]:
    return sorted(map(repr, rows))


def judge_rows(engine: PaimonEngine, path: Path, version: int | None = None) -> list[Row]:
    ours = our_rows(path, version)
    theirs = engine.rows(path, version)
    assert in_order(ours) == in_order(theirs)
    return theirs


def judge_files(engine: PaimonEngine, path: Path, version: int) -> None:
    """Files, levels, deletion vectors and what health counts, against what Paimon's scan and index handler say."""
    table = opened(path)
    snapshot = table.snapshot(version)
    theirs = engine.files(path, version)
    ours: dict[str, dict[str, Any]] = {}
    for row in [*snapshot.files.to_pylist(), *snapshot.hidden.to_pylist()]:
        ours[row["file_name"]] = {"rows": row["physical_rows"], "level": row["level"], "size": row["size"]}
        if row["dv_id"] is not None:
            uri = table.storage.uri_of(row["dv_file"])
            ref = DvRef("paimon", row["deleted_rows"], row["dv_length"], uri, row["dv_offset"])
            dv = load(ref, table.storage.get_range, rows=row["physical_rows"])
            ours[row["file_name"]]["deleted"] = dv.positions().tolist()
    assert ours == theirs
    assert not snapshot.dangling
    hidden = set(snapshot.hidden["file_name"].to_pylist())
    seen = [file for name, file in theirs.items() if name not in hidden]
    counts = health(snapshot).counts
    assert counts.files == len(seen)
    assert counts.physical_rows == sum(file["rows"] for file in seen)
    assert counts.files_with_dv == sum("deleted" in file for file in seen)
    assert counts.deleted_rows == sum(len(file.get("deleted", ())) for file in seen)

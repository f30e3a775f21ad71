"""Parquet files, deletion vectors and tasks in a few words, in one folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq

from dv_maintenance.dv import DeletionVector, delta
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.work import DvRef, RewriteTask, ScanTask, SourceFile

__all__ = ["Lake"]


@dataclass(frozen=True)
class Lake:
    """A folder of Parquet files."""

    root: Path

    def uri(self, name: str) -> str:
        return "file://" + quote(str(self.root / name))

    def write(self, table: pa.Table, name: str = "in put.parquet", **options: Any) -> SourceFile:
        path = self.root / name
        pq.write_table(table, path, **options)
        return self.source(name, table.num_rows)

    def source(self, name: str, rows: int) -> SourceFile:
        return SourceFile(FileKey(quote(name)), self.uri(name), os.path.getsize(self.root / name), rows=rows)

    def dv(self, positions: Iterable[int]) -> DvRef:
        """A real DV file of Delta's format."""
        [packed] = delta.pack([DeletionVector.from_positions(positions)])
        (self.root / packed.path).write_bytes(packed.data)
        [dv] = packed.descriptors
        return DvRef("delta", dv.cardinality, dv.size_in_bytes, uri=self.uri(packed.path), offset=dv.offset)

    def task(self, sources: Sequence[SourceFile], schema: pa.Schema, **options: Any) -> RewriteTask:
        match_by = options.pop("match_by", "name")
        defaults: dict[str, Any] = {"id": "t-1", "output_uri": self.uri("out put"), "target_bytes": 128 << 20}
        return RewriteTask(scan=ScanTask(tuple(sources), schema, match_by), **{**defaults, **options})

    def path(self, uri: str) -> Path:
        return Path(unquote(uri.removeprefix("file://")))

    def read(self, uri: str) -> pa.Table:
        return pq.read_table(self.path(uri))

    def outputs(self) -> list[Path]:
        folder = self.root / "out put"
        return sorted(folder.iterdir()) if folder.exists() else []

"""Tables of a catalog, for a whole deployment of an orchestrator to maintain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.read import read
from support.managed import ManagedBackend
from support.unity import Unity

__all__ = ["ROWS", "Away", "NamedLake"]

ROWS = pa.table(
    {"id": range(400), "p": ["a"] * 400, "v": ["x"] * 400},
    pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.string())]),
)


class Away(list[str]):
    """The faults of a server that answers nobody."""

    def pop(self, _index: Any = -1) -> str:
        return self[0]


class NamedLake:
    """The managed tables ``orders`` and ``refunds`` of a schema, each with 400 rows."""

    def __init__(self, folder: Path, server: Unity) -> None:
        self.folder, self.server = folder, server
        self.tables = {name: self.made(name) for name in ("orders", "refunds")}

    def made(self, name: str, generation: str = "one") -> ManagedBackend:
        table = ManagedBackend(self.folder / generation / name, self.server)
        table.create()
        self.server.tables[table.table]["metadata"]["table-uuid"] = f"{name} {generation}"
        table.join()
        table._builder.append(ROWS, files=2)
        return table

    def append(self, name: str) -> None:
        self.tables[name]._builder.append(ROWS, files=2)

    def delete(self, name: str) -> None:
        """The first 150 rows: three quarters of a file."""
        self.tables[name]._builder.delete(lambda rows: pc.less(rows["id"], 150))

    def version(self, name: str) -> int:
        return self.tables[name].open().snapshot().version

    def is_clean(self, name: str) -> bool:
        return not health(self.tables[name].open().snapshot()).counts.files_with_dv

    def ids(self, name: str) -> list[int]:
        _, batches = read(self.tables[name].open())
        return sorted(row["id"] for batch in batches for row in batch.to_pylist())

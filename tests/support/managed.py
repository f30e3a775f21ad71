"""A Delta table that a Unity Catalog of ours manages, as a backend of tests."""

from __future__ import annotations

import copy
from pathlib import Path

import pyarrow as pa

from dv_maintenance.tables import open_table
from dv_maintenance.tables.table import Table
from dv_maintenance.testing.backends import DeltaBackend
from dv_maintenance.testing.locations import Folder
from support.unity import Unity

__all__ = ["ALL", "ManagedBackend", "ManagedFolder"]

ALL = ("DATA_REORGANIZATION", "DATA_CLEANUP", "METADATA_CLEANUP")


class ManagedBackend(DeltaBackend):
    """``uc.main.s.NAME``, where NAME is that of the folder. Everything is permitted."""

    def __init__(self, place: Path, server: Unity) -> None:
        super().__init__(str(place), properties={"delta.enableInCommitTimestamps": "true"})
        self.server, self.folder, self.table = server, place, f"main.s.{place.name}"

    @property
    def name(self) -> str:
        return f"uc.{self.table}"

    def create(self) -> None:
        schema = pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.string())])
        features = ("catalogManaged", "v2Checkpoint", "vacuumProtocolCheck")
        self._builder.create(schema, partition_by=["p"], properties=self.properties, features=features)
        self.server.add(self.table, self.folder.as_uri(), allowed=list(ALL))
        self.join()

    def join(self) -> None:
        """Commit to the table, which exists."""
        self._builder.storage = self.open().storage

    def open(self) -> Table:
        return open_table(self.name)


class ManagedFolder(Folder):
    """A folder whose reset takes what the server knows along."""

    def __init__(self, path: Path, server: Unity) -> None:
        super().__init__(path)
        self.server = server

    def save(self) -> None:
        super().save()
        self.tables, self.names = copy.deepcopy(self.server.tables), dict(self.server.names)

    def reset(self) -> None:
        super().reset()
        self.server.tables, self.server.names = copy.deepcopy(self.tables), dict(self.names)

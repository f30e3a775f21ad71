"""A Delta table that a Unity Catalog of ours manages, as a backend of tests."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.log.ratified import STAGED
from dv_maintenance.tables.table import Table
from dv_maintenance.testing.backends import DeltaBackend
from dv_maintenance.testing.locations import Folder
from support.unity import TOKEN, Unity
from support.unity_judges import NamedByServer

__all__ = ["ALL", "MAPPED", "SCHEMA", "TRACKED", "ManagedBackend", "ManagedFolder"]

ALL = ("DATA_REORGANIZATION", "DATA_CLEANUP", "METADATA_CLEANUP")
SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.string())])
COLUMNS = [
    {"name": name, "type_text": kind, "type_name": kind.upper(), "position": at, "nullable": True}
    for at, (name, kind) in enumerate({"id": "bigint", "p": "string", "v": "string"}.items())
]


MAPPED = {"delta.columnMapping.mode": "name"}
TRACKED = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": "_row-id",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-commit-version",
}
"""Only a writer that numbers rows may append some."""


class ManagedBackend(DeltaBackend):
    """``uc.main.s.NAME``, where NAME is that of the folder. Everything is permitted."""

    def __init__(self, place: Path, server: Unity, *, properties: Mapping[str, str] | None = None) -> None:
        super().__init__(str(place), properties={"delta.enableInCommitTimestamps": "true", **(properties or {})})
        self.server, self.folder, self.table = server, place, f"main.s.{place.name}"

    @property
    def features(self) -> tuple[str, ...]:
        """What properties do not bring along."""
        more = ("domainMetadata", "rowTracking") if "delta.enableRowTracking" in self.properties else ()
        return ("catalogManaged", "v2Checkpoint", "vacuumProtocolCheck", *more)

    @property
    def name(self) -> str:
        return f"uc.{self.table}"

    def create(self) -> None:
        self.server.infos[self.table] = {"columns": COLUMNS}
        self.server.add(self.table, self.folder.as_uri(), allowed=list(ALL))
        properties = {**self.properties, "io.unitycatalog.tableId": self.judged.uuid}
        self._builder.create(SCHEMA, partition_by=["p"], properties=properties, features=self.features)
        self.join()

    @property
    def judged(self) -> NamedByServer:
        """For readers and writers that are not ours."""
        metadata = self.server.tables[self.table]["metadata"]
        return NamedByServer(self.server.url, TOKEN, self.table, metadata["table-uuid"], metadata["location"])

    def join(self) -> None:
        """Commit to the table, which exists."""
        # Delta's kernel expects the folder.
        (self.folder / STAGED).mkdir(exist_ok=True)
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

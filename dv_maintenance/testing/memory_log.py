"""The versions of memory tables: held by the table, or by a catalog that decides its commits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from dv_maintenance.errors import ConflictError, TableNotFoundError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.partition_spec import PartitionSpec
from dv_maintenance.tables.registry import Location


@dataclass(frozen=True, slots=True)
class File:
    """``counted``: whether the log records the number of rows."""

    partition: str
    size: int
    rows: int
    deleted: frozenset[int]
    modified: int
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Version:
    """``specs``: the partition specifications up to this version; empty where they follow from the partitions."""

    id: int
    files: Mapping[FileKey, File]
    timestamp: int
    operation: str
    data_changed: bool
    parameters: Mapping[str, Any] = field(default_factory=dict)
    ours: bool = False
    specs: tuple[PartitionSpec, ...] = ()


class MemoryLog:
    """The versions of one table, oldest first, and what its writers count.

    ids : draws the names of versions; by default they are numbered.
    now : the table's clock, epoch milliseconds.
    """

    def __init__(self, ids: Iterator[int] | None = None, specs: tuple[PartitionSpec, ...] = ()) -> None:
        self.ids = itertools.count() if ids is None else ids
        self.numbers = itertools.count()
        self.now = 1_000_000_000_000
        self.versions = [Version(next(self.ids), {}, self.now, "CREATE", True, specs=specs)]


@dataclass(slots=True)
class _Entry:
    place: Path
    log: MemoryLog
    identity: str = field(default_factory=lambda: str(uuid4()))


class MemoryCatalog:
    """A catalog of memory tables. It holds their versions, and decides which one comes next."""

    def __init__(self, name: str = "lake") -> None:
        self.name = name
        self._entries: dict[str, _Entry] = {}

    def create(self, name: str, place: Path, log: MemoryLog) -> None:
        """Register a table; the name must be free."""
        place.mkdir(parents=True, exist_ok=True)
        self._entries[name] = _Entry(place, log)

    def drop(self, name: str) -> None:
        del self._entries[name]

    def entry(self, name: str) -> _Entry:
        if name not in self._entries:
            raise TableNotFoundError(f"the catalog {self.name} has no table {name}")
        return self._entries[name]

    def locate(self, name: str) -> Location:
        """Where a table of this name is now."""
        entry = self.entry(name)
        return Location(Storage(str(entry.place)), NamedTable(self, name, entry.identity))


@dataclass(frozen=True, slots=True)
class NamedTable:
    """See ``tables.registry.CatalogTable``. ``log`` is what this format asks of its catalog besides."""

    catalog: MemoryCatalog
    table: str
    identity: str

    @property
    def name(self) -> str:
        return f"{self.catalog.name}.{self.table}"

    @property
    def place(self) -> Path:
        return self._entry.place

    @property
    def log(self) -> MemoryLog:
        return self._entry.log

    @property
    def _entry(self) -> _Entry:
        entry = self.catalog.entry(self.table)
        if entry.identity != self.identity:
            raise ConflictError(f"the name {self.name} belongs to another table now", next_step="open it again")
        return entry

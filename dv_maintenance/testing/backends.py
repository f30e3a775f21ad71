"""Tables for the contract and the histories, written by writers other than this product.

Every table has the columns ``id`` (int64), ``p`` (string, the partition) and ``v`` (string): see :data:`Row`.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate, repeat
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.scan import scan
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.log.segment import read_commit
from dv_maintenance.tables.partition_spec import PartitionField, by_columns
from dv_maintenance.testing.delta_builder import DeltaBuilder
from dv_maintenance.testing.iceberg_builder import IcebergBuilder
from dv_maintenance.testing.memory import MemoryTable
from dv_maintenance.testing.memory_engine import MemoryEngine
from dv_maintenance.testing.memory_log import MemoryCatalog, MemoryLog, NamedTable
from dv_maintenance.testing.paimon_builder import PaimonBuilder
from dv_maintenance.units import DAY, epoch_millis

if TYPE_CHECKING:
    from dv_maintenance.engine import Engine
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.registry import Location
    from dv_maintenance.tables.table import Table
    from dv_maintenance.testing.delta_builder import DvStyle

# id, partition, value.
Row = tuple[int, str | None, str]

# Longer than the lag of a file system's clock for modification times against the system clock.
_LAG_SECONDS = 0.01


class TableBackend(ABC):
    """One table of a format.

    Attributes
    ----------
    supports
        optional abilities: ``partitions``, ``empty files`` (files without a live row), ``manifests``, ``features``
        (``forbid``), ``checkpoints`` and ``specifications`` (``evolve``).
    styles
        ways to store a deletion vector.
    retention
        the table's own, milliseconds.
    first_version
        the number of the first version, where they are numbered.
    forgets
        whether a vacuum removes versions, not only their files.
    purged
        the operation of a purge in the history.
    logs
        path prefixes of files that are not data.
    """

    supports: frozenset[str] = frozenset()
    styles: ClassVar[tuple[str, ...]] = ("",)
    retention: ClassVar[int] = 7 * DAY
    first_version: ClassVar[int] = 0
    forgets: ClassVar[bool] = False
    purged: ClassVar[str] = "REORG"
    logs: ClassVar[tuple[str, ...]] = ("_",)

    @abstractmethod
    def create(self) -> None:
        """Create the table, without rows."""

    @abstractmethod
    def append(self, partition: str | None, rows: Sequence[Row]) -> int:
        """Append rows of one partition as one file, with one commit. Returns the version."""

    @abstractmethod
    def delete(self, ids: Collection[int], *, style: str = "", keep_empty: bool = False) -> int:
        """Delete the rows with these ids by deletion vectors, with one commit. Returns the version.

        Parameters
        ----------
        ids
            rows that are already deleted are ignored.
        keep_empty
            keep files without live rows, if the format allows such files.
        """

    @abstractmethod
    def open(self) -> Table:
        """The table, opened again."""

    def engine(self) -> Engine:
        """The engine that rewrites files of this table."""
        return LocalEngine()

    def between(self, version: int | None, newest: int) -> Sequence[int]:
        """The versions after one of the table (all for ``None``) up to another one, oldest first."""
        return range(self.first_version if version is None else version + 1, newest + 1)

    def absent(self) -> Sequence[int]:
        """Versions that the table does not have."""
        return self.first_version - 1, self.open().version() + 1

    def rows(self, version: int | None = None) -> list[Row]:
        """The rows that a query of this version returns, unordered."""
        _, batches = read(self.open(), version)
        return [(row["id"], row["p"], row["v"]) for batch in batches for row in batch.to_pylist()]

    def moment(self) -> int:
        """A time, epoch milliseconds, after all past and before all future operations."""
        time.sleep(0.002)
        now = epoch_millis()
        time.sleep(_LAG_SECONDS)
        return now

    def forbid(self) -> None:
        """Add an unknown feature to the table. For backends whose ``supports`` names features."""
        raise NotImplementedError

    def checkpoint(self, now: int) -> None:
        """Shorten the log in the format's own way, at a time in epoch milliseconds. For backends whose ``supports``
        names checkpoints.
        """
        raise NotImplementedError

    def evolve(self) -> None:
        """Partition new files by ``truncate[3](v)`` as ``v_trunc``, then by ``p``; after the second call, no longer by
        ``p``. For backends whose ``supports`` names specifications.
        """
        raise NotImplementedError

    def rows_of_files(self, snapshot: Snapshot) -> list[list[Row]]:
        """The live rows of each of a snapshot's files."""
        table = self.open()
        tasks = (scan(task, table.storage.options) for task in table.scan_tasks(snapshot))
        return [[tuple(row.values()) for batch in batches for row in batch.to_pylist()] for batches in tasks]


class _BuiltBackend(TableBackend):
    """A table at a path or URI. ``properties``: of the table."""

    format: ClassVar[str]

    builder: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        place: str,
        *,
        storage_options: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.place = place
        self.storage_options = dict(storage_options or {})
        self.properties = dict(properties or {})
        self._builder = type(self).builder(place, storage_options=storage_options)

    def append(self, partition: str | None, rows: Sequence[Row]) -> int:
        return int(self._builder.append(_table(partition, rows), [partition]))

    def open(self) -> Table:
        return open_table(self.place, self.format, storage_options=self.storage_options)


class DeltaBackend(_BuiltBackend):
    """A Delta table."""

    format = "delta"
    builder = DeltaBuilder
    styles: ClassVar[tuple[str, ...]] = ("file", "inline", "absolute")

    def __init__(self, place: str, **options: Any) -> None:
        super().__init__(place, **options)
        mapped = self.properties.get("delta.columnMapping.mode", "none") != "none"
        self.supports = frozenset(
            {"partitions", "empty files", "features", "checkpoints"} | (set() if mapped else {"manifests"})
        )

    def create(self) -> None:
        self._builder.create(_schema(), partition_by=["p"], properties=self.properties)

    def append(self, partition: str | None, rows: Sequence[Row]) -> int:
        return int(self._builder.append(_table(partition, rows)))

    def delete(self, ids: Collection[int], *, style: str = "", keep_empty: bool = False) -> int:
        stored: DvStyle = "inline" if style == "inline" else "absolute" if style == "absolute" else "file"
        return int(self._builder.delete(_having(ids), style=stored, keep_empty=keep_empty))

    def forbid(self) -> None:
        protocol = next(action["protocol"] for action in read_commit(self._builder.storage, 0) if "protocol" in action)
        features = [*protocol["writerFeatures"], "fromTheFuture"]
        self._builder.commit([{"protocol": {**protocol, "writerFeatures": features}}])

    def checkpoint(self, now: int) -> None:
        DeltaBuilder(self.place, storage_options=self.storage_options, clock=lambda: now).checkpoint()


class LanceBackend(TableBackend):
    """A Lance dataset in a local folder, written by Lance's own library. ``options``: arguments of
    ``lance.write_dataset``. Lance has no partitions: ``p`` is an ordinary column.
    """

    first_version: ClassVar[int] = 1
    forgets: ClassVar[bool] = True
    purged: ClassVar[str] = "Rewrite"
    logs: ClassVar[tuple[str, ...]] = ("_versions", "_transactions", "_indices", "_refs")
    retention: ClassVar[int] = 14 * DAY

    def __init__(self, place: str, **options: Any) -> None:
        self.place, self.options = place, options

    def create(self) -> None:
        import lance

        lance.write_dataset(_schema().empty_table(), self.place, **self.options)

    def append(self, partition: str | None, rows: Sequence[Row]) -> int:
        import lance

        return int(lance.write_dataset(_table(partition, rows), self.place, mode="append").version)

    def delete(self, ids: Collection[int], *, style: str = "", keep_empty: bool = False) -> int:  # noqa: ARG002
        import lance

        dataset = lance.dataset(self.place)
        dataset.delete(f"id in ({', '.join(map(str, ids))})" if ids else "false")
        return int(dataset.version)

    def open(self) -> Table:
        return open_table(self.place, "lance")


class PaimonBackend(_BuiltBackend):
    """A Paimon append table."""

    format = "paimon"
    builder = PaimonBuilder
    supports = frozenset({"partitions", "empty files"})
    styles: ClassVar[tuple[str, ...]] = ("32", "64")
    first_version: ClassVar[int] = 1
    forgets: ClassVar[bool] = True
    purged: ClassVar[str] = "COMPACT"
    logs: ClassVar[tuple[str, ...]] = ("snapshot", "schema", "manifest")
    retention: ClassVar[int] = 3_600_000

    def create(self) -> None:
        options = {"snapshot.num-retained.min": "1", **self.properties}
        self._builder.create({"id": "BIGINT", "p": "STRING", "v": "STRING"}, ["p"], options)

    def delete(self, ids: Collection[int], *, style: str = "", keep_empty: bool = False) -> int:
        bits = 64 if style == "64" else 32
        return int(self._builder.delete(_having(ids), bits=bits, keep_empty=keep_empty))


class IcebergBackend(_BuiltBackend):
    """An Iceberg table in the folder of Hadoop's catalog. The property ``format-version`` is 3, unless it says 2."""

    format = "iceberg"
    builder = IcebergBuilder
    supports = frozenset({"partitions", "empty files"})
    forgets: ClassVar[bool] = True
    purged: ClassVar[str] = "replace"
    logs: ClassVar[tuple[str, ...]] = ("metadata",)
    retention: ClassVar[int] = 5 * DAY

    def create(self) -> None:
        self._builder.create({"id": "long", "p": "string", "v": "string"}, ["p"], self.properties)

    def delete(self, ids: Collection[int], *, style: str = "", keep_empty: bool = False) -> int:  # noqa: ARG002
        return int(self._builder.delete(_having(ids), keep_empty=keep_empty))

    def between(self, version: int | None, newest: int) -> Sequence[int]:
        return _between(self.open(), version, newest)

    def absent(self) -> Sequence[int]:
        return 1, self.open().version() - 1


class MemoryBackend(TableBackend):
    """A :class:`MemoryTable` in a folder. Its versions are names, see ``Table``. Each is smaller than the one before:
    code that orders them goes wrong.
    """

    supports = frozenset({"partitions", "empty files", "manifests", "specifications"})

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._table = MemoryTable(folder, schema=_schema(), log=self._log())

    def _log(self) -> MemoryLog:
        draw = Random(0)  # noqa: S311
        ids = accumulate(repeat(1 << 62), lambda last, _: last - draw.getrandbits(40) - 1)
        return MemoryLog(ids, by_columns("p"))

    def create(self) -> None:
        """Nothing to do: the constructor creates the first version."""

    def append(self, partition: str | None, rows: Sequence[Row]) -> int:  # noqa: ARG002
        of_row = dict(zip(("id", "p", "v"), rows[0], strict=True))
        values = [_transformed(each.transform, of_row[each.source]) for each in self._table.spec.fields]
        self._table.append(self._table.spec.partition(values), rows)
        return self._table.version()

    def delete(self, ids: Collection[int], *, style: str = "", keep_empty: bool = False) -> int:  # noqa: ARG002
        return self._table.delete_where(lambda _, row: row[0] in ids, keep_empty=keep_empty)

    def open(self) -> Table:
        return self._table

    def engine(self) -> Engine:
        return MemoryEngine()

    def between(self, version: int | None, newest: int) -> Sequence[int]:
        return _between(self.open(), version, newest)

    def absent(self) -> Sequence[int]:
        return 0, 1, self._table.version() - 1

    def rows(self, version: int | None = None) -> list[Row]:
        try:
            found = [json.loads(line) for line in self._table.rows(version)]
        except FileNotFoundError as error:
            raise DamagedTableError(f"{error} is gone", table=self._table.uri) from None
        return [tuple(row) for _, row in found]

    def rows_of_files(self, snapshot: Snapshot) -> list[list[Row]]:
        return [[tuple(row) for row in rows] for rows in self._table.rows_of_files(snapshot)]

    def moment(self) -> int:
        self._table.now += 2
        return self._table.now - 1

    def evolve(self) -> None:
        trunc = PartitionField("v_trunc", "v", "truncate[3]")
        first = len(self._table.spec.fields) == 1
        self._table.evolve(*[trunc, PartitionField("p", "p")] if first else [PartitionField("p", "p", "void"), trunc])


class NamedMemoryBackend(MemoryBackend):
    """A :class:`MemoryTable` that is opened by its name in a catalog, every time. Commits go through the catalog."""

    _NAME: ClassVar[str] = "sales.orders"

    def __init__(self, folder: Path) -> None:
        self.catalog = MemoryCatalog()
        self.catalog.create(self._NAME, folder, self._log())
        super().__init__(folder)
        self._table = opened_by_name(self.catalog.locate(self._NAME))

    def open(self) -> Table:
        return opened_by_name(self.catalog.locate(self._NAME))

    def recreate(self) -> None:
        """Drop the table, and create another one under its name."""
        self.catalog.drop(self._NAME)
        self.catalog.create(self._NAME, self.folder, self._log())


def opened_by_name(location: Location) -> MemoryTable:
    """The memory table at a location, as a ``TableFormat.open``."""
    assert isinstance(location.catalog, NamedTable)
    return MemoryTable(location.catalog.place, schema=_schema(), catalog=location.catalog)


def _schema() -> pa.Schema:
    return pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.string())])


def _table(partition: str | None, rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist([{"id": id_, "p": partition, "v": v} for id_, _, v in rows], schema=_schema())


def _having(ids: Collection[int]) -> Callable[[pa.Table], pa.BooleanArray]:
    """Which rows of a batch have these ids."""
    wanted = pa.array(ids, pa.int64())
    return lambda rows: pc.is_in(rows["id"], wanted)


def _between(table: Table, version: int | None, newest: int) -> Sequence[int]:
    known = [entry.version for entry in table.history()][::-1]
    return known[0 if version is None else known.index(version) + 1 : known.index(newest) + 1]


def _transformed(transform: str, value: Any) -> str | None:
    """The text of a transform's value."""
    if transform == "void" or value is None:
        return None
    name, _, width = transform.partition("[")
    return str(value)[: int(width.rstrip("]"))] if name == "truncate" else str(value)

"""A table under test next to a plain model of it: which rows each version holds, and which files it needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot
from dv_maintenance.tables.model import FileKey
from dv_maintenance.testing.backends import Row, TableBackend

if TYPE_CHECKING:
    from dv_maintenance.engine import Engine
    from dv_maintenance.tables.table import Table
    from dv_maintenance.tables.work import RewriteResult, RewriteTask


class Moment(NamedTuple):
    """A time between two operations, epoch milliseconds, and the newest version at that time."""

    time: int
    version: int


class TableHistory:
    """A table and the rows that it must hold.

    rows : id -> row of the newest version.
    versions : version -> its ``rows``, oldest first.

    Rows change by :meth:`append` and :meth:`delete` only. All other commits must keep them: :meth:`sync` records such
    commits.
    """

    def __init__(self, backend: TableBackend) -> None:
        backend.create()
        self.backend = backend
        self.rows: dict[int, Row] = {}
        self.versions: dict[int, Mapping[int, Row]] = {}
        self._needs: dict[int, frozenset[str]] = {}
        self._ids = 0
        self.sync()

    def copied_to(self, backend: TableBackend) -> TableHistory:
        """The history of a copy of the table, which ``backend`` finds at its own place."""
        copied = copy(self)
        copied.backend = backend
        copied.versions = {**self.versions}
        copied._needs = {**self._needs}  # noqa: SLF001 - an object of this class
        return copied

    @property
    def table(self) -> Table:
        """The table, reopened, so that no state is cached."""
        return self.backend.open()

    @property
    def version(self) -> int:
        """The newest version that the model knows."""
        return next(reversed(self.versions))

    # -- other writers ----------------------------------------------------------------------------------------------

    def append(self, partition: str | None, count: int) -> int:
        """Append ``count`` new rows as one file, with consecutive ids. Returns the version."""
        new = [(number, partition, f"value {number}") for number in range(self._ids, self._ids + count)]
        self._ids += count
        return self._changed(self.backend.append(partition, new), {**self.rows, **{row[0]: row for row in new}})

    def delete(self, ids: Collection[int], *, style: str = "", keep_empty: bool = False) -> int:
        """Delete rows, see ``TableBackend.delete``. Returns the version."""
        version = self.backend.delete(ids, style=style, keep_empty=keep_empty)
        return self._changed(version, {number: row for number, row in self.rows.items() if number not in ids})

    def delete_where(self, where: Callable[[int], bool], *, style: str = "", keep_empty: bool = False) -> int:
        """Delete by a predicate on ids, which is also evaluated for deleted rows. Returns the version."""
        return self.delete([number for number in range(self._ids) if where(number)], style=style, keep_empty=keep_empty)

    def _changed(self, version: int, rows: dict[int, Row]) -> int:
        """Record that the commit of ``version``, the newest one, changed the rows."""
        self._note(version, rows)
        self.rows = rows
        return version

    def changed(self, rows: Mapping[int, Row]) -> None:
        """Record that the newest commit may have changed the rows to ``rows``."""
        newest = self.table.version()
        if rows == self.rows or newest == self.version:
            self._note(newest, self.rows)
        else:
            self._changed(newest, dict(rows))

    # -- the model -------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Record commits that changed no rows."""
        self._note(self.table.version(), self.rows)

    def _note(self, newest: int, rows: Mapping[int, Row]) -> None:
        for version in self.backend.between(self.version if self.versions else None, newest):
            self.versions[version] = rows if version == newest else self.rows
            if self.backend.forgets:
                self.needs(version)

    def since(self, version: int) -> list[int]:
        """The versions from this one on, oldest first."""
        known = list(self.versions)
        return known[known.index(version) :]

    def needs(self, version: int) -> frozenset[str]:
        """Paths of the files that a version needs, as the table listed them at the first call."""
        if version not in self._needs:
            self._needs[version] = needed_files(self.table, version)
        return self._needs[version]

    def moment(self) -> Moment:
        return Moment(self.backend.moment(), self.version)

    # -- the table -------------------------------------------------------------------------------------------------

    def read(self, version: int | None = None) -> list[Row]:
        """The rows that a query finds, by id."""
        return sorted(self.backend.rows(version), key=lambda row: row[0])

    def expected(self, version: int | None = None) -> list[Row]:
        """The rows that it should find."""
        rows = self.rows if version is None else self.versions[version]
        return [rows[number] for number in sorted(rows)]

    def stored(self) -> frozenset[str]:
        """Paths of all stored files, except logs and manifests."""
        logs = self.backend.logs
        return frozenset(info.path for info in self.table.storage.walk(skip=lambda path, _: path.startswith(logs)))

    def live_files(self) -> set[FileKey]:
        """Live logical files of the newest version."""
        files = self.table.snapshot().files.select(["path", "dv_id"])
        return {FileKey(**row) for row in files.to_pylist()}

    def live_dvs(self) -> int:
        return sum(key.dv_id is not None for key in self.live_files())


def needed_files(table: Table, version: int | None = None) -> frozenset[str]:
    """Paths of the files that a version needs, according to its scan tasks."""
    snapshot = table.snapshot(version)
    sources = [source for task in table.scan_tasks(snapshot) for source in task.sources]
    names = [source.uri for source in sources] + [source.dv.uri for source in sources if source.dv]
    found = frozenset(table.storage.path_of_uri(name) for name in names if name is not None)
    if isinstance(snapshot, IcebergSnapshot):  # its tasks have the rows of position delete files, not their names
        found |= {table.path_of(file) for files in snapshot.matched.position_files.values() for file in files}
    return found


@dataclass
class InterferingEngine:
    """Runs ``between`` once, after the work of ``inner`` and before its commit."""

    inner: Engine
    between: Callable[[], object]
    runs: int = 0
    name: ClassVar[str] = "interfering"

    def run(
        self,
        tasks: Sequence[RewriteTask],
        *,
        storage_options: Mapping[str, str] | None = None,
        on_done: Callable[[RewriteResult], None] | None = None,
    ) -> list[RewriteResult]:
        self.runs += 1
        results = self.inner.run(tasks, storage_options=storage_options, on_done=on_done)
        if self.runs == 1:
            self.between()
        return results

    def close(self) -> None:
        self.inner.close()


def require(backend: TableBackend, what: str) -> None:
    """Skip the test if the backend does not support it."""
    import pytest

    if what not in backend.supports:
        pytest.skip(f"{type(backend).__name__} has no {what}")

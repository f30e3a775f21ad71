"""A table under test next to a plain model of it: which rows each version holds, and which files it needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from dv_maintenance.tables.model import FileKey
from dv_maintenance.testing.backends import Row, TableBackend

if TYPE_CHECKING:
    from dv_maintenance.engine import Engine
    from dv_maintenance.tables.table import Table
    from dv_maintenance.tables.work import RewriteResult, RewriteTask

__all__ = ["InterferingEngine", "Moment", "TableHistory", "needed_files"]


class Moment(NamedTuple):
    """A time between two operations, in epoch milliseconds, and the version that was the newest one then."""

    time: int
    version: int


class TableHistory:
    """``rows``: by id, what the newest version must hold; ``versions``: the same by version, oldest first.

    Rows change by :meth:`append` and :meth:`delete` only. Any other commit must leave them as they are: :meth:`sync`
    takes note of such commits, and knows no other kind.
    """

    def __init__(self, backend: TableBackend) -> None:
        backend.create()
        self.backend = backend
        self.rows: dict[int, Row] = {}
        self.versions: dict[int, Mapping[int, Row]] = {}
        self._needs: dict[int, frozenset[str]] = {}
        self._ids = 0
        self.sync()

    @property
    def table(self) -> Table:
        """Reopened: nothing hangs on what an object remembers."""
        return self.backend.open()

    @property
    def version(self) -> int:
        """The newest one that the model knows."""
        return next(reversed(self.versions))

    # -- what other writers do -------------------------------------------------------------------------------------

    def append(self, partition: str | None, count: int) -> int:
        """Append ``count`` new rows as one file; ids go on from the last one. Returns the version."""
        new = [(number, partition, f"value {number}") for number in range(self._ids, self._ids + count)]
        self._ids += count
        return self._changed(self.backend.append(partition, new), {**self.rows, **{row[0]: row for row in new}})

    def delete(self, ids: Collection[int], *, style: str = "", keep_empty: bool = False) -> int:
        """Delete rows, see ``TableBackend.delete``. Returns the version."""
        version = self.backend.delete(ids, style=style, keep_empty=keep_empty)
        return self._changed(version, {number: row for number, row in self.rows.items() if number not in ids})

    def delete_where(self, where: Callable[[int], bool], *, style: str = "", keep_empty: bool = False) -> int:
        """Delete by a predicate on ids, asked for rows that are long gone as well. Returns the version."""
        return self.delete([number for number in range(self._ids) if where(number)], style=style, keep_empty=keep_empty)

    def _changed(self, version: int, rows: dict[int, Row]) -> int:
        self._note(version)
        self.rows = rows
        self._note(version + 1)
        return version

    def changed(self, rows: Mapping[int, Row]) -> None:
        """Somebody may have brought the table to these rows, with its newest commit if so."""
        newest = self.table.version()
        if rows == self.rows or newest == self.version:
            self._note(newest + 1)
        else:
            self._changed(newest, dict(rows))

    # -- the model -------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Take note of commits that changed no rows."""
        self._note(self.table.version() + 1)

    def _note(self, end: int) -> None:
        first = self.version + 1 if self.versions else self.backend.first_version
        for version in range(first, end):
            self.versions[version] = self.rows
            if self.backend.forgets:
                self.needs(version)

    def needs(self, version: int) -> frozenset[str]:
        """Paths of the files without which a version can't be read, as the table told when it was first asked."""
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
        """Paths of all files but those that no table owns data in (logs, manifests)."""
        logs = self.backend.logs
        return frozenset(info.path for info in self.table.storage.walk(skip=lambda path, _: path.startswith(logs)))

    def live_files(self) -> set[FileKey]:
        """Live logical files of the newest version."""
        files = self.table.snapshot().files.select(["path", "dv_id"])
        return {FileKey(**row) for row in files.to_pylist()}

    def live_dvs(self) -> int:
        return sum(key.dv_id is not None for key in self.live_files())


def needed_files(table: Table, version: int | None = None) -> frozenset[str]:
    """Paths of the files without which a version can't be read, by the table's own word."""
    sources = [source for task in table.scan_tasks(table.snapshot(version)) for source in task.sources]
    names = [source.uri for source in sources] + [source.dv.uri for source in sources if source.dv]
    return frozenset(table.storage.path_of_uri(name) for name in names if name is not None)


@dataclass
class InterferingEngine:
    """Another engine whose work is done when, once, somebody else gets in before it is committed."""

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

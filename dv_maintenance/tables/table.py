"""What a table can do, whatever its format: the ``Table`` protocol, and what a commit is given and returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from dv_maintenance.tables.guard import NO_GUARD, VacuumGuard
from dv_maintenance.tables.model import FileKey

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.model import Changes, HistoryEntry, OldestDv, Snapshot, VacuumResult
    from dv_maintenance.tables.predicate import Predicate
    from dv_maintenance.tables.work import OutputFile, RewriteBin, RewriteTask, ScanTask

__all__ = ["CommitOutcome", "Rebased", "Replacement", "SkippingTable", "Table"]


@dataclass(frozen=True, slots=True)
class Replacement:
    """One all-or-nothing part of a commit: logical files out, new files in (none where every row was deleted)."""

    id: str
    partition: str
    inputs: tuple[FileKey, ...]
    outputs: tuple[OutputFile, ...] = ()
    kept: tuple[int, ...] = ()
    """Where the outputs hold what was live of the inputs, one after the other, each in its order: the rows that
    each input gave. That is what deletes by others can be carried over by."""
    order_by: tuple[str, ...] = ()
    """Columns that the rows of the outputs were ordered by, for the table to remember."""
    native: str = ""
    """See ``RewriteResult``."""


@dataclass(frozen=True, slots=True)
class Rebased:
    """A replacement that others deleted from meanwhile, as it was committed. ``inputs``: the logical files taken out,
    without those that were gone; ``deleted``: of each output, in order, the rows that are deleted. Outputs of which
    nothing is left were left out of the commit.
    """

    id: str
    inputs: tuple[FileKey, ...]
    deleted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """``version`` is the newest one that was committed, ``None`` if nothing was. ``lost`` are replacements whose inputs
    somebody else changed meanwhile in a way that can't be carried over: not committed, to be planned again.
    ``rebased``: those of ``committed`` with deletes carried over. ``attempts`` counts put-if-absent tries, at least 1.

    ``versions``: by id, where each replacement is a commit of its own. ``problems``: what went wrong after the
    commits, which stand. ``moved``: logical files that have the same DV in another place now.
    """

    version: int | None
    committed: tuple[str, ...]
    lost: tuple[str, ...]
    attempts: int
    reason: str = ""  # why `lost` is not empty
    rebased: tuple[Rebased, ...] = ()
    versions: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    moved: Mapping[FileKey, FileKey] = field(default_factory=dict)


class Table(Protocol):
    """One table of one format. Reading never writes; only ``commit`` and ``vacuum`` change anything."""

    @property
    def uri(self) -> str: ...

    @property
    def format(self) -> str: ...

    @property
    def storage(self) -> Storage: ...

    def path_of(self, name: str) -> str:
        """The path, for ``storage``, of a file by its name in ``Snapshot.files``: that is how the format spells it."""

    def version(self, known: int | None = None) -> int:
        """Newest version, by the cheapest look that is right. ``known``: one seen before, which makes it cheaper."""

    def snapshot(self, version: int | None = None) -> Snapshot:
        """The table at a version, the newest by default. Raises TableNotFoundError, UsageError (no such version),
        DamagedTableError, UnsupportedFeatureError (features a reader must know).
        """

    def parent_of(self, version: int) -> int:
        """The version that ``version`` was committed on. Ask, do not subtract: some formats do not number versions in
        steps of one.
        """

    def changes_since(self, version: int) -> Changes:
        """Commits after ``version``, oldest first."""

    def check_writable(self, snapshot: Snapshot, operation: str) -> None:
        """Raise UnsupportedFeatureError or RefusedError if ``operation`` (rewrite, vacuum, manifest) may not touch
        this table.
        """

    def scan_tasks(self, snapshot: Snapshot, columns: Sequence[str] | None = None) -> list[ScanTask]:
        """Reading tasks that together yield every live row, in logical names and the order of ``columns``; one task
        per live file.
        """

    def rewrite_tasks(self, snapshot: Snapshot, bins: Sequence[RewriteBin], target_bytes: int) -> list[RewriteTask]:
        """One task per bin, same ids."""

    def commit(
        self,
        base: Snapshot,
        replacements: Sequence[Replacement],
        *,
        operation: Mapping[str, Any],
        max_attempts: int = 10,
    ) -> CommitOutcome:
        """Commit every replacement whose inputs are all still live, or can have what others deleted from them carried
        over; report the others as lost. ``operation``: name and parameters for the history, see
        ``maintenance.apply``. Raises ConflictError when the race is lost ``max_attempts`` times.
        """

    def vacuum(
        self,
        *,
        retention: int | None = None,
        dry_run: bool = False,
        lite: bool = False,
        allow_short_retention: bool = False,
        now: int | None = None,
        guard: VacuumGuard = NO_GUARD,
    ) -> VacuumResult:
        """Delete what nothing needs. ``retention`` and ``now`` in milliseconds; ``None``: the table's own property,
        the clock. Raises RefusedError where ``guard`` forbids it.
        """

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        """Newest first."""

    def oldest_dv(self, snapshot: Snapshot, limit: int = 1000) -> OldestDv | None:
        """The oldest live DV of a snapshot, from at most ``limit`` commits; ``None`` without DVs. A DV that a later
        commit lists again (a restore, new statistics) counts from there.
        """


class SkippingTable(Table, Protocol):
    """A table that can be asked which files a condition concerns."""

    def may_match(self, snapshot: Snapshot, predicate: Predicate) -> pa.BooleanArray:
        """One value per row of ``snapshot.files``: ``False`` where no live row can fulfil ``predicate``."""

    def local_times(self, snapshot: Snapshot, columns: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """Of those of the columns that are instants and have values without a zone, which are in the zone of whoever
        reads: their text per file of the snapshot, in its order, null where a value is an instant itself.
        """

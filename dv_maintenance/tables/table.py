"""The ``Table`` protocol, which every format implements, and the values that a commit takes and returns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from dv_maintenance.errors import RefusedError, UsageError
from dv_maintenance.tables.guard import VACUUM_DEFAULTS, VacuumRequest
from dv_maintenance.tables.model import FileKey, Snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import TypeVar

    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.model import Changes, HistoryEntry, OldestDv
    from dv_maintenance.tables.predicate import Predicate
    from dv_maintenance.tables.reports import VacuumReport
    from dv_maintenance.tables.work import OutputFile, RewriteBin, RewriteTask, ScanTask

    SnapshotT = TypeVar("SnapshotT", bound=Snapshot, default=Snapshot)
else:
    # Defaults of type variables come with Python 3.13.
    from typing import TypeVar

    SnapshotT = TypeVar("SnapshotT", bound=Snapshot)

_REASONS_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Replacement:
    """One all-or-nothing part of a commit: it replaces logical files with new ones (none if every row was deleted)."""

    id: str
    partition: str
    inputs: tuple[FileKey, ...]
    outputs: tuple[OutputFile, ...] = ()
    kept: tuple[int, ...] = ()
    """Number of rows that each input contributed, if the outputs hold the live rows of the inputs in order. Without
    it, deletes by concurrent writers can't be carried over."""
    order_by: tuple[str, ...] = ()
    """Columns that order the rows of the outputs, for the table to record."""
    unit: str = ""
    """The unit of the outputs, where the table's own columns cluster them."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """See ``RewriteResult``."""
    recounted: int = 0
    """Rows that the inputs have beyond what the log says, if its counts are not exact; negative: fewer."""


@dataclass(frozen=True, slots=True)
class Rebased:
    """A replacement as it was committed after concurrent deletes from its inputs.

    Attributes
    ----------
    inputs
        the logical files that the commit removed, without those that were already removed.
    deleted
        number of deleted rows of each output, in order. The commit omits outputs without live rows.
    """

    id: str
    inputs: tuple[FileKey, ...]
    deleted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """What became of the replacements of a commit.

    Attributes
    ----------
    version
        the newest committed version, ``None`` if nothing was committed.
    lost
        replacements that were not committed, because concurrent writers changed their inputs in a way that can't be
        carried over. They have to be planned again.
    rebased
        those of ``committed`` with deletes carried over.
    attempts
        put-if-absent attempts, at least 1.
    versions
        committed version by replacement id, if each replacement is committed separately, in their order.
    problems
        what failed after the commits, which remain valid.
    moved
        logical files whose unchanged DV is stored in another place now.
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


def reasons_of(lost: Mapping[str, str]) -> str:
    """For ``CommitOutcome.reason``: why replacements were lost, by their ids; the first few different reasons."""
    reasons = list(dict.fromkeys(lost.values()))
    more = f" (and {len(reasons) - _REASONS_SHOWN} more reasons)" if len(reasons) > _REASONS_SHOWN else ""
    return "; ".join(reasons[:_REASONS_SHOWN]) + more


@dataclass(frozen=True, slots=True)
class Probe:
    """The newest version of a table.

    stamp : tells it from a version of the same number that another table has at the same place; "" if unknown.
    """

    version: int
    stamp: str = ""


_as_probed: Final[ContextVar[bool]] = ContextVar("as_probed", default=False)


@contextmanager
def as_probed() -> Iterator[None]:
    """What is read of a table meanwhile takes the version that it was probed for as the newest one. A catalog is then
    asked once for a look, however many parts that has.
    """
    token = _as_probed.set(True)
    try:
        yield
    finally:
        _as_probed.reset(token)


def is_as_probed() -> bool:
    """Whether this is in :func:`as_probed`."""
    return _as_probed.get()


class Table(Protocol[SnapshotT]):
    """One table of one format. Reading never writes; only ``commit`` and ``vacuum`` change anything.

    A version is the name of a committed state: an integer of up to 63 bits, unique in the table. Formats number
    versions, or draw them at random: two versions are equal or not, and nothing else. ``parent_of``, ``follows``,
    ``changes_since`` and ``history`` know their order.

    A format has a class of snapshots of its own, and gets back those that it returned. Code above formats knows
    ``Snapshot`` only, and writes ``Table``.
    """

    @property
    def uri(self) -> str: ...

    @property
    def format(self) -> str: ...

    @property
    def storage(self) -> Storage: ...

    def path_of(self, name: str) -> str:
        """The storage path of a file, given its name in ``Snapshot.files`` as the format spells it."""

    def version(self, known: int | None = None) -> int:
        """The newest version, found with as few requests as possible. ``known``: a version seen before, which saves
        requests.
        """

    def probe(self, known: int | None = None) -> Probe:
        """As ``version``, in the same requests if possible."""

    def stamp(self, version: int) -> str | None:
        """The stamp that ``probe`` gave this version; ``None`` if its metadata is gone. One request."""

    def snapshot(self, version: int | None = None) -> SnapshotT:
        """The table at a version, the newest by default.

        Raises TableNotFoundError, UsageError (the version does not exist), DamagedTableError and
        UnsupportedFeatureError (the table has features that a reader must know).
        """

    def parent_of(self, version: int) -> int:
        """The version that ``version`` was committed on. Whether it can be read is another question: it may be cleaned
        up, and a first version has no parent that exists.
        """

    def follows(self, version: int, earlier: int) -> bool:
        """Whether ``version`` was committed after ``earlier``; ``False`` if the table knows that it never had one of
        them.
        """

    def changes_since(self, version: int | None) -> Changes:
        """Commits after ``version``, oldest first; all of them for ``None``. Raises UsageError if the newest version
        does not follow from ``version``: the table was replaced or rolled back.
        """

    def check_writable(self, snapshot: SnapshotT, operation: str) -> None:
        """Raise UnsupportedFeatureError or RefusedError if ``operation`` (rewrite, vacuum, manifest) may not touch
        this table.
        """

    def scan_tasks(self, snapshot: SnapshotT, columns: Sequence[str] | None = None) -> list[ScanTask]:
        """Scan tasks, one per live file. Together they yield every live row, under logical names, in the order of
        ``columns``.
        """

    def rewrite_tasks(
        self, snapshot: SnapshotT, bins: Sequence[RewriteBin], target_bytes: int, compression: str | None = None
    ) -> list[RewriteTask]:
        """One task per bin, with the same id. ``compression``: of new files, if the table itself does not name one; see
        ``Policy.compression``.
        """

    def commit(
        self,
        base: SnapshotT,
        replacements: Sequence[Replacement],
        *,
        operation: Mapping[str, Any],
        max_attempts: int = 10,
    ) -> CommitOutcome:
        """Commit the replacements whose inputs are all still live, or whose concurrent deletes can be carried over.
        Report the others as lost.

        ``operation``: name and parameters for the history, see ``maintenance.apply``. Raises ConflictError when the
        race is lost ``max_attempts`` times.
        """

    def vacuum(self, request: VacuumRequest = VACUUM_DEFAULTS) -> VacuumReport:
        """Delete the files that nothing needs. ``request.clones`` are known by then, see ``ProtectingTable``. Raises
        RefusedError if the request's guard forbids it.
        """

    def retention(self, snapshot: SnapshotT) -> int:
        """How long unused files are kept: the table's own property, or the format's default; milliseconds. Raises
        RefusedError if the property is invalid.
        """

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        """Newest first."""

    def oldest_dv(self, snapshot: SnapshotT, limit: int = 1000) -> OldestDv | None:
        """When the first of a snapshot's files with a DV got one, found in at most ``limit`` commits; ``None`` without
        DVs. Each delete replaces the DV of a file, so the age counts from the file's first.
        """


def refusal_of_rewrites(table: Table[SnapshotT], snapshot: SnapshotT) -> str | None:
    """See ``EngineOnlyTable``, for formats that may refuse a whole table."""
    try:
        table.check_writable(snapshot, "rewrite")
    except RefusedError as error:
        return str(error)
    return None


def check_branch(uri: str, name: str, known: Collection[str]) -> None:
    """Raise UsageError unless the table at ``uri`` has such a branch."""
    if name not in known:
        step = f"use one of {', '.join(known)}" if known else "use the table itself, which has no branches"
        raise UsageError(f"there is no branch {name!r}", table=uri, next_step=step)


class SkippingTable(Table, Protocol):
    """A table that can skip files that a condition rules out."""

    def may_match(self, snapshot: Snapshot, predicate: Predicate) -> pa.BooleanArray:
        """One value per row of ``snapshot.files``: ``False`` if no live row of the file can satisfy ``predicate``."""

    def local_times(self, snapshot: Snapshot, columns: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """Partition values of timestamp columns that are stored without a zone, so that each reader applies its own.

        Returns such columns only, each as text with one value per file of the snapshot, in its order. A null means that
        the stored value is an instant.
        """

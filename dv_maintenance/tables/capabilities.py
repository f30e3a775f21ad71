"""What some formats can do beyond ``Table``: ordering, change feeds, restore, downgrade, checkpoints, engine SQL,
clones to protect, manifests to rename.

Each is a protocol of its own, so that a verb finds out by ``isinstance`` whether a table has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa

from dv_maintenance.tables.rows import RowLevelTable
from dv_maintenance.tables.table import SkippingTable, Table

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Change, ManifestResult, Snapshot
    from dv_maintenance.tables.rows import AddedFile
    from dv_maintenance.tables.work import ScanTask, SourceFile

__all__ = [
    "CHANGE_COLUMNS",
    "AdoptingTable",
    "ChangeFeed",
    "ChangeFeedTable",
    "ChangeTask",
    "CheckpointResult",
    "CheckpointableTable",
    "DowngradableTable",
    "DowngradeStep",
    "EngineName",
    "EngineSqlTable",
    "FileFault",
    "LeftToEngineTable",
    "OrderableTable",
    "PreflightTable",
    "ProtectingTable",
    "QueryableTable",
    "RenamableManifestsTable",
    "RenamedManifests",
    "RestorableTable",
    "RestoreResult",
    "SymlinkManifestTable",
    "UndeletableTable",
    "UndeleteResult",
    "WaitingRows",
]


# What a change feed adds to the columns of a table.
CHANGE_COLUMNS = pa.schema(
    [
        # insert, delete, update_preimage or update_postimage.
        pa.field("_change_type", pa.string()),
        pa.field("_commit_version", pa.int64()),
        pa.field("_commit_timestamp", pa.timestamp("us", "UTC")),
    ]
)


@dataclass(frozen=True, slots=True)
class ChangeTask:
    """Rows that ``version``, of ``timestamp`` (epoch milliseconds), changed. ``change_type`` is that of all of them;
    ``None``: the rows say it themselves, in the last column of ``scan``.
    """

    version: int
    timestamp: int
    change_type: str | None
    scan: ScanTask


@dataclass(frozen=True, slots=True)
class ChangeFeed:
    """What the versions ``first`` to ``last`` changed. ``schema``: the table's, then CHANGE_COLUMNS. ``tasks`` can be
    gone through once. ``inferred``: versions that both took out rows and put in others without recording which of them
    are updates: those are told as a delete and an insert.
    """

    first: int
    last: int
    schema: pa.Schema
    tasks: Iterable[ChangeTask]
    inferred: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What a restore did, or would under ``dry_run``: brought the table from ``version_before`` to the state of
    ``restored``. ``version_after`` is ``version_before`` where nothing was committed. Bytes are those of data files.
    ``properties``: names of those that the restore changed; ``features``: those that it brought back.
    """

    restored: int
    version_before: int
    version_after: int
    dry_run: bool
    files_restored: int
    bytes_restored: int
    files_removed: int
    bytes_removed: int
    files_after: int
    bytes_after: int
    dvs_restored: int
    schema_changed: bool
    properties: tuple[str, ...]
    features: tuple[str, ...]
    attempts: int


@dataclass(frozen=True, slots=True)
class DowngradeStep:
    """A step on the way to a table that readers without deletion vectors can read. ``state``: done, due, waiting (until
    ``waits_until``, epoch milliseconds), or later: not looked at before the one in front of it is done.
    """

    name: str
    state: str
    explanation: str
    waits_until: int | None = None


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    """``written``: whether ``version`` had no checkpoint yet. ``cutoff`` (epoch milliseconds): what of the log was
    before it was up for deletion, ``None`` if nothing was. ``first_version``: what the log begins with now, or would.
    """

    version: int
    written: bool
    dry_run: bool
    cutoff: int | None
    first_version: int
    log_files_expired: int
    log_files_deleted: int


@dataclass(frozen=True, slots=True)
class UndeleteResult:
    """``files`` and ``bytes`` were put back, or would be under ``dry_run``. ``taken``: stayed in quarantine, as there
    is a file of that name; ``gone``: were emptied meanwhile. ``version``: the newest, which it does not change.
    ``held``: files that would do harm if they came back and stayed in quarantine; why -> how many.
    """

    version: int
    dry_run: bool
    files: int
    bytes: int
    taken: int
    gone: int
    held: Mapping[str, int] = field(default_factory=dict)


class FileFault(Protocol):
    """What is wrong with ``file`` of a fragment. ``kind``: a word; ``reason``: for people."""

    @property
    def fragment(self) -> int: ...

    @property
    def file(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def reason(self) -> str: ...


@dataclass(frozen=True, slots=True)
class EngineName:
    """A table in the SQL of a session, each part quoted where it has to be. ``catalog`` and ``database`` may be
    empty.
    """

    catalog: str
    database: str
    table: str


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """Rows that no reader sees before they are merged with others of the same ``keys``, these columns. Tasks read the
    keys: of ``all`` of them; of those ``added`` by now, unless they are of those ``taken`` back. Without ``added`` it
    is left open whether a row is there in the end.
    """

    keys: tuple[str, ...]
    all: tuple[ScanTask, ...]
    added: tuple[ScanTask, ...] = ()
    taken: tuple[ScanTask, ...] = ()


@dataclass(frozen=True, slots=True)
class RenamedManifests:
    """``version``: the newest. ``renamed`` manifests got the new naming, or would under ``dry_run``; ``done`` had it
    before.
    """

    version: int
    renamed: int
    done: int
    dry_run: bool


@runtime_checkable
class QueryableTable(SkippingTable, Protocol):
    """A table that can be asked for an older state by its time."""

    def version_at(self, snapshot: Snapshot, timestamp: int) -> int:
        """The newest version up to the snapshot's that was committed at or before ``timestamp``, epoch milliseconds.
        Raises UsageError where the history does not go back that far.
        """


@runtime_checkable
class OrderableTable(RowLevelTable, Protocol):
    """A table that remembers which of its files were ordered by which columns."""

    def ordered_by(self, snapshot: Snapshot) -> Sequence[tuple[str, ...]]:
        """The columns of each file of ``snapshot.files``, as ``Replacement.order_by`` gave them; none if it was not
        ordered, or not by us.
        """


@runtime_checkable
class ChangeFeedTable(Table, Protocol):
    """A table whose format can tell what each version changed."""

    def change_feed(self, first: int, last: int | None = None) -> ChangeFeed:
        """Changes of the versions ``first`` to ``last`` (the newest by default), both included. Raises UsageError (no
        such versions, or not any more), RefusedError (not to be told under one schema, or not recorded).
        """


@runtime_checkable
class RestorableTable(Table, Protocol):
    """A table whose format can bring an older version back."""

    def restore(
        self,
        *,
        version: int | None = None,
        timestamp: int | None = None,
        dry_run: bool = False,
        max_attempts: int = 10,
        vacuums_over: Collection[int] = (),
    ) -> RestoreResult:
        """Commit the state of an older version: ``version``, or the newest at ``timestamp`` (epoch milliseconds).
        ``vacuums_over``: versions at which vacuums began that are over, though the history does not say so.
        Raises UsageError (no such version), RefusedError (files of it are gone, a vacuum is at work, or its format
        forbids it), ConflictError when the race is lost ``max_attempts`` times.
        """


@runtime_checkable
class UndeletableTable(Table, Protocol):
    """A table whose vacuums can set files aside instead of deleting them."""

    def undelete(self, *, since: int | None = None, until: int | None = None, dry_run: bool = False) -> UndeleteResult:
        """Put back what was set aside from ``since`` to ``until`` (epoch milliseconds), unless there is a file of that
        name. Raises StorageError.
        """


@runtime_checkable
class DowngradableTable(Table, Protocol):
    """A table whose format lets deletion vectors be given up for good."""

    def downgrade_steps(self, *, truncate_history: bool, now: int | None = None) -> tuple[DowngradeStep, ...]:
        """What it takes, in order, and how far it has come. ``truncate_history``: history goes in the end, instead of
        being fenced off by what old writers do not know.
        """

    def take_downgrade_step(self, name: str, *, truncate_history: bool, now: int | None = None) -> None:
        """Carry out the step that is due, unless it is ``purge``: that is ``maintenance.apply.purge``."""


@runtime_checkable
class CheckpointableTable(Table, Protocol):
    """A table whose log grows with every commit, until a checkpoint sums it up."""

    def checkpoint(self, *, clean_log: bool = False, dry_run: bool = False, now: int | None = None) -> CheckpointResult:
        """Write a checkpoint of the newest version; with ``clean_log`` also delete what of the log is out of its
        retention. ``now``: epoch milliseconds.
        """


@runtime_checkable
class EngineSqlTable(Table, Protocol):
    """A table that its own engine maintains by SQL."""

    @property
    def engine_extension(self) -> str:
        """What ``spark.sql.extensions`` must name."""

    @property
    def engine_advice(self) -> str:
        """What makes a session fit, for people."""

    def engine_name(self, settings: Mapping[str, str], wanted: str | None) -> EngineName:
        """What a session with these ``settings`` calls the table; ``wanted``: what the user calls its catalog. Raises
        RefusedError, UsageError.
        """

    def engine_probe(self, name: EngineName, snapshot: Snapshot) -> tuple[str, tuple[Any, ...]] | None:
        """A query, and the only row that it has if the session means this table by that name; ``None``: it can't mean
        another one.
        """

    def engine_statements(self, job: str, name: EngineName, snapshot: Snapshot) -> tuple[str, ...]:
        """The statements for ``optimize``, ``purge`` or ``vacuum`` of the whole table. Raises UsageError."""

    def engine_moves(self, change: Change) -> bool:
        """Whether a version says that it moves rows and does not change them, but for those that were ``waiting``."""

    def engine_waiting(self, old: Snapshot, new: Snapshot) -> WaitingRows | None:
        """What may show at ``new`` though no reader saw it at ``old``, the version before."""

    def engine_rows(self, name: EngineName, snapshot: Snapshot) -> str | None:
        """A query whose only row depends on all rows of a version, for tables that can't be read here."""

    def engine_sources(self, snapshot: Snapshot) -> Iterable[SourceFile]:
        """Every file that has to be there after a vacuum."""


@runtime_checkable
class AdoptingTable(Table, Protocol):
    """A table that can be made of data files that are there already."""

    def adopted(self) -> int | None:
        """The newest version if the table is there, ``None`` before it is made."""

    def adopt(self, schema: pa.Schema, partition_columns: Sequence[str], files: Sequence[AddedFile]) -> int | None:
        """Make it. ``None``: somebody else did meanwhile. Raises RefusedError (a name, type or partition value that the
        format has no place for).
        """


@runtime_checkable
class ProtectingTable(Table, Protocol):
    """A table that can have clones whose files are its own, and that does not know of them."""

    def protecting(self, clones: Sequence[str]) -> Table:
        """The same table; what the clones at these paths or URIs need stays in every vacuum."""

    def is_clone(self) -> bool:
        """Whether the table names files of other tables, as a shallow clone does. Raises what ``snapshot`` raises."""


@runtime_checkable
class SymlinkManifestTable(Table, Protocol):
    """A table whose files other readers find by symlink manifests."""

    def write_manifests(self, snapshot: Snapshot) -> ManifestResult:
        """Write them for readers that can't read DVs. Raises RefusedError while a live DV exists."""


@runtime_checkable
class LeftToEngineTable(Table, Protocol):
    """A table of a format some of whose kinds only their own engine can rewrite."""

    def left_to_engine(self, snapshot: Snapshot) -> str | None:
        """Why every rewrite of this one is refused; ``None`` if that is not so."""


@runtime_checkable
class RenamableManifestsTable(Table, Protocol):
    """A table with two ways to name its manifests."""

    def rename_manifests(self, *, dry_run: bool = False, now: int | None = None) -> RenamedManifests:
        """Give all of them the new names; goes on with what an interrupted run left. Not safe beside writers. ``now``:
        epoch milliseconds. Raises RefusedError (somebody is writing), ConflictError.
        """


@runtime_checkable
class PreflightTable(Table, Protocol):
    """A table whose deletion files have no checksum: only reading them tells whether they can be relied on."""

    def preflight(self, version: int | None = None, fragments: Sequence[int] | None = None) -> Sequence[FileFault]:
        """Every fault of a version's deletion files, the newest by default; those of ``fragments`` only, by id."""

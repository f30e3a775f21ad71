"""What some formats can do beyond ``Table``: ordering, change feeds, restore, downgrade, checkpoints, engine SQL,
clones to protect, manifests to rename.

Each capability is a separate protocol, so that a verb can check for it with ``isinstance``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa

from dv_maintenance.tables.rows import RowLevelTable
from dv_maintenance.tables.table import SkippingTable, Table

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Change, FileKey, Snapshot
    from dv_maintenance.tables.reports import (
        CheckpointReport,
        ManifestReport,
        PublishReport,
        RenameReport,
        RestoreReport,
        UndeleteReport,
    )
    from dv_maintenance.tables.rows import AddedFile
    from dv_maintenance.tables.work import ScanTask, SourceFile


# The columns that a change feed adds to those of a table.
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
    """A scan of rows that one version changed.

    version : the version that changed the rows.
    timestamp : when it was committed, epoch milliseconds.
    change_type : the type of all rows; ``None`` if the last column of ``scan`` holds it per row.
    """

    version: int
    timestamp: int
    change_type: str | None
    scan: ScanTask


@dataclass(frozen=True, slots=True)
class ChangeFeed:
    """The changes of the versions ``first`` to ``last``, both included.

    schema : the table's columns, then CHANGE_COLUMNS.
    tasks : can be iterated once.
    inferred : versions that deleted and inserted rows without recording which of them are updates. Such an update
        appears as a delete and an insert.
    """

    first: int
    last: int
    schema: pa.Schema
    tasks: Iterable[ChangeTask]
    inferred: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DowngradeStep:
    """One step of a downgrade to a table that readers without deletion vectors can read.

    state : done, due, waiting, or later (not checked until the step before it is done).
    waits_until : epoch milliseconds, for a waiting step.
    """

    name: str
    state: str
    explanation: str
    waits_until: int | None = None


@runtime_checkable
class ComposedTable(Table, Protocol):
    """A table whose readers may see more, or less, than the rows of one snapshot."""

    def read_tasks(self, snapshot: Snapshot, columns: Sequence[str] | None = None) -> list[ScanTask]:
        """As ``scan_tasks``, of everything that a reader of the table sees. ``scan_tasks`` reads the files of the
        snapshot, which is what maintenance works on.
        """


def read_tasks(table: Table, snapshot: Snapshot, columns: Sequence[str] | None = None) -> list[ScanTask]:
    """The tasks of everything that a reader of the table sees."""
    reads = table.read_tasks if isinstance(table, ComposedTable) else table.scan_tasks
    return reads(snapshot, columns)


class FileFault(Protocol):
    """A fault in ``file`` of a fragment. ``kind``: one word; ``reason``: the explanation for people."""

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
    """A table's name in the SQL of a session, each part quoted if necessary. ``catalog`` and ``database`` may be
    empty.
    """

    catalog: str
    database: str
    table: str


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """Rows that no reader sees until they are merged with others of the same key.

    keys : the key columns, which all tasks read.
    all : reads the keys of all such rows.
    added : reads the keys of rows that were added by now, including those of ``taken``. Empty if it is unknown whether
        a row exists in the end.
    taken : reads the keys of rows that were removed again.
    """

    keys: tuple[str, ...]
    all: tuple[ScanTask, ...]
    added: tuple[ScanTask, ...] = ()
    taken: tuple[ScanTask, ...] = ()


@runtime_checkable
class QueryableTable(SkippingTable, Protocol):
    """A table that finds an older version by its time."""

    def version_at(self, snapshot: Snapshot, timestamp: int) -> int:
        """The newest version up to the snapshot's that was committed at or before ``timestamp``, epoch milliseconds.
        Raises UsageError if the history does not go back that far.
        """


@runtime_checkable
class OrderableTable(RowLevelTable, Protocol):
    """A table that records by which columns each file is ordered."""

    def ordered_by(self, snapshot: Snapshot) -> Sequence[tuple[str, ...]]:
        """The columns that order each file of ``snapshot.files``, as ``Replacement.order_by`` gave them; empty if this
        package did not order the file.
        """

    def clustered_by(self, snapshot: Snapshot) -> tuple[tuple[str, ...], ...]:
        """The columns, as paths of names, by which the writers of the table cluster its files; empty if none does."""

    def clustered(self, snapshot: Snapshot) -> Sequence[bool]:
        """Whether each file of ``snapshot.files`` is clustered by just these columns, see ``Snapshot.units``."""


@runtime_checkable
class ChangeFeedTable(Table, Protocol):
    """A table whose format can show what each version changed."""

    def change_feed(self, first: int, last: int | None = None) -> ChangeFeed:
        """Changes of the versions ``first`` to ``last`` (the newest by default), both included.

        Raises UsageError (a version does not exist, or its log was cleaned up) and RefusedError (the changes do not fit
        one schema, or were not recorded).
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
    ) -> RestoreReport:
        """Commit the state of an older version: ``version``, or the newest at ``timestamp`` (epoch milliseconds).

        ``vacuums_over``: versions at which vacuums began that have ended, though the history does not record the end.

        Raises UsageError (the version does not exist), RefusedError (files of it are missing, a vacuum is running, or
        the format forbids it), ConflictError when the race is lost ``max_attempts`` times.
        """


@runtime_checkable
class UndeletableTable(Table, Protocol):
    """A table whose vacuums can set files aside instead of deleting them."""

    def undelete(self, *, since: int | None = None, until: int | None = None, dry_run: bool = False) -> UndeleteReport:
        """Undelete what was quarantined from ``since`` to ``until`` (epoch milliseconds). Skips a file if its name is
        in use. Raises StorageError.
        """


@runtime_checkable
class DowngradableTable(Table, Protocol):
    """A table that can drop support for deletion vectors."""

    def downgrade_steps(self, *, truncate_history: bool, now: int | None = None) -> tuple[DowngradeStep, ...]:
        """The steps of a downgrade, in order, each with its state.

        ``truncate_history``: delete the history in the end, instead of protecting it with a feature that old writers do
        not know.
        """

    def take_downgrade_step(self, name: str, *, truncate_history: bool, now: int | None = None) -> None:
        """Carry out the step that is due, unless it is ``purge``: that is ``maintenance.apply.purge``."""


@runtime_checkable
class CheckpointableTable(Table, Protocol):
    """A table whose log grows with every commit, until a checkpoint summarises it."""

    def checkpoint(self, *, clean_log: bool = False, dry_run: bool = False, now: int | None = None) -> CheckpointReport:
        """Write a checkpoint of the newest version. With ``clean_log`` also delete the part of the log that is past its
        retention. ``now``: epoch milliseconds.
        """


@runtime_checkable
class PublishableTable(Table, Protocol):
    """A table whose commits a catalog may ratify before they are in the log."""

    def publish(self, *, dry_run: bool = False) -> PublishReport:
        """Copy ratified commits to their places in the log, and tell the catalog. Raises RefusedError if no catalog
        ratifies the table's commits.
        """


@dataclass(frozen=True, slots=True)
class FileNumbers:
    """What a data file holds: physical rows, bytes, and the rows that its deletion vector deletes."""

    rows: int
    size: int
    deleted: int = 0


@runtime_checkable
class RecountableTable(Table, Protocol):
    """A table whose row counts are statistics of its files, see ``Snapshot.exact_rows``."""

    def recount(self, base: Snapshot, numbers: Mapping[FileKey, FileNumbers], *, dry_run: bool = False) -> int | None:
        """Commit what live files really hold, and return the version. ``None``: other writers have replaced all
        of these files. Raises the errors of ``commit``, also under ``dry_run``, which commits nothing.
        """


@runtime_checkable
class EngineSqlTable(Table, Protocol):
    """A table that its own engine maintains through SQL."""

    @property
    def engine_extension(self) -> str:
        """The extension that ``spark.sql.extensions`` must name."""

    @property
    def engine_advice(self) -> str:
        """How to set up a session, for people."""

    def engine_name(self, settings: Mapping[str, str], wanted: str | None) -> EngineName:
        """The table's name in a session with these ``settings``. ``wanted``: the user's name for its catalog. Raises
        RefusedError, UsageError.
        """

    def engine_probe(self, name: EngineName, snapshot: Snapshot) -> tuple[str, tuple[Any, ...]] | None:
        """A query, and the only row that it returns if the name refers to this table in the session. ``None``: the name
        can't refer to another table.
        """

    def engine_statements(self, job: str, name: EngineName, snapshot: Snapshot) -> tuple[str, ...]:
        """The statements for ``optimize``, ``purge`` or ``vacuum`` of the whole table. Raises UsageError."""

    def engine_only_moves_rows(self, change: Change) -> bool:
        """Whether a version declares that it only moves rows, apart from ``WaitingRows``, and changes none."""

    def engine_waiting(self, old: Snapshot, new: Snapshot) -> WaitingRows | None:
        """Rows that may appear at ``new`` although no reader saw them at ``old``, the version before."""

    def engine_rows(self, name: EngineName, snapshot: Snapshot) -> str | None:
        """A query whose single result row depends on all rows of a version, for tables that can't be read here."""

    def engine_sources(self, snapshot: Snapshot) -> Iterable[SourceFile]:
        """Every file that must exist after a vacuum."""


@runtime_checkable
class AdoptingTable(Table, Protocol):
    """A table that can be created from existing data files."""

    def adopted(self) -> int | None:
        """The newest version if the table exists, ``None`` otherwise."""

    def adopt(
        self, schema: pa.Schema, partition_columns: Sequence[str], files: Sequence[AddedFile], *, dry_run: bool = False
    ) -> int | None:
        """Create the table from ``files``. ``None``: another writer created it first. Raises RefusedError (the format
        can't represent a name, type or partition value), also under ``dry_run``, which creates nothing.
        """


@runtime_checkable
class ProtectingTable(Table, Protocol):
    """A table that can have clones that share its files, and that does not record them."""

    def protecting(self, clones: Sequence[str]) -> Table:
        """The same table, whose vacuums keep every file that the clones at these paths or URIs need."""

    def is_clone(self) -> bool:
        """Whether the table names files of other tables, as a shallow clone does. Raises what ``snapshot`` raises."""


@runtime_checkable
class SymlinkManifestTable(Table, Protocol):
    """A table with symlink manifests, through which other readers find its files."""

    def write_manifests(self, snapshot: Snapshot, *, dry_run: bool = False) -> ManifestReport:
        """Write manifests for readers that can't read DVs. Raises RefusedError while a live DV exists, also under
        ``dry_run``, which writes nothing.
        """


@runtime_checkable
class EngineOnlyTable(Table, Protocol):
    """A table that may be of a kind that only its own engine can rewrite."""

    def engine_only_reason(self, snapshot: Snapshot) -> str | None:
        """Why every rewrite of this table is refused; ``None`` if rewrites are possible."""


@runtime_checkable
class RenamableManifestsTable(Table, Protocol):
    """A table whose format has two naming schemes for manifests."""

    def rename_manifests(self, *, dry_run: bool = False, now: int | None = None) -> RenameReport:
        """Rename all manifests to the new scheme; continue where an interrupted run stopped. Not safe while writers are
        active.

        ``now``: epoch milliseconds. Raises RefusedError (another process is writing), ConflictError.
        """


@runtime_checkable
class PreflightTable(Table, Protocol):
    """A table whose deletion files have no checksum: only reading them detects damage."""

    def preflight(self, version: int | None = None, fragments: Sequence[int] | None = None) -> Sequence[FileFault]:
        """Every fault in the deletion files of a version, the newest by default. ``fragments``: ids to check, all by
        default.
        """

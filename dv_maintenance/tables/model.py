"""What every table format looks like to the layers above: value types and the ``Table`` protocol.

The unit of identity is the *logical file*: (path, DV id). The same Parquet file with another deletion vector (DV) is
another logical file, so plans, commits and conflict checks speak of :class:`FileKey`, never of a path alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote

import pyarrow as pa

from dv_maintenance.tables.guard import NO_GUARD, VacuumGuard

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.predicate import Predicate
    from dv_maintenance.tables.work import OutputFile, RewriteBin, RewriteTask, ScanTask

__all__ = [
    "FILES_SCHEMA",
    "LIMITED",
    "SEQUENCE",
    "Change",
    "Changes",
    "CommitOutcome",
    "ExpiredFile",
    "ExpiredFiles",
    "FileKey",
    "HistoryEntry",
    "ManifestResult",
    "OldestDv",
    "Rebased",
    "Replacement",
    "SkippingTable",
    "Snapshot",
    "Table",
    "VacuumResult",
    "hive_folder",
    "parse_partition",
    "partition_name",
]

# One row per live data file. Formats may add columns behind these; `dv` is theirs to shape.
FILES_SCHEMA = pa.schema(
    [
        # As the log spells it: the identity of the file, written back byte for byte.
        pa.field("path", pa.string(), nullable=False),
        # `a=1/b=x`, see partition_name(); "" in a table without partitions.
        pa.field("partition", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        # Rows in the file, deleted ones included; null where the log does not say.
        pa.field("physical_rows", pa.int64()),
        # Cardinality of the DV; 0 without one.
        pa.field("deleted_rows", pa.int64(), nullable=False),
        # Unique id of the DV; null without one.
        pa.field("dv_id", pa.string()),
        # Epoch milliseconds.
        pa.field("modified", pa.int64(), nullable=False),
    ]
)

SEQUENCE = pa.field("sequence", pa.int64(), nullable=False)
"""Column of formats whose rows are in the order of the files: only a file and the next one, which has the next number,
may be merged.
"""

LIMITED = b"dvm:limited"
"""Metadata of a field: its type as Spark spells it, where that is or holds a CHAR or VARCHAR."""

# What Hive, Spark and Delta call a null partition value.
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True, order=True)
class FileKey:
    """A logical file: raw path and DV id (``None`` without a DV)."""

    path: str
    dv_id: str | None = None


def partition_name(values: Mapping[str, str | None]) -> str:
    """The one name of a partition: ``col=value/col=value`` in the table's column order, percent-encoded, null as Hive
    spells it.

    >>> partition_name({"day": "2026-01-01", "shop": None})
    'day=2026-01-01/shop=__HIVE_DEFAULT_PARTITION__'
    """
    return "/".join(f"{quote(name, safe=' ')}={_value_name(value)}" for name, value in values.items())


def _value_name(value: str | None) -> str:
    if value is None:
        return NULL_PARTITION
    # A text of that name is not null.
    return quote(value, safe=" :+,@") if value != NULL_PARTITION else f"%{ord(value[0]):02X}{value[1:]}"


def parse_partition(name: str) -> dict[str, str | None]:
    """The inverse of :func:`partition_name`.

    >>> parse_partition('day=2026-01-01/shop=__HIVE_DEFAULT_PARTITION__')
    {'day': '2026-01-01', 'shop': None}
    """
    pairs = (part.split("=", 1) for part in name.split("/") if part)
    return {unquote(key): None if value == NULL_PARTITION else unquote(value) for key, value in pairs}


# What Hive escapes in the names of partition folders.
_ESCAPED = str.maketrans({char: f"%{ord(char):02X}" for char in [*map(chr, range(1, 32)), *"\"#%'*/:=?\\\x7f{[]^"]})


def hive_folder(values: Mapping[str, str | None]) -> str:
    """The folder of a partition as Hive and Spark name it, columns in order; null and empty are the same to them.

    >>> hive_folder({"day": "2026-01-01", "at": "10:00", "shop": None})
    'day=2026-01-01/at=10%3A00/shop=__HIVE_DEFAULT_PARTITION__'
    """
    return "/".join(
        f"{name.translate(_ESCAPED)}={value.translate(_ESCAPED) if value else NULL_PARTITION}"
        for name, value in values.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One version of a table. ``files`` has FILES_SCHEMA's columns first; a million rows is normal, so stay vectorised.

    ``schema`` is logical (the names users see) and includes partition columns, in the table's order.
    """

    table: str
    format: str
    version: int
    timestamp: int  # epoch milliseconds
    schema: pa.Schema
    partition_columns: tuple[str, ...]
    properties: Mapping[str, str]
    files: pa.Table
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Those of the warnings that tell of no fault: what maintenance or time will see to."""
    target_rows: int | None = None
    """Rows of a full file, where a format counts rows rather than bytes."""


# -- commits -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replacement:
    """One all-or-nothing part of a commit: logical files out, new files in (none where every row was deleted)."""

    id: str
    partition: str
    inputs: tuple[FileKey, ...]
    outputs: tuple[OutputFile, ...] = ()
    kept: tuple[int, ...] = ()
    """Where the outputs hold what was live of the inputs, one behind the other and each in its order: the rows that
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
    somebody else changed meanwhile in a way that can't be carried over: not committed, to be planned anew. ``rebased``:
    those of ``committed`` with deletes carried over. ``attempts`` counts put-if-absent tries, at least 1.

    ``versions``: by id, where each replacement is a commit of its own. ``problems``: what went wrong behind the
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


@dataclass(frozen=True, slots=True)
class Change:
    """One version after the one asked about."""

    version: int
    timestamp: int
    operation: str
    data_changed: bool


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened since a version. ``data_version`` is the newest version that changed what a query returns
    (``None``: none did).
    """

    since: int
    version: int
    data_version: int | None
    commits: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class ExpiredFile:
    """A file that nothing needs any more. ``kind``: data, dv, change, index, manifest (of a version), transaction or
    other.
    """

    path: str
    kind: str
    size: int
    modified: int


@dataclass(frozen=True, slots=True)
class ExpiredFiles:
    """``cutoff``: epoch milliseconds; everything in ``files`` fell out of use before it."""

    version: int
    cutoff: int
    retention: int  # milliseconds
    files: tuple[ExpiredFile, ...]
    kept: Mapping[str, int] = field(default_factory=dict)  # why -> how many files


@dataclass(frozen=True, slots=True)
class VacuumResult:
    """What a vacuum deleted, or would under ``dry_run``."""

    expired: ExpiredFiles
    deleted: int
    dry_run: bool
    version_before: int
    version_after: int
    refused: str | None = None  # why a real run would be refused; only of a dry one
    protected: tuple[str, ...] = ()  # what else was protected, and how many files that names
    quarantine: str | None = None  # the folder that the files were moved to instead
    emptied: int = 0  # files of earlier runs whose time in quarantine was over


@dataclass(frozen=True, slots=True)
class ManifestResult:
    """Written manifests by path relative to the table, data files listed in all of them, and manifests removed."""

    version: int
    manifests: tuple[str, ...]
    files: int
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One commit. ``timestamp`` in epoch milliseconds; ``metrics`` as the writer recorded them; the DV numbers are
    counted from the commit's own actions: DVs that appeared, disappeared, and rows they name.
    """

    version: int
    timestamp: int
    operation: str
    parameters: Mapping[str, Any]
    metrics: Mapping[str, Any]
    engine: str | None
    files_added: int
    files_removed: int
    dvs_added: int
    dvs_removed: int
    rows_deleted_by_dvs: int
    data_changed: bool


@dataclass(frozen=True, slots=True)
class OldestDv:
    """When the oldest live DV was committed, epoch milliseconds. Not ``exact``: no later than that; the commits read do
    not go back far enough.
    """

    timestamp: int
    exact: bool


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

    def changes_since(self, version: int) -> Changes:
        """Commits behind ``version``, oldest first."""

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

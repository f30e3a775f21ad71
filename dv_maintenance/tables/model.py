"""Value types that describe a table of any format. The ``Table`` protocol is in ``tables.table``.

The unit of identity is the *logical file*: (path, DV id). The same Parquet file with another deletion vector (DV) is
another logical file, so plans, commits and conflict checks use :class:`FileKey`, never a path alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from dv_maintenance.tables.partition_spec import PartitionSpec

# One row per live data file. Formats may add columns after these, and define the type of `dv`.
FILES_SCHEMA = pa.schema(
    [
        # As the log spells it: the identity of the file, written back byte for byte.
        pa.field("path", pa.string(), nullable=False),
        # `a=1/b=x`, see `PartitionSpec.partition`; "" in a table without partitions.
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
"""Column of formats in which the order of the files is the order of the rows. Only neighbours, files with consecutive
numbers, may be merged.
"""

LIMITED = b"dvm:limited"
"""Metadata of a field: its type as Spark spells it, if the type is or contains a CHAR or VARCHAR."""

REQUIRED = b"dvm:required"
"""Metadata of a field that is NOT NULL in the table, while new files store it as one that may be null: its path for
messages, or empty if that is the path in the schema itself.
"""

LOGICAL = b"dvm:logical"
"""Metadata of a field: its type, where its Arrow type does not give it: ``uuid``, ``geo`` for shapes (``SHAPES``), or
``variant`` for a struct of two required binaries. If it also has a field id, that is its annotation in Parquet.
"""

DELTA_TYPE = b"dvm:delta"
"""Metadata of a field of a Delta table: its type, where its Arrow type does not give it. Files have no annotation, but
for shapes.
"""

SHAPES = b"dvm:shapes"
"""Metadata of a field that holds shapes in well-known binary, which is its annotation in Parquet: how edges run
(``planar``, or an algorithm of Parquet's type GEOGRAPHY in lower case), a space, and the coordinate reference system.
"""


_GEOMETRY = re.compile(r"geometry(?:\(\s*([^,()]+?)\s*\))?")
_GEOGRAPHY = re.compile(
    r"geography(?:\(\s*([^,()]+?)\s*(?:,\s*(spherical|vincenty|thomas|andoyer|karney)\s*)?\))?", re.IGNORECASE
)
_REFERENCE = "OGC:CRS84"


def shapes_of(name: str) -> str | None:
    """What :data:`SHAPES` says of the type that a schema calls ``name``, in Delta's spelling and Iceberg's (as
    ``geometry`` and ``geography(EPSG:4326, karney)``); ``None`` for types without shapes.
    """
    if (planar := _GEOMETRY.fullmatch(name)) is not None:
        return f"planar {planar[1] or _REFERENCE}"
    if (curved := _GEOGRAPHY.fullmatch(name)) is not None:
        return f"{(curved[2] or 'spherical').lower()} {curved[1] or _REFERENCE}"
    return None


def logical_type(field: pa.Field) -> str:
    """``uuid``, ``variant``, ``geo``, or another type that a column's Arrow type does not show; empty without one."""
    metadata = field.metadata or {}
    return str(metadata.get(LOGICAL, metadata.get(DELTA_TYPE, b"")).decode())


def has_variant(field: pa.Field) -> bool:
    """Whether a variant is in the column, at any depth."""
    kind = field.type
    inside = pa.types.is_nested(kind) and any(has_variant(kind.field(at)) for at in range(kind.num_fields))
    return inside or logical_type(field) == "variant"


# What Hive, Spark and Delta call a null partition value.
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True, order=True)
class FileKey:
    """A logical file: raw path and DV id (``None`` without a DV)."""

    path: str
    dv_id: str | None = None


# Names separate values by `/`; an orchestrator's keys separate them by `|`, its ranges by `...`, its lists by commas,
# and its text boxes use [ ] ". Control characters would act on a terminal.
_IN_VALUES = re.compile(r'[\x00-\x1f\x7f-\x9f\u2028\u2029%|,\[\]"/]|\.(?=\.\.)')
_IN_NAMES = re.compile(rf"{_IN_VALUES.pattern}|=")


def partition_name(values: Mapping[str, str | None]) -> str:
    """The one name of a partition: ``col=value/col=value`` in the table's column order, percent-encoded, null as Hive
    spells it.

    >>> partition_name({"day": "2026-01-01", "shop": None})
    'day=2026-01-01/shop=__HIVE_DEFAULT_PARTITION__'
    """
    return "/".join(f"{_encoded(name, _IN_NAMES)}={value_name(value)}" for name, value in values.items())


def value_name(value: str | None) -> str:
    """A partition value as every name and key of a partition spells it; two values are never spelled alike.

    >>> value_name("a/b")
    'a%2Fb'
    """
    if value is None:
        return NULL_PARTITION
    # A text that spells the name of null is not null.
    return _encoded(value, _IN_VALUES) if value != NULL_PARTITION else f"%{ord(value[0]):02X}{value[1:]}"


def _encoded(text: str, reserved: re.Pattern[str]) -> str:
    return reserved.sub(lambda match: quote(match[0], safe="") if match[0] != "." else "%2E", text)


def parse_partition(name: str) -> dict[str, str | None]:
    """The inverse of :func:`partition_name`.

    >>> parse_partition('day=2026-01-01/shop=__HIVE_DEFAULT_PARTITION__')
    {'day': '2026-01-01', 'shop': None}
    """
    pairs = (part.split("=", 1) for part in name.split("/") if part)
    return {unquote(key): None if value == NULL_PARTITION else unquote(value) for key, value in pairs}


# What Hive escapes in the names of partition folders.
_ESCAPED = str.maketrans({char: f"%{ord(char):02X}" for char in [*map(chr, range(32)), *"\"#%'*/:=?\\\x7f{[]^"]})


def hive_folder(values: Mapping[str, str | None]) -> str:
    """The folder of a partition as Hive and Spark name it, columns in order; null and empty are the same to them.

    >>> hive_folder({"day": "2026-01-01", "at": "10:00", "shop": None})
    'day=2026-01-01/at=10%3A00/shop=__HIVE_DEFAULT_PARTITION__'
    """
    return "/".join(
        f"{name.translate(_ESCAPED)}={value.translate(_ESCAPED) if value else NULL_PARTITION}"
        for name, value in values.items()
    )


SINCE = "since"
"""Key of a :class:`Since` in ``Snapshot.derived``, until it is used."""


@dataclass(frozen=True, slots=True, eq=False)
class Since:
    """How the files of a snapshot follow from those of an earlier one: the rows at the sorted positions ``gone`` are
    removed, and others are appended.

    derived : what was computed from the earlier files.
    """

    derived: Mapping[str, Any]
    gone: npt.NDArray[np.int64]

    def stretches(self, rows: int) -> list[tuple[int, int]]:
        """Begin and end of each stretch of earlier rows that stay."""
        begins = np.concatenate([[0], self.gone + 1]).tolist()
        ends = np.concatenate([self.gone, [rows]]).tolist()
        return [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end]

    def spliced(self, values: npt.NDArray[Any], more: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values of the earlier rows that stay, then ``more``."""
        return np.concatenate([*(values[begin:end] for begin, end in self.stretches(len(values))), more])


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One version of a table. ``files`` has FILES_SCHEMA's columns first; a million rows is normal, so stay vectorised.

    ``schema`` is logical (the names users see) and includes partition columns, in the table's order. ``specs`` are the
    partition specifications of its files, that of new files last.
    """

    exact_rows: ClassVar[bool] = True
    """Whether ``physical_rows`` is part of the metadata. Otherwise it is a statistic, which a writer may have got
    wrong: no row may be given up because of it."""

    table: str
    format: str
    version: int
    timestamp: int  # epoch milliseconds
    schema: pa.Schema
    specs: tuple[PartitionSpec, ...]
    properties: Mapping[str, str]
    files: pa.Table
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Warnings that report no fault: maintenance or time takes care of them."""
    unerased: tuple[str, ...] = ()
    """Where the bytes of deleted rows may remain after a purge and a vacuum, a sentence each."""
    target_rows: int | None = None
    """Rows of a full file, where a format counts rows rather than bytes."""
    hidden_columns: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """Columns that readers get by name only, such as row ids."""
    optimizer: str = ""
    """Another optimizer that maintains the table, and the sign of it; "" without a sign."""
    derived: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Values that callers computed from ``files`` and may need again, by a name that they choose. ``replace`` starts
    without them."""

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The columns that have one value in each file, whatever the file's specification."""
        *others, last = [[each.source for each in spec.fields if each.transform == "identity"] for spec in self.specs]
        return tuple(column for column in last if all(column in each for each in others))

    @property
    def rewrite_remark(self) -> str:
        """What else is to be said of the new files of a rewrite; "" if nothing."""
        return ""

    def units(self) -> npt.NDArray[np.int64] | None:
        """One number per file: only files with the same number may be merged. From 0 on, they were clustered together,
        and only neighbours by their names may be merged, below 0 all of them. ``None``: all have -1.
        """
        return None

    def new_files(self) -> npt.NDArray[np.int64] | None:
        """How many new files the rewrite of each file alone takes; ``None``: as many as their sizes ask for."""
        return None

    def barred(self) -> Mapping[str, npt.NDArray[np.bool_]]:
        """Reason -> whether it keeps each file from being rewritten for now. A file has one reason at most."""
        return {}

    @property
    def bytes(self) -> int:
        """Memory that its tables take."""
        return int(self.files.get_total_buffer_size())


@dataclass(frozen=True, slots=True)
class Change:
    """One of the versions after the one passed to ``changes_since``."""

    version: int
    timestamp: int
    operation: str
    data_changed: bool


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened since a version.

    data_version : the newest version that changed what a query returns, ``None`` if none did.
    """

    since: int | None
    version: int
    data_version: int | None
    commits: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class ExpiredFile:
    """A file that nothing needs any more.

    kind : data, dv, change, index, manifest (of a version), transaction or other.
    """

    path: str
    kind: str
    size: int
    modified: int


@dataclass(frozen=True, slots=True)
class ExpiringFiles:
    """Unused data files, and the files that belong to them, that expire on one day (UTC).

    at : when the first of them expires, epoch milliseconds.
    """

    at: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ExpiredFiles:
    """The expired files of a table.

    cutoff : epoch milliseconds; every file in ``files`` became unneeded before it.
    expiring : files inside the retention by the day on which they expire, in order; ``None`` if the table does not
        record it.
    """

    version: int
    cutoff: int
    retention: int  # milliseconds
    files: tuple[ExpiredFile, ...]
    kept: Mapping[str, int] = field(default_factory=dict)  # why -> how many files
    expiring: tuple[ExpiringFiles, ...] | None = None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One commit. The DV numbers are counted from the commit's own actions: DVs added, DVs removed, and their rows.

    timestamp : epoch milliseconds.
    metrics : as the writer recorded them.
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
    """Since when a live file has had deleted rows: the time of the commit of its first DV, epoch milliseconds.

    exact : whether the time is exact. If not, the rows were deleted at that time or earlier: the commits that were read
        do not go back far enough.
    """

    timestamp: int
    exact: bool


def left_to(optimizer: str) -> str:
    """What ``health`` says of a table with an ``optimizer``, see :class:`Snapshot`."""
    return (
        f"maintained by {optimizer}: policies leave its files and old versions to it, unless they say "
        "beside_optimizer: true"
    )

"""Table options that decide how a table is read, and checks that refuse tables which this package can't read.

Source: CoreOptions of Paimon 2.1. The options that change what a reader sees are named below. All other options only
change how data is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dv_maintenance.errors import RefusedError, UnsupportedFeatureError
from dv_maintenance.remedies import Remedy, setting
from dv_maintenance.tables.paimon.log.schema import Schema
from dv_maintenance.tables.paimon.rows.types import DataType, holds

POSTPONE_BUCKET: Final = -2
"""Bucket number of rows that readers do not see until a compaction moves them to a real bucket."""

_NEXT: Final = "read it with Paimon itself, for example through its Spark connector"
_KINDS: Final = frozenset({"table", "materialized-table"})
_DELETE_RATIO: Final = 0.2
# Options with which readers do not open the newest snapshot as it is, and values of scan.mode with which they do.
_ELSEWHERE: Final = (
    *("scan.snapshot-id", "scan.tag-name", "scan.version", "scan.timestamp", "scan.timestamp-millis", "scan.watermark"),
    *("scan.creation-time-millis", "scan.file-creation-time-millis", "scan.primary-branch"),
    *("incremental-between", "incremental-between-timestamp", "incremental-to-auto-tag"),
)
_COLUMNS: Final = ".columns"
# Options with which columns of blobs hold, or are read as, descriptions of where the blobs are.
DESCRIPTIONS: Final = ("blob-descriptor-field", "blob.stored-descriptor-fields", "blob-external-storage-field")
"""Options that name columns of blobs whose URIs are in data files."""
VIEWS: Final = "blob-view-field"
"""The option that names columns of blobs that are in rows of other tables, as data files say."""
_NEWEST: Final = frozenset({"default", "latest", "latest-full", "full"})


@dataclass(frozen=True, slots=True)
class Options:
    """The table options that matter for reading.

    primary_key : whether the table has a primary key.
    """

    values: Mapping[str, str]
    primary_key: bool

    def flag(self, name: str) -> bool:
        return self.values.get(name, "false").strip().lower() == "true"

    @property
    def deletion_vectors(self) -> bool:
        return self.flag("deletion-vectors.enabled")

    @property
    def data_evolution(self) -> bool:
        return self.flag("data-evolution.enabled")

    @property
    def first_row(self) -> bool:
        return self.values.get("merge-engine", "").strip().lower() == "first-row"

    @property
    def hides_level_0(self) -> bool:
        """Whether a batch reader skips level 0, and reads the files above it without merging.

        With deletion vectors, these name every replaced row above level 0, whatever the merge engine is. With the merge
        engine first-row, only the first row of a key gets above level 0.
        """
        if self.deletion_vectors:
            return self.primary_key and not self.flag("deletion-vectors.merge-on-read")
        return self.primary_key and self.first_row

    @property
    def merges(self) -> bool:
        """Whether a reader must merge files to know which rows exist."""
        return self.primary_key and not self.hides_level_0

    @property
    def merges_postponed(self) -> bool:
        """Whether a reader merges rows that have no bucket yet with the others."""
        return self.flag("postpone.merge-on-read") and self.values.get("bucket", "").strip() == str(POSTPONE_BUCKET)

    def elsewhere(self, branch: str | None = None) -> dict[str, str]:
        """The options with which Paimon's readers of this branch do not open its newest snapshot as it is."""
        found = {name: self.values[name] for name in _ELSEWHERE if name in self.values}
        if (mode := self.values.get("scan.mode", "default")).lower() not in _NEWEST:
            found["scan.mode"] = mode
        if (other := self.values.get("branch")) not in (None, branch or "main"):
            found["branch"] = str(other)
        return found

    @property
    def file_indexes(self) -> tuple[str, ...]:
        """The options that ask for an index of each data file."""
        return tuple(sorted(name for name in self.values if name.startswith("file-index.") and name.endswith(_COLUMNS)))

    @property
    def writes_outside(self) -> str:
        """The strategy by which Paimon writes new data files outside the table; "" if it does not."""
        strategy = self.values.get("data-file.external-paths.strategy", "none").strip().lower()
        return "" if strategy == "none" or not self.values.get("data-file.external-paths") else strategy

    @property
    def fallback_branch(self) -> str | None:
        """The branch from which readers take the partitions that are not in this one."""
        return self.values.get("scan.fallback-branch", "").strip() or None

    @property
    def data_folder(self) -> str:
        return self.values.get("data-file.path-directory", "").strip("/")


def delete_ratio(options: Options) -> float:
    """The share of deleted rows above which Paimon's own compaction picks a file of an append table. If the option is
    invalid, the default applies.
    """
    try:
        found = float(options.values.get("compaction.delete-ratio-threshold", _DELETE_RATIO))
    except ValueError:
        return _DELETE_RATIO
    return found if 0 <= found <= 1 else _DELETE_RATIO


def check_known_kind(schema: Schema, table: str) -> None:
    """Refuse a table of a kind that keeps no snapshots of its files.

    Raises
    ------
    UnsupportedFeatureError : the message names the kind.
    """
    kind = schema.options.get("type", "table").strip().lower()
    if kind not in _KINDS:
        raise UnsupportedFeatureError(
            f"the table is of type {kind!r}, which keeps no snapshots of its files",
            features=(f"type={kind}",),
            table=table,
        )


def check_rows_readable(schema: Schema, table: str, version: int, *, moving: bool = False) -> None:
    """Refuse tables whose live rows are not simply the rows of their files minus those that deletion vectors name.

    moving : whether bytes are only moved, also those that describe where blobs are.

    Raises
    ------
    RefusedError : the message has the reason.
    """
    options = Options(schema.options, bool(schema.primary_keys))
    reason = None
    if options.merges:
        reason = (
            "its level 0 is merged on read (deletion-vectors.merge-on-read), which this release does not support"
            if options.deletion_vectors
            else "without deletion vectors, the files of a primary-key table are merged on read, which this "
            "release does not support"
        )
    elif options.primary_key and options.flag("chain-table.enabled"):
        reason = "its rows are merged from two branches (chain-table.enabled), which this release does not support"
    if reason:
        raise RefusedError(reason, table=table, version=version, next_step=_NEXT)
    if moving:
        return
    blobs = [each for each in schema.fields if holds(each.type, "BLOB")]
    deep = [each.name for each in blobs if not _is_of_blobs(each.type)]
    alone = [] if options.data_evolution else [each.name for each in blobs]
    names = [each.name for each in blobs]
    described, views = columns_named(schema.options, DESCRIPTIONS), columns_named(schema.options, (VIEWS,))
    stored = as_stored(schema.options)
    places = [] if not _as_descriptors(schema.options) else [name for name in names if name not in described | views]
    away = [name for name in names if name in described - stored]
    kinds = (
        (deep, "blobs in rows, or deeper in arrays or maps"),
        (alone, "blobs without data-evolution.enabled"),
        ([name for name in names if name in views - stored], f"blobs of other tables, as these are now ({VIEWS})"),
        (places, "the places of blobs in files of this table (blob-as-descriptor)"),
        (away, "the URIs of blobs, which may be anywhere (blob-descriptor-field without blob-as-descriptor)"),
    )
    for names, what in kinds:
        if names:
            raise _columns_refused(names, what, table, version)


def columns_named(options: Mapping[str, str], names: Sequence[str]) -> set[str]:
    """The columns that some options name."""
    return {column.strip() for name in names for column in options.get(name, "").split(",")}


def as_stored(options: Mapping[str, str]) -> set[str]:
    """The columns of blobs for which readers return what data files say of them instead of these."""
    described, views = columns_named(options, DESCRIPTIONS), columns_named(options, (VIEWS,))
    looked_up = options.get("blob-view.resolve.enabled", "true").strip().lower() != "false"
    return (described - views if _as_descriptors(options) else set()) | (set() if looked_up else views - described)


def _as_descriptors(options: Mapping[str, str]) -> bool:
    """Whether readers return where blobs are instead of these."""
    return options.get("blob-as-descriptor", "false").strip().lower() == "true"


def _is_of_blobs(type: DataType) -> bool:
    """Whether it is a blob, or an array or a map of blobs."""
    return type.root == "BLOB" or (type.root in {"ARRAY", "MAP"} and type.parts[-1].type.root == "BLOB")


def check_nanoseconds(schema: Schema, file_format: str, table: str, version: int) -> None:
    """Refuse columns of nanoseconds in files that have none: Avro.

    Raises
    ------
    RefusedError : the message names the columns.
    """
    exact = [
        each.name
        for each in schema.fields
        if _holds_nanoseconds(each.type) and file_format == "avro" and each.name not in schema.partition_keys
    ]
    if exact:
        raise _columns_refused(exact, "nanoseconds", table, version)


def _holds_nanoseconds(type: DataType) -> bool:
    if type.root.startswith("TIMESTAMP"):
        return type.precision > 6
    return any(_holds_nanoseconds(each.type) for each in type.parts)


def _columns_refused(names: Sequence[str], what: str, table: str, version: int) -> RefusedError:
    return RefusedError(
        f"the columns {', '.join(names)} hold {what}, which this release does not read",
        table=table,
        version=version,
        next_step=Remedy(f"leave them out with {{}}, or {_NEXT}", (setting("columns"),)),
    )

"""Options of a table that decide how it is read, and those that cannot be read here.

Source: CoreOptions of Paimon 2.1. An option that is not known here changes how data is written, not what a reader sees;
those that do are named below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dv_maintenance.errors import RefusedError, UnsupportedFeatureError
from dv_maintenance.tables.paimon.schema import Schema

__all__ = ["POSTPONE_BUCKET", "Options", "check_known_kind", "check_rows_readable", "delete_ratio"]

POSTPONE_BUCKET: Final = -2
"""Bucket of rows that no reader sees before they are compacted into a real one."""

_NEXT: Final = "read it with Paimon itself, for example through its Spark connector"
_KINDS: Final = frozenset({"table", "materialized-table"})
_DELETE_RATIO: Final = 0.2


@dataclass(frozen=True, slots=True)
class Options:
    """What of a table's options matters here."""

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
    def hides_level_0(self) -> bool:
        """Whether a batch reader skips level 0: files above it are read one by one, without merging."""
        return self.primary_key and self.deletion_vectors and not self.flag("deletion-vectors.merge-on-read")

    @property
    def merges(self) -> bool:
        """Whether a reader has to merge files to know which rows there are."""
        return self.primary_key and not self.hides_level_0

    @property
    def data_folder(self) -> str:
        return self.values.get("data-file.path-directory", "").strip("/")


def delete_ratio(options: Options) -> float:
    """From which share of deleted rows on Paimon's own compaction picks a file of an append table. What makes no sense
    is what the option is without it.
    """
    try:
        found = float(options.values.get("compaction.delete-ratio-threshold", _DELETE_RATIO))
    except ValueError:
        return _DELETE_RATIO
    return found if 0 <= found <= 1 else _DELETE_RATIO


def check_known_kind(schema: Schema, table: str) -> None:
    """Refuse what looks like a table, but has no snapshots of files.

    Raises
    ------
    UnsupportedFeatureError : names the kind.
    """
    kind = schema.options.get("type", "table").strip().lower()
    if kind not in _KINDS:
        raise UnsupportedFeatureError(
            f"it is a {kind!r}, which keeps no snapshots of its files", features=(f"type={kind}",), table=table
        )


def check_rows_readable(schema: Schema, table: str, version: int) -> None:
    """Refuse tables whose rows are not those of their files, minus those that deletion vectors name.

    Raises
    ------
    RefusedError : with the reason.
    """
    options = Options(schema.options, bool(schema.primary_keys))
    reason = None
    if schema.primary_keys:
        reason = "rows of primary-key tables are not read by this release: health and history are"
    elif options.data_evolution:
        reason = "rows of a data-evolution table are put together from several files: this release does not do that"
    elif schema.options.get("scan.fallback-branch"):
        reason = "partitions that it lacks are read from another branch (scan.fallback-branch)"
    elif options.flag("query-auth.enabled"):
        reason = "which rows a reader may see is decided by its catalog (query-auth.enabled)"
    if reason:
        raise RefusedError(reason, table=table, version=version, next_step=_NEXT)
    # Written as INT96, which is read to the microsecond.
    exact = [each.name for each in schema.fields if each.type.root.startswith("TIMESTAMP") and each.type.precision > 6]
    blobs = [each.name for each in schema.fields if each.type.root == "BLOB"]
    vectors = [each.name for each in schema.fields if each.type.root == "VECTOR"]
    kinds = ((exact, "nanoseconds"), (blobs, "blobs, which are files of their own"), (vectors, "vectors"))
    for names, what in kinds:
        if names:
            raise RefusedError(
                f"the columns {', '.join(names)} hold {what}: these are not read by this release",
                table=table,
                version=version,
                next_step=f"leave them out with --columns, or {_NEXT}",
            )

"""Vacuum a table of any format, and report what went and what stayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Table

__all__ = ["VacuumReport", "vacuum"]


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """``data_files`` to ``other_files`` and ``bytes`` count what expired, ``deleted`` what went of it: nothing in
    a dry run. ``cutoff``: epoch milliseconds; ``retention``: milliseconds. ``kept``: reason in plain words to number of
    files. ``paths``: relative to the table, only of a dry run.
    """

    table: str
    format: str
    version_before: int
    version_after: int
    dry_run: bool
    cutoff: int
    retention: int
    data_files: int
    dv_files: int
    change_files: int
    other_files: int
    bytes: int
    deleted: int
    kept: Mapping[str, int]
    paths: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "table": self.table,
            "format": self.format,
            "version_before": self.version_before,
            "version_after": self.version_after,
            "dry_run": self.dry_run,
            "cutoff": self.cutoff,
            "retention": self.retention,
            "data_files": self.data_files,
            "dv_files": self.dv_files,
            "change_files": self.change_files,
            "other_files": self.other_files,
            "bytes": self.bytes,
            "deleted": self.deleted,
            "kept": dict(self.kept),
        }
        return body if self.paths is None else {**body, "paths": list(self.paths)}


def vacuum(
    table: Table,
    *,
    retention: int | None = None,
    dry_run: bool = False,
    lite: bool = False,
    allow_short_retention: bool = False,
    now: int | None = None,
) -> VacuumReport:
    """Delete files that no version inside the retention needs; with ``dry_run`` only say which.

    ``retention`` and ``now`` in milliseconds; ``None``: the table's own property, the clock. ``lite`` trusts the log
    instead of listing the table.

    Raises
    ------
    What ``Table.vacuum`` raises: RefusedError for a retention below the table's own, StorageError for files that could
    not be deleted, UnsupportedFeatureError.
    """
    result = table.vacuum(
        retention=retention, dry_run=dry_run, lite=lite, allow_short_retention=allow_short_retention, now=now
    )
    files = result.expired.files
    kinds = Counter(file.kind for file in files)
    return VacuumReport(
        table=table.uri,
        format=table.format,
        version_before=result.version_before,
        version_after=result.version_after,
        dry_run=result.dry_run,
        cutoff=result.expired.cutoff,
        retention=result.expired.retention,
        data_files=kinds["data"],
        dv_files=kinds["dv"],
        change_files=kinds["change"],
        other_files=kinds["other"],
        bytes=sum(file.size for file in files),
        deleted=result.deleted,
        kept=result.expired.kept,
        paths=tuple(file.path for file in files) if result.dry_run else None,
    )

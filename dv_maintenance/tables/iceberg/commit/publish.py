"""Commits to an Iceberg table: manifests first, then a snapshot that names them, then the metadata that names it.

Format: Iceberg specification, Optimistic Concurrency, Snapshots, Row Lineage. Every attempt reads the newest metadata
and lets the caller decide again. All attempts of a commit have the same snapshot id: a commit whose answer got lost is
found by it in the metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from secrets import randbits
from typing import TYPE_CHECKING, Any, ClassVar, Final

from dv_maintenance import __version__
from dv_maintenance.errors import (
    ConflictError,
    DamagedTableError,
    RefusedError,
    StorageDeniedError,
)
from dv_maintenance.tables import publish as frame
from dv_maintenance.tables.iceberg.commit.change import Change
from dv_maintenance.tables.iceberg.commit.deletes import NewDv, put_deletes
from dv_maintenance.tables.iceberg.commit.manifests import DeleteKey, ManifestWriter, NewEntry
from dv_maintenance.tables.iceberg.commit.pointer import swap
from dv_maintenance.tables.iceberg.commit.totals import summary_of
from dv_maintenance.tables.iceberg.log.history import OURS
from dv_maintenance.tables.iceberg.log.manifests import DATA
from dv_maintenance.tables.iceberg.log.metadata import Metadata, load_metadata
from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot, load_snapshot
from dv_maintenance.tables.iceberg.writable import check_writable
from dv_maintenance.tables.new_files import NewFiles
from dv_maintenance.tables.publish import Overtaken, Published, Rules
from dv_maintenance.units import epoch_millis

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.layout import Layout

_FIRST_PAUSE: Final = 0.1  # seconds, as Iceberg's commit.retry.min-wait-ms
_LONGEST_PAUSE: Final = 5.0


@dataclass(frozen=True, slots=True)
class Draft:
    """The changes that a snapshot makes.

    operation : replace, delete or overwrite, as the specification defines them.
    removed : paths of data files.
    removed_deletes : deletion vectors and delete files.
    added : data files.
    dvs : of data files with new deletes.
    """

    operation: str
    removed: frozenset[str]
    removed_deletes: frozenset[DeleteKey]
    added: tuple[NewEntry, ...] = ()
    dvs: tuple[NewDv, ...] = ()


Compose = Callable[[IcebergSnapshot], Draft | None]


def publish(
    layout: Layout, base: IcebergSnapshot, compose: Compose, *, writes: str, max_attempts: int = 10
) -> Published[Draft]:
    """Commit the draft that ``compose`` returns for the newest snapshot of the branch.

    writes : the operation, see ``check_writable``. It is checked again on each version that another writer committed.

    Files of lost attempts are deleted.

    Raises
    ------
    ConflictError : other writers were faster in every attempt; nothing was committed.
    RefusedError : the table was replaced by another one, or moved.
    StorageError : the storage or the catalog failed. The error says so if the commit may have happened nevertheless.
    DamagedTableError, UnsupportedFeatureError : about the newest snapshot; nothing was committed.
    """
    with frame.before_the_commit():
        check_writable(layout, base, writes)
    rules = _Rules(layout, base, compose, writes, now=base)
    return frame.publish(rules, max_attempts=max_attempts, first_pause=_FIRST_PAUSE, longest_pause=_LONGEST_PAUSE)


@dataclass(slots=True)
class _Rules(Rules[Draft]):
    """One commit in progress. ``id``: of its snapshot."""

    recognises: ClassVar[bool] = True

    layout: Layout
    base: IcebergSnapshot
    compose: Compose
    writes: str
    now: IcebergSnapshot
    id: int = field(default_factory=lambda: randbits(62) + 1)

    @property
    def table(self) -> str:
        return self.layout.uri

    def catch_up(self) -> int | None:
        found = self.now = load_snapshot(self.layout, known=self.now)
        if self.id in found.metadata.snapshots:
            return self.id
        before, after = self.base.metadata, found.metadata
        for what, old, new in (
            ("UUID", before.uuid, after.uuid),
            ("location", before.location, after.location),
            ("format version", before.format_version, after.format_version),
        ):
            if old != new:
                raise RefusedError(
                    f"the table's {what} changed meanwhile, from {old} to {new}",
                    table=self.table,
                    version=self.base.version,
                    done="nothing was committed",
                    next_step="run again on the table as it is now",
                )
        check_writable(self.layout, found, self.writes)
        return None

    def draft(self) -> Draft | None:
        return self.compose(self.now)

    def create(self, draft: Draft) -> int:
        files = NewFiles(self.layout.storage)
        try:
            change = self._change(draft, files)
        except BaseException as error:
            files.discard()
            # A concurrent writer may expire files before they are read.
            if not isinstance(error, DamagedTableError) or self._is_newest():
                raise
            raise Overtaken(f"the snapshot expired while it was read: {error.message}") from error
        try:
            swap(self.layout, self.now.metadata, change)
        except (Overtaken, RefusedError, StorageDeniedError):
            files.discard()
            raise
        return self.id

    def _is_newest(self) -> bool:
        return load_metadata(self.layout).path == self.now.metadata.path

    def defeat(self, attempts: int) -> ConflictError:
        return ConflictError(
            f"other writers committed first in all {attempts} attempts",
            table=self.table,
            version=self.base.version,
            done="nothing was committed",
            next_step="run again when the table is less busy",
        )

    # -- one snapshot ----------------------------------------------------------------------------------------------

    def _change(self, draft: Draft, files: NewFiles) -> Change:
        metadata, entry = self.now.metadata, self.now.entry
        sequence = _sequence_after(metadata) if metadata.format_version > 1 else 0
        writer = ManifestWriter(self.layout, self.now, files, self.id, sequence)
        deletes = put_deletes(self.layout, self.now, draft.dvs, files)
        listed = writer.write(draft.removed, draft.removed_deletes, [*draft.added, *deletes])
        latest = max((each.timestamp for each in metadata.snapshots.values()), default=0)
        snapshot: dict[str, Any] = {
            **({"sequence-number": sequence} if sequence else {}),
            "snapshot-id": self.id,
            **({} if entry is None else {"parent-snapshot-id": entry.id}),
            "timestamp-ms": max(epoch_millis(), latest),
            "summary": {**summary_of(self.now, draft, deletes), OURS: __version__},
            "schema-id": metadata.current_schema,
        }
        if metadata.format_version > 2:
            first = max(int(metadata.body["next-row-id"]), self.now.used_row_ids)
            snapshot |= {"first-row-id": first, "added-rows": _number_rows(listed, first)}
        snapshot["manifest-list"] = writer.put_list(listed, snapshot)
        return Change(snapshot, self.layout.branch)


def _sequence_after(metadata: Metadata) -> int:
    """That of the next snapshot. Not all writers raise the last one with each of theirs."""
    return (
        max(int(metadata.body["last-sequence-number"]), *(each.sequence for each in metadata.snapshots.values()), 0) + 1
    )


def _number_rows(listed: Sequence[dict[str, Any]], first: int) -> int:
    """Give manifests without one the id of their first row (specification: First Row ID Assignment). Returns how many
    ids they take.
    """
    taken = first
    for each in listed:
        if each["517"] == DATA and each.get("520") is None:
            each["520"] = taken
            taken += each["512"] + each["513"]
    return taken - first

"""New row counts, sizes and cardinalities in the adds of live files (protocol: Per-file Statistics)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dv_maintenance.storage import RawName
from dv_maintenance.storage.rehearsal import Rehearsal
from dv_maintenance.tables.delta.commit.live_adds import live_adds, recounted
from dv_maintenance.tables.delta.commit.publish import Draft, operation_info, publish
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.rows import DeletedRows

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.capabilities import FileNumbers
    from dv_maintenance.tables.delta.commit.conflicts import Since
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot


def recount(
    storage: Storage, base: DeltaSnapshot, numbers: Mapping[FileKey, FileNumbers], *, dry_run: bool = False
) -> int | None:
    """See ``RecountableTable``. An add of a live logical file replaces the one before (protocol: Action
    Reconciliation). delta-spark commits the same for ``ANALYZE TABLE ... COMPUTE DELTA STATISTICS``.
    """
    if dry_run:
        storage = Rehearsal.of(storage)
    live = live_adds(storage, base, [DeletedRows(key) for key in numbers])
    info = operation_info(base, "COMPUTE STATS", {"predicate": []}, {"numUpdatedFiles": len(live)}, blind=False)

    def compose(since: Since) -> Draft | None:
        still = [key for key in live if FileKey(storage.path_of(RawName(key.path)), key.dv_id) not in since.gone]
        return Draft(info, [recounted(live[key], numbers[key]) for key in still]) if still else None

    return publish(storage, base, compose, writes="rewrite").version

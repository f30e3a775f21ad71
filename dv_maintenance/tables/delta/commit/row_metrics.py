"""The effect of row changes on each file, and the metrics that report it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dv_maintenance.tables.rows import ChangesOutcome

if TYPE_CHECKING:
    from dv_maintenance.dv import DeletionVector
    from dv_maintenance.tables.delta.commit.live_adds import LiveAdd
    from dv_maintenance.tables.delta.log.actions import Action


@dataclass(frozen=True, slots=True)
class Deletion:
    """The deletion from one file in one attempt.

    live : the file before the commit.
    rows : physical rows of the file; ``None`` if unknown.
    deleted : every deleted position after the commit; ``None`` if the whole file is removed.
    fresh : number of rows that this commit deletes and no earlier commit did; ``None`` if unknown.
    """

    live: LiveAdd
    rows: int | None
    deleted: DeletionVector | None
    fresh: int | None


def outcome_of(deletions: Sequence[Deletion], shrunk: Sequence[Action], added: Sequence[Action]) -> ChangesOutcome:
    fresh = [each.fresh for each in deletions]
    return ChangesOutcome(
        version=None,
        attempts=0,
        rows_deleted=None if None in fresh else sum(count or 0 for count in fresh),
        files_removed=len(deletions) - len(shrunk),
        files_added=len(added),
        dvs_added=len(shrunk),
        dvs_removed=sum(each.live.file.dv is not None for each in deletions),
    )


def metrics_of(
    name: str,
    deletions: Sequence[Deletion],
    shrunk: Sequence[Action],
    added: Sequence[Action],
    change_files: Sequence[Action],
) -> dict[str, int]:
    """The metrics as delta-spark records them. A DV that replaces another counts as added, removed and updated."""
    # An UPDATE counts every file that loses rows as removed; DELETE and MERGE count only files that are removed whole.
    removed = [each.live.file.size for each in deletions if each.deleted is None or name == "UPDATE"]
    target = "Target" if name == "MERGE" else ""
    whole_files, new_files, changes = (
        ("numTargetFilesRemoved", "numTargetFilesAdded", "numTargetChangeFilesAdded")
        if target
        else ("numRemovedFiles", "numAddedFiles", "numAddedChangeFiles")
    )
    whole_bytes, new_bytes = (
        ("numTargetBytesRemoved", "numTargetBytesAdded") if target else ("numRemovedBytes", "numAddedBytes")
    )
    return {
        whole_files: len(removed),
        whole_bytes: sum(removed),
        new_files: len(added),
        new_bytes: sum(add["add"]["size"] for add in added),
        changes: len(change_files),
        f"num{target}DeletionVectorsAdded": len(shrunk),
        f"num{target}DeletionVectorsRemoved": sum(each.live.file.dv is not None for each in deletions),
        f"num{target}DeletionVectorsUpdated": sum(
            each.deleted is not None and each.live.file.dv is not None for each in deletions
        ),
        "numTargetRowsCopied" if target else "numCopiedRows": 0,
    }

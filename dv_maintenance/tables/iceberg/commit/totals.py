"""The summary of a snapshot: what it adds and removes, and the totals that follow from those of its parent.

Format: Iceberg specification, Appendix F, Optional Snapshot Summary Fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from dv_maintenance.files.arrays import strings
from dv_maintenance.tables.iceberg.log.manifests import DATA, DELETES, EQUALITY

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.commit.manifests import NewEntry
    from dv_maintenance.tables.iceberg.commit.publish import Draft
    from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot

# Total -> what adds to it, and what takes from it.
_TOTALS = {
    "total-records": ("added-records", "deleted-records"),
    "total-files-size": ("added-files-size", "removed-files-size"),
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-delete-files": ("added-delete-files", "removed-delete-files"),
    "total-position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "total-equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}


def summary_of(now: IcebergSnapshot, draft: Draft, deletes: Sequence[NewEntry]) -> dict[str, str]:
    """The summary of a commit on ``now``. ``deletes``: entries of new deletion vectors and delete files."""
    counts = Counter[str]()
    gone = now.files.filter(pc.is_in(now.files["path"], value_set=strings(list(draft.removed))))
    counts["deleted-data-files"] = gone.num_rows
    counts["deleted-records"] = pc.sum(gone["record_count"]).as_py() or 0
    counts["removed-files-size"] = pc.sum(gone["size"]).as_py() or 0
    partitions = {now.partitions[code].place for code in gone["partition_code"].unique().to_pylist()}
    for each in draft.added:
        _count(counts, "added", DATA, "parquet", each.file["103"], each.file["104"])
        partitions.add(each.partition)
    for each in deletes:
        size = each.file.get("145") or each.file["104"]
        _count(counts, "added", each.content, each.file["101"].lower(), each.file["103"], size)
        partitions.add(each.partition)
    if draft.removed_deletes:
        for row in now.entries.live(DELETES).to_pylist():
            if (row["path"], row["content_offset"]) in draft.removed_deletes:
                size = row["content_size"] or row["size"]
                _count(counts, "removed", row["content"], row["format"], row["record_count"], size)
                partitions.add(now.partitions[row["partition_code"]].place)
    before = {} if now.entry is None else now.entry.summary
    totals = {
        name: str(int(before[name]) + counts[more] - counts[less])
        for name, (more, less) in _TOTALS.items()
        if before.get(name, "").isdigit()
    }
    found = {name: str(number) for name, number in counts.items() if number}
    return {"operation": draft.operation, **found, "changed-partition-count": str(len(partitions)), **totals}


def _count(counts: Counter[str], way: str, content: int, format: str, rows: int, size: int) -> None:
    counts[f"{way}-files-size"] += size
    if content == DATA:
        counts["added-data-files"] += 1
        counts["added-records"] += rows
        return
    counts[f"{way}-delete-files"] += 1
    if content == EQUALITY:
        counts[f"{way}-equality-delete-files"] += 1
        counts[f"{way}-equality-deletes"] += rows
    else:
        counts[f"{way}-dvs" if format == "puffin" else f"{way}-position-delete-files"] += 1
        counts[f"{way}-position-deletes"] += rows

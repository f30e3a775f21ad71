"""Delete files that no live data file needs after a commit: they go with it.

Format: Iceberg specification, Scan Planning: what applies to what, see ``rows.files``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from dv_maintenance.files.arrays import combined, numbers, strings

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.commit.manifests import DeleteKey, NewEntry
    from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot


def unneeded_deletes(
    now: IcebergSnapshot, removed: Collection[str], added: Sequence[NewEntry], replaced: Collection[str] = ()
) -> frozenset[DeleteKey]:
    """The delete files of ``now`` that go.

    removed : data files that go.
    added : data files that come; each has a sequence number.
    replaced : data files that get a new deletion vector, which has all of their deleted rows; or, in format version 2,
        a new position delete file, which has those of the delete files that are theirs alone.
    """
    dvs, found = now.deletes.dvs, set[tuple[str, int | None]]()
    paths = combined(now.files["path"])
    live = now.files.filter(pc.invert(pc.is_in(paths, value_set=strings(list(removed)))))
    kept = combined(live["path"]).filter(pc.invert(pc.is_in(combined(live["path"]), value_set=strings(list(replaced)))))
    gone = dvs.filter(pc.invert(pc.is_in(dvs["referenced"], value_set=kept)))
    found |= set(zip(gone["path"].to_pylist(), gone["content_offset"].to_pylist(), strict=True))
    needed = set[str]()
    if now.position_deletes:
        here, left = set(live["path"].to_pylist()), set(kept.to_pylist())
        taken_in = now.position_deletes if now.metadata.format_version > 2 else now.of_one_file
        for path, files in now.matched.position_files.items():
            if path in here:
                needed.update(file for file in files if path in left or file not in taken_in)
    found |= {(path, None) for path in now.position_deletes if path not in needed}
    if now.deletes.equality:
        known = {each.place: code for code, each in enumerate(now.partitions)}
        new = np.array([known.get(each.partition, -1) for each in added], np.int64)
        codes = np.concatenate([numbers(combined(live["partition_code"])), new])
        sequences = np.concatenate(
            [numbers(combined(live["data_sequence"])), np.array([each.sequence for each in added], np.int64)]
        )
        for delete in now.deletes.equality:
            own = sequences if delete.partition_code is None else sequences[codes == delete.partition_code]
            if not (own < delete.sequence).any():
                found.add((delete.path, None))
    return frozenset(found)

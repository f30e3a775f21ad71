"""Files that readers of a Paimon table open besides its manifests, and how to repair the table if one is missing.

Manifests, manifest lists and the index manifest were already read for the snapshot. A loaded snapshot does not keep the
names of extra files (file indexes), so these are not checked.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.files.arrays import combined, flags, int64s, strings
from dv_maintenance.tables.fsck import DATA, DV, INDEX, WAITING, Needed, Repair, going_back, needed
from dv_maintenance.tables.paimon.log.index_manifest import DELETION_VECTORS
from dv_maintenance.tables.paimon.rows.evolution import PARTS_OF

if TYPE_CHECKING:
    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot


def needed_files(snapshot: PaimonSnapshot) -> pa.Table:
    """Data files, files that wait for a compaction, index files with DVs that readers apply, and other index files."""
    files, parts, hidden = snapshot.files, snapshot.parts, snapshot.hidden
    paths = combined(files["path"])
    of = combined(parts[PARTS_OF]) if parts.num_rows else strings([])
    # If several files together hold the same rows, the size in `files` is their total.
    alone = int64s(np.flatnonzero(~flags(pc.is_in(paths, value_set=of))))
    whole = files.take(alone)
    anchors = pc.index_in(of, value_set=paths).cast(pa.int64())
    bearing = pc.is_valid(files["dv_file"])
    dv_files = combined(files["dv_file"]).filter(bearing)
    sizes = {each.path: each.size for each in snapshot.index.files}
    others = [each for each in snapshot.index.files if each.kind != DELETION_VECTORS]
    return needed(
        [
            Needed(DATA, whole["path"], whole["size"], exact=True, files=alone),
            Needed(DATA, parts["path"], parts["size"], exact=True, files=anchors),
            Needed(WAITING, hidden["path"], hidden["size"], exact=True, files=None),
            Needed(
                DV,
                dv_files,
                int64s([sizes.get(path) for path in dv_files.to_pylist()]),
                exact=True,
                files=int64s(np.flatnonzero(flags(bearing))),
            ),
            Needed(
                INDEX,
                strings([each.path for each in others]),
                int64s([each.size for each in others]),
                exact=True,
                files=None,
            ),
        ]
    )


def remedies(snapshot: PaimonSnapshot, kinds: Collection[str], back_to: int | None) -> tuple[Repair, ...]:
    """See ``FsckTable``."""
    del snapshot
    found = []
    if back_to is not None:
        command = f"CALL sys.rollback(table => 'DATABASE.TABLE', version => '{back_to}')"
        found.append(going_back("Roll back to", f"snapshot {back_to}", command))
    if DATA in kinds or WAITING in kinds:
        found.append(
            Repair(
                "Let Paimon remove missing data files from its manifests; preview it with dry_run => true first.",
                "CALL sys.remove_unexisting_files(table => 'DATABASE.TABLE', dry_run => true)",
                "The rows of these files.",
            )
        )
    return tuple(found)

"""The quick check: whether every file that readers open exists with its size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.files.arrays import flags, int64s, integer, numbers
from dv_maintenance.maintenance.fsck.faults import MISSING, SIZE, Fault
from dv_maintenance.storage.sizes import stored_sizes

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.fsck import FsckTable
    from dv_maintenance.tables.model import Snapshot

Step = Callable[[int, int], None]

_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class QuickCheck:
    """What a check found.

    needed : schema ``tables.fsck.NEEDED``.
    files : number of files that were looked for, by kind.
    bytes : of the files that exist.
    """

    needed: pa.Table
    files: dict[str, int]
    bytes: int
    faults: tuple[Fault, ...]


def quick_check(table: FsckTable, snapshot: Snapshot, *, step: Step | None = None) -> QuickCheck:
    """Look for every file that the version needs.

    step : called with how many files were looked for, and with their number.

    Raises
    ------
    DamagedTableError : the log names a file in a way that no reader understands.
    StorageError : the storage did not answer. A file that can't be accessed is not reported as missing.
    """
    needed = table.needed_files(snapshot)
    if not needed.num_rows:
        return QuickCheck(needed, {}, 0, ())
    coded = needed["path"].combine_chunks().dictionary_encode()
    places, paths = numbers(coded.indices), coded.dictionary.to_pylist()
    found = np.array(
        [_UNKNOWN if size is None else size for size in stored_sizes(table.storage, paths, step)], np.int64
    )
    wanted = numbers(pc.fill_null(needed["size"], integer(_UNKNOWN)).combine_chunks())
    exact = flags(needed["exact"])
    stored = found[places]
    wrong = (stored == _UNKNOWN) | ((wanted != _UNKNOWN) & np.where(exact, stored != wanted, stored < wanted))
    faults = _faults(table.storage, needed, places, paths, found, np.flatnonzero(wrong)) if wrong.any() else ()
    _, firsts = np.unique(places, return_index=True)
    kinds_of = pc.value_counts(needed["kind"].cast(pa.string()).take(int64s(firsts))).to_pylist()
    files = {each["values"]: each["counts"] for each in kinds_of}
    return QuickCheck(needed, files, int(found[found > 0].sum()), faults)


def _faults(
    storage: Storage, needed: pa.Table, places: Any, paths: list[str], found: Any, wrong: Any
) -> tuple[Fault, ...]:
    """One fault per path, with every live file that needs it: if a DV file is gone, so are all DVs in it."""
    rows = needed.take(int64s(wrong)).to_pylist()
    by_path: dict[int, list[dict[str, Any]]] = {}
    for place, row in zip(places[wrong].tolist(), rows, strict=True):
        by_path.setdefault(place, []).append(row)
    return tuple(_fault(storage, paths[place], int(found[place]), each) for place, each in by_path.items())


def _fault(storage: Storage, path: str, size: int, rows: list[dict[str, Any]]) -> Fault:
    files = tuple(row["file"] for row in rows if row["file"] is not None)
    kind = rows[0]["kind"]
    if size == _UNKNOWN:
        reason = "it is a folder" if storage.is_folder(path) else "it does not exist"
        return Fault(path, kind, MISSING, reason, files)
    if rows[0]["exact"]:
        return Fault(path, kind, SIZE, f"it has {size:,} bytes, the log says {rows[0]['size']:,}", files)
    end = max(row["size"] for row in rows)
    reason = "it is empty" if size == 0 else f"it has {size:,} bytes, a deletion vector in it ends at byte {end:,}"
    return Fault(path, kind, SIZE, reason, files)

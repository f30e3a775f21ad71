"""What a table's upkeep has left: index files out of use, compactions that do not come, snapshots that pile up."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Final

from dv_maintenance.errors import DamagedTableError, UnsupportedFeatureError
from dv_maintenance.tables.paimon.features import Options
from dv_maintenance.tables.paimon.layout import INDEX, SNAPSHOT, Layout, numbered
from dv_maintenance.tables.paimon.log.index_manifest import IndexManifest
from dv_maintenance.tables.paimon.log.snapshots import SnapshotFile, read_snapshot_file
from dv_maintenance.tables.parallel import in_parallel
from dv_maintenance.units import format_size

__all__ = ["index_garbage", "last_compaction", "snapshots_kept", "when"]

# Snapshots that are looked at for a compaction, and what Paimon keeps of them at least, by default.
_LOOKED_AT: Final = 20
_KEPT: Final = 10
_DIGITS: Final = 10
_COMPACT: Final = "COMPACT"


def index_garbage(layout: Layout, index: IndexManifest) -> list[str]:
    """Of the newest snapshot, and by name: what older ones, tags and branches use is not looked at. Expiry frees it."""
    names, complete = layout.storage.first_names(INDEX)
    used = {each.path for each in index.files}
    unused = {path for name in names if (path := f"{INDEX}/{name}") not in used}
    if not unused:
        return []
    count = f"{len(unused)}{'' if complete else ' or more'}"
    sizes = [info.size for info in layout.storage.list(INDEX) if info.path in unused] if complete else []
    size = f" ({format_size(sum(sizes))})" if sizes else ""
    holders = "snapshots, tags or branches hold them, or nobody does"
    return [f"{count} index files{size} are not used by this snapshot: {holders}"]


def last_compaction(layout: Layout, newest: SnapshotFile) -> list[str]:
    """When the last one was, as far as it is among the newest snapshots; for tables that wait for one."""
    ids = list(range(newest.id, max(0, newest.id - _LOOKED_AT), -1))
    found = [each for each in in_parallel(layout.storage, ids, partial(_snapshot, layout)) if each is not None]
    last = next((each for each in found if each.kind == _COMPACT), None)
    if last is None:
        return [f"none of its newest {len(found)} snapshots is a compaction"]
    ago = "the newest one" if last.id == newest.id else f"{newest.id - last.id} before the newest one"
    return [f"the last compaction was snapshot {last.id} of {when(last.timestamp)}, {ago}"]


def snapshots_kept(layout: Layout, options: Options) -> list[str]:
    """How many there are, where there are more than the table has to keep."""
    names, complete = layout.storage.first_names(f"{layout.own}{SNAPSHOT}")
    versions = [version for name in names if (version := numbered(name, "snapshot-"))]
    least = options.values.get("snapshot.num-retained.min", "").strip()
    if len(versions) <= (int(least) if least.isdecimal() and len(least) < _DIGITS else _KEPT):
        return []
    oldest = _snapshot(layout, min(versions)) if complete else None
    since = f", the oldest of {when(oldest.timestamp)}" if oldest else ""
    count = f"{len(versions)}{'' if complete else ' or more'}"
    return [f"{count} snapshots are kept{since}: what only they use takes up space until they expire"]


def _snapshot(layout: Layout, version: int) -> SnapshotFile | None:
    """``None``: it has expired, or is damaged, which does not matter to a look at another one."""
    try:
        return read_snapshot_file(layout, version)
    except (FileNotFoundError, DamagedTableError, UnsupportedFeatureError):
        return None


def when(millis: int) -> str:
    """A moment in UTC, or the number where no calendar has it."""
    try:
        return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return str(millis)

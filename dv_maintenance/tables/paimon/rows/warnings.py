"""Warnings about missing maintenance: unused index files, missing compactions and indexes, and many snapshots."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError, UnsupportedFeatureError
from dv_maintenance.files.arrays import text
from dv_maintenance.tables.paimon.features import Options
from dv_maintenance.tables.paimon.layout import INDEX, SNAPSHOT, Layout, numbered
from dv_maintenance.tables.paimon.log.index_manifest import IndexManifest
from dv_maintenance.tables.paimon.log.snapshots import COMPACT, SnapshotFile, read_snapshot_file
from dv_maintenance.tables.parallel import in_parallel
from dv_maintenance.units import count, format_size, parse_count

# How many snapshots are searched for a compaction, and Paimon's default for snapshot.num-retained.min.
_SEARCHED: Final = 20
_KEPT: Final = 10
# It fails beside deletion vectors ("File deletion conflicts").
_ADDED: Final = "until Paimon's sys.rewrite_file_index adds it, right after a purge of all deletion vectors"


def index_garbage(layout: Layout, index: IndexManifest) -> list[str]:
    """Index files that the newest snapshot does not use. Older snapshots, tags and branches are not checked."""
    names, complete = layout.storage.first_names(INDEX)
    used = {each.path for each in index.files}
    unused = {path for name in names if (path := f"{INDEX}/{name}") not in used}
    if not unused:
        return []
    count = f"{len(unused)}{'' if complete else ' or more'}"
    sizes = [info.size for info in layout.storage.list(INDEX) if info.path in unused] if complete else []
    size = f" ({format_size(sum(sizes))})" if sizes else ""
    others = "older snapshots, tags or branches may need them; expiry deletes the rest"
    return [f"{count} index files{size} are not used by this snapshot: {others}"]


def new_files_lack(options: Options) -> str:
    """What files that a rewrite writes do not have, although the options ask for it; "" if they lack nothing."""
    if not (kinds := options.file_indexes):
        return ""
    return f"new files have no index ({', '.join(kinds)}), {_ADDED}"


def unindexed(files: pa.Table, options: Options) -> list[str]:
    """Files of an append table without the index that the options ask for."""
    kinds, without = options.file_indexes, int(pc.sum(pc.equal(files["companions"], text(""))).as_py() or 0)
    if not kinds or not without:
        return []
    which = f"{count(without, 'file')} without the index that the table asks for ({', '.join(kinds)})"
    return [f"{which}: readers skip nothing in them by it, {_ADDED}"]


def last_compaction(layout: Layout, newest: SnapshotFile) -> list[str]:
    """The last compaction among the newest snapshots, for tables with files that wait for one."""
    ids = list(range(newest.id, max(0, newest.id - _SEARCHED), -1))
    found = [each for each in in_parallel(layout.storage, ids, partial(_snapshot, layout)) if each is not None]
    last = next((each for each in found if each.kind == COMPACT), None)
    if last is None:
        return [f"none of its newest {count(len(found), 'snapshot')} is a compaction"]
    ago = "the newest one" if last.id == newest.id else f"{newest.id - last.id} before the newest one"
    return [f"the last compaction was snapshot {last.id} of {when(last.timestamp)}, {ago}"]


def snapshots_kept(layout: Layout, options: Options) -> list[str]:
    """The number of snapshots, if it exceeds the number that the table must keep."""
    names, complete = layout.storage.first_names(f"{layout.own}{SNAPSHOT}")
    versions = [version for name in names if (version := numbered(name, "snapshot-"))]
    least = parse_count(options.values.get("snapshot.num-retained.min", "").strip())
    if len(versions) <= (_KEPT if least is None else least):
        return []
    oldest = _snapshot(layout, min(versions)) if complete else None
    since = f", the oldest of {when(oldest.timestamp)}" if oldest else ""
    number = f"{len(versions)}{'' if complete else ' or more'}"
    return [f"{number} snapshots are kept{since}: files that only they need take up space until they expire"]


def _snapshot(layout: Layout, version: int) -> SnapshotFile | None:
    """A snapshot; ``None`` if it has expired or can't be read, which does not matter for these warnings."""
    try:
        return read_snapshot_file(layout, version)
    except (FileNotFoundError, DamagedTableError, UnsupportedFeatureError):
        return None


def when(millis: int) -> str:
    """A time in UTC as text; the number itself if it is outside the calendar."""
    try:
        return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return str(millis)

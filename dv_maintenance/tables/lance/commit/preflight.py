"""Finds damaged or inconsistent deletion files before anything is rewritten.

Lance's own readers do not compare a deletion file with the manifest. They accept a count that differs, or an offset
past the last row. A compaction of such a fragment fails half-way or keeps the wrong rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from dv_maintenance.errors import DamagedDeletionVectorError, DamagedTableError
from dv_maintenance.files.lance_footer import count_rows
from dv_maintenance.storage import Storage
from dv_maintenance.tables.lance.features import check_readable
from dv_maintenance.tables.lance.layout import data_path, deletion_path
from dv_maintenance.tables.lance.log.manifest import Fragment, Manifest
from dv_maintenance.tables.lance.log.versions import load_manifest, naming_manifest
from dv_maintenance.tables.lance.rows.files import read_deletions
from dv_maintenance.tables.parallel import in_parallel

MISSING: Final = "missing"
UNREADABLE: Final = "unreadable"
COUNT: Final = "count"
OFFSET: Final = "offset"
ROWS: Final = "rows"
BASE: Final = "base"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in a file of a fragment.

    fragment : id of the fragment.
    file : path of the file; its name if the base path is unknown.
    kind : missing, unreadable (truncated, of another format, or internally inconsistent), count (differs from the
        manifest's), offset (past the last row), rows (the manifest's physical rows contradict the data file), or base
        (the base path is unknown).
    reason : the explanation for people.
    """

    fragment: int
    file: str
    kind: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def preflight(
    storage: Storage, version: int | None = None, fragments: Sequence[int] | None = None
) -> tuple[Fault, ...]:
    """Find every fault of a version's deletion files, by fragment.

    fragments : ids of the fragments to check; all by default.

    Reads each deletion file whole. Reads the footer of a data file only if the manifest's row count is missing,
    unreliable (from an old writer), or contradicted by the deletions.

    Raises
    ------
    TableNotFoundError, UsageError, RefusedError, UnsupportedFeatureError : as ``snapshot.load_snapshot``.
    DamagedTableError : the manifest cannot be read.
    """
    _, manifest = load_manifest(storage, version)
    check_readable(manifest, storage.uri)
    with naming_manifest(storage, manifest.path, manifest.version):
        chosen = [
            fragment
            for fragment in manifest.fragments()
            if fragment.deletion and (fragments is None or fragment.id in fragments)
        ]
    found = in_parallel(storage, chosen, lambda fragment: _faults(storage, manifest, fragment))
    return tuple(fault for faults in found for fault in faults)


def check_sound(storage: Storage, version: int, fragments: Sequence[int]) -> None:
    """Refuse fragments with faulty deletion files.

    Raises
    ------
    DamagedTableError : lists every fault.
    TableNotFoundError, UsageError, RefusedError, UnsupportedFeatureError : as :func:`preflight`.
    """
    faults = preflight(storage, version, fragments)
    if faults:
        raise DamagedTableError(
            "; ".join(f"fragment {fault.fragment}, {fault.file}: {fault.reason}" for fault in faults),
            table=storage.uri,
            version=version,
            done="nothing was changed",
            next_step="restore the files from a backup, or restore an earlier version of the table",
        )


def _faults(storage: Storage, manifest: Manifest, fragment: Fragment) -> list[Fault]:
    deletion = fragment.deletion
    if deletion is None:
        return []
    try:
        path = deletion_path(storage, manifest, deletion)
    except DamagedTableError as damage:
        return [Fault(fragment.id, deletion.name, BASE, damage.message)]
    try:
        dv = read_deletions(storage, path, deletion.codec)
    except DamagedDeletionVectorError as damage:
        kind = MISSING if isinstance(damage.__cause__, FileNotFoundError) else UNREADABLE
        return [Fault(fragment.id, path, kind, damage.reason)]
    faults = []
    # Writers that recorded no version wrote wrong row counts, but never a wrong count of a deletion file.
    if deletion.count is not None and deletion.count != len(dv):
        reason = f"it holds {len(dv)} offsets, the manifest says {deletion.count}"
        faults.append(Fault(fragment.id, path, COUNT, reason))
    rows = fragment.physical_rows
    doubtful = rows is None or manifest.writer is None or (len(dv) > 0 and dv.max() >= rows)
    if doubtful and fragment.files:
        first = fragment.files[0]
        try:
            data = data_path(storage, manifest, first)
            counted = count_rows(storage, data, first.size)
        except DamagedTableError as damage:
            return [*faults, Fault(fragment.id, path, ROWS, damage.message)]
        if manifest.writer is not None and rows is not None and counted != rows:
            reason = f"the manifest says that fragment {fragment.id} has {rows} rows, its data file has {counted}"
            faults.append(Fault(fragment.id, data, ROWS, reason))
        rows = counted
    if rows is not None and dv and dv.max() >= rows:
        beyond = len(dv) - dv.rank(rows)
        reason = f"{beyond} of its offsets, up to {dv.max()}, are past the fragment's {rows} rows"
        faults.append(Fault(fragment.id, path, OFFSET, reason))
    return faults

"""Files that readers of a Lance table open besides the manifest, and how to repair the table if one is missing.

A manifest does not name the files of an index, only their folder. Without them every filter or search on the index's
column fails, while other scans succeed (measured with pylance 14).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from dv_maintenance.dv import lance
from dv_maintenance.files.arrays import int64s, strings
from dv_maintenance.tables.fsck import DATA, DV, INDEX, LogFault, Needed, Repair, going_back, needed
from dv_maintenance.tables.lance.commit.indices import SYSTEM
from dv_maintenance.tables.lance.layout import data_path, deletion_path, index_path
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.parallel import in_parallel
from dv_maintenance.tables.work import DvRef, SourceFile
from dv_maintenance.units import count

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.lance.snapshot import LanceSnapshot

_LEAST: Final = 1  # minimum bytes of a file whose size the manifest does not record


def needed_files(storage: Storage, snapshot: LanceSnapshot) -> pa.Table:
    """Data files, deletion files, and the files in the folders of indices: a missing folder counts as a file."""
    manifest, fragments = snapshot.manifest, snapshot.fragments
    data = [
        (data_path(storage, manifest, file), file.size, at) for at, each in enumerate(fragments) for file in each.files
    ]
    deletions = [
        (deletion_path(storage, manifest, each.deletion), at) for at, each in enumerate(fragments) if each.deletion
    ]
    indices = _index_files(storage, snapshot)
    return needed(
        [
            Needed(
                DATA,
                strings([path for path, _, _ in data]),
                int64s([size for _, size, _ in data]),
                exact=True,
                files=int64s([at for _, _, at in data]),
            ),
            Needed(
                DV,
                strings([path for path, _ in deletions]),
                int64s([_LEAST] * len(deletions)),
                exact=False,
                files=int64s([at for _, at in deletions]),
            ),
            Needed(INDEX, strings(indices), int64s([_LEAST] * len(indices)), exact=False, files=None),
        ]
    )


def _index_files(storage: Storage, snapshot: LanceSnapshot) -> list[str]:
    manifest = snapshot.manifest
    folders = [
        index_path(storage, manifest, each)
        for each in manifest.indices()
        # Nothing reads an index that covers no fragment; it need not have files.
        if each.name not in SYSTEM and not (each.fragments and not lance.decode_bitmap(each.fragments))
    ]

    def files(folder: str) -> list[str]:
        return [info.path for info in storage.list(folder)] or [folder]

    return [path for found in in_parallel(storage, folders, files) for path in found]


def stored_sources(storage: Storage, snapshot: LanceSnapshot) -> Iterator[SourceFile]:
    """See ``FsckTable``."""
    manifest = snapshot.manifest
    for fragment, path in zip(snapshot.fragments, snapshot.files["path"].to_pylist(), strict=True):
        dv = dv_id = None
        if fragment.deletion is not None:
            dv_id = deletion_path(storage, manifest, fragment.deletion)
            # A deletion file is read whole: its size is unknown and not needed.
            dv = DvRef(fragment.deletion.codec, fragment.deletion.count or 0, 0, storage.uri_of(dv_id))
        key, rows = FileKey(path, dv_id), fragment.physical_rows
        for file in fragment.files:
            uri = storage.uri_of(data_path(storage, manifest, file))
            yield SourceFile(key, uri, file.size or 0, rows, dv, format="lance")
            dv = None


def log_faults(storage: Storage, snapshot: LanceSnapshot) -> tuple[LogFault, ...]:
    """Fragments with rows but without data files, which pylance 14 opens no table with."""
    del storage
    bare = [each for each in snapshot.fragments if each.physical_rows and not each.files]
    if not bare:
        return ()
    some = f"{count(len(bare), 'fragment')} with {count(sum(each.physical_rows or 0 for each in bare), 'row')}"
    return (
        LogFault(
            f"fragment-{bare[0].id}",
            f"has rows, but no data file ({some}): all columns with values were dropped",
            "Lance can't read or change these rows, whose other columns are null.",
            Repair("Restore the version from before that, or write the rows again.", None, "Nothing."),
        ),
    )


def remedies(
    storage: Storage, snapshot: LanceSnapshot, kinds: Collection[str], back_to: int | None
) -> tuple[Repair, ...]:
    """See ``FsckTable``."""
    found = []
    if INDEX in kinds:
        names = ", ".join(sorted({each.name for each in snapshot.manifest.indices()} - SYSTEM))
        found.append(
            Repair(
                f"Drop the damaged index and create it again. The table's indices: {names}.",
                f"lance.dataset({storage.uri!r}).drop_index(NAME)",
                "Nothing; until then, filters and searches on its column fail.",
            )
        )
    if back_to is not None:
        command = f"lance.dataset({storage.uri!r}, version={back_to}).restore()"
        found.append(going_back("Restore", f"version {back_to}", command))
    return tuple(found)

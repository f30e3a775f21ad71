"""How each version of a Lance table changed the live files (``FileLogTable.file_log``).

Manifests are read backwards, starting with the snapshot's. Each is compared with its predecessor, and only fragments
with different records are parsed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from dv_maintenance.files.arrays import bools, int32s, int64s, strings
from dv_maintenance.tables.file_log import FILE_CHANGES, FileCommit, FileLog
from dv_maintenance.tables.lance.log.history import data_changed, manifests, transaction_of
from dv_maintenance.tables.lance.log.manifest import Manifest, parse_fragment
from dv_maintenance.tables.lance.log.transaction import OPERATION, Transaction
from dv_maintenance.tables.lance.log.versions import all_versions, naming_manifest
from dv_maintenance.tables.lance.rows.files import counted, log_columns, shared_files

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.lance.snapshot import LanceSnapshot

# Commits that Lance's library makes for this package carry no mark.
_UNMARKED: Final = frozenset({"CreateIndex", "ReserveFragments", "Rewrite", "UNKNOWN"})

# Path, deletion file, size, physical and deleted rows.
_File = tuple[str, str | None, int, int | None, int]


def file_log(storage: Storage, snapshot: LanceSnapshot, since: int) -> FileLog:
    """See ``FileLogTable.file_log``. A version whose predecessor was cleaned up is left out: its changes are
    unknown.
    """
    commits: list[FileCommit] = []  # newest first, like `changes`
    changes: list[tuple[list[_File], list[_File]]] = []
    # A path means the same fragment in all versions.
    shared = shared_files(storage, snapshot.manifest, snapshot.fragments)
    older = [file for file in all_versions(storage)[::-1] if file.version < snapshot.version]
    reading = manifests(storage, older, batch=1)
    after, created = snapshot.manifest, False
    while not created and after.timestamp >= since:
        before = next(reading, None)
        created = before is None and after.version == 1
        if not created and (before is None or before.version != after.version - 1):
            break
        commits.append(_commit(storage, after, before))
        changes.append(_changes(storage, after, before, shared))
        after = before or after
    return FileLog(
        tuple(commits[::-1]),
        _table(changes[::-1]),
        base=None if created else after.version,
        complete=created or after.timestamp < since,
    )


def _commit(storage: Storage, manifest: Manifest, before: Manifest | None) -> FileCommit:
    transaction = transaction_of(storage, manifest)
    changed = data_changed(transaction, manifest, before)
    return FileCommit(manifest.version, manifest.timestamp, transaction.operation, changed, _ours(transaction))


def _ours(transaction: Transaction) -> bool | None:
    return OPERATION in transaction.properties or (None if transaction.operation in _UNMARKED else False)


def _changes(
    storage: Storage, after: Manifest, before: Manifest | None, shared: Collection[str]
) -> tuple[list[_File], list[_File]]:
    """The removed and the added files."""
    if before is None:
        return [], _files(storage, after, (), shared)
    same = set(before.fragment_records) & set(after.fragment_records)
    gone, came = (_files(storage, each, same, shared) for each in (before, after))
    # Records may differ in details that a snapshot's files don't show, such as row ids.
    stay = set(gone) & set(came)
    return [file for file in gone if file not in stay], [file for file in came if file not in stay]


def _files(storage: Storage, manifest: Manifest, but: Collection[bytes], shared: Collection[str]) -> list[_File]:
    with naming_manifest(storage, manifest.path, manifest.version):
        parsed = [parse_fragment(record) for record in manifest.fragment_records if record not in but]
        columns = log_columns(storage, manifest, counted(storage, manifest, parsed), shared)
    names = ("path", "dv_id", "size", "physical_rows", "deleted_rows")
    return list(zip(*(columns[name] for name in names), strict=True))


def _table(changes: Sequence[tuple[list[_File], list[_File]]]) -> pa.Table:
    sides = [(number, added, side[added]) for number, side in enumerate(changes) for added in (False, True)]
    counts = [len(files) for _, _, files in sides]
    every = [file for *_, files in sides for file in files]
    path, dv, size, physical, deleted = zip(*every, strict=True) if every else ((),) * 5
    columns = {
        "commit": int64s(np.repeat([number for number, *_ in sides], counts).tolist()),
        "added": bools(np.repeat(np.array([added for _, added, _ in sides], bool), counts)),
        "path": strings(path),
        "dv_id": strings(dv),
        "partition": pa.DictionaryArray.from_arrays(int32s(np.zeros(len(every))), strings([""])),
        "size": int64s(size),
        "physical_rows": int64s(physical),
        "deleted_rows": int64s(deleted),
    }
    return pa.Table.from_arrays(list(columns.values()), schema=FILE_CHANGES)

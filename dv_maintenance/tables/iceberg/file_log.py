"""How each snapshot of an Iceberg table changed the live files (``FileLogTable.file_log``).

Live files of consecutive snapshots are compared: whether a file has other deletes than before follows from all
manifests of a snapshot, not only from its own. Manifests that two snapshots share are read once.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.files.arrays import bools, combined, int64s, strings
from dv_maintenance.tables.file_log import FILE_CHANGES, FileCommit, FileLog
from dv_maintenance.tables.iceberg.layout import Layout
from dv_maintenance.tables.iceberg.log.history import OURS, data_changed
from dv_maintenance.tables.iceberg.log.metadata import SnapshotEntry
from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot, load_snapshot


def file_log(layout: Layout, snapshot: IcebergSnapshot, since: int) -> FileLog:
    """See ``FileLogTable``. A snapshot whose parent has expired is left out: what it changed is unknown."""
    chain: list[SnapshotEntry] = []
    for entry in snapshot.metadata.ancestors(snapshot.version):
        if entry.timestamp < since:
            break
        chain.append(entry)
    oldest = chain[-1] if chain else None
    known = oldest is None or oldest.parent is None or oldest.parent in snapshot.metadata.snapshots
    before = None if oldest is None or oldest.parent is None else oldest.parent
    if not known:
        before = chain.pop().id
    commits, parts = [], [FILE_CHANGES.empty_table()]
    state = snapshot
    # From the newest on: what is at hand is its state.
    for number, entry in reversed(list(enumerate(reversed(chain)))):
        earlier = None if entry.parent is None else _at(layout, state, entry.parent)
        parts.append(_changes(number, earlier, state))
        ours = OURS in entry.summary
        commits.append(FileCommit(entry.id, entry.timestamp, entry.operation, data_changed(entry), ours))
        if earlier is not None:
            state = earlier
    base = snapshot.version if not commits else before
    return FileLog(tuple(commits[::-1]), pa.concat_tables(parts[:1] + parts[:0:-1]), base, complete=known)


def _at(layout: Layout, later: IcebergSnapshot, version: int) -> IcebergSnapshot:
    return load_snapshot(layout, version, known=later, metadata=later.metadata)


def _changes(number: int, earlier: IcebergSnapshot | None, later: IcebergSnapshot) -> pa.Table:
    new = later.files
    old = new.slice(0, 0) if earlier is None else earlier.files
    keys, before = _keys(new), _keys(old)
    gone = old.filter(pc.invert(pc.is_in(before, value_set=keys)))
    came = new.filter(pc.invert(pc.is_in(keys, value_set=before)))
    return pa.concat_tables([_rows(number, gone, added=False), _rows(number, came, added=True)])


def _keys(files: pa.Table) -> pa.Array:
    ids = pc.fill_null(combined(files["dv_id"]), strings([""])[0])
    rows = pc.fill_null(combined(files["physical_rows"]).cast(pa.string()), strings(["?"])[0])
    return pc.binary_join_element_wise(combined(files["path"]), ids, rows, strings(["\0"])[0])


def _rows(number: int, files: pa.Table, *, added: bool) -> pa.Table:
    columns = {
        "commit": int64s([number] * files.num_rows),
        "added": bools(np.full(files.num_rows, added)),
        **{name: files[name] for name in FILE_CHANGES.names[2:]},
    }
    return pa.Table.from_arrays([columns[name] for name in FILE_CHANGES.names], schema=FILE_CHANGES)

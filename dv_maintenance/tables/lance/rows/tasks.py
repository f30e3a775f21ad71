"""Tasks for an engine: fragments to read or to rewrite, with the deletion vectors to apply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dv_maintenance.errors import UsageError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.columns import selected
from dv_maintenance.tables.lance.commit.preflight import check_sound
from dv_maintenance.tables.lance.layout import DATA, check_folders, stored_path
from dv_maintenance.tables.lance.snapshot import LanceSnapshot
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.work import DvRef, RewriteBin, RewriteTask, ScanTask, SourceFile

_COLUMNS = ["path", "size", "physical_rows", "deleted_rows", "dv_id", "fragment_id", "dv_codec"]
_BATCH = 65_536  # rows that are Python objects at once


def scan_tasks(storage: Storage, snapshot: LanceSnapshot, columns: Sequence[str] | None = None) -> list[ScanTask]:
    """One task per fragment, in the order of ``snapshot.files``.

    Raises
    ------
    UsageError : a column does not exist, or is named twice.
    """
    schema = selected(columns, snapshot)
    return [ScanTask((source,), schema) for source in _sources(storage, snapshot)]


def rewrite_tasks(
    storage: Storage,
    snapshot: LanceSnapshot,
    bins: Sequence[RewriteBin],
    target_bytes: int,
    compression: str | None = None,
) -> list[RewriteTask]:
    """One task per bin, with its fragments in the table's order.

    Raises
    ------
    UsageError : a bin is to be ordered by columns, or names a fragment that the version does not have.
    DamagedTableError : preflight finds faults in fragments of the bins; lists all of them.
    """
    del compression  # Lance chooses it
    files = snapshot.files
    keys = {
        FileKey(path, dv): at
        for at, (path, dv) in enumerate(zip(files["path"].to_pylist(), files["dv_id"].to_pylist(), strict=True))
    }
    tasks, ids = [], list[int]()
    for each in bins:
        if each.order_by:
            raise UsageError("rows of Lance tables cannot be reordered", table=storage.uri, version=snapshot.version)
        unknown = [key for key in each.inputs if key not in keys]
        if unknown:
            raise UsageError(f"no fragment has the file {unknown[0].path}", table=storage.uri, version=snapshot.version)
        chosen = files.take(sorted(keys[key] for key in each.inputs))
        sources = tuple(_sources(storage, replace(snapshot, files=chosen)))
        ids += chosen["fragment_id"].to_pylist()
        tasks.append(RewriteTask(each.id, ScanTask(sources, snapshot.schema), storage.uri_of(DATA), target_bytes))
    check_folders(storage)
    check_sound(storage, snapshot.version, ids)
    return tasks


def _sources(storage: Storage, snapshot: LanceSnapshot) -> Iterator[SourceFile]:
    for batch in snapshot.files.select(_COLUMNS).to_batches(max_chunksize=_BATCH):
        for row in batch.to_pylist():
            dv = None
            if row["dv_id"] is not None:
                # A deletion file is read whole: its size is unknown and not needed.
                dv = DvRef(row["dv_codec"], row["deleted_rows"], 0, storage.uri_of(row["dv_id"]))
            yield SourceFile(
                key=FileKey(row["path"], row["dv_id"]),
                uri=storage.uri_of(stored_path(row["path"])),
                size=row["size"],
                rows=row["physical_rows"],
                dv=dv,
                format="lance",
                details={"dataset": storage.uri, "version": snapshot.version, "id": row["fragment_id"]},
            )

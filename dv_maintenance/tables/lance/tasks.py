"""Work for an engine: which fragments to read, minus which rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa

from dv_maintenance.errors import UsageError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.lance.snapshot import LanceSnapshot
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.work import DvRef, FragmentRef, ScanTask, SourceFile

__all__ = ["scan_tasks"]

_COLUMNS = ["path", "size", "physical_rows", "deleted_rows", "dv_id", "fragment_id", "dv_codec"]
_BATCH = 65_536  # rows that are Python objects at a time


def scan_tasks(storage: Storage, snapshot: LanceSnapshot, columns: Sequence[str] | None = None) -> list[ScanTask]:
    """One task per fragment, in the order of ``snapshot.files``.

    Raises
    ------
    UsageError : a column that the table does not have, or one named twice.
    """
    schema = _selected(snapshot, columns)
    return [ScanTask((source,), schema) for source in _sources(storage, snapshot)]


def _selected(snapshot: LanceSnapshot, columns: Sequence[str] | None) -> pa.Schema:
    if columns is None:
        return snapshot.schema
    names = snapshot.schema.names
    wrong = [name for name in columns if name not in names]
    wrong += [name for name, times in Counter(columns).items() if times > 1]
    if wrong:
        raise UsageError(
            f"no column {wrong[0]!r} in the table" if wrong[0] not in names else f"column {wrong[0]!r} is named twice",
            table=snapshot.table,
            version=snapshot.version,
            next_step=f"choose from {', '.join(names)}",
        )
    return pa.schema([snapshot.schema.field(name) for name in columns], snapshot.schema.metadata)


def _sources(storage: Storage, snapshot: LanceSnapshot) -> Iterator[SourceFile]:
    for batch in snapshot.files.select(_COLUMNS).to_batches(max_chunksize=_BATCH):
        for row in batch.to_pylist():
            dv = None
            if row["dv_id"] is not None:
                # A deletion file is read to its end: its size is not known, nor needed.
                dv = DvRef(row["dv_codec"], row["deleted_rows"], 0, storage.uri_of(row["dv_id"]))
            yield SourceFile(
                key=FileKey(row["path"], row["dv_id"]),
                uri=storage.uri_of(row["path"]),
                size=row["size"],
                rows=row["physical_rows"],
                dv=dv,
                fragment=FragmentRef(storage.uri, snapshot.version, row["fragment_id"]),
            )

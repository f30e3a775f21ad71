"""Files that readers of an Iceberg table open besides its metadata, and how to repair the table if one is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.compute as pc

from dv_maintenance.files.arrays import combined, flags, int64s, strings
from dv_maintenance.files.avro.container import read_records
from dv_maintenance.tables.fsck import DATA, DV, LogFault, Needed, Repair, going_back, needed
from dv_maintenance.tables.iceberg.layout import Layout
from dv_maintenance.tables.iceberg.log.manifests import ADDED, EXISTING, counted, manifest_of, placed
from dv_maintenance.tables.iceberg.rows.tasks import rows_of, stored_source

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot
    from dv_maintenance.tables.work import SourceFile


def needed_files(layout: Layout, snapshot: IcebergSnapshot) -> pa.Table:
    """Data files, Puffin files with deletion vectors that readers apply, and old delete files, all with exact sizes."""
    files, location = snapshot.files, snapshot.metadata.location
    bearing = pc.is_valid(files["dv_file"])
    puffins = combined(files["dv_file"]).filter(combined(bearing))
    dvs = snapshot.deletes.dvs
    sizes = dict(zip(dvs["path"].to_pylist(), dvs["size"].to_pylist(), strict=True))
    pairs = list(_old_deletes(snapshot))
    return needed(
        [
            Needed(
                DATA,
                layout.paths(files["path"], location),
                combined(files["size"]),
                exact=True,
                files=int64s(np.arange(files.num_rows)),
            ),
            Needed(
                DV,
                layout.paths(puffins, location),
                int64s([sizes[path] for path in puffins.to_pylist()]),
                exact=True,
                files=int64s(np.flatnonzero(flags(bearing))),
            ),
            Needed(
                DV,
                layout.paths(strings([path for path, _, _ in pairs]), location),
                int64s([size for _, size, _ in pairs]),
                exact=True,
                files=int64s([row for _, _, row in pairs]),
            ),
        ]
    )


def row_id_faults(snapshot: IcebergSnapshot) -> Iterator[LogFault]:
    """Specification, Row Lineage: the next row id is above all that files have."""
    used, following = snapshot.used_row_ids, snapshot.metadata.body.get("next-row-id")
    if snapshot.metadata.format_version > 2 and isinstance(following, int) and following < used:
        yield LogFault(
            snapshot.metadata.path,
            f"has the next row id {following}, although ids up to {used - 1} are in use",
            "New rows get the ids of others: row lineage no longer tells them apart.",
            Repair(
                f"Set next-row-id to {used} or more in a copy of the metadata file, and have the catalog name that.",
                None,
                "Nothing. Rows that were added since keep ids that others have.",
            ),
        )


def list_faults(layout: Layout, snapshot: IcebergSnapshot) -> Iterator[LogFault]:
    """Manifests that some readers skip, or read twice, by what their list says."""
    entry = snapshot.entry
    if entry is None or entry.manifest_list is None:
        return
    path = layout.path(entry.manifest_list)
    try:
        data = layout.storage.get(path)
    except FileNotFoundError as error:
        raise placed(layout, error, snapshot.version, entry.manifest_list) from error
    seen = set()
    for record in read_records(data, None, by_id=True):
        manifest = manifest_of(record)
        counts = counted(snapshot.entries.by_manifest[manifest])
        alive = counts[ADDED][0] + counts[EXISTING][0]
        if manifest in seen:
            effect = "Readers that don't use Iceberg's Java library, as PyIceberg, read its rows twice."
            yield LogFault(path, f"lists {manifest.path} twice", effect, _LIST_AGAIN)
        elif alive and [record.get("504"), record.get("505")] == [0, 0]:
            effect = "Iceberg's Java library does not read these files, while other readers do."
            yield LogFault(
                path, f"says that {manifest.path} has no live files, although it has {alive}", effect, _LIST_AGAIN
            )
        seen.add(manifest)


_LIST_AGAIN: Final = Repair(
    "Run a purge, delete or update that changes any row: its commit writes the list again. Don't rewrite the manifests "
    "with Iceberg's own procedure before: it goes by the list.",
    None,
    "Nothing.",
)


def _old_deletes(snapshot: IcebergSnapshot) -> Iterator[tuple[str, int, int]]:
    """Path and size of each old delete file, once for each row of ``files`` that it applies to."""
    positions = snapshot.deletes.positions
    sizes = dict(zip(positions["path"].to_pylist(), positions["size"].to_pylist(), strict=True))
    if not sizes and not snapshot.deletes.equality:
        return
    columns = (snapshot.files[name].to_pylist() for name in ("path", "data_sequence", "partition_code"))
    for row, (path, sequence, code) in enumerate(zip(*columns, strict=True)):
        for file in snapshot.matched.position_files.get(path, ()):
            yield file, sizes[file], row
        for each in snapshot.deletes.equality:
            if each.sequence > sequence and each.partition_code in {None, code}:
                yield each.path, each.size, row


def stored_sources(layout: Layout, snapshot: IcebergSnapshot) -> Iterator[SourceFile]:
    """See ``FsckTable``."""
    return (stored_source(layout, snapshot, row) for row in rows_of(snapshot.files))


def remedies(snapshot: IcebergSnapshot, kinds: Collection[str], back_to: int | None) -> tuple[Repair, ...]:
    """See ``FsckTable``."""
    del snapshot
    found = []
    if back_to is not None:
        command = f"CALL system.rollback_to_snapshot(table => 'NAMESPACE.TABLE', snapshot_id => {back_to})"
        found.append(going_back("Roll back to", f"snapshot {back_to}", command))
    if DATA in kinds:
        found.append(
            Repair(
                "Remove the missing data files from the table with Iceberg's Java API (DeleteFiles.deleteFile), which "
                "does not read them.",
                None,
                "The rows of these files.",
            )
        )
    return tuple(found)

"""An Iceberg table at one snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.dv import DeletionVector
from dv_maintenance.errors import DamagedTableError, UsageError
from dv_maintenance.files.arrays import integer
from dv_maintenance.tables.iceberg.layout import Layout
from dv_maintenance.tables.iceberg.log.manifests import ManifestEntries, placed, read_entries
from dv_maintenance.tables.iceberg.log.metadata import Metadata, SnapshotEntry, load_metadata
from dv_maintenance.tables.iceberg.log.optimizers import optimizer_note, optimizer_of
from dv_maintenance.tables.iceberg.log.pointer import hadoop_number
from dv_maintenance.tables.iceberg.log.types import LINEAGE, Schema, plain
from dv_maintenance.tables.iceberg.rows.files import Deletes, Matched, deletes_of, matched
from dv_maintenance.tables.iceberg.rows.partitions import Partition, Partitions
from dv_maintenance.tables.iceberg.rows.position_deletes import PositionDeletes, of_one_file, read_position_deletes
from dv_maintenance.tables.model import Snapshot
from dv_maintenance.units import count, format_size

# Of a Puffin file, what is not blobs: magic numbers, and the footer with about so many bytes for each blob.
_FOOTER: Final = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergSnapshot(Snapshot):
    """One snapshot of an Iceberg table. Its version is the id of the snapshot, or ``NO_SNAPSHOT``.

    files : schema ``files.FILES``.
    metadata : content of the metadata file.
    entry : the snapshot in it; ``None`` for a table without one.
    table_schema : what ``schema`` comes from.
    entries : of its manifests.
    deletes : its live delete files.
    matched : how they apply to the files.
    position_deletes : rows of old position delete files, by their paths.
    partitions : by their number in ``files``.
    """

    metadata: Metadata = field(repr=False)
    entry: SnapshotEntry | None
    table_schema: Schema = field(repr=False)
    entries: ManifestEntries = field(repr=False)
    deletes: Deletes = field(repr=False)
    matched: Matched = field(repr=False)
    position_deletes: Mapping[str, PositionDeletes] = field(repr=False)
    partitions: tuple[Partition, ...] = field(repr=False)

    @property
    def bytes(self) -> int:
        tables = [self.files, *self.entries.by_manifest.values()]
        old = sum(each.bytes for each in self.position_deletes.values())
        return sum(int(each.nbytes) for each in tables) + old

    @property
    def positions(self) -> Mapping[str, DeletionVector]:
        """Rows that old position deletes delete, by data file."""
        return self.matched.positions

    @property
    def of_one_file(self) -> dict[str, str]:
        """Position delete files that belong to one data file, and that file."""
        return of_one_file(self.deletes.positions, self.position_deletes)

    @property
    def used_row_ids(self) -> int:
        """How many row ids there are up to the greatest one of its files."""
        return int(pc.max(pc.add(self.files["first_row_id"], self.files["record_count"])).as_py() or 0)

    @property
    def rewrite_remark(self) -> str:
        from dv_maintenance.tables.iceberg.rows.formats import other_codec

        return other_codec(self)

    def strange_after(self, base: IcebergSnapshot) -> str:
        """Why nothing that was planned on ``base`` can be committed on this snapshot; "" if it follows from it."""
        if base.entry is None:
            return ""
        chain = list(self.metadata.ancestors(self.version))
        known = {self.version} | {each.id for each in chain} | {each.parent for each in chain}
        return "" if base.version in known else "the table was rolled back, or its newest snapshot has another history"


def load_snapshot(
    layout: Layout,
    version: int | None = None,
    *,
    known: IcebergSnapshot | None = None,
    metadata: Metadata | None = None,
) -> IcebergSnapshot:
    """Load the table at a snapshot.

    version : the id of any snapshot that the metadata has, with the columns of that time. By default the newest one,
        with the current columns, as in Iceberg's readers.
    known : an earlier snapshot of the same table. Its manifests are not read again.
    metadata : of the table, if it was read before.

    Reads the metadata file, the manifest list and the manifests; also old position delete files.

    Raises
    ------
    TableNotFoundError : there is no metadata file.
    UsageError : there is no such snapshot, or no such branch.
    UnsupportedFeatureError : the table needs a feature that this reader lacks.
    DamagedTableError : a file is damaged; the message names it.
    RefusedError : fastavro is not installed, or only a catalog knows which metadata file is the newest.
    """
    metadata = metadata or load_metadata(layout)
    entry = _entry(layout, metadata, version)
    schema = metadata.schemas[metadata.current_schema] if version is None else metadata.schema_of(entry)
    if known is not None and (known.metadata.uuid, known.metadata.specs) != (metadata.uuid, metadata.specs):
        known = None
    partitions = Partitions.of(metadata, () if known is None else known.partitions)
    read_before = None if known is None else known.entries
    entries = read_entries(layout, entry, partitions, read_before)
    at = 0 if entry is None else entry.id
    try:
        deletes = deletes_of(entries, metadata)
        have = {} if known is None else known.position_deletes
        read = read_position_deletes(layout, deletes.positions, have, at)
        found = matched(entries, deletes, read, partitions.found, _times(metadata), read_before)
    except DamagedTableError as damage:
        raise damage if damage.table else placed(layout, damage, at) from damage.__cause__
    optimizer = optimizer_of(metadata)
    beside = optimizer_note(metadata, optimizer)
    notes = (*_notes(layout, metadata, deletes, found), *([beside] if beside else []))
    return IcebergSnapshot(
        table=layout.uri,
        format="iceberg",
        version=at,
        timestamp=int(metadata.body.get("last-updated-ms") or 0) if entry is None else entry.timestamp,
        schema=plain(schema.arrow),
        optimizer=optimizer,
        hidden_columns=plain(LINEAGE) if metadata.format_version > 2 else pa.schema([]),
        specs=metadata.partition_specs(schema),
        properties=metadata.properties,
        files=found.files,
        warnings=(*_warnings(metadata, deletes, found), *notes),
        notes=notes,
        metadata=metadata,
        entry=entry,
        table_schema=schema,
        entries=entries,
        deletes=deletes,
        matched=found,
        position_deletes=read,
        partitions=tuple(partitions.found),
    )


def _entry(layout: Layout, metadata: Metadata, version: int | None) -> SnapshotEntry | None:
    wanted = metadata.version if version is None else version
    if wanted in metadata.snapshots:
        return metadata.snapshots[wanted]
    if version is None or wanted == metadata.version:
        return None
    raise no_such_version(layout, metadata, wanted)


def no_such_version(layout: Layout, metadata: Metadata, version: int) -> UsageError:
    there = ", ".join(str(each.id) for each in list(metadata.ancestors(metadata.current))[:5])
    return UsageError(
        f"there is no snapshot {version}",
        table=layout.uri,
        next_step=f"the newest ones are {there}" if there else "the table has no snapshot yet",
    )


def _times(metadata: Metadata) -> dict[int, int]:
    """When the snapshots were committed, by sequence number, ascending."""
    return {each.sequence: each.timestamp for each in sorted(metadata.snapshots.values(), key=lambda one: one.sequence)}


# -- warnings -------------------------------------------------------------------------------------------------------


def _warnings(metadata: Metadata, deletes: Deletes, found: Matched) -> list[str]:
    warnings = []
    if deletes.equality:
        files = int(pc.sum(pc.greater(found.files["equality_deletes"], integer(0))).as_py() or 0)
        rows = sum(each.rows for each in deletes.equality)
        warnings.append(
            f"{count(len(deletes.equality), 'equality delete file')} with {count(rows, 'row')}, for "
            f"{count(files, 'data file')}: only reading them shows how many rows they delete"
        )
    if found.position_files and metadata.format_version > 2:  # before, they are what a DELETE writes
        used = {each for some in found.position_files.values() for each in some}
        rows = sum(each.cardinality for each in found.positions.values())
        warnings.append(
            f"{count(len(used), 'position delete file')} of format version 2 delete {count(rows, 'row')} of "
            f"{count(len(found.positions), 'data file')}: they are counted with the deletion vectors"
        )
    return warnings


def _notes(layout: Layout, metadata: Metadata, deletes: Deletes, found: Matched) -> tuple[str, ...]:
    notes = []
    if layout.is_copy(metadata):
        notes.append(
            f"the table's metadata says that it is at {metadata.location}: rows are read there, not from this copy of "
            "its folder"
        )
    if layout.catalog is None and layout.file is None and hadoop_number(metadata.path) is None:
        notes.append(
            f"{metadata.path} has the highest number in the folder, but only the table's catalog knows which "
            "metadata file is the newest: name the table by its catalog (iceberg:CATALOG.NAMESPACE.TABLE)"
        )
    if found.dangling_dvs.num_rows:
        first = found.dangling_dvs["referenced"][0].as_py()
        notes.append(
            f"{count(found.dangling_dvs.num_rows, 'deletion vector')} of data files that are not live, the first is "
            f"that of {first}: no reader applies them"
        )
    if found.dangling_files:
        notes.append(
            f"{count(len(found.dangling_files), 'delete file')} that no live data file needs, the first is "
            f"{found.dangling_files[0]}"
        )
    dead, total = _dead_bytes(deletes, found)
    if dead * 2 > total:
        notes.append(
            f"deletion vectors that were replaced take {format_size(dead)} of the {format_size(total)} of live Puffin "
            "files: a purge of the others frees them"
        )
    return tuple(notes)


def _dead_bytes(deletes: Deletes, found: Matched) -> tuple[int, int]:
    """Bytes of live Puffin files that no live deletion vector has, about, and bytes of all."""
    gone = set(found.dangling_dvs["path"].to_pylist())
    columns = (deletes.dvs[name].to_pylist() for name in ("path", "size", "content_size"))
    sizes: dict[str, int] = {}
    live: dict[str, int] = {}
    for path, size, blob in zip(*columns, strict=True):
        sizes[path] = size
        live[path] = live.get(path, 0) + (blob or 0) + _FOOTER
    return sum(max(0, size - live[path]) for path, size in sizes.items() if path not in gone), sum(sizes.values())

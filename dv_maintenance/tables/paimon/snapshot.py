"""A Paimon table at one snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError, UsageError
from dv_maintenance.files.arrays import bools, flags, integer
from dv_maintenance.storage import Storage
from dv_maintenance.tables.model import Snapshot
from dv_maintenance.tables.paimon.features import Options, check_known_kind, delete_ratio
from dv_maintenance.tables.paimon.layout import Layout, table_layout
from dv_maintenance.tables.paimon.log.index_manifest import DvEntry, IndexManifest, read_index_manifest
from dv_maintenance.tables.paimon.log.manifests import Live, live_entries, no_entries, placed
from dv_maintenance.tables.paimon.log.refs import tagged
from dv_maintenance.tables.paimon.log.schema import Schema, newest_schema, read_schema
from dv_maintenance.tables.paimon.log.snapshots import SnapshotFile, load_snapshot_file
from dv_maintenance.tables.paimon.rows.evolution import anchors, grouped
from dv_maintenance.tables.paimon.rows.files import counted, emptied, files_table, match, visible
from dv_maintenance.tables.paimon.rows.partitions import Partition, Partitions
from dv_maintenance.tables.paimon.rows.warnings import (
    index_garbage,
    last_compaction,
    new_files_lack,
    snapshots_kept,
    unindexed,
    when,
)
from dv_maintenance.tables.partition_spec import by_columns
from dv_maintenance.units import count, format_size

# Approximate bytes in memory of an index manifest entry.
_DV_BYTES: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class PaimonSnapshot(Snapshot):
    """One snapshot of a Paimon table.

    files : the live files that a batch reader opens, schema ``files.FILES``.
    properties : options of the newest schema.
    file : content of the snapshot file; ``None`` before the first snapshot.
    table_schema : the schema file that ``schema`` comes from.
    hidden : live files that a batch reader skips, same schema as ``files``: level 0 if readers skip it, and files of
        rows that have no bucket yet.
    parts : with data evolution, the files that together hold the rows of one of ``files``, see ``evolution.grouped``.
    live : the live files in the form of manifest entries.
    index : the index manifest, with the cardinality of every DV of a live file.
    partitions : by their number in ``files``.
    dangling : DVs of files that are not live, which no reader applies.
    layout : where the schemas of older files are, which are read when they are asked for.
    elsewhere : the table's options with which readers open something else; empty for a version that was asked for.
    by_version : whether the snapshot was asked for by its number.
    """

    layout: Layout = field(repr=False)
    file: SnapshotFile | None
    table_schema: Schema
    hidden: pa.Table = field(repr=False)
    parts: pa.Table = field(repr=False)
    live: Live = field(repr=False)
    index: IndexManifest = field(repr=False)
    partitions: tuple[Partition, ...] = field(repr=False)
    dangling: tuple[DvEntry, ...] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    by_version: bool = False

    @property
    def bytes(self) -> int:
        tables = (self.files, self.hidden, self.parts, self.live.entries)
        return sum(int(each.get_total_buffer_size()) for each in tables) + _DV_BYTES * len(self.index.dvs)

    def units(self) -> Any:
        """Each file of a primary-key or data-evolution table is rewritten alone, and so is one that a clustering put on
        a level above 0. Files of lines are merged with their like.
        """
        from dv_maintenance.tables.paimon.rows import lines

        each = -2 - np.arange(self.files.num_rows)
        if self.options.primary_key or self.options.data_evolution:
            return each
        alike, clustered = lines.alike(self.files), flags(pc.greater(self.files["level"], integer(0)))
        # A file on a higher level may be the first of those like it, whose number is of others, too.
        units = np.where(clustered, each - len(each), np.where(alike < 0, -1, -2 - alike))
        return units if (units != -1).any() else None

    @property
    def rewrite_remark(self) -> str:
        from dv_maintenance.tables.paimon.rows.formats import other_codec

        return "; ".join(filter(None, [new_files_lack(self.options), other_codec(self)]))

    def new_files(self) -> Any:
        from dv_maintenance.tables.paimon.rows import row_id_ranges

        return row_id_ranges.new_files(self) if self.options.data_evolution else None

    def barred(self) -> Mapping[str, Any]:
        from dv_maintenance.tables.paimon.rows import keyed, rewrite_tasks, row_id_ranges

        if "barred" not in self.derived:
            if self.options.primary_key:
                found = keyed.barred(self)
            elif self.options.data_evolution:
                found = row_id_ranges.barred(self)
            else:
                found = rewrite_tasks.barred(self.layout, self)
            # A file has one reason at most.
            last = emptied(self.files, self.options)
            for mask in last.values():
                found = {reason: each & ~mask for reason, each in found.items() if (each & ~mask).any()}
            self.derived["barred"] = {**found, **last}
        return self.derived["barred"]  # type: ignore[no-any-return]

    @property
    def options(self) -> Options:
        return Options(self.properties, bool(self.table_schema.primary_keys))


def load_snapshot(
    storage: Storage, version: int | None = None, *, known: PaimonSnapshot | None = None
) -> PaimonSnapshot:
    """Load the table at a snapshot.

    version : a snapshot, even one that only a tag keeps, with the columns of that time. By default, the newest snapshot
        with the current columns, as in Paimon's readers.
    known : an earlier snapshot of the same table, to save reads.

    Reads the manifests. Reads index files only if the index manifest does not record the cardinality of a DV (writers
    before 1.0).

    Raises
    ------
    TableNotFoundError : there are neither snapshots nor schemas.
    UsageError : there is no such snapshot.
    UnsupportedFeatureError : the table needs a feature that this reader lacks.
    DamagedTableError : a file is damaged; the message names it.
    RefusedError : fastavro is not installed.
    """
    layout = table_layout(storage)
    file = snapshot_file(layout, version)
    newest = newest_schema(layout)
    check_known_kind(newest, layout.uri)
    # Without a version, readers see the newest columns, even if no snapshot has been written with them yet.
    of_now = version is None and file is not None and file.schema_id <= newest.id
    schema = newest if file is None or of_now else schema_at(layout, file, newest)
    if known is not None and (known.properties, known.table_schema.partition_fields()) != (
        newest.options,
        schema.partition_fields(),
    ):
        known = None  # partitions may have other names
    found = [] if known is None else list(known.partitions)
    partitions = Partitions(schema.partition_fields(), newest.options, found)
    options = Options(newest.options, bool(schema.primary_keys))
    live, index = Live(no_entries(), 0), IndexManifest()
    if file is not None:
        live = live_entries(layout, file, partitions, None if known is None else known.live)
        index = read_index_manifest(layout, file.index_manifest, partitions, newest.options, file.id)
    at_version = 0 if file is None else file.id
    anchor = _anchors(layout, live.entries, options, at_version)
    matched = match(live.entries, index.dvs, None if anchor is None else _are_own(anchor))
    gone = {dv.id for dv in matched.dangling}
    alive = iter(counted(layout, [dv for dv in index.dvs if dv.id not in gone], at_version))
    dvs = tuple(dv if dv.id in gone else next(alive) for dv in index.dvs)
    elsewhere = options.elsewhere(layout.branch) if version is None else {}
    files = files_table(layout, live.entries, matched.at, dvs, partitions, options.data_folder)
    files, parts = (files, files.slice(0, 0)) if anchor is None else grouped(files, anchor)
    _check_counts(layout, files, at_version)
    seen = visible(files, options)
    shown, hidden = files.filter(seen), files.filter(pc.invert(seen))
    notes = (
        *(
            f"readers do not open the newest snapshot, but what {name}={value} names"
            for name, value in elsewhere.items()
        ),
        *(() if options.primary_key else (*_over_ratio(shown, options), *unindexed(shown, options))),
        *(
            _maintenance_notes(layout, file, index, options, waits=bool(hidden.num_rows))
            if version is None and file
            else ()
        ),
    )
    return PaimonSnapshot(
        layout=layout,
        table=layout.uri,
        format="paimon",
        version=at_version,
        timestamp=schema.timestamp if file is None else file.timestamp,
        schema=schema.arrow(),
        specs=by_columns(*schema.partition_keys),
        properties=newest.options,
        files=shown,
        warnings=(*_warnings(shown, hidden, options, live.unmatched, matched.dangling), *notes),
        notes=notes,
        file=file,
        table_schema=schema,
        hidden=hidden,
        parts=parts,
        live=live,
        index=IndexManifest(index.files, dvs),
        partitions=tuple(partitions.found),
        dangling=matched.dangling,
        elsewhere=elsewhere,
        by_version=version is not None,
    )


def snapshot_file(layout: Layout, version: int | None) -> SnapshotFile | None:
    """Read the file of a snapshot, or that of its tag if the snapshot has expired. Raises as :func:`load_snapshot`."""
    try:
        return load_snapshot_file(layout, version)
    except UsageError:
        kept = tagged(layout, version) if version else None
        if kept is None:
            raise
        return kept


def schema_at(layout: Layout, file: SnapshotFile, known: Schema) -> Schema:
    """The schema of a snapshot's columns. ``known``: a schema that was already read."""
    return known if known.id == file.schema_id else read_schema(layout, file.schema_id)


def _anchors(layout: Layout, entries: pa.Table, options: Options, version: int) -> pa.Int64Array | None:
    """The anchor of each file of a data-evolution table; ``None`` for other tables: each file has its own rows."""
    if not options.data_evolution:
        return None
    try:
        return anchors(entries)
    except DamagedTableError as damage:
        raise placed(layout, damage, version) from None


def _are_own(anchor: pa.Int64Array) -> pa.BooleanArray:
    """Whether each file is its own anchor."""
    return bools(anchor.to_numpy() == np.arange(len(anchor)))


def _check_counts(layout: Layout, files: pa.Table, version: int) -> None:
    wrong = pc.greater(files["deleted_rows"], files["physical_rows"])
    if pc.any(wrong).as_py():
        row = files.filter(wrong).slice(0, 1).to_pylist()[0]
        raise DamagedTableError(
            f"{row['path']} has {row['physical_rows']} rows, but its deletion vector names {row['deleted_rows']}",
            table=layout.uri,
            version=version,
            next_step="restore an earlier snapshot",
        )


# -- warnings -----------------------------------------------------------------------------------------------------


def _warnings(
    files: pa.Table, hidden: pa.Table, options: Options, unmatched: int, dangling: tuple[DvEntry, ...]
) -> list[str]:
    warnings = []
    if hidden.num_rows:
        rows, size = (int(pc.sum(hidden[name]).as_py() or 0) for name in ("physical_rows", "size"))
        oldest = int(pc.min(hidden["modified"]).as_py() or 0)
        warnings.append(
            f"{count(hidden.num_rows, 'file')} with {count(rows, 'row')} ({format_size(size)}) waiting for compaction, "
            f"the oldest since {when(oldest)}: no batch query sees them (level 0 of a primary-key table, or no bucket)"
        )
    if options.merges and files.num_rows:
        warnings.append(
            "it is a primary-key table whose files are merged on read: physical rows are counted before merging"
        )
    if options.hides_level_0 and (taken := int(pc.sum(files["retractions"]).as_py() or 0)):
        warnings.append(
            f"{taken} of the physical rows are retractions (-D): no reader sees them, but live rows include them"
        )
    if dangling:
        warnings.append(
            f"data files that are not live have {count(len(dangling), 'deletion vector')}, the first is that of "
            f"{dangling[0].data_file}: a lost race leaves such vectors, and no reader applies them"
        )
    if unmatched:
        warnings.append(f"entries of its manifests delete files that were never added: {unmatched}")
    return warnings


def _maintenance_notes(
    layout: Layout, file: SnapshotFile, index: IndexManifest, options: Options, *, waits: bool
) -> list[str]:
    """Warnings about maintenance of the newest snapshot. ``waits``: whether files wait for a compaction."""
    return [
        *(last_compaction(layout, file) if waits else ()),
        *index_garbage(layout, index),
        *snapshots_kept(layout, options),
    ]


def _over_ratio(files: pa.Table, options: Options) -> list[str]:
    with_dv = files.filter(pc.is_valid(files["dv_id"]))
    if not with_dv.num_rows:
        return []
    if options.data_evolution:
        return [
            (
                f"{count(with_dv.num_rows, 'file')} with deletion vectors that Paimon's compaction keeps, as it keeps "
                "row ids (data-evolution.enabled): a purge or sys.materialize_deletion_vectors applies them"
            )
        ]
    ratio = delete_ratio(options)
    counts = zip(with_dv["deleted_rows"].to_pylist(), with_dv["physical_rows"].to_pylist(), strict=True)
    over = sum(deleted > rows * ratio for deleted, rows in counts)
    if not over:
        return []
    option = "compaction.delete-ratio-threshold"
    said = f"{count(over, 'file')} with more than {ratio:.0%} of the rows deleted ({option})"
    return [f"{said}: Paimon's compaction rewrites them"]

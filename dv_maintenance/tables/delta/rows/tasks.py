"""Work for an engine: the files to read, the rows to leave out, and the folders for rewritten files."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.dv import DvDescriptor
from dv_maintenance.errors import DamagedDeletionVectorError, DamagedTableError, RefusedError
from dv_maintenance.files.arrays import strings
from dv_maintenance.storage import RawName
from dv_maintenance.tables.bins import taken
from dv_maintenance.tables.columns import check_columns, path_of
from dv_maintenance.tables.delta.features import check_schema
from dv_maintenance.tables.delta.rows.clustering import clustering_columns, kept_number, new_number
from dv_maintenance.tables.delta.rows.layout import file_schema, row_id_field, stores_partitions
from dv_maintenance.tables.delta.rows.partitions import constants, partition_columns
from dv_maintenance.tables.delta.rows.row_tracking import stored_columns
from dv_maintenance.tables.delta.rows.schema import column_mapping_mode
from dv_maintenance.tables.delta.rows.shredded import as_shredded, may_be_shredded
from dv_maintenance.tables.delta.rows.skipping import StatsColumn
from dv_maintenance.tables.delta.rows.stats import stats_columns
from dv_maintenance.tables.model import FileKey, hive_folder, parse_partition
from dv_maintenance.tables.rows import row_id_name
from dv_maintenance.tables.work import DvRef, RewriteTask, RowDefault, ScanTask, SourceFile

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.log.actions import Metadata
    from dv_maintenance.tables.delta.rows.partitions import PartitionColumn
    from dv_maintenance.tables.delta.rows.row_tracking import StoredColumns
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
    from dv_maintenance.tables.work import RewriteBin

_SOURCE_COLUMNS: Final = ["path", "partition", "size", "physical_rows", "dv_id", "dv"]
_ROW_COLUMNS: Final = ["base_row_id", "default_row_commit_version"]
_BATCH: Final = 65_536  # rows that are Python objects at a time

# Spark's default, if neither the table nor the caller names a codec. zstd takes a third fewer bytes for a fifth more
# CPU.
_CODEC: Final = "delta.parquet.compression.codec"
_DEFAULT_CODEC: Final = "snappy"
# Spark's names for codecs, as Arrow calls them.
_CODECS: Final = {
    "none": "none",
    "uncompressed": "none",
    "snappy": "snappy",
    "gzip": "gzip",
    "brotli": "brotli",
    "zstd": "zstd",
    "lz4": "lz4",
    "lz4_raw": "lz4",
}

_FILE_NAME: Final = "{task}-{uuid}{codec}.parquet"
_PREFIX_ALPHABET: Final = string.ascii_lowercase + string.digits


def scan_tasks(storage: Storage, snapshot: DeltaSnapshot, columns: Sequence[str] | None = None) -> list[ScanTask]:
    """One task per live file, in the order of ``snapshot.files``, with partition values as constants. ``columns`` may
    include ``rows.row_id_name`` if rows are tracked.

    Raises
    ------
    UsageError : the table does not have a column, or a column is named twice.
    DamagedTableError : the log has no schema, or rows are tracked, but a file has no ``baseRowId`` or
        ``defaultRowCommitVersion``.
    """
    check_schema(snapshot)
    schema = _selected(snapshot, columns)
    partitions = tuple(column for column in partition_columns(snapshot.metadata) if column.name in schema.names)
    match_by = _match_by(snapshot.metadata)
    row_id = row_id_name(snapshot.schema)
    tracked = stored_columns(snapshot.protocol, snapshot.metadata) if row_id in schema.names else None
    tracked = None if tracked is None else replace(tracked, row_id=row_id)
    sources = _sources(storage, snapshot.files, partitions, tracked)
    return [ScanTask((source,), schema, match_by) for _, source in sources]


def stored_sources(storage: Storage, snapshot: DeltaSnapshot) -> Iterator[SourceFile]:
    """Every live file with its DV, in the order of ``snapshot.files``, without constants. Raises
    DamagedDeletionVectorError.
    """
    return (source for _, source in _sources(storage, snapshot.files, ()))


def rewrite_tasks(
    storage: Storage,
    snapshot: DeltaSnapshot,
    bins: Sequence[RewriteBin],
    target_bytes: int,
    compression: str | None = None,
) -> list[RewriteTask]:
    """One task per bin, under its id. ``compression``: the codec of new files, unless the table's property names
    another one.

    Raises
    ------
    UsageError : a bin names a file that is not live in the snapshot or is in another partition, or names a file twice.
    RefusedError : the table requires a compression that we can't write, or the folder of a partition is a link; or see
        ``as_shredded``.
    DamagedTableError : rows are tracked, but a file has no ``baseRowId`` or ``defaultRowCommitVersion``.
    """
    metadata, logical = snapshot.metadata, snapshot.schema
    schema, match_by = file_schema(snapshot.protocol, metadata), _match_by(metadata)
    if not len(schema):
        raise RefusedError(
            "every column is a partition column: new files would have no columns, and no rows",
            at=snapshot,
            next_step="write the rows to a new table, with fewer partition columns",
        )
    codec, stats = codec_of(metadata, compression), stats_columns(metadata, clustering_columns(snapshot.domains))
    live = _live_inputs(storage, snapshot, bins)
    clustered = bool(clustering_columns(snapshot.domains))
    shredded = may_be_shredded(snapshot.protocol)

    def scan_of(wanted: RewriteBin) -> ScanTask:
        sources = tuple(taken(live, wanted, snapshot))
        stored = as_shredded(storage, schema, sources, metadata) if shredded else schema
        return ScanTask(sources, stored, match_by)

    return [
        RewriteTask(
            id=wanted.id,
            scan=scan_of(wanted),
            output_uri=_output_uri(storage, output_folder(snapshot, wanted)),
            target_bytes=target_bytes,
            compression=codec,
            stats_columns=stats,
            order_by=tuple(StatsColumn.of(path_of(each, logical), logical).path for each in wanted.order_by),
            compression_required=_CODEC in metadata.configuration or compression is not None,
            file_name=f"{_name_start(wanted) if clustered else 'part-'}{_FILE_NAME}",
        )
        for wanted in bins
    ]


def _name_start(wanted: RewriteBin) -> str:
    return new_number(wanted.id) if wanted.order_by else kept_number(wanted.inputs[0].path)


def _output_uri(storage: Storage, folder: str) -> str:
    if not folder:
        return storage.uri
    storage.check_target(f"{folder}/new")
    return storage.uri_of(folder)


def output_folder(snapshot: DeltaSnapshot, bin: RewriteBin) -> str:
    """The folder for new files of a bin: a decoded path relative to the table, ``""`` for its root.

    Folders are called ``column=value``, as in Hive. If the table maps columns or spreads its object keys, Spark uses
    random folders, and so do we: two characters, the same for the same bin of the same version.
    """
    metadata = snapshot.metadata
    spread = metadata.configuration.get("delta.randomizeFilePrefixes", "").lower() == "true"
    if spread or column_mapping_mode(metadata) != "none":
        seed = blake2b(f"{snapshot.version}/{bin.id}".encode(), digest_size=2).digest()
        return "".join(_PREFIX_ALPHABET[byte % len(_PREFIX_ALPHABET)] for byte in seed)
    return hive_folder(parse_partition(bin.partition))


def log_path(storage: Storage, uri: str) -> str:
    """The path of a new file as an ``add`` action spells it: relative to the table and percent-encoded.

    ``uri`` is absolute and percent-encoded, and stays so for a file outside the table.
    """
    return storage.uri_of(storage.path_of_uri(uri)).removeprefix(f"{storage.uri}/")


def _match_by(metadata: Metadata) -> str:
    return "id" if column_mapping_mode(metadata) == "id" else "name"


def codec_of(metadata: Metadata, wanted: str | None = None) -> str:
    """The codec of new files: the table's property, else ``wanted``, else the default. Raises RefusedError."""
    codec = metadata.configuration.get(_CODEC, wanted or _DEFAULT_CODEC)
    if codec.lower() not in _CODECS:
        raise RefusedError(
            f"the table requires the Parquet compression {codec!r}, which can't be written here",
            next_step=f"set delta.parquet.compression.codec to one of {', '.join(sorted(_CODECS))}",
        )
    return _CODECS[codec.lower()]


def _selected(snapshot: DeltaSnapshot, columns: Sequence[str] | None) -> pa.Schema:
    schema = snapshot.schema
    if columns is None:
        return schema
    row_id = row_id_name(schema)
    if row_id in columns and (tracked := stored_columns(snapshot.protocol, snapshot.metadata)) is not None:
        schema = schema.append(row_id_field(tracked).with_name(row_id))
    check_columns(columns, schema.names, snapshot)
    return pa.schema([schema.field(name) for name in columns])


# -- sources -----------------------------------------------------------------------------------------------------


def _sources(
    storage: Storage,
    files: pa.Table,
    partitions: tuple[PartitionColumn, ...],
    tracked: StoredColumns | None = None,
) -> Iterator[tuple[str, SourceFile]]:
    """For each file of the table ``files``, the name of its partition and its source.

    partitions : partition columns, which become constants.
    tracked : with row tracking, the columns to fill with ids and versions if a file does not store them.
    """
    constants_of: dict[str, dict[str, Any]] = {}
    columns = _SOURCE_COLUMNS if tracked is None else [*_SOURCE_COLUMNS, *_ROW_COLUMNS]
    for batch in files.to_batches(max_chunksize=_BATCH):
        values = batch.column("partition_values")
        for index, row in enumerate(batch.select(columns).to_pylist()):
            partition = row["partition"]
            if partition not in constants_of:
                constants_of[partition] = constants(values[index].as_py() or (), partitions)
            yield (
                partition,
                SourceFile(
                    key=FileKey(row["path"], row["dv_id"]),
                    uri=storage.uri_of(storage.path_of(RawName(row["path"]))),
                    size=row["size"],
                    rows=row["physical_rows"],
                    exact_rows=False,
                    dv=None if row["dv"] is None else dv_ref(storage, descriptor(row["dv"])),
                    constants=constants_of[partition],
                    row_defaults={} if tracked is None else _row_defaults(row, tracked),
                ),
            )


def _row_defaults(row: Mapping[str, Any], tracked: StoredColumns) -> dict[str, RowDefault]:
    base, version = (row[name] for name in _ROW_COLUMNS)
    if base is None or version is None:
        raise DamagedTableError(f"{row['path']} has no baseRowId or defaultRowCommitVersion, though rows are tracked")
    return {tracked.row_id: RowDefault(base, counts=True), tracked.commit_version: RowDefault(version)}


def descriptor(dv: Mapping[str, Any]) -> DvDescriptor:
    """The descriptor for a value of the column ``dv`` of ``Snapshot.files``."""
    return DvDescriptor(dv["storage_type"], dv["path_or_inline"], dv["offset"], dv["size"], dv["cardinality"])


def dv_ref(storage: Storage, descriptor: DvDescriptor) -> DvRef:
    """A reference to the stored DV. Raises DamagedDeletionVectorError."""
    ref = DvRef("delta", descriptor.cardinality, descriptor.size_in_bytes)
    match descriptor.storage_type:
        case "i":
            return replace(ref, inline=descriptor.path_or_inline)
        case "u":
            path = descriptor.relative_path()
        case "p":
            path = storage.path_of(RawName(descriptor.path_or_inline))
        case other:
            raise DamagedDeletionVectorError(f"unknown storage type {other!r}", table=storage.uri)
    return replace(ref, uri=storage.uri_of(path), offset=descriptor.offset)


def _live_inputs(
    storage: Storage, snapshot: DeltaSnapshot, bins: Sequence[RewriteBin]
) -> dict[FileKey, tuple[str, SourceFile]]:
    """The partition and source of each file that the bins name. Only these files become objects."""
    paths = strings([key.path for wanted in bins for key in wanted.inputs])
    chosen = snapshot.files.filter(pc.is_in(snapshot.files["path"], value_set=paths))
    protocol, metadata = snapshot.protocol, snapshot.metadata
    partitions = partition_columns(metadata) if stores_partitions(protocol) else ()
    # They become constants of columns in the file, which have physical names.
    partitions = tuple(replace(column, name=column.key) for column in partitions)
    sources = _sources(storage, chosen, partitions, stored_columns(protocol, metadata))
    return {source.key: (partition, source) for partition, source in sources}

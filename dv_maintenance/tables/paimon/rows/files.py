"""The live files of a snapshot as the ``files`` table, each with its deletion vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.dv import DeletionVector, paimon
from dv_maintenance.errors import DamagedDeletionVectorError
from dv_maintenance.files.arrays import combined, flags, int64s, integer, strings, text
from dv_maintenance.storage import plain_uri
from dv_maintenance.tables.model import FILES_SCHEMA
from dv_maintenance.tables.paimon.features import POSTPONE_BUCKET, Options
from dv_maintenance.tables.paimon.layout import Layout
from dv_maintenance.tables.paimon.log.index_manifest import DvEntry
from dv_maintenance.tables.paimon.rows.partitions import Partition, Partitions
from dv_maintenance.tables.parallel import in_parallel

T = TypeVar("T")

FILES: Final = pa.schema(
    [
        *FILES_SCHEMA,
        pa.field("bucket", pa.int64(), nullable=False),
        pa.field("total_buckets", pa.int64()),
        pa.field("level", pa.int64(), nullable=False),
        pa.field("schema_id", pa.int64(), nullable=False),
        # append or compact; null if the writer did not record it.
        pa.field("source", pa.string()),
        # As the manifest spells it. It identifies the file within a partition and bucket.
        pa.field("file_name", pa.string(), nullable=False),
        # The number of the partition in the snapshot's ``partitions``.
        pa.field("partition_code", pa.int64(), nullable=False),
        pa.field("min_sequence", pa.int64()),
        pa.field("max_sequence", pa.int64()),
        # Number of retractions, rows that take back other rows. No reader sees them, whatever deletion vectors say.
        pa.field("retractions", pa.int64()),
        pa.field("first_row_id", pa.int64()),
        # The columns in the file, as a JSON list; null: all columns of its schema.
        pa.field("write_cols", pa.string()),
        # Number of files that belong to it: file indexes, changelogs.
        pa.field("extra_files", pa.int64(), nullable=False),
        # Digest of these and of an index in the manifest; "" if it has neither.
        pa.field("companions", pa.string(), nullable=False),
        # Where the DV is: path of the index file, offset and length as in the index manifest; null without a DV.
        pa.field("dv_file", pa.string()),
        pa.field("dv_offset", pa.int64()),
        pa.field("dv_length", pa.int64()),
        # The manifest that has the file's entry: its position in the snapshot's ``live.manifests``.
        pa.field("manifest", pa.int64(), nullable=False),
    ]
)

_SOURCES: Final = ("append", "compact")


@dataclass(frozen=True, slots=True)
class Matched:
    """The DVs of live entries.

    at : for each entry the position of its DV; null without one.
    dangling : DVs of files that are not live.
    """

    at: pa.Int32Array
    dangling: tuple[DvEntry, ...]


def visible(files: pa.Table, options: Options) -> pa.BooleanArray:
    """Whether a batch reader opens each file. It skips level 0 if ``options.hides_level_0``, and files of rows that
    have no bucket yet.
    """
    seen = pc.not_equal(files["bucket"], integer(POSTPONE_BUCKET))
    return pc.and_(seen, pc.greater(files["level"], integer(0))) if options.hides_level_0 else seen


def emptied(files: pa.Table, options: Options) -> dict[str, Any]:
    """Why files of partitions without live rows must stay, see ``Snapshot.barred``: where readers take partitions from
    a fallback branch, a partition that lost its last file would have rows again.
    """
    if options.fallback_branch is None:
        return {}
    sums = files.group_by("partition_code").aggregate([("physical_rows", "sum"), ("deleted_rows", "sum")])
    bare = sums.filter(pc.equal(sums["physical_rows_sum"], sums["deleted_rows_sum"]))["partition_code"]
    mask = flags(pc.is_in(files["partition_code"], value_set=combined(bare)))
    reason = "its partition has no live rows: without files, readers would take it from the fallback branch"
    return {f"{reason} (scan.fallback-branch)": mask} if mask.any() else {}


def match(entries: pa.Table, dvs: Sequence[DvEntry], bearers: pa.BooleanArray | None = None) -> Matched:
    """Match DVs to the live ``entries`` by partition, bucket and name.

    bearers : the entries whose DV a reader applies; by default all.
    """
    if not dvs:
        return Matched(pa.nulls(entries.num_rows, pa.int32()), ())
    names = ["partition", "bucket", "file_name"]
    keys = pc.binary_join_element_wise(*[entries[name].cast(pa.string()).combine_chunks() for name in names], text("/"))
    if bearers is not None:
        keys = pc.if_else(bearers, keys, pa.nulls(len(keys), keys.type))
    wanted = strings([f"{dv.partition}/{dv.bucket}/{dv.data_file}" for dv in dvs])
    found = pc.index_in(keys, value_set=wanted)
    # A data file has at most one DV.
    live = set(found.drop_null().to_pylist())
    return Matched(found, tuple(dv for number, dv in enumerate(dvs) if number not in live))


def counted(layout: Layout, dvs: Sequence[DvEntry], version: int) -> tuple[DvEntry, ...]:
    """The DVs with cardinalities. Those that the manifest lacks are counted from the index files. Each index file is
    read once, as a whole.

    Raises
    ------
    DamagedDeletionVectorError : an index file is damaged or missing. Names the file and the offset.
    """
    unknown = [dv for dv in dvs if dv.cardinality is None]
    if not unknown:
        return tuple(dvs)
    counts = read_dvs(layout, unknown, version, lambda positions, _: positions.cardinality)
    return tuple(replace(dv, cardinality=counts.get(dv.id, dv.cardinality)) for dv in dvs)


def read_dvs(
    layout: Layout, dvs: Sequence[DvEntry], version: int, use: Callable[[DeletionVector, DvEntry], T]
) -> dict[str, T]:
    """What ``use`` makes of each of the ``dvs``, by their ids. Each index file is read once, as a whole.

    Raises
    ------
    DamagedDeletionVectorError : as :func:`counted`.
    """

    def used(path: str) -> dict[str, T]:
        own = [dv for dv in dvs if dv.path == path]
        try:
            data = layout.storage.get(path)
        except FileNotFoundError as error:
            raise _damaged(layout, own[0], "the file does not exist", version) from error
        found = {}
        for dv in own:
            try:
                found[dv.id] = use(paimon.decode_at(data, dv.offset, dv.length), dv)
            except DamagedDeletionVectorError as damage:
                raise _damaged(layout, dv, damage.reason, version) from damage.__cause__
        return found

    paths = sorted({dv.path for dv in dvs})
    return dict(pair for each in in_parallel(layout.storage, paths, used) for pair in each.items())


def _damaged(layout: Layout, dv: DvEntry, reason: str, version: int) -> DamagedDeletionVectorError:
    return DamagedDeletionVectorError(reason, file=dv.path, offset=dv.offset, table=layout.uri, version=version)


def files_table(
    layout: Layout, entries: pa.Table, at: pa.Int32Array, dvs: Sequence[DvEntry], partitions: Partitions, data: str
) -> pa.Table:
    """One row per entry, schema ``FILES``, in the order of ``entries``.

    at : see ``Matched``.
    dvs : with cardinalities, see ``counted``.
    data : folder of the data files relative to the table; ``""`` for the table's own folder.

    The column ``path`` is relative to the table, or a URI for an external path.
    """
    none = len(dvs)
    rows = pc.fill_null(at.cast(pa.int64()), integer(none))

    def of_dvs(values: pa.Array) -> pa.Array:
        return values.take(rows)

    codes = entries["partition"].combine_chunks()
    names = strings([each.name for each in partitions.found] or [""])
    source = entries["source"].combine_chunks()
    known = pc.and_kleene(pc.greater_equal(source, integer(0)), pc.less(source, integer(len(_SOURCES))))
    columns = {
        "path": paths(layout, entries, partitions, data),
        "partition": pa.DictionaryArray.from_arrays(codes.cast(pa.int32()), names),
        "size": entries["size"],
        "physical_rows": entries["rows"],
        "deleted_rows": of_dvs(int64s([*[dv.cardinality or 0 for dv in dvs], 0])),
        "dv_id": of_dvs(strings([*[dv.id for dv in dvs], None])),
        "modified": pc.fill_null(entries["created"], integer(0)),
        "source": strings(_SOURCES).take(pc.if_else(known, source, integer(None))),
        "partition_code": codes,
        "dv_file": of_dvs(strings([*[dv.path for dv in dvs], None])),
        "dv_offset": of_dvs(int64s([*[dv.offset for dv in dvs], None])),
        "dv_length": of_dvs(int64s([*[dv.length for dv in dvs], None])),
    }
    arrays = [columns.get(name, entries[name] if name in entries.column_names else None) for name in FILES.names]
    return pa.Table.from_arrays(arrays, schema=FILES)


def paths(layout: Layout, entries: pa.Table, partitions: Partitions, data: str) -> pa.Array:
    """``[data/][partition/]bucket-B/name``, or the external path."""
    folders = strings([folder_of(each, data) for each in partitions.found] or [""])
    buckets = pc.if_else(
        pc.equal(entries["bucket"], integer(POSTPONE_BUCKET)),
        text("bucket-postpone"),
        _joined("bucket-", entries["bucket"]),
    )
    own = pc.binary_join_element_wise(
        folders.take(entries["partition"].combine_chunks()),
        buckets.combine_chunks(),
        _joined("/", entries["file_name"]).combine_chunks(),
        text(""),
    )
    external = entries["external_path"].combine_chunks()
    if external.null_count == len(external):
        return own
    found = [None if each is None else layout.storage.path_of_uri(plain_uri(each)) for each in external.to_pylist()]
    return pc.coalesce(strings(found), own)


def folder_of(partition: Partition, data: str) -> str:
    """The folder of a partition's buckets within the table, with a slash at its end; "" for the table's own folder."""
    return "".join(f"{each}/" for each in (data, partition.folder) if each)


def _joined(front: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(text(front), column.cast(pa.string()), text(""))

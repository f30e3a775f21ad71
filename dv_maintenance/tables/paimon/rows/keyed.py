"""Rewrites of single files of primary-key tables.

Above level 0, a batch reader of a primary-key table with deletion vectors (DVs) reads each file by itself, without the
rows that its DV names. A file without these rows means the same: the live rows keep their order, which is that of their
keys, and their key, sequence number and kind. The file keeps its level, its range of keys and its schema.

Paimon lets only one job at a time compact a bucket, and checks no DVs in primary-key tables. A compaction that planned
with the old file would add its DV for that file, whose rows are then in another one. So a rewrite needs a table whose
writers do not compact (``write-only``), and a bucket in which nothing waits for a compaction: none can be under way
there that adds DVs. Other buckets do not matter: a compaction reads and marks rows of one bucket, and its commit
replaces the DVs of that bucket as a whole. A streaming job that compacts remembers files beyond its commits, so none
may be at work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import RefusedError
from dv_maintenance.files.arrays import combined, flags, integer, text
from dv_maintenance.files.avro.arrow_types import stored_schema as avro_columns
from dv_maintenance.files.avro.container import AvroFile
from dv_maintenance.remedies import Remedy, run
from dv_maintenance.tables.paimon.features import POSTPONE_BUCKET
from dv_maintenance.tables.paimon.log.snapshots import BATCH, COMPACT, USER, read_snapshot_file
from dv_maintenance.tables.paimon.rows.formats import codec_of, identified, why_not_written
from dv_maintenance.tables.paimon.rows.types import DataType, Field
from dv_maintenance.tables.parallel import in_parallel
from dv_maintenance.tables.parquet_schema import stored_schema
from dv_maintenance.tables.work import AVRO_SCHEMA

if TYPE_CHECKING:
    from typing import BinaryIO

    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.paimon.layout import Layout
    from dv_maintenance.tables.paimon.log.schema import Schema
    from dv_maintenance.tables.paimon.log.snapshots import SnapshotFile
    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot
    from dv_maintenance.tables.work import SourceFile

_KEYS: Final = (2**31 - 1) // 2  # ids of key columns begin with this one
_SYSTEM: Final = (
    Field(2**31 - 2, "_SEQUENCE_NUMBER", DataType("BIGINT", False)),
    Field(2**31 - 3, "_VALUE_KIND", DataType("TINYINT", False)),
)
ONE_FILE: Final = 1 << 62
"""Target size of new files. Each of two would need key bounds of its own."""

_NEW: Final = (
    *("_FILE_NAME", "_FILE_SIZE", "_ROW_COUNT", "_CREATION_TIME", "_FILE_SOURCE"),
    # Statistics of all columns of the file's schema. No index, which would name rows by their old positions, and no
    # changelog: that of old releases belongs to the snapshot that added the file.
    *("_VALUE_STATS", "_VALUE_STATS_COLS", "_EMBEDDED_FILE_INDEX", "_EXTRA_FILES"),
    "_EXTERNAL_PATH",  # it is in the table's own folder
)
MERGED: Final = "rows of its bucket only retract others, so its files are merged on read"
WAITS: Final = "rows of its bucket wait for a compaction (level 0), which rewrites others as well"
_STREAMING: Final = (
    "a streaming job compacts it (snapshot {} of {}) and remembers its files: rows that it replaces later could come "
    "back. Stop that job while files are rewritten"
)
_AT_ONCE: Final = 16  # snapshot files
_PRODUCERS: Final = frozenset({"", "none", "input", "lookup"})


def why_not(snapshot: PaimonSnapshot) -> Iterator[str]:
    """Why no file of a primary-key table can be rewritten alone. The commit asks again, of the newest snapshot."""
    options = snapshot.options
    if not options.hides_level_0 or not options.deletion_vectors:
        yield "only Paimon can merge the rows of a primary-key table"
    if not options.flag("write-only"):
        yield (
            "its writers compact it (write-only is not true): rows that one of them replaces meanwhile could come back"
        )
    producer = snapshot.properties.get("changelog-producer", "").strip().lower()
    if producer not in _PRODUCERS:
        yield f"compactions make its changelog (changelog-producer={producer})"


def streaming_compaction(layout: Layout, newest: SnapshotFile) -> str | None:
    """Why no file can be rewritten now: the newest compaction by others, of the snapshots that still exist, is that of
    a streaming job. Such a job knows the files of a bucket until two of its later checkpoints have changed other
    buckets, however long that takes. If none is found, no such job is at work: it compacts what is written.
    """
    for last in range(newest.id, 0, -_AT_ONCE):
        versions = list(range(last, max(last - _AT_ONCE, 0), -1))
        for file in in_parallel(layout.storage, versions, partial(_existing, layout)):
            if file is None:
                return None
            if file.kind == COMPACT and not file.commit_user.startswith(USER):
                return None if file.commit_identifier == BATCH else _STREAMING.format(file.id, file.commit_user)
    return None


def _existing(layout: Layout, version: int) -> SnapshotFile | None:
    try:
        return read_snapshot_file(layout, version)
    except FileNotFoundError:
        return None


def barred(snapshot: PaimonSnapshot) -> dict[str, Any]:
    """See ``Snapshot.barred``: of the files with a DV."""
    files = snapshot.files
    both = run("engine-sql", f"{snapshot.table} purge")
    reasons = {
        f"{WAITS}: purge after it, or let {both} do both": _waiting(snapshot),
        f"{MERGED}: only Paimon rewrites it": merged(files),
        **_unwritten(snapshot),
    }
    left = flags(pc.is_valid(files["dv_id"]))
    found = {}
    for reason, each in reasons.items():
        mask = left & flags(each)
        left = left & ~mask
        if mask.any():
            found[reason] = mask
    return found


def merged(files: pa.Table) -> pa.ChunkedArray:
    """Whether each file is in a bucket that readers merge: rows in it only retract others, which may be on other levels
    without a DV that names them. So it is if DVs were turned on without a full compaction.
    """
    found = files.group_by(["partition_code", "bucket"]).aggregate(
        [("retractions", "max"), ("level", "min"), ("level", "max")]
    )
    several = pc.not_equal(found["level_min"], found["level_max"])
    found = found.filter(pc.and_(pc.greater(pc.fill_null(found["retractions_max"], integer(0)), integer(0)), several))
    return pc.is_in(_places(files), value_set=combined(_places(found)))


def check_read_one_by_one(snapshot: PaimonSnapshot) -> None:
    """Refuse a table some of whose files readers merge, though not all of them.

    Raises
    ------
    RefusedError : the message has the reason.
    """
    if not snapshot.options.hides_level_0:
        return
    reason = ""
    if pc.any(merged(snapshot.files)).as_py():
        reason = f"{MERGED}, which this release does not support"
    elif snapshot.options.merges_postponed and len(_postponed(snapshot)):
        reason = "rows that have no bucket yet are merged on read (postpone.merge-on-read)"
    if reason:
        step = "let Paimon compact the table, or read it with Paimon"
        raise RefusedError(reason, at=snapshot, next_step=step)


def _unwritten(snapshot: PaimonSnapshot) -> dict[str, Any]:
    """Files of formats, or with columns or a compression, that are not written here. A new file has the old one's
    format.
    """
    found = {}
    kinds = pc.utf8_lower(pc.replace_substring_regex(snapshot.files["path"], r".*\.", ""))
    for kind in pc.unique(kinds).to_pylist():
        try:
            reason = next(why_not_written(snapshot, kind), None) or (codec_of(snapshot, kind=kind) and None)
        except RefusedError as error:
            reason = error.message
        if reason is not None:
            found[f"{reason}: only Paimon rewrites it"] = pc.equal(kinds, text(kind))
    return found


def _postponed(snapshot: PaimonSnapshot) -> pa.Table:
    """Files of rows that have no bucket yet."""
    return snapshot.hidden.filter(pc.equal(snapshot.hidden["bucket"], integer(POSTPONE_BUCKET)))


def _waiting(snapshot: PaimonSnapshot) -> pa.ChunkedArray:
    """Whether rows wait for a compaction in the bucket of each file, or in no bucket yet of its partition."""
    hidden, anywhere = snapshot.hidden, _postponed(snapshot)
    return pc.or_(
        pc.is_in(_places(snapshot.files), value_set=combined(_places(hidden))),
        pc.is_in(snapshot.files["partition_code"], value_set=combined(anywhere["partition_code"])),
    )


def _places(files: pa.Table) -> pa.ChunkedArray:
    names = (files[name].cast(pa.string()) for name in ("partition_code", "bucket"))
    return pc.binary_join_element_wise(*names, text("/"))


def as_stored(
    snapshot: PaimonSnapshot, storage: Storage, source: SourceFile, schema: Schema
) -> tuple[SourceFile, pa.Schema]:
    """A file to copy with all its columns, keys, sequence numbers and kinds too, and what these are. Reads its footer.

    schema : with which the file was written.

    Raises
    ------
    DamagedTableError, StorageError : the file can't be read.
    RefusedError : an ORC file has other columns than Paimon's.
    """
    plain = replace(source, constants={}, details={}, schema=None)
    if source.format == "parquet":
        return plain, stored_schema(storage, source.key.path).remove_metadata()
    if source.format == "avro":
        return plain, stored_schema(storage, source.key.path, _of_avro)
    from pyarrow.orc import ORCFile

    known = {each.name: each for each in _columns(schema)}
    names = stored_schema(storage, source.key.path, lambda file: ORCFile(file).schema).names
    if strange := [name for name in names if name not in known]:
        raise RefusedError(
            f"{source.key.path} has the column {strange[0]}, and can't be copied as it is",
            at=snapshot,
            next_step=Remedy("let Paimon do it: {}", (run("engine-sql", f"{snapshot.table} purge"),)),
        )
    return plain, pa.schema([identified(known[name]) for name in names])


def _of_avro(file: pa.NativeFile) -> pa.Schema:
    """With the schema of the file's records, which are copied as they are."""
    avro = AvroFile(cast("BinaryIO", file), file.size())
    return avro_columns(avro.schema).with_metadata({AVRO_SCHEMA: avro.text})


def _columns(schema: Schema) -> list[Field]:
    """The columns that a file may have: keys, sequence numbers, kinds of rows, and the table's.

    Source: SpecialFields and KeyValue of Paimon.
    """
    keys = [each for each in schema.fields if each.name in schema.primary_keys]
    stored = [replace(each, id=_KEYS + each.id, name=f"_KEY_{each.name}") for each in keys]
    return [*stored, *_SYSTEM, *schema.fields]


def rewritten(old: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest says of the new file: what it said of the old one, but for name, size, rows and statistics. The
    bounds of keys and of sequence numbers may be wider than necessary.
    """
    return {**old, **{name: values.get(name) for name in _NEW}}

"""New deletion vectors (DVs) for a table: index files, and the index manifest that names them.

Index files are immutable. To drop a DV, all other DVs of its index file are written to new files. DVs of a partition
and bucket are packed into files of the target size, as in PIP-16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow.compute as pc

from dv_maintenance.dv import DeletionVector, paimon
from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.files.arrays import strings
from dv_maintenance.files.avro.writer import Template, write_records
from dv_maintenance.tables import dv_codecs
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.paimon.layout import INDEX
from dv_maintenance.tables.paimon.log.entries import FileId, filled, read_whole
from dv_maintenance.tables.paimon.log.index_manifest import DELETION_VECTORS, DvEntry
from dv_maintenance.tables.parallel import in_parallel
from dv_maintenance.tables.work import DvRef
from dv_maintenance.units import parse_size

if TYPE_CHECKING:
    from dv_maintenance.tables.paimon.layout import Layout
    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot

_TARGET: Final = "deletion-vector.index-file.target-size"
_BITMAP64: Final = "deletion-vectors.bitmap64"
_IN_BUCKETS: Final = "index-file-in-data-file-dir"

_ONE: Final = (1 << 31) - 1
# A concurrent writer must retry if a DV of its files was moved. So small index files are merged only if there are many.
_MANY: Final = 5

# For a table's first deletion vector: all fields that the newest releases write. Older releases ignore unknown fields.
FIRST: Final = Template(
    '{"type":"record","name":"record","namespace":"org.apache.paimon.avro.generated","fields":['
    '{"name":"_VERSION","type":"int"},{"name":"_KIND","type":"int"},{"name":"_PARTITION","type":"bytes"},'
    '{"name":"_BUCKET","type":"int"},{"name":"_INDEX_TYPE","type":"string"},{"name":"_FILE_NAME","type":"string"},'
    '{"name":"_FILE_SIZE","type":"long"},{"name":"_ROW_COUNT","type":"long"},'
    '{"name":"_DELETIONS_VECTORS_RANGES","type":["null",{"type":"array","items":["null",{"type":"record",'
    '"name":"record__DELETIONS_VECTORS_RANGES","fields":[{"name":"f0","type":"string"},{"name":"f1","type":"int"},'
    '{"name":"f2","type":"int"},{"name":"_CARDINALITY","type":["null","long"],"default":null}]}]}],"default":null},'
    '{"name":"_EXTERNAL_PATH","type":["null","string"],"default":null}]}'
)


@dataclass(frozen=True, slots=True)
class NewIndex:
    """The new index of a commit.

    files : path -> bytes, of each new index file.
    manifest : bytes of the index manifest; ``None`` if no entry is left.
    moved : previous key -> new key of each logical file whose DV moved to a new index file, but did not change.
    """

    files: Mapping[str, bytes]
    manifest: bytes | None
    moved: Mapping[FileKey, FileKey]


def load_dv(layout: Layout, entry: DvEntry) -> DeletionVector:
    """Load a deletion vector. Raises DamagedDeletionVectorError, StorageError."""
    uri = layout.storage.uri_of(entry.path)
    ref = DvRef(paimon.CODEC, entry.cardinality or 0, entry.length, uri, entry.offset)
    return dv_codecs.load(ref, layout.storage.get_range)


def index_change(
    layout: Layout,
    now: PaimonSnapshot,
    gone: set[FileId],
    fresh: Mapping[FileId, DeletionVector],
    known: Mapping[str, DeletionVector],
) -> NewIndex | None:
    """The index that replaces the one of ``now``; ``None`` if it does not change.

    gone : files whose DVs are dropped.
    fresh : new DVs by file.
    known : DVs already loaded, by the entry's id.

    Entries of other kinds, and entries of unchanged index files, are kept with all their fields.

    Raises
    ------
    DamagedTableError, StorageError : the index manifest, or a DV that must be moved, cannot be read.
    RefusedError : an option is invalid.
    UnsupportedFeatureError : the index manifest has an unknown field that may not be null.
    """
    touched = {dv.path for dv in now.index.dvs if _id(now, dv) in gone or _id(now, dv) in fresh}
    if not touched and not fresh:
        return None
    touched |= _small(now, {(row, bucket) for row, bucket, _ in fresh})
    dangling = {dv.id for dv in now.dangling}
    staying = [
        dv
        for dv in now.index.dvs
        if dv.path in touched and dv.id not in dangling and _id(now, dv) not in gone and _id(now, dv) not in fresh
    ]

    def loaded(dv: DvEntry) -> DeletionVector:
        return known[dv.id] if dv.id in known else load_dv(layout, dv)

    wanted: dict[tuple[bytes, int], list[tuple[str, DeletionVector, DvEntry | None]]] = {}
    for dv, positions in zip(staying, in_parallel(layout.storage, staying, loaded), strict=True):
        row, bucket, name = _id(now, dv)
        wanted.setdefault((row, bucket), []).append((name, positions, dv))
    for (row, bucket, name), positions in fresh.items():
        wanted.setdefault((row, bucket), []).append((name, positions, None))
    template, records = _kept(layout, now, touched)
    files, moved = dict[str, bytes](), dict[FileKey, FileKey]()
    paths = _data_paths(now, {dv.id for dv in staying})
    for (row, bucket), dvs in wanted.items():
        at = 0
        # Paimon looks up the one index file of a bucket in primary-key tables.
        size = _ONE if now.options.primary_key else _target_size(now)
        for packed in paimon.pack([each for _, each, _ in dvs], _bits(now), target_size=size):
            own = dvs[at : at + len(packed.ranges)]
            at += len(packed.ranges)
            name = f"index-{uuid4()}-0"
            path = _path(now, row, bucket, name)
            files[path] = packed.data
            ranges = [
                {"f0": data, "f1": each.offset, "f2": each.length, "_CARDINALITY": each.cardinality}
                for (data, _, _), each in zip(own, packed.ranges, strict=True)
            ]
            records.append(_record(template, row, bucket, name, packed, ranges))
            for (_, _, old), each in zip(own, packed.ranges, strict=True):
                if old is not None:
                    key = paths[old.id]
                    moved[FileKey(key, old.id)] = FileKey(key, f"{path}:{each.offset}")
    return NewIndex(files, write_records(template, records) if records else None, moved)


def _id(now: PaimonSnapshot, dv: DvEntry) -> FileId:
    return now.partitions[dv.partition].row, dv.bucket, dv.data_file


def _small(now: PaimonSnapshot, buckets: set[tuple[bytes, int]]) -> set[str]:
    """Paths of the small index files in ``buckets``, but only for buckets that have many of them."""
    found: dict[tuple[bytes, int], list[str]] = {}
    for file in now.index.files:
        bucket = (now.partitions[file.partition].row, file.bucket)
        if file.kind == DELETION_VECTORS and bucket in buckets and file.size < _target_size(now) // 2:
            found.setdefault(bucket, []).append(file.path)
    return {path for paths in found.values() if len(paths) >= _MANY for path in paths}


def _kept(layout: Layout, now: PaimonSnapshot, touched: set[str]) -> tuple[Template, list[dict[str, Any]]]:
    """The Avro schema of the index manifest, and its records without those of the index files in ``touched``."""
    name = None if now.file is None else now.file.index_manifest
    if name is None:
        return FIRST, []
    template, records = read_whole(layout, name, now.version)
    if len(records) != len(now.index.files):
        raise DamagedTableError(
            f"{layout.manifest(name)} changed while it was read", table=layout.uri, version=now.version
        )
    pairs = zip(records, now.index.files, strict=True)
    return template, [record for record, file in pairs if file.kind != DELETION_VECTORS or file.path not in touched]


def _record(
    template: Template,
    row: bytes,
    bucket: int,
    name: str,
    packed: paimon.IndexFile,
    ranges: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    of_ranges = template.fields("_DELETIONS_VECTORS_RANGES")
    values = {
        "_VERSION": 1,
        "_KIND": 0,
        "_PARTITION": row,
        "_BUCKET": bucket,
        "_INDEX_TYPE": DELETION_VECTORS,
        "_FILE_NAME": name,
        "_FILE_SIZE": len(packed.data),
        "_ROW_COUNT": len(ranges),
        "_DELETIONS_VECTORS_RANGES": [filled(each, of_ranges, "deletion vectors") for each in ranges],
    }
    return filled(values, template.fields(), "index manifests")


def _bits(now: PaimonSnapshot) -> int:
    return 64 if now.options.flag(_BITMAP64) else 32


def _target_size(now: PaimonSnapshot) -> int:
    text = now.properties.get(_TARGET, "2 mb")
    try:
        size = parse_size(text)
    except ValueError as error:
        size, problem = 0, str(error)
    else:
        problem = "it must be from 1 byte to 2 GiB"
    if not 0 < size < 1 << 31:
        raise RefusedError(f"table option {_TARGET}: {problem}", at=now, next_step="correct the option")
    return size


def _path(now: PaimonSnapshot, row: bytes, bucket: int, name: str) -> str:
    """Path of a new index file, relative to the table."""
    if not now.options.flag(_IN_BUCKETS):
        return f"{INDEX}/{name}"
    partition = next(each for each in now.partitions if each.row == row)
    parts = [now.options.data_folder, partition.folder, f"bucket-{bucket}", name]
    return "/".join(part for part in parts if part)


def _data_paths(now: PaimonSnapshot, dvs: set[str]) -> dict[str, str]:
    """The path of each DV's data file, by the DV's id."""
    files = now.files.filter(pc.is_in(now.files["dv_id"], value_set=strings(sorted(dvs))))
    return dict(zip(files["dv_id"].to_pylist(), files["path"].to_pylist(), strict=True))

"""The live files of a snapshot as the ``files`` table, each with the deletes that apply to it.

Format: Iceberg specification, Scan Planning. A deletion vector applies to the file that it names; old position deletes
apply to files without one, equality deletes to older files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.dv import DeletionVector
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.arrays import bools, combined, flags, int64s, integer, numbers, strings
from dv_maintenance.tables.iceberg.log.manifests import DATA, DELETES, EQUALITY, POSITIONS, ManifestEntries
from dv_maintenance.tables.iceberg.log.metadata import Metadata
from dv_maintenance.tables.iceberg.rows.partitions import Partition
from dv_maintenance.tables.iceberg.rows.position_deletes import PositionDeletes
from dv_maintenance.tables.model import FILES_SCHEMA

FILES: Final = pa.schema(
    [
        *FILES_SCHEMA,
        # Rows as the manifest has them. `physical_rows` is null where equality deletes apply, as the number of live
        # rows is then unknown.
        pa.field("record_count", pa.int64(), nullable=False),
        pa.field("format", pa.string(), nullable=False),
        pa.field("spec_id", pa.int64(), nullable=False),
        pa.field("partition_code", pa.int64(), nullable=False),
        pa.field("data_sequence", pa.int64(), nullable=False),
        pa.field("file_sequence", pa.int64(), nullable=False),
        pa.field("sort_order_id", pa.int64()),
        pa.field("first_row_id", pa.int64()),
        # Where the deletion vector is, as in the manifest; null without one.
        pa.field("dv_file", pa.string()),
        pa.field("dv_offset", pa.int64()),
        pa.field("dv_length", pa.int64()),
        pa.field("dv_sequence", pa.int64()),
        # How many delete files of these kinds apply.
        pa.field("position_deletes", pa.int64(), nullable=False),
        pa.field("equality_deletes", pa.int64(), nullable=False),
        # The manifest that has the file's entry: its position in the snapshot's list.
        pa.field("manifest", pa.int64(), nullable=False),
    ]
)

_PUFFIN: Final = "puffin"


@dataclass(frozen=True, slots=True)
class EqualityDelete:
    """A file of values: rows with equal values are deleted, in older files of its partition, or of all if its
    specification has no fields.

    fields : ids of the columns that are compared.
    partition_code : ``None``: all partitions.
    """

    path: str
    format: str
    size: int
    rows: int
    sequence: int
    fields: tuple[int, ...]
    partition_code: int | None


@dataclass(frozen=True, slots=True)
class Deletes:
    """The live delete files of a snapshot, schema ``manifests.ENTRIES`` and ``manifest``.

    dvs : deletion vectors.
    positions : files with old position deletes.
    """

    dvs: pa.Table
    positions: pa.Table
    equality: tuple[EqualityDelete, ...]


@dataclass(frozen=True, slots=True)
class Matched:
    """Live files, schema FILES, and the deletes that no live file needs.

    positions : rows that old position deletes delete, by data file; only of files without a deletion vector.
    position_files : delete files that ``positions`` come from, by data file.
    dangling_dvs : rows of ``Deletes.dvs`` whose data file is not live.
    dangling_files : position and equality delete files that apply to no live file.
    """

    files: pa.Table
    positions: Mapping[str, DeletionVector]
    position_files: Mapping[str, tuple[str, ...]]
    dangling_dvs: pa.Table
    dangling_files: tuple[str, ...]


def deletes_of(entries: ManifestEntries, metadata: Metadata) -> Deletes:
    """The live delete files. Raises DamagedTableError."""
    live = entries.live(DELETES)
    dv = pc.equal(live["format"], strings([_PUFFIN])[0])
    positions = pc.equal(live["content"], integer(POSITIONS))
    others = live.filter(pc.equal(live["content"], integer(EQUALITY)))
    return Deletes(
        live.filter(pc.and_(dv, positions)),
        live.filter(pc.and_(pc.invert(dv), positions)),
        tuple(_equality(row, metadata) for row in others.to_pylist()),
    )


def _equality(row: Mapping[str, object], metadata: Metadata) -> EqualityDelete:
    ids = str(row["equality_ids"] or "")
    if not ids:
        raise DamagedTableError(f"the equality delete file {row['path']} names no columns")
    partitioned = any(each.transform != "void" for each in metadata.specs[int(str(row["spec_id"]))])
    return EqualityDelete(
        path=str(row["path"]),
        format=str(row["format"]),
        size=int(str(row["size"])),
        rows=int(str(row["record_count"])),
        sequence=int(str(row["data_sequence"])),
        fields=tuple(map(int, ids.split(","))),
        partition_code=int(str(row["partition_code"])) if partitioned else None,
    )


def dv_id(file: str, offset: int) -> str:
    """The identity of a deletion vector. A Puffin file has many, and a path alone is none."""
    return f"{file}@{offset}"


def matched(
    entries: ManifestEntries,
    deletes: Deletes,
    read: Mapping[str, PositionDeletes],
    partitions: Sequence[Partition],
    modified: Mapping[int, int],
    known: ManifestEntries | None = None,
) -> Matched:
    """Match live data files to the deletes that apply to them.

    read : the rows of ``deletes.positions``.
    modified : epoch milliseconds of commits by their sequence number, ascending.
    known : entries that were matched before. No data file of theirs is live twice.

    Raises
    ------
    DamagedTableError : a file is live twice, or has two deletion vectors, or one that can't be its own.
    """
    data = entries.live(DATA)
    paths = combined(data["path"])
    twice = _live_twice(entries, data, paths, known)
    if twice is not None:
        raise DamagedTableError(f"the data file {twice} is live twice")
    at, dangling = _dvs_at(data, paths, deletes.dvs)
    positions, position_files, used = _positions(data, at, deletes, read)
    equality, newest, applied = _equality_counts(data, deletes.equality)
    names = strings([each.name for each in partitions] or [""])
    codes = combined(data["partition_code"])

    def of_dvs(name: str) -> pa.Array:
        return combined(deletes.dvs[name]).take(at)

    ids = pc.binary_join_element_wise(of_dvs("path"), of_dvs("content_offset").cast(pa.string()), strings(["@"])[0])
    deleted = pc.fill_null(of_dvs("record_count"), integer(0))
    if positions:
        listed = paths.to_pylist()
        own = strings([_positions_id(position_files[each]) if each in positions else None for each in listed])
        ids = pc.coalesce(ids, own)
        counts = int64s([positions[each].cardinality if each in positions else 0 for each in listed])
        deleted = pc.add(deleted, counts)
    rows = combined(data["record_count"])
    unknown = pc.greater(equality, integer(0))
    if applied:
        ids = _with_equality(ids, unknown, equality, newest)
    columns = {
        "path": paths,
        "partition": pa.DictionaryArray.from_arrays(codes.cast(pa.int32()), names),
        "size": data["size"],
        "physical_rows": pc.if_else(unknown, pa.nulls(1, pa.int64())[0], rows),
        "deleted_rows": deleted,
        "dv_id": ids,
        "modified": _modified(data, modified),
        "record_count": rows,
        "dv_file": of_dvs("path"),
        "dv_offset": of_dvs("content_offset"),
        "dv_length": of_dvs("content_size"),
        "dv_sequence": of_dvs("data_sequence"),
        "position_deletes": int64s([len(position_files.get(each, ())) for each in paths.to_pylist()])
        if position_files
        else int64s(np.zeros(len(paths))),
        "equality_deletes": equality,
    }
    files = pa.Table.from_arrays(
        [columns.get(name, data[name] if name in data.column_names else None) for name in FILES.names], schema=FILES
    )
    _check_counts(files)
    unused = [
        *(path for path in read if path not in used),
        *(each.path for each in deletes.equality if each.path not in applied),
    ]
    return Matched(files, positions, position_files, dangling, tuple(unused))


def _live_twice(entries: ManifestEntries, data: pa.Table, paths: pa.Array, known: ManifestEntries | None) -> str | None:
    """A data file that is live twice. Files of known manifests are only compared to those of the others."""
    if known is None:
        return _twice(paths)
    fresh = np.array([each not in known.by_manifest for each in entries.by_manifest], bool)
    of_fresh = bools(fresh[numbers(combined(data["manifest"]))])
    new = paths.filter(of_fresh)
    again = paths.filter(pc.and_(pc.is_in(paths, value_set=new), pc.invert(of_fresh)))
    return str(again[0].as_py()) if len(again) else _twice(new)


def _twice(values: pa.Array) -> str | None:
    """A value that occurs twice."""
    if pc.count_distinct(values).as_py() == len(values):
        return None
    counts = pc.value_counts(values)
    return str(counts.filter(pc.greater(counts.field("counts"), integer(1)))[0]["values"].as_py())


def _dvs_at(data: pa.Table, paths: pa.Array, dvs: pa.Table) -> tuple[pa.Int32Array, pa.Table]:
    """For each data file the position of its DV, null without one; and the DVs of files that are not live."""
    if not dvs.num_rows:
        return pa.nulls(len(paths), pa.int32()), dvs
    incomplete = [name for name in ("referenced", "content_offset", "content_size") if dvs[name].null_count]
    if incomplete:
        raise DamagedTableError(f"a deletion vector has no {incomplete[0].replace('_', ' ')}")
    named = combined(dvs["referenced"])
    live = pc.is_in(named, value_set=paths)
    twice = _twice(named.filter(live))
    if twice is not None:
        raise DamagedTableError(f"the data file {twice} has two deletion vectors")
    at = pc.index_in(paths, value_set=named)
    own = dvs.take(pc.drop_null(at))
    of = data.filter(pc.is_valid(at))
    for name, wrong in (
        ("partition", pc.not_equal(own["partition_code"], of["partition_code"])),
        ("sequence number", pc.less(own["data_sequence"], of["data_sequence"])),
    ):
        if pc.any(wrong).as_py():
            path = of["path"].filter(wrong)[0].as_py()
            raise DamagedTableError(f"the {name} of the deletion vector of {path} is not that of the file")
    return at, dvs.filter(pc.invert(live))


def _positions(
    data: pa.Table, at: pa.Int32Array, deletes: Deletes, read: Mapping[str, PositionDeletes]
) -> tuple[dict[str, DeletionVector], dict[str, tuple[str, ...]], set[str]]:
    """Rows of each data file without a DV that old position deletes delete, and the delete files; and those that apply
    to any file. Raises DamagedTableError.
    """
    if not read:
        return {}, {}, set()
    without = data.filter(pc.is_null(at)) if len(at) else data
    columns = (without[name].to_pylist() for name in ("path", "data_sequence", "partition_code"))
    live = {path: (sequence, code) for path, sequence, code in zip(*columns, strict=True)}
    found: dict[str, DeletionVector] = {}
    files: dict[str, list[str]] = defaultdict(list)
    columns = (deletes.positions[name].to_pylist() for name in ("path", "data_sequence", "partition_code"))
    for file, sequence, code in zip(*columns, strict=True):
        named = read[file].positions
        for path, dv in named.items():
            if path not in live or live[path][0] > sequence:
                continue
            if live[path][1] == code:
                found[path] = found[path].union(dv) if path in found else dv
                files[path].append(file)
            elif len(named) == 1:
                # Iceberg's readers go by the path, and refuse it or apply it. One that names several files goes by
                # its partition: they ignore it.
                raise DamagedTableError(f"the partition of the delete file {file} is not that of the data file {path}")
    return (
        found,
        {path: tuple(each) for path, each in files.items()},
        {each for some in files.values() for each in some},
    )


def _positions_id(files: Sequence[str]) -> str:
    return f"positions@{sha256('|'.join(sorted(files)).encode()).hexdigest()[:16]}"


def _with_equality(ids: pa.Array, applies: pa.Array, count: pa.Array, newest: pa.Array) -> pa.Array:
    """The identity of what is deleted in each file, where equality deletes apply: their number and the newest one."""
    parts = (pc.fill_null(ids, ""), strings(["equality"])[0], count.cast(pa.string()), newest.cast(pa.string()))
    return pc.if_else(applies, pc.binary_join_element_wise(*parts, strings(["@"])[0]), ids)


def _equality_counts(data: pa.Table, deletes: Sequence[EqualityDelete]) -> tuple[pa.Array, pa.Array, set[str]]:
    """How many equality deletes apply to each file, the sequence number of the newest one, and which apply to any."""
    count, newest = np.zeros(data.num_rows, np.int64), np.zeros(data.num_rows, np.int64)
    if not deletes or not data.num_rows:
        return int64s(count), int64s(newest), set()
    sequences, codes = numbers(combined(data["data_sequence"])), numbers(combined(data["partition_code"]))
    applied = set()
    for code in {each.partition_code for each in deletes}:
        own = sorted((each for each in deletes if each.partition_code == code), key=lambda each: each.sequence)
        chosen = np.ones(len(codes), bool) if code is None else codes == code
        if chosen.any():
            limits = np.array([each.sequence for each in own])
            newest[chosen] = np.maximum(newest[chosen], limits[-1])
            count[chosen] += len(own) - np.searchsorted(limits, sequences[chosen], side="right")
            oldest = int(sequences[chosen].min())
            applied |= {each.path for each in own if each.sequence > oldest}
    return int64s(count), int64s(newest), applied


def _modified(data: pa.Table, times: Mapping[int, int]) -> pa.Array:
    """When each file was committed. If that snapshot has expired: when the first one after it was, or the last."""
    if not times:
        return int64s(np.zeros(data.num_rows))
    known, moments = np.array(list(times)), np.array(list(times.values()))
    at = np.searchsorted(known, numbers(combined(data["file_sequence"])))
    return int64s(moments[np.minimum(at, len(known) - 1)])


def _check_counts(files: pa.Table) -> None:
    wrong = flags(pc.greater(files["deleted_rows"], files["record_count"]))
    if wrong.any():
        row = files.slice(int(np.flatnonzero(wrong)[0]), 1).to_pylist()[0]
        raise DamagedTableError(
            f"{row['path']} has {row['record_count']} rows, but {row['deleted_rows']} of them are deleted",
            next_step="restore an earlier snapshot",
        )

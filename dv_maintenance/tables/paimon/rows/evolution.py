"""Data-evolution tables: files that hold different columns of the same rows.

Format: data evolution of Paimon's documentation. Each file has a range of row ids. Files with the same range together
hold the same rows. A column is read from the newest of these files that has it. The deletion vector of the oldest file,
the anchor, applies to all of them. Blobs and vectors may be in separate files, for any part of the range.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError, UnsupportedFeatureError
from dv_maintenance.files.arrays import bools, combined, int64s, strings
from dv_maintenance.files.lines import CODECS
from dv_maintenance.tables.paimon.features import DESCRIPTIONS, VIEWS, columns_named
from dv_maintenance.tables.paimon.log.schema import Schema
from dv_maintenance.tables.paimon.rows.lineage import LINEAGE
from dv_maintenance.tables.paimon.rows.types import Field, holds

PARTS_OF: Final = "part_of"
"""Column in the table of files that together hold the same rows: the path of their anchor."""

# Columns that a file may have besides the table's columns.
_SYSTEM: Final = frozenset(each.name for each in LINEAGE)
_VIDEO: Final = ".video"
_BLOBS: Final = (".blob", _VIDEO)
_VECTORS: Final = ".vector."
# Types whose values may be in files of their own.
_APART: Final = ("BLOB", "VECTOR")
_CUT: Final = (".vector.parquet", ".vector.avro", ".vector.lance", ".vector.vortex")
_JSON: Final = ".vector.json"
_NEXT: Final = "read the table with Paimon itself, for example through its Spark connector"


# -- which files belong together ----------------------------------------------------------------------------------


def anchors(entries: pa.Table) -> pa.Int64Array:
    """For each of the live ``entries``, the position of its anchor. A file is its own anchor if no other file has its
    rows, or if it has no row ids (files of older writers).

    Raises
    ------
    DamagedTableError : the row ids of two files overlap only partly, or a file of blobs or vectors belongs to no data
        file. The message names the file.
    """
    names = ["partition", "bucket", "first_row_id", "rows", "max_sequence", "file_name"]
    columns = [entries[name].to_pylist() for name in names]
    found = np.arange(entries.num_rows, dtype=np.int64)
    normal: dict[tuple[int, int], list[tuple[int, int, str, int, int]]] = defaultdict(list)
    dedicated: list[tuple[int, tuple[int, int], int]] = []
    for at, (partition, bucket, first, rows, sequence, name) in enumerate(zip(*columns, strict=True)):
        if first is None:
            continue
        if _is_dedicated(name):
            dedicated.append((at, (partition, bucket), first))
        else:
            normal[partition, bucket].append((first, -1 if sequence is None else sequence, name, rows, at))
    starts: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for place, files in normal.items():
        files.sort()
        groups: list[tuple[int, int]] = []  # first row id, anchor
        stop = -1
        for first, _, name, rows, at in files:
            if groups and first == groups[-1][0]:
                if first + rows != stop:
                    raise _overlapping(name, first, rows)
            elif first < stop:
                raise _overlapping(name, first, rows)
            else:
                groups.append((first, at))
                stop = first + rows
            found[at] = groups[-1][1]
        starts[place] = groups
    for at, place, first in dedicated:
        groups = starts.get(place, [])
        before = bisect_right(groups, first, key=lambda group: group[0])
        if not before:
            raise DamagedTableError(
                f"{columns[-1][at]} belongs to rows from id {first} on, but no data file has these rows",
                next_step="restore an earlier snapshot",
            )
        found[at] = groups[before - 1][1]
    return int64s(found)


def grouped(files: pa.Table, anchor: pa.Int64Array) -> tuple[pa.Table, pa.Table]:
    """Group the files that hold the same rows.

    Returns the anchors, each with the total size of its group, and all files of the groups with several files. The
    latter include the anchors and have the column PARTS_OF.

    anchor : the result of :func:`anchors`.
    """
    places = anchor.to_numpy()
    counts = np.bincount(places, minlength=files.num_rows)
    sizes = np.zeros(files.num_rows, np.int64)
    np.add.at(sizes, places, files["size"].to_numpy())
    kept = int64s(np.flatnonzero(counts))
    at = files.schema.get_field_index("size")
    logical = files.set_column(at, files.schema.field(at), int64s(sizes)).take(kept)
    several = int64s(np.flatnonzero(counts[places] > 1))
    parts = files.take(several).append_column(PARTS_OF, files["path"].take(anchor.take(several)))
    return logical, parts


def _is_dedicated(name: str) -> bool:
    """Whether a file holds only blobs or vectors."""
    return name.endswith(_BLOBS) or _VECTORS in name


def suffix_of(name: str) -> str:
    """The end of a file's name that says what it holds: ``.parquet``, ``.blob``, ``.vector.parquet``.

    >>> [suffix_of(each) for each in ("data-1-0.orc", "data-1-0.vector.avro", "data-1-0.zstd.parquet")]
    ['.orc', '.vector.avro', '.parquet']
    >>> suffix_of("data-1-0.vector.json.gz")
    '.vector.json.gz'
    """
    stem, _, last = name.rpartition(".")
    kind = f".{last.lower()}"
    if _VECTORS not in name:
        return kind
    return f"{_JSON}{kind}" if kind in CODECS and stem.endswith(".json") else f"{_VECTORS[:-1]}{kind}"


def with_uncut(parts: pa.Table, *, lines: bool) -> pa.StringArray:
    """Anchors whose rows have vectors in other files of a format that is not cut here.

    parts : see :func:`grouped`.
    lines : whether those of JSON files are rows.
    """
    if not parts.num_rows:
        return strings([])
    ends = [suffix_of(name) for name in parts["file_name"].to_pylist()]
    known = {*_CUT, *(f"{_JSON}{packed}" for packed in CODECS if lines)}
    apart = bools(np.array([end.startswith(_VECTORS) and end not in known for end in ends]))
    return combined(parts[PARTS_OF].filter(apart))


def written_fields(
    parts: Sequence[Mapping[str, Any]], schema_of: Callable[[int], Schema], fields: Sequence[Field]
) -> tuple[Field, ...]:
    """The columns of a new file with the rows of a group: not those that are in files of their own, which are cut, nor
    blobs and vectors that no file has. In Java, Paimon reads no vectors from Parquet and ORC files.

    Raises
    ------
    UnsupportedFeatureError : a column is in both kinds of files, or a file as :func:`_written`.
    """
    apart: set[int] = set()
    beside: set[int] = set()
    unsaid: set[int] = set()
    for part in parts:
        schema = schema_of(part["schema_id"])
        held = {each.id for each in _written(part, schema).fields}
        if _is_dedicated(part["file_name"]):
            apart |= held
        elif part["write_cols"] is None:
            inline = columns_named(schema.options, (*DESCRIPTIONS, VIEWS))
            unsaid |= {each.id for each in schema.fields if not holds(each.type, "BLOB") or each.name in inline}
        else:
            beside |= held
    if both := [each.name for each in fields if each.id in apart & beside]:
        raise UnsupportedFeatureError(
            f"the column {both[0]} is in files of its own, and in others of the same rows",
            features=("columns in two kinds of files",),
            next_step=_NEXT,
        )
    beside |= unsaid
    absent = {each.id for each in fields if each.id not in beside and any(holds(each.type, root) for root in _APART)}
    return tuple(each for each in fields if each.id not in apart | absent)


def _overlapping(name: str, first: int, rows: int) -> DamagedTableError:
    return DamagedTableError(
        f"{name} has the row ids {first} to {first + rows - 1}, and another file has only some of them",
        next_step="restore an earlier snapshot",
    )


def others_of(parts: pa.Table, anchor_paths: Sequence[str]) -> pa.Table:
    """The other files that have the rows of the anchors with these paths. ``parts``: see :func:`grouped`."""
    found = parts_with(parts, anchor_paths)
    return found.filter(pc.not_equal(found["path"], found[PARTS_OF])) if found.num_rows else found


def parts_with(parts: pa.Table, anchor_paths: Sequence[str]) -> pa.Table:
    """All files that have the rows of the anchors with these paths, see :func:`grouped`."""
    return parts.filter(pc.is_in(parts[PARTS_OF], value_set=strings(anchor_paths))) if parts.num_rows else parts


def sharing(parts: pa.Table) -> pa.StringArray:
    """Anchors whose rows share a file with rows of other anchors."""
    if not parts.num_rows:
        return strings([])
    ends = pc.add(parts["first_row_id"], parts["physical_rows"])
    at = pc.index_in(parts[PARTS_OF], value_set=combined(parts["path"]))
    return combined(parts[PARTS_OF].filter(pc.greater(ends, ends.take(at))))


# -- which file has which column ----------------------------------------------------------------------------------


def _written(row: Mapping[str, Any], schema: Schema) -> Schema:
    """The schema that a file was written with, reduced to the columns in the file.

    row : a row of the files table, with ``write_cols``.

    Raises
    ------
    UnsupportedFeatureError : the file has other columns than those of the schema.
    """
    if row["write_cols"] is None:
        return schema
    names = set(json.loads(row["write_cols"]))
    if unknown := names - {each.name for each in schema.fields} - _SYSTEM:
        raise UnsupportedFeatureError(
            f"{row['path']} holds {min(unknown)[:100]!r}, which is not a column of the schema {schema.id}",
            features=("files of parts of columns",),
            next_step=_NEXT,
        )
    return replace(schema, fields=tuple(each for each in schema.fields if each.name in names))


def holders(
    parts: Sequence[Mapping[str, Any]],
    schema_of: Callable[[int], Schema],
    wanted: Sequence[Field],
    constants: Collection[str],
) -> list[tuple[Mapping[str, Any], Schema, list[Field]]]:
    """The files of a group to read for the ``wanted`` columns, each with the schema of its content and the columns to
    read from it. Columns that no file has, and ``constants``, are assigned to the first file.

    Raises
    ------
    UnsupportedFeatureError : as :func:`_written`, or two files of the same age have the same wanted column.
    """
    # Newest first; the anchor, which is last, provides the rows if no column is requested.
    ordered = sorted((part for part in parts if not _is_dedicated(part["file_name"])), key=_age, reverse=True)
    stored = [_written(part, schema_of(part["schema_id"])) for part in ordered]
    source_of: dict[int, int] = {}  # field id -> position of the file
    for field in wanted:
        having = [at for at, schema in enumerate(stored) if any(each.id == field.id for each in schema.fields)]
        if field.name in constants or not having:
            continue
        newest, *older = having
        if older and ordered[older[0]]["max_sequence"] == ordered[newest]["max_sequence"]:
            one, other = (ordered[at]["path"] for at in having[:2])
            raise UnsupportedFeatureError(
                f"{one} and {other} both have the column {field.name}, and neither is newer",
                features=("files of the same rows and the same age",),
                next_step=_NEXT,
            )
        source_of[field.id] = newest
    chosen = sorted(set(source_of.values())) or [len(ordered) - 1]
    return [
        (ordered[at], stored[at], [field for field in wanted if source_of.get(field.id, chosen[0]) == at])
        for at in chosen
    ]


def blob_files(
    parts: Sequence[Mapping[str, Any]], schema_of: Callable[[int], Schema], wanted: Sequence[Field]
) -> dict[int, list[Mapping[str, Any]]]:
    """The files of a group that hold ``wanted`` columns of blobs, by the column's id: the newest first, as a value that
    one lacks is that of an older one.

    Raises
    ------
    UnsupportedFeatureError : two files of the same age have the same rows; a file is a video, or has rows that the
        group does not have.
    """
    ids = {field.id for field in wanted if holds(field.type, "BLOB")}
    found: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    anchor = next(part for part in parts if part["path"] == part[PARTS_OF])
    for part in sorted(parts, key=lambda part: (-_age(part)[0], part["first_row_id"])):
        if not part["file_name"].endswith(_BLOBS):
            continue
        for field in _written(part, schema_of(part["schema_id"])).fields:
            if field.id not in ids:
                continue
            if part["file_name"].endswith(_VIDEO):
                raise _unread(part["path"], "holds a video")
            if _end(part) > _end(anchor):
                raise _unread(part["path"], f"has rows beyond those of {anchor['path']}")
            for newer in found[field.id][-1:]:
                if _age(newer)[0] == _age(part)[0] and _end(newer) > part["first_row_id"]:
                    raise _unread(part["path"], f"has rows of {newer['path']}, and neither is newer")
            found[field.id].append(part)
    return found


def vector_files(
    parts: Sequence[Mapping[str, Any]], schema_of: Callable[[int], Schema], wanted: Sequence[Field]
) -> list[tuple[list[Field], list[Mapping[str, Any]]]]:
    """The ``wanted`` columns of vectors that are in files of their own, and these files in the order of their rows.

    Raises
    ------
    UnsupportedFeatureError : the newest files do not hold all rows of the group, one after the other.
    """
    anchor = next(part for part in parts if part["path"] == part[PARTS_OF])
    stacks: dict[str, tuple[list[Field], list[Mapping[str, Any]]]] = {}
    # Of files that begin with the same row, the newest counts.
    for part in sorted(parts, key=lambda part: (part["first_row_id"], -_age(part)[0])):
        if _VECTORS not in part["file_name"]:
            continue
        held = {field.id for field in _written(part, schema_of(part["schema_id"])).fields}
        if not (fields := [field for field in wanted if field.id in held]):
            continue
        _, stack = stacks.setdefault(part["write_cols"], (fields, []))
        end = _end(stack[-1]) if stack else anchor["first_row_id"]
        if stack and part["first_row_id"] < end and _age(part)[0] < _age(stack[-1])[0]:
            continue
        if part["first_row_id"] != end:
            raise _unread(part["path"], "does not go on where other files of vectors end")
        stack.append(part)
    for _, stack in stacks.values():
        if _end(stack[-1]) != _end(anchor):
            raise _unread(stack[-1]["path"], f"does not end where {anchor['path']} does")
    return list(stacks.values())


def check_blobs(file: Mapping[str, Any], schema: Schema, wanted: Sequence[Field]) -> None:
    """Refuse a file that holds ``wanted`` columns of blobs beside others: they describe where the blobs are.

    file : a row of the files table, with ``write_cols``.
    schema : that it was written with.
    """
    blobs = {each.id: each.name for each in wanted if holds(each.type, "BLOB")}
    held = [each for each in _written(file, schema).fields if each.id in blobs] if blobs else []
    if held:
        raise _unread(file["path"], f"holds the column {blobs[held[0].id]} of blobs beside others")


def _end(part: Mapping[str, Any]) -> int:
    """The row id after those of a file."""
    end: int = part["first_row_id"] + part["physical_rows"]
    return end


def _unread(path: str, what: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"{path} {what}, which this release does not read", features=("files of blobs or vectors",), next_step=_NEXT
    )


def _age(part: Mapping[str, Any]) -> tuple[int, str]:
    sequence = part["max_sequence"]
    return (-1 if sequence is None else sequence, part["file_name"])

"""Derives the files of a version from those of an earlier one: removes the rows at some positions, appends others.

A few files of a million change between two inspections. Copying the table's text columns would take longer than all
else, so the text stays where it is: the new column refers to the stretches between the removed rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from dv_maintenance.files.arrays import combined, null_column
from dv_maintenance.tables.model import Since

# A column that would get more chunks is copied: each chunk slows every function on the column a little.
_MOST: Final = 4096

Stretch = tuple[int, int]


def spliced(files: pa.Table, since: Since, newer: pa.Table) -> pa.Table:
    """``files`` without the removed rows, then ``newer``, which has the same schema.

    Numbers and dictionaries are one chunk each.
    """
    stay = since.stretches(files.num_rows)
    columns = [_spliced(files[name], stay, newer[name]) for name in files.column_names]
    return pa.Table.from_arrays(columns, schema=files.schema)


def _spliced(column: pa.ChunkedArray, stay: Sequence[Stretch], newer: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if column.null_count == len(column) and newer.null_count == len(newer):
        return null_column(sum(end - begin for begin, end in stay) + len(newer), kind)
    if pa.types.is_dictionary(kind):
        return _coded(column, stay, newer)
    if pa.types.is_integer(kind):
        numbers = combined(column)
        parts = [*_slices(numbers, stay), *newer.chunks]
        return pa.chunked_array([pa.concat_arrays(parts)] if parts else [], kind)
    if column.num_chunks + len(stay) > _MOST:
        column = pa.chunked_array([combined(column)], kind)
    return pa.chunked_array([*_pieces(column, stay), *(chunk for chunk in newer.chunks if len(chunk))], kind)


def _slices(array: pa.Array, stay: Sequence[Stretch]) -> list[pa.Array]:
    return [array.slice(begin, end - begin) for begin, end in stay]


def _pieces(column: pa.ChunkedArray, stay: Sequence[Stretch]) -> list[pa.Array]:
    """The stretches of a column of several chunks, each cut where a chunk ends."""
    found: list[pa.Array] = []
    at = begin = 0
    for chunk in column.chunks:
        end = begin + len(chunk)
        while at < len(stay) and stay[at][0] < end:
            low, high = max(stay[at][0], begin), min(stay[at][1], end)
            found.append(chunk.slice(low - begin, high - low))
            if stay[at][1] > end:
                break
            at += 1
        begin = end
    return found


def _coded(column: pa.ChunkedArray, stay: Sequence[Stretch], newer: pa.ChunkedArray) -> pa.ChunkedArray:
    both = pa.chunked_array([*column.chunks, *newer.chunks], column.type).unify_dictionaries()
    old = [chunk.indices for chunk in both.chunks[: column.num_chunks]]
    new = [chunk.indices for chunk in both.chunks[column.num_chunks :]]
    codes = [*(_slices(pa.concat_arrays(old), stay) if old else []), *new]
    if not codes:
        return pa.chunked_array([], column.type)
    return pa.chunked_array([pa.DictionaryArray.from_arrays(pa.concat_arrays(codes), both.chunk(0).dictionary)])

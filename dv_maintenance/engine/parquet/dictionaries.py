"""Text columns that stay dictionaries from the pages of a source to those of a new file: no text is copied row by row,
or looked up to be encoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.engine.parquet.footer import dictionary_pays
from dv_maintenance.files.arrays import int32s, numbers

if TYPE_CHECKING:
    from dv_maintenance.engine.parquet.projection import Projection


def repetitive_texts(footer: Any, projection: Projection) -> list[int]:
    """The leaves of a file whose dictionaries can be kept: text that is read as it is stored, in column chunks that all
    have a dictionary, and are smaller by it.
    """
    found = []
    for name in projection.as_stored:
        # The path of a struct's leaf may equal the name of a column with a dot in it.
        if "." in name or not _is_text(projection.schema.field(name).type):
            continue
        leaf = projection.origins[name]
        chunks = [footer.row_group(group).column(leaf) for group in range(footer.num_row_groups)]
        if all(chunk.has_dictionary_page for chunk in chunks) and dictionary_pays(footer, leaf):
            found.append(leaf)
    return found


def check_indices(batch: pa.RecordBatch) -> None:
    """Raise ArrowInvalid if a dictionary lacks a value: Arrow's reader only notices where it looks values up."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if types.is_dictionary(column.type) and column.null_count < len(column):
            bounds = pc.min_max(column.indices)
            if bounds["min"].as_py() < 0 or bounds["max"].as_py() >= len(column.dictionary):
                raise pa.ArrowInvalid(f"column {name} refers to values that its dictionary lacks")


def all_dictionaries(columns: Sequence[pa.Array]) -> bool:
    """Whether all parts of a column are dictionaries."""
    return bool(columns) and all(types.is_dictionary(column.type) for column in columns)


def merged(columns: Sequence[pa.Array]) -> pa.DictionaryArray:
    """The parts of a column as one dictionary, with the values that occur in it and no others: what was deleted must
    not survive there.
    """
    parts = [column if types.is_dictionary(column.type) else column.dictionary_encode() for column in columns]
    whole = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    indices, values = whole.indices, whole.dictionary
    occurs = np.zeros(len(values), bool)
    occurs[numbers(indices.drop_null() if indices.null_count else indices)] = True
    if occurs.all():
        return whole
    places = int32s(np.cumsum(occurs) - 1)
    kept = int32s(np.flatnonzero(occurs))
    return pa.DictionaryArray.from_arrays(pc.take(places, indices), values.take(kept), safe=False)


def decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if types.is_dictionary(column.type) else column


def decoded_bytes(batch: pa.RecordBatch) -> int:
    """About the bytes that a batch would take without dictionaries."""
    return sum(_decoded_bytes(column) for column in batch.columns)


def _decoded_bytes(column: pa.Array) -> int:
    if not types.is_dictionary(column.type):
        return int(column.nbytes)
    values = column.dictionary
    return int(len(column) * values.nbytes / max(len(values), 1))


def _is_text(type: pa.DataType) -> bool:
    return bool(types.is_string(type) or types.is_binary(type))

"""What the entry of a new data file says about its columns: counts and bounds from its footer.

Format: Iceberg specification, Manifests, data_file. The table's properties ``write.metadata.metrics.*`` say of which
columns, and how exact bounds are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import types

from dv_maintenance.files.parquet_footer import read_footer
from dv_maintenance.tables.iceberg.commit.values import encoded, of_json
from dv_maintenance.tables.iceberg.log.types import LINEAGE
from dv_maintenance.tables.text_bounds import above

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot
    from dv_maintenance.tables.work import OutputFile

_MODE: Final = "write.metadata.metrics.default"
_COLUMN: Final = "write.metadata.metrics.column."
_MOST: Final = "write.metadata.metrics.max-inferred-column-defaults"
_FIELD_ID: Final = b"PARQUET:field_id"
_TRUNCATED: Final = re.compile(r"truncate\((\d{1,9})\)")


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column that is not nested in a list or map. ``length``: characters of its bounds, ``None``: all, 0: none."""

    name: tuple[str, ...]
    id: int
    type: pa.DataType
    length: int | None


def stats_columns(snapshot: IcebergSnapshot) -> tuple[tuple[str, ...], ...]:
    """The columns whose statistics a rewrite reports, see ``RewriteTask``."""
    return tuple(each.name for each in _leaves(snapshot))


def _leaves(snapshot: IcebergSnapshot) -> Iterator[_Leaf]:
    properties = snapshot.properties
    most = properties.get(_MOST, "")
    limit = int(most) if most.isdigit() else 100
    lineage = LINEAGE if snapshot.metadata.format_version > 2 else ()
    walked = [*_walk(snapshot.table_schema.arrow, ()), *_walk(lineage, ())]
    for at, (name, number, kind) in enumerate(walked):
        default = properties.get(_MODE, "truncate(16)" if at < limit else "none")
        mode = properties.get(_COLUMN + ".".join(name), default).strip().lower()
        match = _TRUNCATED.fullmatch(mode)
        if mode != "none":
            yield _Leaf(name, number, kind, int(match[1]) if match else None if mode == "full" else 0)


def _walk(fields: Any, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int, pa.DataType]]:
    for each in fields:
        name = (*above, each.name)
        if types.is_struct(each.type):
            yield from _walk(each.type, name)
        elif not types.is_nested(each.type):
            yield name, int(each.metadata[_FIELD_ID]), each.type


def file_record(storage: Storage, snapshot: IcebergSnapshot, output: OutputFile, path: str) -> dict[str, Any]:
    """The record of a new Parquet file by field id, without content and partition. Reads its footer."""
    leaves = {each.name: each for each in _leaves(snapshot)}
    counts, nulls, lower, upper = {}, {}, {}, {}
    for stats in output.stats:
        leaf = leaves[stats.column]
        counts[leaf.id], nulls[leaf.id] = output.rows, stats.null_count
        if leaf.length != 0 and stats.minimum is not None and stats.maximum is not None:
            least, greatest = (
                _bound(each, leaf, upper=up) for each, up in ((stats.minimum, False), (stats.maximum, True))
            )
            if least is not None:
                lower[leaf.id] = least
            if greatest is not None:
                upper[leaf.id] = greatest
    with storage.open_input(storage.path_of_uri(output.uri)) as file:
        footer = read_footer(file)
    return {
        "100": path,
        "101": "PARQUET",
        "103": output.rows,
        "104": output.size,
        "108": _pairs(_sizes(footer, {each.name: each.id for each in leaves.values()}), "117", "118"),
        "109": _pairs(counts, "119", "120"),
        "110": _pairs(nulls, "121", "122"),
        "125": _pairs(lower, "126", "127"),
        "128": _pairs(upper, "129", "130"),
        "132": [_begin(footer.row_group(number)) for number in range(footer.num_row_groups)],
    }


def _bound(value: Any, leaf: _Leaf, *, upper: bool) -> bytes | None:
    found = of_json(value, leaf.type)
    if isinstance(found, str) and leaf.length is not None:
        found = above(found, leaf.length) if upper else found[: leaf.length]
    return None if found is None else encoded(found, leaf.type)


def _sizes(footer: Any, ids: Mapping[tuple[str, ...], int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for at in range(group.num_columns):
            column = group.column(at)
            known = ids.get(tuple(column.path_in_schema.split(".")))
            if known is not None:
                found[known] = found.get(known, 0) + column.total_compressed_size
    return found


def _begin(group: Any) -> int:
    first = group.column(0)
    begin = first.data_page_offset
    return int(min(begin, first.dictionary_page_offset) if first.has_dictionary_page else begin)


def _pairs(values: Mapping[int, Any], key: str, value: str) -> list[dict[str, Any]]:
    return [{key: number, value: each} for number, each in sorted(values.items())]

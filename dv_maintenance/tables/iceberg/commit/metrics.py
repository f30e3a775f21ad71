"""What the entry of a new data file says about its columns: counts and bounds, from its rows or its footer.

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

from dv_maintenance.files.orc_tail import stripe_offsets
from dv_maintenance.files.parquet_footer import read_footer
from dv_maintenance.storage.failures import storage_errors
from dv_maintenance.tables.iceberg.commit.values import encoded, of_json
from dv_maintenance.tables.iceberg.log.types import LINEAGE
from dv_maintenance.tables.model import LOGICAL
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
    """A column that is not nested in a list or map. ``length``: of its bounds, ``None``: all, 0: none."""

    name: tuple[str, ...]
    id: int
    type: pa.DataType
    is_uuid: bool
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
    for at, (name, field) in enumerate(walked):
        default = properties.get(_MODE, "truncate(16)" if at < limit else "none")
        mode = properties.get(_COLUMN + ".".join(name), default).strip().lower()
        match = _TRUNCATED.fullmatch(mode)
        if mode != "none":
            length = int(match[1]) if match else None if mode == "full" else 0
            yield _Leaf(name, int(field.metadata[_FIELD_ID]), field.type, LOGICAL in field.metadata, length)


def _walk(fields: Any, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], pa.Field]]:
    for each in fields:
        name = (*above, each.name)
        if LOGICAL in each.metadata and types.is_struct(each.type):
            continue  # a variant, whose bounds are those of its shredded parts
        if types.is_struct(each.type):
            yield from _walk(each.type, name)
        elif not types.is_nested(each.type) and not types.is_null(each.type):
            yield name, each


def file_record(storage: Storage, snapshot: IcebergSnapshot, output: OutputFile, path: str) -> dict[str, Any]:
    """The record of a new file by field id, without content and partition. Reads its footer.

    Iceberg does without sizes of columns. An ORC file's footer is asked for its stripes only, and an Avro file has
    none: bounds come from the rows.
    """
    leaves = {each.name: each for each in _leaves(snapshot)}
    kind, place = format_of_file(path), storage.path_of_uri(output.uri)
    places: dict[str, Any] = {}
    stored: dict[int, tuple[Any, Any]] = {}
    if kind != "AVRO":
        with storage_errors(place), storage.open_input(place) as file:
            if kind == "ORC":
                places = {"132": stripe_offsets(file)}
            else:
                footer = read_footer(file)
                places = footer_record(footer, {each.name: each.id for each in leaves.values()})
                stored = _stored_bounds(footer, leaves)
    counts, nulls, lower, upper = {}, {}, {}, {}
    for stats in output.stats:
        leaf = leaves[stats.column]
        counts[leaf.id], nulls[leaf.id] = output.rows, stats.null_count
        least, greatest = stored.get(leaf.id) or (of_json(each, leaf.type) for each in (stats.minimum, stats.maximum))
        if leaf.length != 0 and least is not None and greatest is not None:
            if (bound := _bound(least, leaf, upper=False)) is not None:
                lower[leaf.id] = bound
            if (bound := _bound(greatest, leaf, upper=True)) is not None:
                upper[leaf.id] = bound
    return {
        "100": path,
        "101": kind,
        "103": output.rows,
        "104": output.size,
        "109": _pairs(counts, "119", "120"),
        "110": _pairs(nulls, "121", "122"),
        **bounds_record(lower, upper),
        **places,
    }


def bounds_record(lower: Mapping[int, bytes], upper: Mapping[int, bytes]) -> dict[str, Any]:
    """The fields of a record that hold bounds, which are given by field id."""
    return {"125": _pairs(lower, "126", "127"), "128": _pairs(upper, "129", "130")}


def footer_record(footer: Any, ids: Mapping[tuple[str, ...], int]) -> dict[str, Any]:
    """What a footer says about the places of columns and row groups. ``ids``: of the columns."""
    return {
        "108": _pairs(_sizes(footer, ids), "117", "118"),
        "132": [_begin(footer.row_group(number)) for number in range(footer.num_row_groups)],
    }


def format_of_file(path: str) -> str:
    """The format of a new file as manifests have it: its name ends with it."""
    return path.rpartition(".")[2].upper()


def _bound(value: Any, leaf: _Leaf, *, upper: bool) -> bytes | None:
    if leaf.length is not None and isinstance(value, str):
        value = above(value, leaf.length) if upper else value[: leaf.length]
    elif leaf.length is not None and types.is_binary(leaf.type):
        value = _bytes_above(value, leaf.length) if upper else value[: leaf.length]
    return None if value is None else encoded(value, leaf.type)


def _bytes_above(value: bytes, length: int) -> bytes | None:
    """As ``above``."""
    if len(value) <= length:
        return value
    kept = value[:length].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _stored_bounds(footer: Any, leaves: Mapping[tuple[str, ...], _Leaf]) -> dict[int, tuple[Any, Any]]:
    """Bounds of columns of bytes and of times by field id, which the statistics of other formats do not have.

    UUIDs get none: Iceberg's Java library compares their halves as signed numbers, and Spark fails when it is to take
    the least or greatest UUID from bounds (ClassCastException in 1.12).
    """
    wanted = {
        name: leaf
        for name, leaf in leaves.items()
        if types.is_time(leaf.type) or (_is_bytes(leaf.type) and not leaf.is_uuid)
    }
    found: dict[int, tuple[Any, Any]] = {}
    for at in range(footer.num_columns if wanted else 0):
        groups = [footer.row_group(number).column(at) for number in range(footer.num_row_groups)]
        leaf = wanted.get(tuple(footer.schema.column(at).path.split(".")))
        stats = [each.statistics for each in groups if each.statistics is None or each.statistics.num_values]
        if leaf is None or not stats or not all(each is not None and each.has_min_max for each in stats):
            continue
        found[leaf.id] = min(each.min_raw for each in stats), max(each.max_raw for each in stats)
    return found


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_fixed_size_binary(kind))


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

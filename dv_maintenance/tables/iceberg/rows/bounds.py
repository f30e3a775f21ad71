"""What the entries of data files say about the values of columns.

Format: Iceberg specification, Manifests (data_file) and Appendix D. Bounds of text may be cut off. Those of floats
leave out NaN. Upper bounds of times may be cut to milliseconds, against the specification: Delta's UniForm copies them
from Delta's statistics (https://github.com/delta-io/delta/issues/7444). A file from before a column's type was promoted
has bounds of the older type. A bound that is not in the form of its type is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Context, Decimal
from struct import unpack
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import types

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.files.arrays import combined, int64s, numbers
from dv_maintenance.files.avro.container import read_records
from dv_maintenance.tables.bounds import both, columns_of, table_of
from dv_maintenance.tables.iceberg.log.manifests import placed
from dv_maintenance.tables.model import parse_partition
from dv_maintenance.tables.parallel import in_parallel
from dv_maintenance.tables.predicate import Bounds, Column
from dv_maintenance.tables.rows import ColumnBounds

if TYPE_CHECKING:
    from dv_maintenance.files.avro.schema import Wanted
    from dv_maintenance.tables.iceberg.layout import Layout
    from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot

_FILE, _PATH, _ROWS, _NULLS, _LOWER, _UPPER = "2", "100", "103", "110", "125", "128"
# Each a list of pairs: the ids of key and value.
_PAIRS: Final = {_NULLS: ("121", "122"), _LOWER: ("126", "127"), _UPPER: ("129", "130")}
_WANTED: Final[Wanted] = {_FILE: dict.fromkeys([_PATH, _ROWS, *_PAIRS])}
_EXACT: Final = Context(prec=100)

Stored = Mapping[Column, tuple[int, pa.DataType]]
"""Columns with the id and the type of their field."""


def stored_columns(snapshot: IcebergSnapshot, columns: Sequence[Column]) -> Stored:
    """Those of ``columns`` whose bounds can be read."""
    found = {}
    for column in columns:
        fields: Any = snapshot.table_schema.arrow
        for name in column:
            field = fields.field(name)
            fields = field.type
        if _is_bounded(field.type):
            found[column] = int(field.metadata[b"PARQUET:field_id"]), field.type
    return found


def _is_bounded(kind: pa.DataType) -> bool:
    return bool(
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_string(kind)
        or types.is_date(kind)
        or (types.is_timestamp(kind) and kind.unit == "us")
    )


def stored_bounds(
    layout: Layout, snapshot: IcebergSnapshot, rows: np.ndarray[Any, np.dtype[Any]], columns: Stored
) -> Iterator[dict[Column, Bounds]]:
    """The bounds of columns in these rows of ``snapshot.files``. Reads the manifests that name the files.

    Raises
    ------
    DamagedTableError, StorageError : a manifest is damaged or cannot be read.
    """
    if not columns or not len(rows):
        yield from ({} for _ in rows)
        return
    paths = combined(snapshot.files["path"]).take(int64s(rows.tolist())).to_pylist()
    wanted = frozenset(paths)
    manifests = [*snapshot.entries.by_manifest]
    chosen = np.unique(numbers(combined(snapshot.files["manifest"]))[rows]).tolist()

    def read(number: int) -> dict[str, dict[Column, Bounds]]:
        raw = manifests[number].path
        try:
            files = [
                each.get(_FILE) or {}
                for each in read_records(layout.storage.get(layout.path(raw)), _WANTED, by_id=True)
            ]
        except (DvMaintenanceError, FileNotFoundError) as error:
            raise placed(layout, error, snapshot.version, raw) from error.__cause__
        return {each[_PATH]: _of_file(each, columns) for each in files if each.get(_PATH) in wanted}

    known: dict[str, dict[Column, Bounds]] = {}
    for some in in_parallel(layout.storage, chosen, read):
        known |= some
    yield from (known.get(path, {}) for path in paths)


def _of_file(file: Mapping[str, Any], columns: Stored) -> dict[Column, Bounds]:
    nulls, lower, upper = (_map(file.get(name), *ids) for name, ids in _PAIRS.items())
    rows, found = file.get(_ROWS) or 0, {}
    for column, (number, kind) in columns.items():
        # Counts of nested fields are not everywhere those of the rows.
        count = nulls.get(number) if len(column) == 1 else None
        found[column] = Bounds(
            _value(lower.get(number), kind),
            _not_below(_value(upper.get(number), kind), kind),
            values=count is None or not 0 < rows == count,
            nulls=count != 0,
            nans=bool(types.is_floating(kind)),
        )
    return found


def _map(pairs: Any, key: str, value: str) -> dict[Any, Any]:
    return {each.get(key): each.get(value) for each in pairs or () if isinstance(each, dict)}


def _value(data: Any, kind: pa.DataType) -> Any:
    """A bound in the form of ``predicate.comparable``; ``None`` if it is none."""
    if not isinstance(data, bytes):
        return None
    size = len(data)
    if types.is_string(kind):
        try:
            return data.decode()
        except UnicodeDecodeError:  # cut off inside a character
            return None
    if types.is_decimal(kind):
        return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-kind.scale, _EXACT) if size else None
    if types.is_boolean(kind):
        return data != b"\0" if size == 1 else None
    if types.is_floating(kind):
        form = {4: "<f", 8: "<d"}.get(size)
        value = unpack(form, data)[0] if form else None
        return value if value is not None and abs(value) < float("inf") else None
    # An integer's file may be from before it was long; a time's bound has its own length only.
    if size not in ((4, 8) if types.is_int64(kind) else (4,) if kind.bit_width == 32 else (8,)):
        return None
    return int.from_bytes(data, "little", signed=True)


def _not_below(upper: Any, kind: pa.DataType) -> Any:
    """The greatest value that an upper bound may stand for, in case it was cut off."""
    return upper + 999 if upper is not None and types.is_timestamp(kind) and upper % 1000 == 0 else upper


def partition_bounds(snapshot: IcebergSnapshot) -> list[dict[Column, Bounds]]:
    """What the values of each of ``snapshot.partitions`` say about the columns that they come from."""
    found = []
    for partition in snapshot.partitions:
        values = parse_partition(partition.name)
        known: dict[Column, Bounds] = {}
        for spec in snapshot.specs:
            for each in spec.fields if spec.id == partition.spec_id else ():
                if each.name in values and each.source in snapshot.schema.names:
                    column = (each.source,)
                    known[column] = both(known.get(column), each.bounds(values[each.name], snapshot.schema))
        found.append(known)
    return found


def column_bounds(layout: Layout, snapshot: IcebergSnapshot, columns: Sequence[str]) -> dict[str, ColumnBounds]:
    """See ``RowLevelTable.column_bounds``. Raises as :func:`stored_bounds`."""
    files = snapshot.files
    wanted = [(name,) for name in dict.fromkeys(columns) if name in snapshot.schema.names]
    stored = stored_columns(snapshot, wanted)
    by_partition = partition_bounds(snapshot) or [{}]
    codes = numbers(combined(files["partition_code"])).tolist()
    known = [
        {column: both(of_file.get(column), by_partition[code].get(column)) for column in stored}
        for code, of_file in zip(codes, stored_bounds(layout, snapshot, np.arange(files.num_rows), stored), strict=True)
    ]
    return {
        column[0]: columns_of(table_of([each[column] for each in known], kind), files["record_count"])
        for column, (_, kind) in stored.items()
    }

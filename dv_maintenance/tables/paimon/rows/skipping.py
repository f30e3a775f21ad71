"""Which live files may hold a row that satisfies a condition, decided from partition values and statistics.

Paimon's own readers skip files by the same statistics. Bounds of text may be truncated outwards. A null bound of a
column with non-null values is unknown. A bound may come from a row that has since been deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.arrays import bools
from dv_maintenance.files.avro.schema import Wanted
from dv_maintenance.tables.paimon.commit.value_stats import BOUNDED
from dv_maintenance.tables.paimon.layout import Layout
from dv_maintenance.tables.paimon.log.binary_row import Moment, decode_row
from dv_maintenance.tables.paimon.log.entries import FileId
from dv_maintenance.tables.paimon.log.manifests import ADD, avro_records, manifest_files
from dv_maintenance.tables.paimon.log.schema import Schema, read_schema
from dv_maintenance.tables.paimon.rows.casts import same_values
from dv_maintenance.tables.paimon.rows.lineage import LINEAGE
from dv_maintenance.tables.paimon.rows.types import Field
from dv_maintenance.tables.predicate import Bounds, Column, Predicate, bind, columns_of, exactly, may_be_true

if TYPE_CHECKING:
    from dv_maintenance.tables.paimon.rows.partitions import Partition
    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot

_UNBOUNDED: Final = Bounds()
_STATS: Final[Wanted] = {
    "_KIND": None,
    "_PARTITION": None,
    "_BUCKET": None,
    "_FILE": {
        "_FILE_NAME": None,
        "_ROW_COUNT": None,
        "_SCHEMA_ID": None,
        "_VALUE_STATS": None,
        "_VALUE_STATS_COLS": None,
        "_WRITE_COLS": None,
    },
}
_Known = Mapping[Column, Bounds]


def may_match(layout: Layout, snapshot: PaimonSnapshot, predicate: Predicate) -> pa.BooleanArray:
    """One value per row of ``snapshot.files``: ``False`` if no live row of the file can satisfy ``predicate``.

    Partition values are checked first. Statistics are read only if the predicate has other columns, and files remain.

    Raises
    ------
    DamagedTableError, StorageError : as for reading the snapshot.
    """
    fields = {each.name: each for each in snapshot.table_schema.fields}
    bound = bind(predicate, snapshot.schema, lambda field: field.name in fields and not _compares(fields[field.name]))
    wanted = {column[0]: fields[column[0]] for column in columns_of(bound) if len(column) == 1}
    keys = [snapshot.table_schema.partition_keys.index(name) for name in wanted if name in snapshot.partition_columns]
    types = [each.type for each in snapshot.table_schema.partition_fields()]

    def of_partition(partition: Partition) -> _Known:
        row = decode_row(partition.row, types)
        names = snapshot.table_schema.partition_keys
        return {(names[at],): exactly(_comparable(row[at])) for at in keys}

    by_partition = [of_partition(each) for each in snapshot.partitions]
    codes = snapshot.files["partition_code"].to_pylist()
    possible = [may_be_true(bound, _lookup(known)) for known in by_partition]
    kept = [possible[code] for code in codes]
    stored = [each for name, each in wanted.items() if name not in snapshot.partition_columns]
    if stored and any(kept):
        rows = snapshot.files.select(["bucket", "file_name", "path"]).to_pylist()
        # A newer file of the same rows may have replaced a column, which makes the anchor's statistics outdated.
        overlaid = set(snapshot.parts["path"].to_pylist())
        places = {
            (snapshot.partitions[code].row, row["bucket"], row["file_name"]): at
            for at, (code, row) in enumerate(zip(codes, rows, strict=True))
            if kept[at] and row["path"] not in overlaid
        }
        for file, known in _bounds(layout, snapshot, stored, places):
            at = places[file]
            kept[at] = may_be_true(bound, _lookup({**by_partition[codes[at]], **known}))
    return bools(np.array(kept, np.bool_))


def _compares(field: Field) -> bool:
    """Whether values compare like those of their Arrow type. Values of CHAR do not: Spark pads them."""
    return field.type.root in BOUNDED and field.type.root != "CHAR"


def _lookup(known: _Known) -> Callable[[Column], Bounds]:
    return lambda column: known.get(column, _UNBOUNDED)


def _comparable(value: Any) -> Any:
    """The value for ``predicate.comparable``: nanoseconds are truncated, as they are in Spark's timestamps."""
    return value.millis * 1000 + value.nanos // 1000 if isinstance(value, Moment) else value


# -- statistics --------------------------------------------------------------------------------------------------


def _bounds(
    layout: Layout, snapshot: PaimonSnapshot, columns: list[Field], wanted: Mapping[FileId, int]
) -> list[tuple[FileId, _Known]]:
    """The statistics of ``columns`` for each of the ``wanted`` files that has any."""
    if snapshot.file is None:
        return []
    schemas = {snapshot.table_schema.id: snapshot.table_schema}
    found = []
    for list_name in (snapshot.file.base_list, snapshot.file.delta_list):
        for manifest in manifest_files(layout, list_name, snapshot.version):
            for record in avro_records(layout, manifest.name, _STATS, snapshot.version):
                file = record["_FILE"]
                key = (record["_PARTITION"], record["_BUCKET"], file["_FILE_NAME"])
                if record["_KIND"] != ADD or key not in wanted:
                    continue
                schema_id = file["_SCHEMA_ID"]
                if schema_id not in schemas:
                    schemas[schema_id] = read_schema(layout, schema_id)
                try:
                    found.append((key, _of_file(file, schemas[schema_id], columns)))
                except DamagedTableError as error:
                    where = f"{layout.manifest(manifest.name)}: statistics of {key[2]}: {error.message}"
                    raise DamagedTableError(where, table=layout.uri, version=snapshot.version) from error
    return found


def _of_file(file: Mapping[str, Any], schema: Schema, columns: list[Field]) -> _Known:
    """The known bounds of one file. ``schema``: the file's schema. Bounds of columns with another type are unknown."""
    by_name = {each.name: each for each in (*schema.fields, *LINEAGE)}
    # Without a list of columns, statistics cover all columns of the file.
    names = file.get("_VALUE_STATS_COLS")
    if names is None:
        names = file.get("_WRITE_COLS")
    kept = [by_name[name] for name in names if name in by_name] if names is not None else list(schema.fields)
    stats = file["_VALUE_STATS"]
    # A writer that keeps no statistics writes a row without fields.
    if not kept or stats["_MIN_VALUES"][:4] == bytes(4) or (names is not None and len(kept) < len(names)):
        return {}
    # Values of other types are not needed, and can be skipped: each value has a slot of its own.
    types = [each.type for each in kept]
    places = {each.id: at for at, each in enumerate(kept)}
    known: dict[Column, Bounds] = {}
    for column in columns:
        at = places.get(column.id)
        if at is None or types[at].root != column.type.root or types[at].scale != column.type.scale:
            continue
        if not same_values(types[at], column.type):
            continue
        (least,) = decode_row(stats["_MIN_VALUES"], types, only=(at,))
        (greatest,) = decode_row(stats["_MAX_VALUES"], types, only=(at,))
        counts = stats["_NULL_COUNTS"] or []
        nulls = counts[at] if at < len(counts) else None
        known[(column.name,)] = Bounds(
            _comparable(least) if least == least else None,
            _comparable(greatest) if greatest == greatest else None,
            values=nulls != file["_ROW_COUNT"],
            nulls=nulls != 0,
            # It is not specified how writers count NaNs.
            nans=column.type.root in {"FLOAT", "DOUBLE"},
        )
    return known

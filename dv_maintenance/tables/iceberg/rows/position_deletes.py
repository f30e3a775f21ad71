"""Position deletes of format version 2: files of (data file, row position), which tables keep after an upgrade.

Format: Iceberg specification, Position Delete Files. Their rows are read when a snapshot is loaded: only then is known
how many rows of which data file they delete. They are never changed, so each is read once.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.dv import DeletionVector
from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, RefusedError
from dv_maintenance.files.arrays import combined, numbers
from dv_maintenance.storage.failures import storage_failure
from dv_maintenance.tables.iceberg.layout import Layout
from dv_maintenance.tables.iceberg.log.manifests import PATH_ID, placed
from dv_maintenance.tables.parallel import in_parallel

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

POSITION_ID: Final = 2147483545
SCHEMA: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(PATH_ID)}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(POSITION_ID)}),
    ]
)
"""Of a delete file."""


@dataclass(frozen=True, slots=True)
class PositionDeletes:
    """A delete file. ``positions``: by data file, as the file spells it."""

    path: str
    positions: Mapping[str, DeletionVector]

    @property
    def bytes(self) -> int:
        """Memory, approximately."""
        return sum(200 + len(path) + 2 * len(dv) for path, dv in self.positions.items())


def of_one_file(entries: pa.Table, read: Mapping[str, PositionDeletes]) -> dict[str, str]:
    """The delete files that belong to one data file, and that file. What a commit writes for that file can replace
    them; others stay, as they apply to several.

    entries : schema ``manifests.ENTRIES``.
    read : their rows.
    """
    pairs = zip(entries["path"].to_pylist(), entries["referenced"].to_pylist(), strict=True)
    return {path: data for path, data in pairs if data is not None and read[path].positions.keys() == {data}}


def read_position_deletes(
    layout: Layout, entries: pa.Table, known: Mapping[str, PositionDeletes], version: int
) -> dict[str, PositionDeletes]:
    """The rows of delete files, by the path of each. ``entries``: schema ``manifests.ENTRIES``; ``known``: files that
    were read before.

    Raises
    ------
    DamagedTableError : a file is damaged or missing; the message names it.
    RefusedError : a file has a format that is unknown here.
    """
    columns = [entries[name].to_pylist() for name in ("path", "format", "record_count")]
    files = {path: (kind, rows) for path, kind, rows in zip(*columns, strict=True)}
    fresh = [path for path in files if path not in known]

    def read(path: str) -> PositionDeletes:
        kind, rows = files[path]
        try:
            return PositionDeletes(path, _positions(layout.storage, layout.path(path), kind, rows))
        except FileNotFoundError as error:
            damage = DamagedTableError("it does not exist", next_step="restore the delete file from a backup")
            damage.__cause__ = error
            raise placed(layout, damage, version, path) from error
        except (DvMaintenanceError, pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                error = storage_failure(path, error)
            elif not isinstance(error, DvMaintenanceError):
                error = DamagedTableError(f"its rows can't be read: {error}")
            raise placed(layout, error, version, path) from error.__cause__

    new = {each.path: each for each in in_parallel(layout.storage, fresh, read)}
    return {path: new[path] if path in new else known[path] for path in files}


def _positions(storage: Storage, path: str, format: str, rows: int) -> dict[str, DeletionVector]:
    table = pa.concat_tables([_EMPTY.empty_table(), *_READERS[format](storage, path)]) if format in _READERS else None
    if table is None:
        raise RefusedError(
            f"it is a position delete file in the format {format}, which this release can't read",
            next_step="read the table with its own engine",
        )
    if table.num_rows != rows:
        raise DamagedTableError(f"it has {table.num_rows} rows, its manifest says {rows}")
    if table["path"].null_count or table["position"].null_count:
        raise DamagedTableError("it names a null file or position")
    if rows and pc.min(table["position"]).as_py() < 0:
        raise DamagedTableError("it names a negative position")
    encoded = combined(table["path"]).dictionary_encode()
    codes, positions = numbers(encoded.indices), numbers(combined(table["position"]))
    order = np.argsort(codes, kind="stable")
    edges = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
    return {
        name: DeletionVector.from_positions(np.unique(positions[order[edges[at] : edges[at + 1]]]))
        for at, name in enumerate(encoded.dictionary.to_pylist())
    }


_EMPTY: Final = pa.schema([("path", pa.string()), ("position", pa.int64())])


def _chosen(batch: Any, names: list[str], ids: list[Any]) -> pa.Table:
    """The two columns, by field id where the file has them, otherwise by name."""
    found = []
    for name, number in zip(SCHEMA.names, (PATH_ID, POSITION_ID), strict=True):
        found.append(ids.index(number) if number in ids else names.index(name))
    columns = [batch.column(at) for at in found]
    return pa.table([column.cast(each.type) for column, each in zip(columns, _EMPTY, strict=True)], _EMPTY)


def _ids(schema: pa.Schema) -> list[int]:
    found = []
    for each in schema:
        metadata = each.metadata or {}
        text = metadata.get(b"PARQUET:field_id") or metadata.get(b"iceberg.id") or b"-1"
        found.append(int(text))
    return found


def _parquet(storage: Storage, path: str) -> Iterator[pa.Table]:
    from pyarrow import parquet

    with storage.open_input(path) as file, parquet.ParquetFile(file) as opened:
        schema = opened.schema_arrow
        for batch in opened.iter_batches():
            yield _chosen(batch, schema.names, _ids(schema))


def _orc(storage: Storage, path: str) -> Iterator[pa.Table]:
    from pyarrow import orc

    with storage.open_input(path) as file:
        opened = orc.ORCFile(file)
        for stripe in range(opened.nstripes):
            yield _chosen(opened.read_stripe(stripe), opened.schema.names, _ids(opened.schema))


def _avro(storage: Storage, path: str) -> Iterator[pa.Table]:
    from dv_maintenance.files.avro.container import AvroFile

    data = storage.get(path)
    for block in AvroFile(io.BytesIO(data), len(data)).blocks(dict.fromkeys(SCHEMA.names)):
        paths, positions = ([row[name] for row in block] for name in SCHEMA.names)
        yield pa.table([pa.array(paths, pa.string()), pa.array(positions, pa.int64())], _EMPTY)


_READERS: Final = {"parquet": _parquet, "orc": _orc, "avro": _avro}

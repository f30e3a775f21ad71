"""The files with deleted rows that a commit adds: deletion vectors, and position deletes in format version 2.

Format: Iceberg specification, Deletion Vectors, Position Delete Files. A deletion vector is in a Puffin file that many
share. A position delete file here has the rows of one data file, as those of Spark do by default: a reader opens what
it needs, and the next commit can replace it. Readers know it by the bounds of its paths, which are that path in full.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import sub
from struct import pack
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa

from dv_maintenance import __version__
from dv_maintenance.dv import iceberg
from dv_maintenance.files.arrays import int64s
from dv_maintenance.files.avro.codecs import CODECS as AVRO_CODECS
from dv_maintenance.files.avro.rows import AvroRows
from dv_maintenance.files.orc_tail import stripe_offsets
from dv_maintenance.tables.iceberg.commit.manifests import NewEntry
from dv_maintenance.tables.iceberg.commit.metrics import bounds_record, footer_record
from dv_maintenance.tables.iceberg.log.manifests import PATH_ID, POSITIONS
from dv_maintenance.tables.iceberg.rows.avro_schema import records_of
from dv_maintenance.tables.iceberg.rows.formats import CODECS, delete_codec_of, delete_format_of, orc_schema
from dv_maintenance.tables.iceberg.rows.position_deletes import POSITION_ID, SCHEMA
from dv_maintenance.tables.iceberg.rows.rewrite_tasks import output_folder
from dv_maintenance.tables.parallel import in_parallel

if TYPE_CHECKING:
    from dv_maintenance.dv import DeletionVector
    from dv_maintenance.tables.iceberg.layout import Layout
    from dv_maintenance.tables.iceberg.rows.partitions import Place
    from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot
    from dv_maintenance.tables.new_files import NewFiles

_DVS_PER_FILE: Final = 10_000
# Of Parquet. Any other one is not Arrow's, and zstd is Iceberg's default.
_CODECS: Final = frozenset({"none", "snappy", "gzip", "brotli", "lz4", "zstd"})
# In the metadata of files of position deletes, as Iceberg's writers do.
_KIND: Final = {"delete-type": b"position"}


@dataclass(frozen=True, slots=True)
class NewDv:
    """All rows of a data file that are deleted by position after a commit. ``partition``: the file's."""

    path: str
    dv: DeletionVector
    partition: Place


def put_deletes(layout: Layout, now: IcebergSnapshot, dvs: Sequence[NewDv], files: NewFiles) -> list[NewEntry]:
    """Write them as the table's format version wants it, and return their entries."""
    if now.metadata.format_version > 2:
        return [
            each
            for at in range(0, len(dvs), _DVS_PER_FILE)
            for each in _puffin(layout, now, dvs[at : at + _DVS_PER_FILE], files)
        ]
    own = now.of_one_file

    def put(new: NewDv) -> NewEntry:
        left = [file for file in now.matched.position_files.get(new.path, ()) if file not in own]
        elsewhere = (now.position_deletes[file].positions[new.path] for file in left)
        return _position_deletes(layout, now, replace(new, dv=reduce(sub, elsewhere, new.dv)), files)

    return list(in_parallel(layout.storage, dvs, put))


def _puffin(layout: Layout, now: IcebergSnapshot, dvs: Sequence[NewDv], files: NewFiles) -> Iterator[NewEntry]:
    raw = f"{output_folder(layout, now, dvs[0].path)}/{uuid4()}-deletes.puffin"
    packed = iceberg.pack([(each.path, each.dv) for each in dvs], created_by=f"dv-maintenance {__version__}")
    files.put(layout.path(raw), packed.data)
    for each, blob in zip(dvs, packed.blobs, strict=True):
        file = {
            "100": raw,
            "101": "PUFFIN",
            "103": each.dv.cardinality,
            "104": len(packed.data),
            "143": each.path,
            "144": blob.offset,
            "145": blob.length,
        }
        yield NewEntry(POSITIONS, each.partition, None, file)


def _position_deletes(layout: Layout, now: IcebergSnapshot, new: NewDv, files: NewFiles) -> NewEntry:
    kind = delete_format_of(now)
    raw = f"{output_folder(layout, now, new.path)}/{uuid4()}-deletes.{kind}"
    positions = new.dv.positions().astype(np.int64)
    data, places = _WRITERS[kind](new.path, positions, delete_codec_of(now))
    files.put(layout.path(raw), data)
    lower, upper = ({PATH_ID: new.path.encode(), POSITION_ID: pack("<q", positions[at])} for at in (0, -1))
    file = {
        "100": raw,
        "101": kind.upper(),
        "103": len(positions),
        "104": len(data),
        **bounds_record(lower, upper),
        **places,
    }
    return NewEntry(POSITIONS, new.partition, None, file)


def _orc(path: str, positions: Any, codec: str) -> tuple[bytes, dict[str, Any]]:
    """As :func:`_parquet`."""
    from pyarrow import orc

    columns = [pa.repeat(path, len(positions)), int64s(positions)]
    sink = pa.BufferOutputStream()
    with orc.ORCWriter(sink, compression=codec if codec in CODECS["orc"] else "zlib") as writer:
        writer.write(pa.Table.from_arrays(columns, schema=orc_schema(SCHEMA)))
    data = sink.getvalue()
    return data.to_pybytes(), {"132": stripe_offsets(pa.BufferReader(data))}


def _avro(path: str, positions: Any, codec: str) -> tuple[bytes, dict[str, Any]]:
    """As :func:`_parquet`."""
    columns = [pa.repeat(path, len(positions)), int64s(positions)]
    name = AVRO_CODECS[codec if codec in CODECS["avro"] else "gzip"]
    file = AvroRows(json.dumps(records_of(SCHEMA)), name, _KIND)
    return file.header + file.add(pa.RecordBatch.from_arrays(columns, schema=SCHEMA)) + file.end(), {}


def _parquet(path: str, positions: Any, codec: str) -> tuple[bytes, dict[str, Any]]:
    """A file of these rows, which are in order, and what its footer says of places."""
    from pyarrow import parquet

    paths = pa.DictionaryArray.from_arrays(np.zeros(len(positions), np.int32), [path])
    schema = pa.schema([SCHEMA.field(0).with_type(paths.type), SCHEMA.field(1)])
    options = {"compression": codec if codec in _CODECS else "zstd", "use_dictionary": SCHEMA.names[:1]}
    sink, footers = io.BytesIO(), list[Any]()
    with parquet.ParquetWriter(sink, schema, store_schema=False, metadata_collector=footers, **options) as writer:
        writer.write_table(pa.Table.from_arrays([paths, int64s(positions)], schema=schema))
        writer.add_key_value_metadata(_KIND)
    ids: dict[tuple[str, ...], int] = {(SCHEMA.names[0],): PATH_ID, (SCHEMA.names[1],): POSITION_ID}
    return sink.getvalue(), footer_record(footers[0], ids)


_WRITERS: Final = {"avro": _avro, "orc": _orc, "parquet": _parquet}

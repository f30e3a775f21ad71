"""Lance's deletion files: one per fragment, either an array of row offsets or a bitmap of them.

Format: DeletionFile of Lance's table.proto, and what its library reads and writes. An array is an Arrow IPC file with
one batch of one column, ``row_id``: uint32, no nulls, in any order. A bitmap is a portable 32-bit roaring bitmap and
nothing around it. Offsets count the fragment's physical rows from 0. Neither kind has a checksum, and nothing in the
file says how many offsets it holds: the count in the manifest is the only witness (``dv_codecs.load`` compares).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from dv_maintenance.dv import roaring
from dv_maintenance.dv.vector import DeletionVector
from dv_maintenance.errors import DamagedDeletionVectorError
from dv_maintenance.resources import raise_if_refused

if TYPE_CHECKING:
    from dv_maintenance.dv.reference import DvRef, Fetch

ARRAY: Final = "lance-array"
BITMAP: Final = "lance-bitmap"
"""Names of the two codecs, as a ``DvRef`` gives them."""

MAX_OFFSET = 2**32 - 1
"""The largest row offset that either kind can hold."""

_SCHEMA: Final = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
# The header before the only bucket of a 64-bit bitmap: number of buckets, and its key.
_ONE_BUCKET: Final = struct.pack("<QI", 1, 0)

_CHUNK: Final = 64 * 1024 * 1024
# A bitset of every offset takes 512 MB. Arrays of so many offsets are never written.
_MAX_SIZE: Final = 1024 * 1024 * 1024


# -- reading ------------------------------------------------------------------------------------------------------


def read_array(ref: DvRef, fetch: Fetch) -> DeletionVector:
    """The array file at ``ref.uri``. Raises as :func:`decode_array`."""
    return decode_array(_whole(ref, fetch))


def read_bitmap(ref: DvRef, fetch: Fetch) -> DeletionVector:
    """The bitmap file at ``ref.uri``. Raises as :func:`decode_bitmap`."""
    return decode_bitmap(_whole(ref, fetch))


def _whole(ref: DvRef, fetch: Fetch) -> bytes:
    """All bytes of a file of unknown size: one fetch if the count bounds the size, and it is not huge."""
    if ref.uri is None:
        raise DamagedDeletionVectorError("deletion files are never inline")
    # An offset takes at most 10 bytes: alone in its container of a bitmap. 4 in an array.
    wanted = min(64 * 1024 + 10 * max(ref.cardinality, 0), _CHUNK)
    parts = [fetch(ref.uri, 0, wanted)]
    size = len(parts[0])
    while len(parts[-1]) == wanted:
        if size > _MAX_SIZE:
            raise DamagedDeletionVectorError(f"the file exceeds {_MAX_SIZE} bytes, the limit of a deletion file")
        wanted = _CHUNK
        parts.append(fetch(ref.uri, size, wanted))
        size += len(parts[-1])
    return b"".join(parts)


def decode(codec: str, data: bytes) -> DeletionVector:
    """The set that the bytes of a file hold; ``codec`` is ARRAY or BITMAP. Raises DamagedDeletionVectorError."""
    return decode_array(data) if codec == ARRAY else decode_bitmap(data)


def decode_array(data: bytes) -> DeletionVector:
    """The set in an Arrow IPC file. The bytes are validated.

    Raises
    ------
    DamagedDeletionVectorError : with the reason.
    """
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data))
        schema, count = reader.schema, reader.num_record_batches
        if schema != _SCHEMA:
            found = ", ".join(f"{each.name}: {each.type}{'' if each.nullable else ' not null'}" for each in schema)
            raise DamagedDeletionVectorError(f"its columns are ({found}), not (row_id: uint32 not null)")
        if any(each.metadata for each in (schema, *schema)):
            raise DamagedDeletionVectorError("its schema has metadata, which Lance's own reader refuses")
        if count != 1:
            raise DamagedDeletionVectorError(f"it has {count} record batches, not one")
        batch = reader.get_batch(0)
        batch.validate(full=True)
    # Arrow reports the first symptom of damage: a bad seek, a size it can't allocate, text that is not UTF-8.
    except (pa.ArrowException, OSError, MemoryError, ValueError, OverflowError) as error:
        raise_if_refused(error, "a deletion file")
        if not data.startswith(b"ARROW1"):
            raise DamagedDeletionVectorError("it is not an Arrow IPC file: the magic number is missing") from error
        if not data.endswith(b"ARROW1"):
            raise DamagedDeletionVectorError(
                f"truncated: the Arrow IPC file does not end with its magic number after {len(data)} bytes"
            ) from error
        raise DamagedDeletionVectorError(f"the Arrow IPC file cannot be read: {type(error).__name__}") from error
    column = batch.column(0)
    if column.null_count:
        raise DamagedDeletionVectorError(f"{column.null_count} of {len(column)} offsets are null")
    offsets = np.frombuffer(column.buffers()[1] or b"", np.uint32)[column.offset : column.offset + len(column)]
    dv = DeletionVector.from_positions(offsets)
    if len(dv) != len(offsets):
        raise DamagedDeletionVectorError(f"{len(offsets) - len(dv)} of {len(offsets)} offsets are duplicates")
    return dv


def decode_bitmap(data: bytes) -> DeletionVector:
    """The set in a portable 32-bit roaring bitmap. The bytes are validated.

    Raises
    ------
    DamagedDeletionVectorError : with the reason.
    """
    roaring.check_bitmap(data)
    return DeletionVector(BitMap64.deserialize(_ONE_BUCKET + data))


# -- writing ------------------------------------------------------------------------------------------------------


def encode(codec: str, dv: DeletionVector) -> bytes:
    """The bytes of a file; ``codec`` is ARRAY or BITMAP. Raises ValueError as the two do."""
    return encode_array(dv) if codec == ARRAY else encode_bitmap(dv)


def encode_array(dv: DeletionVector) -> bytes:
    """The bytes of an array file: offsets ascending, bodies compressed with Zstandard, as Lance's own.

    Raises
    ------
    ValueError : nothing is deleted (a fragment has no file then), or an offset is above MAX_OFFSET.
    """
    _check_storable(dv)
    # From a buffer: pa.array() of a NumPy array imports pandas where it is installed.
    values = pa.py_buffer(dv.positions().astype("<u4"))
    offsets = pa.Array.from_buffers(pa.uint32(), len(dv), [None, values], null_count=0)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(pa.record_batch([offsets], schema=_SCHEMA))
    return bytes(sink.getvalue())


def encode_bitmap(dv: DeletionVector) -> bytes:
    """The bytes of a bitmap file, run-optimised. Raises as :func:`encode_array`."""
    _check_storable(dv)
    return dv.to_portable()[len(_ONE_BUCKET) :]


def _check_storable(dv: DeletionVector) -> None:
    if not dv:
        raise ValueError("an empty deletion vector is never stored")
    if dv.max() > MAX_OFFSET:
        raise ValueError(f"offset {dv.max()} is above the format's largest, {MAX_OFFSET}")

"""Some records of an Avro file as a file of their own: their bytes are copied."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from dv_maintenance.files.avro.codecs import PACKERS
from dv_maintenance.files.avro.container import SYNC, AvroFile, header_bytes
from dv_maintenance.files.avro.writer import block_bytes

if TYPE_CHECKING:
    from typing import BinaryIO

    import pyarrow as pa

_BUFFER = 1 << 20


def cut(file: pa.NativeFile, rows: range, of: int, sink: Any) -> None:
    """Write some records, with the schema, codec and other metadata of their file.

    of : how many records the file has.

    Raises
    ------
    DamagedTableError : it is damaged, or has another number of records.
    RefusedError : fastavro is not installed.
    """
    with _opened(file) as avro:
        codec = avro.codec if avro.codec in PACKERS else "null"
        more = {key: value for key, value in avro.metadata.items() if not key.startswith("avro.")}
        sync = os.urandom(SYNC)
        sink.write(header_bytes(avro.metadata["avro.schema"].decode(), codec, sync, more))
        for count, data in avro.encoded(rows, of):
            sink.write(block_bytes(data, count, codec, sync))


def digest(file: pa.NativeFile, rows: range, of: int) -> str:
    """Of the bytes of some records. Raises as :func:`cut`."""
    found = hashlib.blake2b()
    with _opened(file) as avro:
        for _, data in avro.encoded(rows, of):
            found.update(data)
    return found.hexdigest()


@contextmanager
def _opened(file: pa.NativeFile) -> Iterator[AvroFile]:
    file.seek(0)
    buffered = io.BufferedReader(cast("io.RawIOBase", file), _BUFFER)
    try:
        yield AvroFile(cast("BinaryIO", buffered), file.size())
    finally:
        buffered.detach()  # it would close the file

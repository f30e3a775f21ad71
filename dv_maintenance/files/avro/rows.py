"""An Avro file of Arrow's rows, block by block."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
import pyarrow as pa

from dv_maintenance.files.arrays import numbers
from dv_maintenance.files.avro.container import SYNC, header_bytes
from dv_maintenance.files.avro.encoder import encoded_records
from dv_maintenance.files.avro.schema import parse_schema, record_of
from dv_maintenance.files.avro.writer import block_bytes

# As in Avro's Java library: a block ends with the record that reaches it.
_BLOCK_BYTES: Final = 64_000


class AvroRows:
    """The bytes of a file: ``header``, then what :meth:`add` returns for each batch, then :meth:`end`.

    schema : of the records, as JSON. Its fields are the columns, in their order.
    codec : one of ``codecs.PACKERS``.
    more : further metadata of the file.
    """

    def __init__(self, schema: str, codec: str, more: Mapping[str, bytes] = MappingProxyType({})) -> None:
        self._schema, self._codec = record_of(parse_schema(schema.encode())), codec
        self._sync = os.urandom(SYNC)
        self._block, self._records = bytearray(), 0
        self.header = header_bytes(schema, codec, self._sync, more)

    def add(self, batch: pa.RecordBatch) -> bytes:
        """The blocks that the rows complete. Raises ValueError as ``encoder.encoded_records``."""
        records = encoded_records(self._schema, batch)
        _, offsets, data = records.buffers()
        ends = numbers(pa.Array.from_buffers(pa.int64(), len(records) + 1, [None, offsets]))
        encoded, first, blocks = memoryview(data or b""), 0, []
        while first < len(records):
            begin = int(ends[first])
            last = min(int(np.searchsorted(ends, begin + _BLOCK_BYTES - len(self._block))), len(records))
            self._block += encoded[begin : int(ends[last])]
            self._records += last - first
            if len(self._block) >= _BLOCK_BYTES:
                blocks.append(self.end())
            first = last
        return b"".join(blocks)

    def end(self) -> bytes:
        """The block of all rows that are in none yet."""
        if not self._records:
            return b""
        block = block_bytes(bytes(self._block), self._records, self._codec, self._sync)
        self._block, self._records = bytearray(), 0
        return block

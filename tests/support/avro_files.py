"""Avro files for tests: what Paimon's writers write, and what nobody should."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import struct
import zlib
from collections.abc import Iterable
from typing import Any

import fastavro
import pyarrow as pa

from support.raw_manifest import varint

SYNC = bytes(range(16))


def long(value: int) -> bytes:
    """A number as a zigzag varint."""
    return varint((value << 1) ^ (value >> 63))


def header(schema: Any, codec: str = "null") -> bytes:
    pairs = {b"avro.schema": json.dumps(schema).encode(), b"avro.codec": codec.encode()}
    body = b"".join(long(len(key)) + key + long(len(value)) + value for key, value in pairs.items())
    return b"Obj\x01" + long(len(pairs)) + body + long(0) + SYNC


def block(count: int, data: bytes) -> bytes:
    return long(count) + long(len(data)) + data + SYNC


def packed(data: bytes, codec: str) -> bytes:
    match codec:
        case "deflate":
            deflater = zlib.compressobj(wbits=-zlib.MAX_WBITS)
            return deflater.compress(data) + deflater.flush()
        case "bzip2":
            return bz2.compress(data)
        case "xz":
            return lzma.compress(data)
        case "zstandard":
            sink = pa.BufferOutputStream()
            with pa.CompressedOutputStream(sink, "zstd") as stream:
                stream.write(data)
            return bytes(sink.getvalue())
        case "snappy":
            return pa.compress(data, codec="snappy", asbytes=True) + struct.pack(">I", zlib.crc32(data))
    return data


def record_bytes(schema: Any, records: Iterable[Any]) -> bytes:
    parsed = fastavro.parse_schema(schema)
    sink = io.BytesIO()
    for record in records:
        fastavro.schemaless_writer(sink, parsed, record)
    return sink.getvalue()


def avro_file(schema: Any, records: list[Any], codec: str = "zstandard") -> bytes:
    """A file of one block, by fastavro's encoding of records and a frame of ours."""
    if not records:
        return header(schema, codec)
    return header(schema, codec) + block(len(records), packed(record_bytes(schema, records), codec))

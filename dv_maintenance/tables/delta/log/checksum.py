"""Version checksums, ``N.crc``: what they repeat of the log, and where they contradict it.

Protocol: Version Checksum File. Nobody needs one, but readers that have one may take the schema and the protocol from
it: Delta's kernel in Rust does, and with it deltalake and polars.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import orjson

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.tables.delta.log.actions import Metadata, Protocol

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage


def read_checksum(storage: Storage, path: str | None) -> dict[str, Any]:
    """The content of a checksum, which is never authoritative; empty if it is missing or unreadable."""
    if path is None:
        return {}
    try:
        body = orjson.loads(storage.get(path))
    except (FileNotFoundError, orjson.JSONDecodeError):
        return {}
    return body if isinstance(body, dict) else {}


def contradicted(checksum: dict[str, Any], metadata: Metadata, protocol: Protocol) -> Iterator[str]:
    """Which of ``metadata`` and ``protocol`` the checksum has otherwise, as far as they decide how rows are read."""
    said, required = checksum.get("metadata"), checksum.get("protocol")
    try:
        if said is not None and _meaning(Metadata.from_json(said, where="")) != _meaning(metadata):
            yield "metadata"
        if required is not None and _demands(Protocol.from_json(required, where="")) != _demands(protocol):
            yield "protocol"
    except DamagedTableError:
        return  # not in the form that readers could use


def _demands(protocol: Protocol) -> tuple[Any, ...]:
    return protocol.min_reader, protocol.min_writer, protocol.features("reader"), protocol.features("writer")


def _meaning(metadata: Metadata) -> tuple[Any, ...]:
    try:
        schema = orjson.loads(metadata.schema_string or "null")
    except orjson.JSONDecodeError:
        schema = metadata.schema_string
    return schema, metadata.partition_columns, dict(metadata.configuration)

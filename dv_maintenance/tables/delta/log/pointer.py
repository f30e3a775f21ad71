"""``_last_checkpoint``: the version from which readers list the log (protocol: Last Checkpoint File).

We take it for a hint. Other readers don't: delta-kernel-rs, and with it deltalake and polars, can't open a table whose
hint names a version that has no complete checkpoint and precedes none. A table that was copied back from a backup has
such a hint. On local disk Hadoop also compares the file with its checksum, ``._last_checkpoint.crc``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson

from dv_maintenance.storage import hadoop_checksum

if TYPE_CHECKING:
    from dv_maintenance.storage import FileInfo, Storage

POINTER: Final = "_delta_log/_last_checkpoint"
_DAMAGED: Final = "is damaged"
_CRC_HEADER: Final = b"crc\0"


def hinted(storage: Storage) -> tuple[int | None, str | None]:
    """The version that the pointer names, and what is wrong with the pointer itself. Raises StorageError."""
    try:
        body = orjson.loads(storage.get(POINTER))
    except FileNotFoundError:
        return None, None
    except orjson.JSONDecodeError:
        return None, _DAMAGED
    version = body.get("version") if isinstance(body, dict) else None
    if type(version) is not int or version < 0:
        return None, _DAMAGED
    return version, None


def problem(storage: Storage, checkpoints: Collection[int]) -> str | None:
    """Why other readers can't use the pointer, to be read after its name; ``None``: they can, or there is none.

    checkpoints : versions that have a complete checkpoint.
    """
    version, wrong = hinted(storage)
    if wrong is None and version is not None and version > max(checkpoints, default=-1):
        return f"names version {version}, and neither it nor a later version has a complete checkpoint"
    if wrong is None and not _matches_checksum(storage):
        return "does not match Hadoop's checksum beside it"
    return wrong


def point_to(storage: Storage, checkpoints: Collection[int], body: Mapping[str, int]) -> None:
    """Write the pointer, but never back to an older checkpoint that exists."""
    version, _ = hinted(storage)
    if version is None or version < body["version"] or problem(storage, checkpoints) is not None:
        storage.put(POINTER, orjson.dumps(body))


def described(storage: Storage, version: int, files: Collection[FileInfo]) -> Mapping[str, int] | None:
    """The pointer to an existing checkpoint; ``None`` for one with sidecars or in JSON, whose actions can't be counted
    without reading them.
    """
    import pyarrow.parquet as pq

    parts = {"parts": len(files)} if len(files) > 1 else {}
    if not parts and not all(each.path.endswith(".checkpoint.parquet") for each in files):
        return None
    rows = 0
    for each in files:
        with storage.open_input(each.path, each.size) as file:
            rows += pq.ParquetFile(file).metadata.num_rows
    return {"version": version, "size": rows, **parts}


def _matches_checksum(storage: Storage) -> bool:
    """Hadoop's ChecksumFileSystem: a header, the chunk size, and the CRC-32 of each chunk, all big-endian."""
    if not storage.on_disk(POINTER):
        return True
    try:
        stored, data = storage.get(hadoop_checksum(POINTER)), storage.get(POINTER)
    except FileNotFoundError:
        return True
    if len(stored) < 8 or stored[:4] != _CRC_HEADER:
        return False
    (size,) = struct.unpack(">i", stored[4:8])
    if size <= 0:
        return False
    sums: list[Any] = [zlib.crc32(data[at : at + size]) for at in range(0, len(data), size)]
    return stored[8:] == struct.pack(f">{len(sums)}I", *sums)

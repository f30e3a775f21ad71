"""The end of a new file: a check that the storage has all bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dv_maintenance.engine.faults import writing
from dv_maintenance.errors import VerificationError

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.storage import FileInfo, Storage


def close_sink(sink: pa.NativeFile, storage: Storage, uri: str) -> FileInfo:
    """Close a new file, and check its size in the storage.

    Raises
    ------
    VerificationError : the size differs from the bytes written.
    StorageError : the storage failed.
    """
    with writing(uri):
        written = sink.tell()
        sink.close()
        info = storage.head(uri)
    if info.size != written:
        raise VerificationError(f"{uri} has {info.size} bytes, but {written} were written")
    return info

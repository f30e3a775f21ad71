"""One way to reach bytes: local disk, S3, GCS and Azure through obstore.

How paths are spelled: :mod:`~dv_maintenance.storage.paths`.
"""

from __future__ import annotations

from dv_maintenance.storage.failures import FileExistsAlreadyError
from dv_maintenance.storage.paths import (
    NOT_PLAIN,
    FileInfo,
    RawName,
    absolute_uri,
    hadoop_checksum,
    plain_uri,
    staged_for,
    stamp_of,
)
from dv_maintenance.storage.storage import Storage

__all__ = [
    "NOT_PLAIN",
    "FileExistsAlreadyError",
    "FileInfo",
    "RawName",
    "Storage",
    "absolute_uri",
    "hadoop_checksum",
    "plain_uri",
    "staged_for",
    "stamp_of",
]

"""Files that are read from their start to their end: ORC and Avro."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dv_maintenance.errors import RefusedError

if TYPE_CHECKING:
    from dv_maintenance.engine.scan import Reader
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.work import ScanTask, SourceFile

__all__ = ["open_whole"]


@contextmanager
def open_whole(source: SourceFile, task: ScanTask, storage: Storage) -> Iterator[Reader]:
    """Raises as ``scan.open_source``; RefusedError for another format."""
    raise RefusedError(f"{source.uri} is a file of the format {source.format}, which is not read by this release")
    yield

"""Columns that several files hold, each for some of the rows: read one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from dv_maintenance.engine.whole_file import WholeReader
from dv_maintenance.tables.work import ScanTask, SourceFile

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage


class Stacked:
    """See ``protocols.StoredFile``. ``details["files"]`` of the source has the files as JSON. They have no deletion
    vectors of their own: that of the source is of all rows.
    """

    def __init__(self, source: SourceFile, task: ScanTask, storage: Storage) -> None:
        self.rows = source.rows or 0
        self.schema: pa.Schema = task.schema.remove_metadata()
        self._files = [SourceFile.from_json(each) for each in source.details["files"]]
        self._task, self._storage = task, storage

    def check(self, fields: tuple[int, ...]) -> None:
        """Each file is checked when it is opened."""

    def batches(self, fields: tuple[int, ...]) -> Iterator[pa.RecordBatch]:
        """See ``protocols.StoredFile``. Raises as ``scan.open_source``."""
        from dv_maintenance.engine.scan import open_source

        for file in self._files:
            task = ScanTask((file,), self._task.schema, self._task.match_by)
            with open_source(file, task, self._storage) as reader:
                for batch in reader.batches():
                    yield batch.select([self.schema.names[at] for at in fields])


@contextmanager
def open_stacked(source: SourceFile, task: ScanTask, storage: Storage) -> Iterator[WholeReader]:
    """Open files that hold columns for parts of the rows. Raises as ``scan.open_source``."""
    yield WholeReader(Stacked(source, task, storage), source, task, storage)

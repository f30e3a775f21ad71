"""A new Avro file, block by block. The schema of its records, as the table's own writers give it, is in the metadata of
the task's schema (``AVRO_SCHEMA``); columns belong to its fields by their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dv_maintenance.engine.bounds import BoundsCollector
from dv_maintenance.engine.faults import writing
from dv_maintenance.engine.sinks import close_sink
from dv_maintenance.errors import RefusedError
from dv_maintenance.files.avro.codecs import CODECS
from dv_maintenance.files.avro.rows import AvroRows
from dv_maintenance.tables.work import AVRO_SCHEMA, OutputFile

if TYPE_CHECKING:
    from dv_maintenance.engine.protocols import Reader
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.work import RewriteTask, SourceFile


class AvroFiles:
    """See ``protocols.Format``.

    Raises
    ------
    RefusedError : the compression codec is unknown.
    """

    suffix = ""

    def __init__(self, task: RewriteTask, schema: pa.Schema, storage: Storage, threads: Callable[[], int]) -> None:
        del threads
        self.task, self.schema, self.storage = task, schema, storage
        codec = CODECS.get(task.compression.lower())
        if codec is None:
            raise RefusedError(
                f"this release does not write Avro files with the compression {task.compression!r}",
                next_step=f"set the table's compression to one of {', '.join(sorted(CODECS))}",
            )
        self.codec: str = codec
        self.records: str = task.scan.schema.metadata[AVRO_SCHEMA].decode()

    def examine(self, source: SourceFile, reader: Reader) -> None:
        """No part of an Avro file is copied."""
        del source, reader

    def begin(self, uri: str, footer: Any, origins: Mapping[str, int]) -> AvroFile:
        """The encodings of sources are ignored."""
        del footer, origins
        return AvroFile(self, uri)


class AvroFile:
    """See ``protocols.NewFile``."""

    def __init__(self, files: AvroFiles, uri: str) -> None:
        self.uri, self._files = uri, files
        self._rows = 0
        self._stats = BoundsCollector(files.schema, files.task.stats_columns)
        self._encoded = AvroRows(files.records, files.codec)
        self._sink = files.storage.open_output(uri)
        with writing(uri):
            self._sink.write(self._encoded.header)

    def accepts(self, footer: Any, origins: Mapping[str, int], batch: pa.RecordBatch | None = None) -> bool:
        """See ``protocols.NewFile``."""
        del footer, origins, batch
        return True

    def add(self, batch: pa.RecordBatch) -> bool:
        """See ``protocols.NewFile``.

        Raises
        ------
        RefusedError : a value is null that must not be.
        """
        self._stats.add(batch)
        try:
            blocks = self._encoded.add(batch)
        except ValueError as error:
            raise RefusedError(
                f"rows can't be written to {self.uri}: {error}",
                next_step="let the table's own engine do it",
            ) from error
        with writing(self.uri):
            self._sink.write(blocks)
        self._rows += batch.num_rows
        return bool(self._sink.tell() >= self._files.task.target_bytes)

    def finish(self) -> OutputFile:
        """See ``protocols.NewFile``."""
        with writing(self.uri):
            self._sink.write(self._encoded.end())
        info = close_sink(self._sink, self._files.storage, self.uri)
        return OutputFile(self.uri, info.size, self._rows, info.modified, self._stats.found())

    def abandon(self) -> None:
        """See ``protocols.NewFile``."""
        with suppress(Exception):
            self._sink.close()

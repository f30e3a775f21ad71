"""A new file of lines, each of them a row, with the header of its source. The suffix of its name says the codec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dv_maintenance.engine.faults import writing
from dv_maintenance.engine.lines.reader import LinesStored, packed_as
from dv_maintenance.engine.sinks import close_sink
from dv_maintenance.engine.whole_file import WholeReader
from dv_maintenance.files.lines import MARK, joined, packer_of
from dv_maintenance.tables.work import OutputFile

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.engine.protocols import Reader
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.work import RewriteTask, SourceFile


class LinesFiles:
    """See ``protocols.Format``."""

    suffix = ""

    def __init__(self, task: RewriteTask, schema: pa.Schema, storage: Storage, threads: Callable[[], int]) -> None:
        del schema, threads
        self.task, self.storage = task, storage
        self.header: bytes | None = None

    def examine(self, source: SourceFile, reader: Reader) -> None:
        """Takes the header of the source. No part of it is copied."""
        del source
        if isinstance(reader, WholeReader) and isinstance(reader.stored, LinesStored):
            self.header = reader.stored.header

    def begin(self, uri: str, footer: Any, origins: Mapping[str, int]) -> LinesFile:
        """A new file."""
        del footer, origins
        return LinesFile(self, uri)


class LinesFile:
    """See ``protocols.NewFile``."""

    def __init__(self, files: LinesFiles, uri: str) -> None:
        self.uri, self._files, self._rows = uri, files, 0
        self._packer = packer_of(packed_as(uri))
        self._sink = files.storage.open_output(uri)
        if files.header is not None:
            self._write([files.header])

    def _write(self, lines: list[bytes]) -> None:
        with writing(self.uri):
            self._sink.write(self._packer.compress(joined(lines)))

    def accepts(self, footer: Any, origins: Mapping[str, int], batch: pa.RecordBatch | None = None) -> bool:
        """See ``protocols.NewFile``."""
        del footer, origins, batch
        return True

    def add(self, batch: pa.RecordBatch) -> bool:
        """See ``protocols.NewFile``."""
        lines = batch.column(0).to_pylist()
        if lines and not self._rows and self._files.header is None and lines[0].startswith(MARK):
            lines[0] = MARK + lines[0]  # readers take off the first one
        self._write(lines)
        self._rows += batch.num_rows
        return bool(self._sink.tell() >= self._files.task.target_bytes)

    def finish(self) -> OutputFile:
        """See ``protocols.NewFile``."""
        with writing(self.uri):
            self._sink.write(self._packer.flush())
        info = close_sink(self._sink, self._files.storage, self.uri)
        return OutputFile(self.uri, info.size, self._rows, info.modified)

    def abandon(self) -> None:
        """See ``protocols.NewFile``."""
        with suppress(Exception):
            self._sink.close()

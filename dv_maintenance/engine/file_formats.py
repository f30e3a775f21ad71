"""Readers and writers of file formats, by the format's name. Modules are imported on first use: each of them needs
other libraries.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from dv_maintenance.engine.protocols import Format, Reader, StoredFile
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.work import RewriteResult, RewriteTask, ScanTask, SourceFile

    Open = Callable[[SourceFile, ScanTask, Storage], AbstractContextManager[Reader]]
    OpenStored = Callable[[pa.NativeFile, SourceFile, ScanTask], StoredFile]
    NewFormat = Callable[[RewriteTask, pa.Schema, Storage, Callable[[], int]], Format]
    Rewrite = Callable[[RewriteTask, Any], RewriteResult]


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A file format. Members are ``module:name`` below ``dv_maintenance.engine``, ``None`` if the format has none.

    title : the format's official spelling.
    reader : opens a source, see ``protocols.Reader``.
    stored : opens a file that is always read whole, see ``protocols.StoredFile``.
    writer : creates new files, see ``protocols.Format``.
    rewriter : runs a whole rewrite task with the format's own library, without a writer.
    checker : raises what ``rewriter`` raises before it reads rows.
    """

    title: str
    reader: str
    stored: str | None = None
    writer: str | None = None
    rewriter: str | None = None
    checker: str | None = None

    def open(self) -> Open:
        found: Open = _member(self.reader)
        return found

    def open_stored(self) -> OpenStored:
        """The function that ``stored`` names. Only for formats that have one."""
        found: OpenStored = _member(str(self.stored))
        return found


_FORMATS: Final = {
    "parquet": FileFormat("Parquet", "parquet.reader:open_parquet", writer="parquet.writer:ParquetFiles"),
    "orc": FileFormat("ORC", "whole_file:open_whole", "orc.reader:open_orc", "orc.writer:OrcFiles"),
    "avro": FileFormat("Avro", "whole_file:open_whole", "avro.reader:open_avro", "avro.writer:AvroFiles"),
    "lines": FileFormat("lines", "whole_file:open_whole", "lines.reader:open_lines", "lines.writer:LinesFiles"),
    "headed": FileFormat("lines", "whole_file:open_whole", "lines.reader:open_lines", "lines.writer:LinesFiles"),
    "text": FileFormat("text", "whole_file:open_whole", "lines.reader:open_text"),
    "csv": FileFormat("CSV", "whole_file:open_whole", "lines.values:open_csv"),
    "json": FileFormat("JSON", "whole_file:open_whole", "lines.values:open_json"),
    "vectors.json": FileFormat("JSON", "whole_file:open_whole", "vectors.reader:open_json"),
    "vectors.lance": FileFormat("Lance", "whole_file:open_whole", "vectors.reader:open_lance"),
    "vectors.vortex": FileFormat("Vortex", "whole_file:open_whole", "vectors.reader:open_vortex"),
    "blobs": FileFormat("blobs", "blob.reader:open_blobs"),
    "stacked": FileFormat("several files", "rows.stacked:open_stacked"),
    "parts": FileFormat("several files", "rows.side_by_side:open_parts"),
    "lance": FileFormat(
        "Lance",
        "lance.reader:open_fragment",
        rewriter="lance.rewrite:rewrite_fragments",
        checker="lance.rewrite:lance_task",
    ),
}


def format_of(source: SourceFile) -> FileFormat:
    """The format of a source. Raises RefusedError if it is unknown; the error names the file."""
    found = _FORMATS.get(source.format)
    if found is None:
        raise RefusedError(
            f"{source.uri} is in the format {source.format}, which this release cannot read",
            next_step="read the table with its own engine",
        )
    return found


def writer_of(name: str) -> NewFormat:
    """The writer for files of the format ``name``. Raises RefusedError if there is none."""
    found = _FORMATS.get(name)
    if found is None or found.writer is None:
        raise RefusedError(
            f"this release does not write files in the format {name!r}",
            next_step="use a newer release of this tool, or the table's own engine",
        )
    made: NewFormat = _member(found.writer)
    return made


def rewriter_of(task: RewriteTask) -> Rewrite | None:
    """The function that runs the whole task; ``None`` if rows are read and written here."""
    found = _by_library(task)
    rewriter: Rewrite | None = None if found is None else _member(str(found.rewriter))
    return rewriter


def checker_of(task: RewriteTask) -> Callable[[RewriteTask, Any], object] | None:
    """The check before :func:`rewriter_of`."""
    found = _by_library(task)
    checker: Callable[[RewriteTask, Any], object] | None = None if found is None else _member(str(found.checker))
    return checker


def _by_library(task: RewriteTask) -> FileFormat | None:
    found = (_FORMATS.get(source.format) for source in task.scan.sources)
    return next((each for each in found if each is not None and each.rewriter is not None), None)


def _member(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"dv_maintenance.engine.{module}"), name)

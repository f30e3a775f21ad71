"""Vectors in JSON, Lance and Vortex files. ``SourceFile.details["vectors"]`` has the columns to read: by their names in
the file, the Arrow type of the elements, and how many of them a vector has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from dv_maintenance.engine.faults import decoding, reading
from dv_maintenance.engine.lines.reader import LinesStored
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files import json_vectors, lance_cut, lance_library, vortex_cut

if TYPE_CHECKING:
    from dv_maintenance.tables.work import ScanTask, SourceFile

    Read = Callable[[pa.NativeFile, range, int, Sequence[str]], Iterator[pa.RecordBatch]]


class JsonStored:
    """See ``protocols.StoredFile``. Raises as ``lines.reader.LinesStored``."""

    def __init__(self, file: pa.NativeFile, source: SourceFile) -> None:
        self._uri, self._lines = source.uri, LinesStored(file, source)
        self.rows, self.schema = self._lines.rows, _schema(source)

    def check(self, fields: tuple[int, ...]) -> None:
        """Each value is checked when it is read."""

    def batches(self, fields: tuple[int, ...]) -> Iterator[pa.RecordBatch]:
        """See ``protocols.StoredFile``. Raises as ``json_vectors.vectors`` and ``LinesStored.batches``."""
        schema = _only(self.schema, fields)
        first = 0
        for batch in self._lines.batches((0,)):
            with reading(self._uri, "JSON"):
                yield json_vectors.vectors(batch.column(0).to_pylist(), schema, first)
            first += batch.num_rows


class LibraryStored:
    """See ``protocols.StoredFile``. The file is copied into a local folder, as its library opens no other.

    read : some rows of some columns.
    """

    def __init__(self, file: pa.NativeFile, source: SourceFile, kind: str, read: Read) -> None:
        if source.rows is None:
            raise DamagedTableError(f"the row count of {source.uri} is unknown")
        self.rows: int = source.rows
        self.schema = _schema(source)
        self._file, self._uri, self._kind, self._read = file, source.uri, kind, read

    def check(self, fields: tuple[int, ...]) -> None:
        """Accepts all columns."""

    def batches(self, fields: tuple[int, ...]) -> Iterator[pa.RecordBatch]:
        """See ``protocols.StoredFile``. Raises DamagedTableError if the file has other columns."""
        schema = _only(self.schema, fields)
        with reading(self._uri, self._kind), decoding(self._uri):
            for batch in self._read(self._file, range(self.rows), self.rows, schema.names):
                if batch.schema.types != schema.types:
                    raise DamagedTableError(f"it has {_told(batch.schema)}, not {_told(schema)}")
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _schema(source: SourceFile) -> pa.Schema:
    told = source.details["vectors"]
    return pa.schema([(name, pa.list_(pa.type_for_alias(element), length)) for name, (element, length) in told.items()])


def _only(schema: pa.Schema, fields: tuple[int, ...]) -> pa.Schema:
    return pa.schema([schema.field(at) for at in fields])


def _told(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def open_json(file: pa.NativeFile, source: SourceFile, task: ScanTask) -> JsonStored:
    """See ``file_formats.FileFormat.stored``. Raises as :class:`JsonStored`."""
    del task
    return JsonStored(file, source)


def open_lance(file: pa.NativeFile, source: SourceFile, task: ScanTask) -> LibraryStored:
    """See ``file_formats.FileFormat.stored``. Raises MissingSoftwareError."""
    del task
    lance_library.library()
    return LibraryStored(file, source, "Lance", lance_cut.batches)


def open_vortex(file: pa.NativeFile, source: SourceFile, task: ScanTask) -> LibraryStored:
    """See ``file_formats.FileFormat.stored``. Raises MissingSoftwareError."""
    del task
    vortex_cut.library()
    return LibraryStored(file, source, "Vortex", vortex_cut.batches)

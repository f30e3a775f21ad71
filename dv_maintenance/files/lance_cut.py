"""Some rows of a Lance file as a file of their own, with the same columns, in the same version of the format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.copies import copied, write_copied
from dv_maintenance.files.lance_library import lance_errors, library

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST: Final = (0, 3)  # what footers call version 2.0


def cut(file: pa.NativeFile, rows: range, of: int, sink: Any) -> None:
    """Write some rows.

    of : how many rows the file has.

    Raises
    ------
    DamagedTableError : it is damaged, or has another number of rows.
    MissingSoftwareError : as ``lance_library.library``.
    """
    with _opened(file, of) as source:
        known = source.metadata()
        version = (known.major_version, known.minor_version)
        named = "{}.{}".format(*((2, 0) if version == _FIRST else version))

        def write(path: str) -> None:
            with library().file.LanceFileWriter(path, known.schema, version=named) as writer:
                for batch in _of(source, rows):
                    writer.write_batch(batch)

        write_copied(write, sink)


def batches(
    file: pa.NativeFile, rows: range, of: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Some rows, of all ``columns`` unless some are named. Raises as :func:`cut`."""
    with _opened(file, of, columns) as source:
        yield from _of(source, rows)


def _of(source: Any, rows: range) -> Iterator[pa.RecordBatch]:
    yield from source.read_range(rows.start, len(rows)).to_batches()


@contextmanager
def _opened(file: pa.NativeFile, of: int, columns: Sequence[str] | None = None) -> Iterator[Any]:
    lance = library()
    with copied(file) as path, lance_errors("it"):
        found = lance.file.LanceFileReader(path, columns=None if columns is None else list(columns))
        if found.num_rows() != of:
            raise DamagedTableError(f"it has {found.num_rows()} rows, not {of}")
        yield found

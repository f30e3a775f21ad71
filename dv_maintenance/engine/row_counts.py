"""What a data file's own footer says: how many rows, and which columns. No rows are read."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from dv_maintenance.engine.faults import decoding, reading
from dv_maintenance.storage import Storage

if TYPE_CHECKING:
    from typing import BinaryIO

    from dv_maintenance.tables.work import SourceFile


def count_rows(source: SourceFile, storage: Storage) -> int | None:
    """Rows of one file, deleted ones included; ``None`` for a format that this package can't read. Avro files have no
    footer: the headers of their blocks are read, and the file with them.

    Raises
    ------
    DamagedTableError : names the file; also if it is missing.
    StorageError : the storage did not answer.
    RefusedError : a library is missing.
    """
    counter = _COUNTERS.get(source.format)
    return None if counter is None else counter(source, storage)


@dataclass(frozen=True, slots=True)
class Counted:
    """What a footer says.

    rows : see :func:`count_rows`.
    columns : for Parquet, a text that is the same for files with the same columns.
    arrow_fails : whether it has an Arrow schema that nobody can decode.
    """

    rows: int | None
    columns: str | None = None
    arrow_fails: bool = False


def counted(source: SourceFile, storage: Storage) -> Counted:
    """As :func:`count_rows`, with what else ``fsck`` asks of a footer."""
    from dv_maintenance.files.parquet_footer import has_damaged_arrow_schema

    if source.format != "parquet":
        return Counted(count_rows(source, storage))
    footer = _footer(source, storage)
    # The first line names the object.
    columns = str(footer.schema).partition("\n")[2]
    return Counted(int(footer.num_rows), columns, has_damaged_arrow_schema(footer))


def _parquet(source: SourceFile, storage: Storage) -> int:
    return int(_footer(source, storage).num_rows)


def _footer(source: SourceFile, storage: Storage) -> Any:
    from dv_maintenance.files.parquet_footer import read_footer

    with reading(source.uri), storage.open_input(source.uri) as file:
        return read_footer(file)


def _orc(source: SourceFile, storage: Storage) -> int:
    from pyarrow import orc

    with reading(source.uri, "ORC"), storage.open_input(source.uri) as file:
        return int(orc.ORCFile(file).nrows)


def _avro(source: SourceFile, storage: Storage) -> int:
    from dv_maintenance.files.avro.container import AvroFile

    with decoding(source.uri), reading(source.uri, "Avro"), storage.open_input(source.uri) as file:
        return AvroFile(cast("BinaryIO", io.BufferedReader(file, 1 << 20)), file.size()).count()


def _lance(source: SourceFile, storage: Storage) -> int:
    from dv_maintenance.files.lance_footer import count_rows

    return count_rows(storage, storage.path_of_uri(source.uri), source.size or None)


_COUNTERS: Final[dict[str, Callable[[SourceFile, Storage], int]]] = {
    "parquet": _parquet,
    "orc": _orc,
    "avro": _avro,
    "lance": _lance,
}

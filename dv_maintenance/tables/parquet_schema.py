"""The columns of a stored Parquet file, where the table's metadata does not say enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.parquet_footer import open_parquet_file
from dv_maintenance.resources import raise_if_refused
from dv_maintenance.storage.failures import storage_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from dv_maintenance.storage import Storage


def stored_schema(
    storage: Storage,
    path: str,
    read: Callable[[pa.NativeFile], pa.Schema] = lambda file: open_parquet_file(file).schema_arrow,
) -> pa.Schema:
    """The schema in the footer of a file, as Arrow reads it. ``read``: how, if it is no Parquet file.

    Raises
    ------
    DamagedTableError : the file is missing or damaged.
    StorageError : the storage did not answer.
    """
    try:
        with storage.open_input(path) as file:
            return read(file)
    except (FileNotFoundError, pa.ArrowException, MemoryError, OSError) as error:
        raise_if_refused(error, path)
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, FileNotFoundError):
            raise storage_failure(path, error, table=storage.uri) from error
        raise DamagedTableError(f"{path} cannot be read: {error}", table=storage.uri) from error

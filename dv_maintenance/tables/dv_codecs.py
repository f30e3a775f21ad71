"""Load a deletion vector from a reference, with the codec of its table format (``TableFormat.dv_codecs``)."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from dv_maintenance.dv.reference import DvRef, Fetch
from dv_maintenance.dv.vector import DeletionVector
from dv_maintenance.errors import DamagedDeletionVectorError, UsageError
from dv_maintenance.tables.registry import each_format, formats

Reader = Callable[[DvRef, Fetch], DeletionVector]


def load(
    ref: DvRef, fetch: Fetch, *, rows: int | None = None, of: str | None = None, counted: bool = True
) -> DeletionVector:
    """Read a DV and check it against the log: its cardinality, and ``rows``, the data file's physical rows.

    of : the data file, for messages.
    counted : whether the cardinality in the log must be right.

    Raises
    ------
    DamagedDeletionVectorError : names the file, the offset and the reason. Also raised for a missing file.
    UsageError : no registered format has that codec.
    """
    reader = _reader(ref.codec)
    try:
        dv = reader(ref, fetch)
        if counted and dv.cardinality != ref.cardinality:
            raise DamagedDeletionVectorError(f"it holds {dv.cardinality} positions, the log says {ref.cardinality}")
        if rows is not None and dv and dv.max() >= rows:
            raise DamagedDeletionVectorError(f"position {dv.max()} is beyond the file's {rows} rows")
    except DamagedDeletionVectorError as error:
        raise DamagedDeletionVectorError(error.reason, file=ref.uri, offset=ref.offset, of=of) from error.__cause__
    except FileNotFoundError as error:
        raise DamagedDeletionVectorError("the file does not exist", file=ref.uri, offset=ref.offset, of=of) from error
    return dv


def _reader(codec: str) -> Reader:
    for each in each_format():
        if codec in each.dv_codecs:
            module, _, function = each.dv_codecs[codec].partition(":")
            reader: Reader = getattr(import_module(module), function)
            return reader
    known = ", ".join(name for each in formats() for name in each.dv_codecs)
    raise UsageError(f"unknown deletion vector codec {codec!r}", next_step=f"use one of {known}")

"""Load a deletion vector from a reference, for any wire format."""

from __future__ import annotations

from dv_maintenance.dv import delta, lance, paimon
from dv_maintenance.dv.reference import DvRef, Fetch
from dv_maintenance.dv.vector import DeletionVector
from dv_maintenance.errors import DamagedDeletionVectorError, UsageError

__all__ = ["load"]

_READERS = {
    "delta": delta.read,
    lance.ARRAY: lance.read_array,
    lance.BITMAP: lance.read_bitmap,
    paimon.CODEC: paimon.read,
}


def load(ref: DvRef, fetch: Fetch, *, rows: int | None = None) -> DeletionVector:
    """Read a DV and check it against the log: its cardinality, and ``rows``, the data file's physical rows.

    Raises
    ------
    DamagedDeletionVectorError : naming the file, the offset and the reason; a missing file included.
    UsageError : no such codec.
    """
    reader = _READERS.get(ref.codec)
    if reader is None:
        raise UsageError(f"unknown deletion vector codec {ref.codec!r}", next_step=f"one of {', '.join(_READERS)}")
    try:
        dv = reader(ref, fetch)
        if dv.cardinality != ref.cardinality:
            raise DamagedDeletionVectorError(f"it holds {dv.cardinality} positions, the log says {ref.cardinality}")
        if rows is not None and dv and dv.max() >= rows:
            raise DamagedDeletionVectorError(f"position {dv.max()} is beyond the file's {rows} rows")
    except DamagedDeletionVectorError as error:
        raise DamagedDeletionVectorError(error.reason, file=ref.uri, offset=ref.offset) from error.__cause__
    except FileNotFoundError as error:
        raise DamagedDeletionVectorError("the file does not exist", file=ref.uri, offset=ref.offset) from error
    return dv

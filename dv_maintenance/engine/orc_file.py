"""ORC files, stripe by stripe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import pyarrow as pa
from pyarrow import orc, types

from dv_maintenance.engine.faults import about, reading
from dv_maintenance.engine.orc_tail import writer_zones
from dv_maintenance.errors import DamagedTableError, RefusedError

__all__ = ["OrcStored"]

_UTC = frozenset({"UTC", "GMT", "Etc/UTC", "Etc/GMT", "Z", "Zulu", "UCT", "Universal"})
_LEAVE_OUT = "leave it out with --columns, or read the table with its own engine"


class OrcStored:
    """See ``whole_file.StoredFile``. Raises DamagedTableError."""

    def __init__(self, file: pa.NativeFile, uri: str) -> None:
        self._file, self._uri = file, uri
        self._orc: Any = orc.ORCFile(file)
        self.schema: pa.Schema = self._orc.schema
        self.rows: int = self._orc.nrows
        try:
            _check_names(self.schema)
        except UnicodeDecodeError as error:
            raise DamagedTableError(f"{uri} has a column whose name is no text") from error

    def check(self, fields: tuple[int, ...]) -> None:
        """Refuse timestamps that would not be read as they were written.

        Paimon has written timestamps with a local time zone as if UTC were the time zone of its Java, and still does so
        by default (``orc.timestamp-ltz.legacy.type``). No file tells, but where that is UTC it comes to the same.

        Raises
        ------
        RefusedError : names the column.
        DamagedTableError : the file's end is damaged.
        """
        chosen = [self.schema.field(index) for index in fields]
        timestamps = [field.name for field in chosen if _holds(field.type, zoned=False)]
        if timestamps and not _range_is_checked():
            raise RefusedError(
                f"column {timestamps[0]} of {self._uri} holds timestamps, and this release of pyarrow reads those of "
                "ORC files wrongly before 1677 and after 2262",
                next_step=f"use pyarrow 26 or newer, or {_LEAVE_OUT}",
            )
        zoned = [field.name for field in chosen if _holds(field.type, zoned=True)]
        if not zoned:
            return
        with about(self._uri):
            zones = writer_zones(self._file)
        if zones is None or not zones <= _UTC:
            found = "one that can't be told" if zones is None else ", ".join(sorted(zones - _UTC)) or "none"
            raise RefusedError(
                f"column {zoned[0]} of {self._uri} holds timestamps with a local time zone, written in the time zone "
                f"{found}: Paimon's writers may have shifted them by that",
                next_step=_LEAVE_OUT,
            )

    def batches(self, fields: tuple[int, ...]) -> Iterator[pa.RecordBatch]:
        """See ``whole_file.StoredFile``: memory is bounded by a stripe.

        Raises
        ------
        RefusedError : a timestamp that does not fit into 64 bits of nanoseconds.
        """
        for stripe in range(self._orc.nstripes):
            with reading(self._uri, "ORC"):
                try:
                    batch = self._orc.read_stripe(stripe, columns=list(fields))
                except pa.ArrowInvalid as error:
                    if "out of range for nanosecond" not in str(error):
                        raise
                    raise RefusedError(
                        f"{self._uri} holds a timestamp before 1677 or after 2262, which is not read from ORC files",
                        next_step=_LEAVE_OUT.replace("it", "the column", 1),
                    ) from error
            yield batch


def _check_names(fields: Iterable[pa.Field]) -> None:
    """Raise UnicodeDecodeError where Arrow could not give a name."""
    for field in fields:
        _ = field.name
        _check_names(field.type.field(index) for index in range(field.type.num_fields))


def _holds(type_: pa.DataType, *, zoned: bool) -> bool:
    """Whether a type is a timestamp, or has one in it; ``zoned``: one with a time zone."""
    if types.is_timestamp(type_):
        return not zoned or type_.tz is not None
    return any(_holds(type_.field(index).type, zoned=zoned) for index in range(type_.num_fields))


@cache
def _range_is_checked() -> bool:
    """Whether Arrow says so where a timestamp is out of its range. Older releases wrap around."""
    sink = pa.BufferOutputStream()
    orc.write_table(pa.table({"t": pa.array([253_402_300_799], pa.timestamp("s"))}), sink)
    try:
        orc.ORCFile(pa.BufferReader(sink.getvalue())).read()
    except pa.ArrowInvalid:
        return True
    return False

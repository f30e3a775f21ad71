"""ORC files, stripe by stripe."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import orc, types

from dv_maintenance.engine.faults import decoding, reading
from dv_maintenance.engine.orc.by_rows import UNITS, read_stripe, stripe_zones, with_nulls
from dv_maintenance.engine.orc.near_epoch import as_in_java, zone_of
from dv_maintenance.engine.orc.padding import stripped
from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.files.arrays import timestamps_in
from dv_maintenance.files.orc_library import is_there
from dv_maintenance.files.orc_tail import columns_with_nulls, writer_zones
from dv_maintenance.remedies import Remedy, setting
from dv_maintenance.tables.work import EXACT_INSTANTS

if TYPE_CHECKING:
    from dv_maintenance.tables.work import ScanTask, SourceFile

_UTC = frozenset({"UTC", "GMT", "Etc/UTC", "Etc/GMT", "Z", "Zulu", "UCT", "Universal"})
_DAY = 86_400
_LEAVE_OUT = Remedy("leave the column out with {}, or read the table with its own engine", (setting("columns"),))


class OrcStored:
    """See ``protocols.StoredFile``.

    exact : whether timestamps with a local time zone are known to be in UTC.
    padded : where the file pads text with blanks, see ``padding``.

    Raises
    ------
    DamagedTableError : names the file.
    """

    def __init__(
        self, file: pa.NativeFile, uri: str, *, exact: bool = False, padded: Collection[Sequence[str]] = ()
    ) -> None:
        self._file, self._uri, self._exact, self._padded = file, uri, exact, padded
        self._shifted, self._zone = False, zone_of(None)
        self._orc: Any = orc.ORCFile(file)
        self.schema: pa.Schema = self._orc.schema
        self.rows: int = self._orc.nrows
        try:
            _check_names(self.schema)
        except UnicodeDecodeError as error:
            raise DamagedTableError(f"{uri} has a column whose name is not text") from error

    def check(self, fields: tuple[int, ...]) -> None:
        """Refuse timestamps that would not be read as they were written, and maps with a null key, at which Arrow ends
        the process.

        By default (``orc.timestamp-ltz.legacy.type``) Paimon writes timestamps with a local time zone shifted by the
        time zone of its JVM. A file records that zone only if it also has timestamps without a zone. In UTC there is no
        shift.

        Raises
        ------
        RefusedError : names the column.
        DamagedTableError : the end of the file is damaged.
        """
        chosen = [self.schema.field(index) for index in fields]
        self._check_keys([field.name for field in chosen if any(_is_key(field.type))])
        timestamps = [field.name for field in chosen if _holds(field.type, zoned=False)]
        if timestamps and not range_is_checked():
            raise RefusedError(
                f"column {timestamps[0]} of {self._uri} holds timestamps, and this release of pyarrow misreads "
                "timestamps of ORC files before 1677 and after 2262",
                next_step=Remedy(f"use pyarrow 26 or newer, or {_LEAVE_OUT.text}", _LEAVE_OUT.parts),
            )
        if not timestamps:
            return
        with decoding(self._uri):
            zones = writer_zones(self._file)
        if zones is None and is_there():
            zones = stripe_zones(self._file)
        self._shifted, self._zone = zones is None or not zones <= _UTC, zone_of(zones)
        zoned = [field.name for field in chosen if _holds(field.type, zoned=True)]
        if zoned and self._shifted and not self._exact:
            found = ", ".join(sorted(zones - _UTC)) if zones else ""
            zone = f"the time zone {found}" if found else "a time zone that the file does not name"
            raise RefusedError(
                f"column {zoned[0]} of {self._uri} holds timestamps with a local time zone, written in {zone}: "
                "Paimon's writers shift them by its offset, unless the table has orc.timestamp-ltz.legacy.type=false",
                next_step=_LEAVE_OUT,
            )

    def _check_keys(self, names: Collection[str]) -> None:
        """``names``: of columns with maps."""
        if not names:
            return
        keys: dict[int, str] = {}
        number = 1  # 0 is the row itself; then each column comes before its parts
        for field in self.schema:
            parts = [*_is_key(field.type)]
            keys |= {number + at: field.name for at, key in enumerate(parts) if key and field.name in names}
            number += len(parts)
        with decoding(self._uri):
            nulls = columns_with_nulls(self._file)
            if nulls is None and is_there():
                nulls = with_nulls(self._file, keys)
        if found := sorted(keys.keys() & (nulls or ())):
            raise RefusedError(
                f"column {keys[found[0]]} of {self._uri} holds maps with a null key, for which Arrow has no type",
                next_step=_LEAVE_OUT,
            )

    def batches(self, fields: tuple[int, ...]) -> Iterator[pa.RecordBatch]:
        """See ``protocols.StoredFile``: memory is bounded by a stripe.

        Raises
        ------
        RefusedError : ORC libraries read a timestamp differently.
        MissingSoftwareError : a timestamp does not fit into 64 bits of nanoseconds, and pyorc is not installed.
        """
        for stripe in range(self._orc.nstripes):
            with reading(self._uri, "ORC"):
                try:
                    batch = self._orc.read_stripe(stripe, columns=list(fields))
                except pa.ArrowInvalid as error:
                    if "out of range for nanosecond" not in str(error):
                        raise
                    batch = self._by_rows(stripe, fields)
            if self._shifted and any(_near_epoch(column) for column in batch.columns):
                if self._zone is None:
                    raise RefusedError(
                        f"{self._uri} holds a timestamp within a day of 1970, written in a time zone that is not "
                        "known: ORC libraries read such values with a difference of a second",
                        next_step=_LEAVE_OUT,
                    )
                columns = [as_in_java(column, self._zone) for column in batch.columns]
                batch = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
            yield stripped(batch, self._padded)

    def _by_rows(self, stripe: int, fields: tuple[int, ...]) -> pa.RecordBatch:
        """The columns of a stripe, those with timestamps row by row."""
        slow = [at for at in fields if _holds(self.schema.field(at).type, zoned=False)]
        others = [at for at in fields if at not in slow]
        with decoding(self._uri):
            found = dict(zip(slow, read_stripe(self._file, stripe, slow, self.schema), strict=True))
        if others:
            batch = self._orc.read_stripe(stripe, columns=others)
            found |= dict(zip(others, batch.columns, strict=True))
        return pa.RecordBatch.from_arrays([found[at] for at in fields], names=[self.schema.names[at] for at in fields])


def open_orc(file: pa.NativeFile, source: SourceFile, task: ScanTask) -> OrcStored:
    """See ``file_formats.FileFormat.stored``. Raises as :class:`OrcStored`."""
    exact = (task.schema.metadata or {}).get(EXACT_INSTANTS) is not None
    return OrcStored(file, source.uri, exact=exact, padded=source.details.get("padded", ()))


def _check_names(fields: Iterable[pa.Field]) -> None:
    """Raise UnicodeDecodeError if a name is not valid text."""
    for field in fields:
        _ = field.name
        _check_names(field.type.field(index) for index in range(field.type.num_fields))


def _is_key(type_: pa.DataType, *, key: bool = False) -> Iterator[bool]:
    """For a column and each of its parts, in the order of their ids in the file, whether it is the key of a map."""
    yield key
    if types.is_map(type_):
        yield from _is_key(type_.key_type, key=True)
        yield from _is_key(type_.item_type)
        return
    for at in range(type_.num_fields):
        yield from _is_key(type_.field(at).type)


def _holds(type_: pa.DataType, *, zoned: bool) -> bool:
    """Whether a type is or contains a timestamp. ``zoned``: with a time zone."""
    if types.is_timestamp(type_):
        return not zoned or type_.tz is not None
    return any(_holds(type_.field(index).type, zoned=zoned) for index in range(type_.num_fields))


def _near_epoch(array: pa.Array) -> bool:
    """Whether an array has a timestamp with a fraction of a second that may be before 1970 in one of UTC and the
    writer's time zone, and not in the other. Seconds are rounded towards zero: writers and readers disagree there.
    """
    return any(_is_near_epoch(each) for each in timestamps_in(array) if each.type.tz is None)


def _is_near_epoch(array: pa.Array) -> bool:
    values, second = array.view(pa.int64()), UNITS[array.type.unit]
    near = pc.less_equal(pc.abs_checked(pc.fill_null(values, 0)), _DAY * second)
    broken = pc.not_equal(pc.multiply(pc.divide(values, second), second), values)
    return bool(pc.any(pc.and_kleene(near, broken)).as_py())


@cache
def range_is_checked() -> bool:
    """Whether Arrow reports timestamps that are out of its range. Older releases wrap around."""
    sink = pa.BufferOutputStream()
    orc.write_table(pa.table({"t": pa.array([253_402_300_799], pa.timestamp("s"))}), sink)
    try:
        orc.ORCFile(pa.BufferReader(sink.getvalue())).read()
    except pa.ArrowInvalid:
        return True
    return False

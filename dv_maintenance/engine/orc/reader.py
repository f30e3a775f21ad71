"""ORC files, stripe by stripe."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import orc, types

from dv_maintenance.engine.faults import decoding, reading
from dv_maintenance.engine.orc.by_rows import read_stripe, stripe_zones, with_nulls
from dv_maintenance.engine.orc.near_epoch import LEAVE_OUT, as_in_java, zone_of
from dv_maintenance.engine.orc.padding import stripped
from dv_maintenance.engine.parquet.int96 import BYTES, holds_marked
from dv_maintenance.engine.parquet.projection import source_name
from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.files.map_entries import as_entries
from dv_maintenance.files.orc_library import is_there
from dv_maintenance.files.orc_shapes import holds, keys_of
from dv_maintenance.files.orc_tail import columns_with_nulls, writer_zones
from dv_maintenance.remedies import Remedy
from dv_maintenance.tables.work import EXACT_INSTANTS

if TYPE_CHECKING:
    from dv_maintenance.tables.work import ScanTask, SourceFile

_UTC = frozenset({"UTC", "GMT", "Etc/UTC", "Etc/GMT", "Z", "Zulu", "UCT", "Universal"})


class OrcStored:
    """See ``protocols.StoredFile``. At a null key of a map Arrow ends the process: a column that has one holds lists of
    entries in the ``schema``, and is read row by row.

    wanted : the fields of the task, by the names of columns in the file.
    exact : whether timestamps with a local time zone are known to be in UTC.
    padded : where the file pads text with blanks, see ``padding``.

    Raises
    ------
    DamagedTableError : names the file.
    MissingSoftwareError : the file is compressed with LZO and has maps, and pyorc is not installed.
    """

    def __init__(
        self,
        file: pa.NativeFile,
        uri: str,
        wanted: Mapping[str, pa.Field],
        *,
        exact: bool = False,
        padded: Collection[Sequence[str]] = (),
    ) -> None:
        self._file, self._uri, self._wanted, self._exact, self._padded = file, uri, wanted, exact, padded
        self._shifted, self._zone = False, zone_of(None)
        self._orc: Any = orc.ORCFile(file)
        self.schema: pa.Schema = self._orc.schema
        self.rows: int = self._orc.nrows
        try:
            _check_names(self.schema)
        except UnicodeDecodeError as error:
            raise DamagedTableError(f"{uri} has a column whose name is not text") from error
        self._null_keys = self._with_null_keys()
        for at in self._null_keys:
            field = self.schema.field(at)
            self.schema = self.schema.set(at, field.with_type(as_entries(field.type)))

    def check(self, fields: tuple[int, ...]) -> None:
        """Refuse timestamps that would not be read as they were written.

        By default (``orc.timestamp-ltz.legacy.type``) Paimon writes timestamps with a local time zone shifted by the
        time zone of its JVM. A file records that zone only if it also has timestamps without a zone. In UTC there is no
        shift.

        Raises
        ------
        RefusedError : names the column.
        DamagedTableError : the end of the file is damaged.
        """
        chosen = [self.schema.field(index) for index in fields]
        timestamps = [field.name for field in chosen if holds(field.type, types.is_timestamp)]
        if timestamps and not range_is_checked():
            raise RefusedError(
                f"column {timestamps[0]} of {self._uri} holds timestamps, and this release of pyarrow misreads "
                "timestamps of ORC files before 1677 and after 2262",
                next_step=Remedy(f"use pyarrow 26 or newer, or {LEAVE_OUT.text}", LEAVE_OUT.parts),
            )
        if not timestamps:
            return
        with decoding(self._uri):
            zones = writer_zones(self._file)
        if zones is None and is_there():
            zones = stripe_zones(self._file)
        self._shifted, self._zone = zones is None or not zones <= _UTC, zone_of(zones)
        zoned = [field.name for field in chosen if holds(field.type, _is_instant)]
        if zoned and self._shifted and not self._exact:
            found = ", ".join(sorted(zones - _UTC)) if zones else ""
            zone = f"the time zone {found}" if found else "a time zone that the file does not name"
            raise RefusedError(
                f"column {zoned[0]} of {self._uri} holds timestamps with a local time zone, written in {zone}: "
                "Paimon's writers shift them by its offset, unless the table has orc.timestamp-ltz.legacy.type=false",
                next_step=LEAVE_OUT,
            )

    def _with_null_keys(self) -> frozenset[int]:
        """The columns that hold maps with a null key. Raises DamagedTableError, MissingSoftwareError."""
        keys = keys_of(self._orc.schema, range(len(self._orc.schema)))
        if not keys:
            return frozenset()
        with decoding(self._uri):
            nulls = columns_with_nulls(self._file)
            if nulls is None:
                nulls = with_nulls(self._file, keys)
        return frozenset(keys[each] for each in keys.keys() & nulls)

    def batches(self, fields: tuple[int, ...]) -> Iterator[pa.RecordBatch]:
        """See ``protocols.StoredFile``: memory is bounded by a stripe. Columns as in ``by_rows.read_stripe``.

        Raises
        ------
        RefusedError : ORC libraries read a timestamp differently, or pyorc does not tell the keys of a map apart.
        MissingSoftwareError : pyorc is not installed, and a key is null, or a timestamp does not fit into 64 bits of
            nanoseconds.
        """
        timed = {at for at in fields if holds(self.schema.field(at).type, types.is_timestamp)}
        slow = self._null_keys.intersection(fields)
        for stripe in range(self._orc.nstripes):
            with reading(self._uri, "ORC"):
                try:
                    batch = self._stripe(stripe, fields, slow)
                except pa.ArrowInvalid as error:
                    if "out of range for nanosecond" not in str(error):
                        raise
                    batch = self._stripe(stripe, fields, slow | timed)
                if self._shifted:
                    batch = self._as_in_java(batch, fields)
            yield stripped(batch, self._padded)

    def _stripe(self, stripe: int, fields: tuple[int, ...], slow: Collection[int]) -> pa.RecordBatch:
        """The columns of a stripe, some of them row by row."""
        others = [at for at in fields if at not in slow]
        batch = self._orc.read_stripe(stripe, columns=others) if others else None
        if batch is not None and not slow:
            return batch
        found = {} if batch is None else dict(zip(others, batch.columns, strict=True))
        with decoding(self._uri):
            read = read_stripe(self._file, self._uri, stripe, sorted(slow), self.schema)
        for at, array in zip(sorted(slow), read, strict=True):
            self._check_range(self.schema.names[at], array.type)
            found[at] = array
        return pa.RecordBatch.from_arrays([found[at] for at in fields], names=[self.schema.names[at] for at in fields])

    def _check_range(self, name: str, found: pa.DataType) -> None:
        """Refuse timestamps that 64 bits of nanoseconds do not hold, unless their bytes or fewer digits are wanted."""
        field = self._wanted.get(name)
        if field is not None and holds_marked(field):
            return
        no_micros = field is not None and holds(field.type, _has_nanos) and not holds(found, _has_nanos)
        if no_micros or holds(found, BYTES.equals):
            raise RefusedError(
                f"column {name} of {self._uri} holds a timestamp with nanoseconds before 1677 or after 2262, for which "
                "Arrow has no type",
                next_step=LEAVE_OUT,
            )

    def _as_in_java(self, batch: pa.RecordBatch, fields: tuple[int, ...]) -> pa.RecordBatch:
        stored = (self.schema.field(at).type for at in fields)
        columns = [as_in_java(each, like, self._zone) for each, like in zip(batch.columns, stored, strict=True)]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def open_orc(file: pa.NativeFile, source: SourceFile, task: ScanTask) -> OrcStored:
    """See ``file_formats.FileFormat.stored``. Raises as :class:`OrcStored`."""
    exact = (task.schema.metadata or {}).get(EXACT_INSTANTS) is not None
    names = source.schema or task.schema
    wanted = {source_name(names.field(each.name)): each for each in task.schema if each.name in names.names}
    return OrcStored(file, source.uri, wanted, exact=exact, padded=source.details.get("padded", ()))


def _check_names(fields: Iterable[pa.Field]) -> None:
    """Raise UnicodeDecodeError if a name is not valid text."""
    for field in fields:
        _ = field.name
        _check_names(field.type.field(index) for index in range(field.type.num_fields))


def _is_instant(kind: pa.DataType) -> bool:
    return bool(types.is_timestamp(kind)) and kind.tz is not None


def _has_nanos(kind: pa.DataType) -> bool:
    return bool(types.is_timestamp(kind)) and kind.unit == "ns"


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

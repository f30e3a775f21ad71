"""Calendars of Parquet files. Spark's keys in a footer identify the calendar of the file's dates and timestamps. Spark
2 wrote the hybrid of Julian and Gregorian calendar; tables use the proleptic Gregorian calendar.

The rules are Spark's: ``DataSourceUtils.getRebaseSpec`` for the keys, ``RebaseDateTime`` for the values. The conversion
of a timestamp depends on a time zone, as Java's offsets for times long ago differ from those of the tz database. What
Spark adds in each zone is in ``legacy_zones.json``, made from Spark's own table (``scripts/legacy_zones``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.engine.parquet.widening import widening
from dv_maintenance.errors import RefusedError
from dv_maintenance.files.arrays import int64s

if TYPE_CHECKING:
    from dv_maintenance.engine.parquet.widening import Convert
    from dv_maintenance.tables.work import ScanTask

_VERSION: Final = b"org.apache.spark.version"
_LEGACY: Final = b"org.apache.spark.legacyDateTime"
_LEGACY_INT96: Final = b"org.apache.spark.legacyINT96"
_ZONE: Final = b"org.apache.spark.timeZone"

PROLEPTIC: Final = {_VERSION: b"3.1.0"}
"""Keys for the footer of a file whose dates and timestamps are in the proleptic Gregorian calendar. The version is the
first release of Spark that wrote all types so. Without the keys, readers before Spark 4 refuse dates before 1582 and
timestamps before 1900, and readers set to ``LEGACY`` shift them.
"""

FIRST_DAY: Final = -141_427
"""1582-10-15, in days since the epoch: from here on a date is the same in both calendars."""
FIRST_MICRO: Final = -2_208_988_800_000_000
"""1900-01-01 in UTC, in microseconds: from here on a timestamp is the same in both, in every time zone."""

_DAY: Final = 86_400
_YEAR_1: Final = -62_135_769_600
_OFFSET: Final = re.compile(
    r"Z|(?P<base>|GMT|UTC|UT)(?P<sign>[+-])(?P<hours>\d|[01]\d|2[0-3])(?::?(?P<minutes>[0-5]\d))?"
)
# FIRST_MICRO in the units that Parquet knows.
_FIRST: Final = {
    "milliseconds": FIRST_MICRO // 1000,
    "microseconds": FIRST_MICRO,
    "nanoseconds": FIRST_MICRO * 1000,
}
# Zones of the table that have one offset from UTC in every version of the tz database.
_FIXED: Final = re.compile(r"UTC|GMT|UCT|Zulu|Universal|Greenwich|Etc/.+")
_Zone = tuple[int, int, list[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class FileCalendar:
    """How Spark reads a Parquet file with these keys.

    hybrid : whether dates and INT64 timestamps are in the hybrid calendar.
    hybrid_int96 : whether INT96 timestamps are.
    zone : time zone of timestamps in the hybrid calendar; ``None`` if the file names none, and each reader uses that
        of its own JVM.
    """

    uri: str
    hybrid: bool
    hybrid_int96: bool
    zone: str | None
    # The footer's ParquetSchema: the stored type of each leaf.
    _schema: Any

    @classmethod
    def of(cls, footer: Any, uri: str) -> FileCalendar | None:
        """By the keys of a footer; ``None`` if no value needs a conversion.

        Versions are compared as text, as in Spark. Without a version the settings of a reader decide; here values are
        read as they are stored, which is Spark 4's default.
        """
        keys = footer.metadata or {}
        version = keys.get(_VERSION)
        if version is None:
            return None
        hybrid = version < b"3.0.0" or _LEGACY in keys
        hybrid_int96 = version < b"3.1.0" or _LEGACY_INT96 in keys
        if not hybrid and not hybrid_int96:
            return None
        zone = keys.get(_ZONE)
        return cls(uri, hybrid, hybrid_int96, None if zone is None else zone.decode(errors="replace"), footer.schema)

    def conversion(self, leaf: int, stored: pa.DataType, wanted: pa.DataType) -> Convert | None:
        """The conversion of a leaf's values from the type ``stored`` to ``wanted``; ``None`` if the calendar makes no
        difference, or there is no conversion.

        Timestamps without a time zone are proleptic, whatever the keys: every Spark that has the type writes them so.
        """
        if types.is_dictionary(stored):
            inner = self.conversion(leaf, stored.value_type, wanted)
            return None if inner is None else lambda array: inner(array.dictionary_decode())
        widen = widening(stored, wanted)
        if widen is None:
            return None
        if types.is_date32(stored) and self.hybrid:
            return lambda array: widen(dates_to_proleptic(array, self.uri))
        if not types.is_timestamp(stored) or not types.is_timestamp(wanted) or wanted.tz is None:
            return None
        if self.hybrid_int96 if self._schema.column(leaf).physical_type == "INT96" else self.hybrid:
            return lambda array: timestamps_to_proleptic(widen(array), self.zone, self.uri)
        return None


class CalendarKeys(Enum):
    """Which calendar keys the dates and timestamps of a source require in the footer of a new file."""

    IRRELEVANT = auto()
    """Either: the values are the same in both calendars."""
    PROLEPTIC = auto()
    """The keys of ``PROLEPTIC``."""
    ABSENT = auto()
    """No keys, like the source: each reader still interprets the values by its own settings."""

    @classmethod
    def of(cls, footer: Any, leaves: Iterable[int]) -> CalendarKeys:
        """For these leaves of a file. ``footer``: ``None`` if the file is not Parquet."""
        if footer is None:
            return cls.PROLEPTIC
        schema = footer.schema
        temporal = [leaf for leaf in leaves if _is_temporal(schema.column(leaf))]
        groups = (footer.row_group(group) for group in range(footer.num_row_groups)) if temporal else ()
        if not any(may_be_ancient(group.column(leaf)) for group in groups for leaf in temporal):
            return cls.IRRELEVANT
        return cls.PROLEPTIC if _VERSION in (footer.metadata or {}) else cls.ABSENT


def readers_use_keys(scan: ScanTask) -> bool:
    """Whether readers of the scanned table use calendar keys. Other readers assume that every file is proleptic, so
    absent keys mean the same to them.
    """
    return all(source.spark_keys for source in scan.sources)


def _is_temporal(column: Any) -> bool:
    return column.logical_type.type in ("DATE", "TIMESTAMP") or column.physical_type == "INT96"


def may_be_ancient(chunk: Any) -> bool:
    """Whether a column chunk of dates or timestamps may hold one that is not the same in both calendars."""
    stats = chunk.statistics if chunk.is_stats_set else None
    if stats is not None and stats.has_null_count and stats.null_count == chunk.num_values:
        return False
    if stats is None or not stats.has_min_max or chunk.physical_type == "INT96":
        return True
    if chunk.physical_type == "INT32":
        return bool(stats.min_raw < FIRST_DAY)
    unit = json.loads(stats.logical_type.to_json()).get("timeUnit")
    return unit not in _FIRST or bool(stats.min_raw < _FIRST[unit])


def dates_to_proleptic(array: pa.Array, uri: str) -> pa.Array:
    """Days of the hybrid calendar as the days with the same year, month and day in the proleptic one. A day that only
    the hybrid calendar has (1500-02-29) becomes the next day. ``uri``: for the error.

    Raises
    ------
    RefusedError : a date from before 290,000 BC.
    """
    days = array.view(pa.int32())
    if not _any_before(days, FIRST_DAY):
        return array
    table = _zone_table("UTC")
    assert table is not None, "UTC is in every table"
    seconds = pc.multiply(days.cast(pa.int64()), _DAY)
    moved = pc.divide(_moved(seconds, table, 1, f"{uri} holds a date from before 290,000 BC"), _DAY)
    return moved.cast(pa.int32()).view(array.type)


def timestamps_to_proleptic(array: pa.Array, zone: str | None, uri: str) -> pa.Array:
    """Timestamps, in microseconds, of the hybrid calendar as those with the same local time in the proleptic one.
    ``uri``: for the error.

    Raises
    ------
    RefusedError : a timestamp is before 1900, and ``zone`` is not in Spark's table; or one is before the year 1, where
        the table begins. Before that the result depends on the JVM.
    """
    micros = array.view(pa.int64())
    if not _any_before(micros, FIRST_MICRO):
        return array
    what = f"{uri} holds timestamps before 1900 in the calendar of Spark 2"
    if zone is None:
        raise _refused(f"{what} and does not name their time zone, so that each reader takes its own JVM's")
    table = _zone_table(zone)
    if table is None:
        raise _refused(f"{what}, in the time zone {zone!r}, which Spark's table of them does not have")
    early = f"{uri} holds timestamps before the year 1, in the time zone {zone}, for which Spark asks each reader's JVM"
    return _moved(micros, table, 1_000_000, early).view(array.type)


def _refused(why: str) -> RefusedError:
    return RefusedError(
        why,
        next_step="let Spark rewrite the file (OPTIMIZE, or REORG TABLE ... APPLY (PURGE)), or leave the column out",
    )


def _any_before(values: pa.Array, first: int) -> bool:
    least = pc.min(values).as_py()
    return least is not None and least < first


@dataclass(frozen=True, slots=True)
class _Table:
    """A step function of time.

    switches : seconds since the epoch, ascending.
    seconds : to be added to times from the switch at the same index on.
    """

    switches: Any
    seconds: Any


def _moved(values: pa.Array, table: _Table, unit: int, early: str) -> pa.Array:
    """``values`` plus the seconds of the table.

    unit : units of ``values`` per second.
    early : reason of the refusal if a value is before the first switch.
    """
    # The number under a null is arbitrary.
    numbers = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
    places = np.searchsorted(table.switches, numbers // unit, side="right") - 1
    if places.min() < 0:
        raise _refused(early)
    return pc.add(values, int64s((table.seconds * unit)[places]))


@cache
def _zone_table(zone: str) -> _Table | None:
    """``None`` for a zone that Spark's table does not have."""
    found = _zones().get(zone) or _offset(zone)
    if found is None:
        return None
    raw, local, later = found
    switches, seconds = _julian()
    if zone in _zones() and not _FIXED.fullmatch(zone):
        # Spark's table begins with the year 1, two days before that of the proleptic calendar.
        known = int(np.flatnonzero(seconds == _DAY)[0])
        switches = np.append(_YEAR_1, switches[known:])
        seconds = np.append(2 * _DAY, seconds[known:])
    return _Table(
        np.concatenate([switches + raw, np.array([each[0] for each in later], np.int64)]),
        np.concatenate([seconds + local, np.array([each[1] for each in later], np.int64)]),
    )


def _offset(zone: str) -> _Zone | None:
    """Of a zone that is an offset, by Java's rule (``TimeZone.getTimeZone``): without the prefix GMT it means GMT."""
    match = _OFFSET.fullmatch(zone)
    if match is None:
        return None
    if match["base"] != "GMT":
        return 0, 0, []
    seconds = 3600 * int(match["hours"]) + 60 * int(match["minutes"] or 0)
    return (seconds if match["sign"] == "-" else -seconds), 0, []


@cache
def _zones() -> dict[str, _Zone]:
    """By zone name: how much later its switches are than those of UTC, what is added to the difference of the
    calendars, and the switches after 1582.
    """
    from importlib.resources import files

    body = json.loads(files("dv_maintenance.engine.parquet").joinpath("legacy_zones.json").read_text())
    return {name: (raw, local, later) for raw, local, later, names in body["zones"] for name in names}


@cache
def _julian() -> tuple[Any, Any]:
    """The switches of UTC, in seconds since the epoch, and what is added from each of them on.

    Each is a first of March in the Julian calendar, of a year that has a 29th of February there only. The first one is
    earlier than any timestamp; the last one is 1582-10-15.
    """
    years = 100 * np.arange(-2_930, 16, dtype=np.int64)
    years = years[years % 400 != 0]
    days = 365 * (years - 100) + years // 4 - 25 - 682_945  # 0100-03-01 is the day -682,945
    added = 1 - (np.arange(len(years)) - int(np.flatnonzero(years == 100)[0]))
    return np.append(days, FIRST_DAY) * _DAY, np.append(added, 0) * _DAY

"""Partition values without a zone: delta-spark reads them in the session's zone, which PySpark hides from a source."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from dv_maintenance.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from dv_maintenance.spark_source.options import ReadOptions
    from dv_maintenance.tables.capabilities import QueryableTable
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.work import ScanTask

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def in_zone(table: QueryableTable, snapshot: Snapshot, tasks: list[ScanTask], options: ReadOptions) -> list[ScanTask]:
    """The tasks, with such values read in the zone of the options.

    Raises
    ------
    UsageError : the options name no zone.
    RefusedError : a time before 1970 in a zone other than UTC: Python and Java have different rules for such times.
    """
    for column, texts in table.local_times(snapshot, options.columns or snapshot.schema.names).items():
        if options.time_zone is None:
            raise UsageError(
                f"values of the partition column {column!r} have no time zone: they are in the session's",
                at=snapshot,
                next_step="give the session's zone with the option 'timeZone', or leave the column out with 'columns'",
            )
        tasks = [
            task if text is None else _with(task, column, _instant(text, options.time_zone, snapshot))
            for task, text in zip(tasks, texts.to_pylist(), strict=True)
        ]
    return tasks


def _with(task: ScanTask, column: str, value: int) -> ScanTask:
    (source,) = task.sources
    return replace(task, sources=(replace(source, constants={**source.constants, column: value}),))


def _instant(text: str, zone: str, snapshot: Snapshot) -> int:
    moment = datetime.fromisoformat(text)
    if zone == "UTC":
        return (moment.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
    if moment.year < _EPOCH.year:
        raise RefusedError(
            f"the partition value {text} is before 1970, for which Python and Java have different rules in {zone}",
            at=snapshot,
            next_step="leave the column out with the option 'columns', or read the table with delta-spark",
        )
    return (moment.replace(tzinfo=ZoneInfo(zone)) - _EPOCH) // timedelta(microseconds=1)

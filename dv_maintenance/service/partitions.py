"""A table's partitions under keys that can be chosen: which keys exist, and which part of the table each one covers.

One function, :func:`partition_key`, decides which key a partition of the table belongs to. Choosing keys, grouping a
report by them and finding keys that an orchestrator does not know yet are all based on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.health import total
from dv_maintenance.maintenance.planning.partitioning import PartitionColumn, Partitioning
from dv_maintenance.maintenance.planning.selection import check_value, select
from dv_maintenance.tables.model import NULL_PARTITION, parse_partition, partition_name, value_name
from dv_maintenance.tables.partition_spec import fields_of, only

if TYPE_CHECKING:
    from dv_maintenance.maintenance.execution.report import StepReport
    from dv_maintenance.maintenance.health import Counts, Health
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan
    from dv_maintenance.service.tables_file import TableSettings
    from dv_maintenance.tables.model import Snapshot

__all__ = [
    "GRID_COLUMNS",
    "KEY_FORMAT",
    "PartitionColumn",
    "by_key",
    "check_columns",
    "check_key",
    "chosen_policy",
    "column_keys",
    "describe",
    "due_keys",
    "ended",
    "label",
    "listed_keys",
    "live_keys",
    "partition_key",
    "window_start",
]

GRID_COLUMNS: Final = 2
"""Up to so many columns span a grid; more are one list of the combinations in the table."""

KEY_FORMAT: Final = {"hour": "%Y-%m-%d-%H:%M", "day": "%Y-%m-%d", "month": "%Y-%m-%d"}
"""The key of a window of time is its start."""
# These parts of a timestamp are the same within a window.
_BELOW: Final[Mapping[str, dict[str, Any]]] = {
    "hour": {"minute": 0, "second": 0, "microsecond": 0},
    "day": {"hour": 0, "minute": 0, "second": 0, "microsecond": 0},
    "month": {"day": 1, "hour": 0, "minute": 0, "second": 0, "microsecond": 0},
}


def partition_key(partitioning: Partitioning, values: Mapping[str, str | None]) -> str | None:
    """The key that holds a partition of the table; ``None``: no window or listed value fits, or the partition's
    specification lacks a column.

    One column: its key. Two: ``a|b``, in the order of the columns' names. More: ``a=x/b=y/c=z``.
    """
    columns = partitioning.columns
    keys = {column.name: _column_key(column, values[column.name]) for column in columns if column.name in values}
    known = {name: key for name, key in keys.items() if key is not None}
    if len(known) < len(columns):
        return None
    if len(known) > GRID_COLUMNS:
        return partition_name({name: values[name] for name in known})
    return "|".join(known[name] for name in sorted(known))


def check_columns(partitioning: Partitioning, snapshot: Snapshot) -> None:
    """Raise UsageError if the table is not partitioned by these columns."""
    fields = fields_of(snapshot.specs)
    for column in partitioning.columns:
        if column.name not in fields:
            known = ", ".join(map(str, fields.values()))
            raise UsageError(
                f"partitions: {column.name!r} is not a partition column",
                next_step=f"use {known}" if known else "leave partitions out: the table has none",
            )


def chosen_policy(table: TableSettings, snapshot: Snapshot, keys: Iterable[str]) -> Policy | None:
    """The table's policy for these keys only. ``None``: they have no live file, or the policy's own partitions exclude
    them. A key without a live file is fine: a backfill covers days without rows.

    Raises
    ------
    UsageError : the table is not partitioned by these columns; or a key can't be one of the table, see
        :func:`check_key`.
    """
    assert table.partitions is not None
    check_columns(table.partitions, snapshot)
    chosen, own = set(keys), table.policy.partitions
    names = snapshot.files["partition"].unique().to_pylist()
    of_live = [partition_key(table.partitions, parse_partition(name)) for name in names]
    for key in sorted(chosen.difference(of_live)):
        check_key(table.partitions, snapshot, key)
    fits = select(snapshot, names, own).fits if own else [True] * len(names)
    fitting = zip(names, of_live, fits, strict=True)
    wanted = tuple(only(snapshot.specs, name) for name, key, fit in fitting if key in chosen and fit)
    # Without a filter, the policy would cover the whole table.
    return table.policy.model_copy(update={"partitions": wanted}) if wanted else None


def check_key(partitioning: Partitioning, snapshot: Snapshot, key: str) -> None:
    """Raise UsageError if no partition of the table can have this key: a window that is not written as its start, a
    value that is not listed, or one that does not have the type of its column.
    """
    columns = sorted(partitioning.columns, key=lambda column: column.name)
    if len(columns) > GRID_COLUMNS:
        values = parse_partition(key) if all("=" in part for part in key.split("/")) else {}
        if values.keys() != {column.name for column in columns}:
            raise _wrong_key(
                key, snapshot, "/".join(f"{column.name}=<{column.name}>" for column in partitioning.columns)
            )
        parts = [value_name(values[column.name]) for column in columns]
    else:
        parts = key.split("|")
        if len(parts) != len(columns):
            raise _wrong_key(key, snapshot, "|".join(f"<{column.name}>" for column in columns))
    for column, part in zip(columns, parts, strict=True):
        if column.every is not None and column.start is not None:
            try:
                datetime.strptime(part, KEY_FORMAT[column.every])  # noqa: DTZ007 (only the form counts)
            except ValueError:
                start = window_start(column.every, column.start).strftime(KEY_FORMAT[column.every])
                raise _wrong_key(key, snapshot, f"the start of a {column.every}, such as {start}") from None
            continue
        if column.values is not None and part not in (listed := listed_keys(column.values)):
            raise _wrong_key(key, snapshot, f"one of {', '.join(listed)} for {column.name}")
        check_value(snapshot, column.name, parse_partition(f"k={part}")["k"])


def _wrong_key(key: str, snapshot: Snapshot, form: str) -> UsageError:
    return UsageError(
        f"{key!r} is not a key of the table's partitions", table=snapshot.table, next_step=f"write {form}"
    )


def listed_keys(values: Iterable[str]) -> list[str]:
    """Keys of the values that the setting lists."""
    return [value_name(None if value == NULL_PARTITION else value) for value in values]


def by_key(
    partitioning: Partitioning, keys: Sequence[str], steps: Iterable[StepReport], after: Health
) -> dict[str, tuple[list[StepReport], Counts | None]]:
    """For each of these keys, the steps done in it and its health afterwards; ``None``: it has no live file."""
    counts: dict[str | None, list[Counts]] = {}
    for each in after.partitions:
        counts.setdefault(partition_key(partitioning, each.partition), []).append(each.counts)
    done: dict[str | None, list[StepReport]] = {}
    for step in steps:
        done.setdefault(partition_key(partitioning, parse_partition(step.partition)), []).append(step)
    return {key: (done.get(key, []), total(counts[key]) if key in counts else None) for key in keys}


def column_keys(partitioning: Partitioning, snapshot: Snapshot) -> dict[str | None, set[str]]:
    """Keys found in the table, for each column without ``every`` and ``values``. If there are too many columns for a
    grid, the combinations under ``None``. Raises as :func:`check_columns`.
    """
    check_columns(partitioning, snapshot)
    columns, live = partitioning.columns, list(_live(snapshot))
    keys = [partition_key(partitioning, values) for values in live]
    if len(columns) > GRID_COLUMNS:
        return {None: {key for key in keys if key is not None}}
    return {
        column.name: {value_name(values[column.name]) for values in live if column.name in values}
        for column in columns
        if column.every is None and column.values is None
    }


def live_keys(partitioning: Partitioning, snapshot: Snapshot) -> frozenset[str | None]:
    """Keys of the partitions with live files; ``None`` for those without a key. Raises as :func:`check_columns`."""
    check_columns(partitioning, snapshot)
    return frozenset(partition_key(partitioning, values) for values in _live(snapshot))


def ended(partitioning: Partitioning, key: str, now: datetime) -> bool:
    """Whether the window of a key is over, so that only late rows can fall into it. Other keys have no end.

    now : in UTC, without a zone.
    """
    columns = sorted(partitioning.columns, key=lambda column: column.name)
    if len(columns) > GRID_COLUMNS:
        return True
    return all(
        column.every is None or part < window_start(column.every, now).strftime(KEY_FORMAT[column.every])
        for column, part in zip(columns, key.split("|"), strict=True)
    )


def due_keys(table: TableSettings, snapshot: Snapshot, plan: MaintenancePlan) -> frozenset[str | None]:
    """Keys of the partitions with a planned step; ``None`` for partitions without a key. Raises as
    :func:`check_columns`.
    """
    partitioning = table.partitions
    if partitioning is None:
        return frozenset()
    check_columns(partitioning, snapshot)
    names = {step.partition for step in plan.steps}
    return frozenset(partition_key(partitioning, parse_partition(name)) for name in names)


def describe(partitioning: Partitioning) -> str:
    """A sentence that describes the partitions, for the end of a description."""
    how = {
        column.name: f"one per {column.every}" if column.every else "values as listed" if column.values else "as found"
        for column in partitioning.columns
    }
    return f"Partitions by {', '.join(f'column {name} ({kind})' for name, kind in how.items())}."


def label(keys: Sequence[str]) -> str:
    """The partitions of a run, for its tag.

    >>> label(["2024-11-02", "2024-11-03", "2024-11-04"])
    '2024-11-02...2024-11-04 (3)'
    """
    return keys[0] if len(keys) == 1 else f"{keys[0]}...{keys[-1]} ({len(keys)})"


def window_start(every: str, moment: datetime) -> datetime:
    """The start of the hour, day or month that holds a moment."""
    return moment.replace(**_BELOW[every])


def _column_key(column: PartitionColumn, value: str | None) -> str | None:
    if column.every is not None and column.start is not None:
        moment = _moment(column, value)
        if moment is None or moment < window_start(column.every, column.start):
            return None
        return window_start(column.every, moment).strftime(KEY_FORMAT[column.every])
    if column.values is not None and (NULL_PARTITION if value is None else value) not in column.values:
        return None
    return value_name(value)


def _moment(column: PartitionColumn, value: str | None) -> datetime | None:
    if value is None:
        return None
    # ISO 8601 has days, and hours as partition transforms write them; it has no months.
    form = column.format or ("%Y-%m" if column.every == "month" and len(value) == len("2026-11") else None)
    try:
        moment = datetime.strptime(value, form) if form else datetime.fromisoformat(value)  # noqa: DTZ007 (zone: below)
    except ValueError:
        return None
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def _live(snapshot: Snapshot) -> Iterable[dict[str, str | None]]:
    """Partitions with live files, values by column."""
    return (parse_partition(name) for name in snapshot.files["partition"].unique().to_pylist())

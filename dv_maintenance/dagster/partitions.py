"""A table's partitions as Dagster partitions: which keys there are, and which part of the table a key stands for.

One function decides where a partition of the table belongs, :func:`partition_key`. Choosing keys, grouping a report by
them and finding keys that Dagster does not know yet all follow from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from dv_maintenance.dagster import metadata, naming
from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.health import total
from dv_maintenance.tables.model import NULL_PARTITION, parse_partition

if TYPE_CHECKING:
    from dv_maintenance.maintenance.execution.apply import ApplyReport, StepReport
    from dv_maintenance.maintenance.health import Counts, Health
    from dv_maintenance.maintenance.planning.partitioning import PartitionColumn, Partitioning
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.maintenance.tables_file import WatchedTable
    from dv_maintenance.tables.model import Snapshot

__all__ = [
    "PARTITIONS_TAG",
    "backfill_policy",
    "chosen_policy",
    "describe",
    "label",
    "missing_partitions",
    "of_partitions",
    "partition_key",
    "partitions_def",
]

# Dagster shows no partition for a run over a range of them; this tag does.
PARTITIONS_TAG = "dv/partitions"

# Keys end up in ranges (...), two-dimensional keys (|), the page's text box (, [ ] ") and paths of columns (/).
_RESERVED = re.compile(r'[\x00-\x1f\x7f%|,\[\]"/]|\.(?=\.\.)')
_FLAT: Final = 2

_WINDOWS: Final[Mapping[str, Callable[..., dg.PartitionsDefinition]]] = {
    "hour": dg.HourlyPartitionsDefinition,
    "day": dg.DailyPartitionsDefinition,
    "month": dg.MonthlyPartitionsDefinition,
}
# What a window of time is called by its start, and the parts of a moment that all of it shares.
_KEY_FORMAT: Final = {"hour": "%Y-%m-%d-%H:%M", "day": "%Y-%m-%d", "month": "%Y-%m-%d"}
_BELOW: Final[Mapping[str, dict[str, Any]]] = {
    "hour": {"minute": 0, "second": 0, "microsecond": 0},
    "day": {"hour": 0, "minute": 0, "second": 0, "microsecond": 0},
    "month": {"day": 1, "hour": 0, "minute": 0, "second": 0, "microsecond": 0},
}


def partitions_def(table: WatchedTable) -> dg.PartitionsDefinition | None:
    """What Dagster is told: one definition per column; two columns span a grid; more are one list of combinations."""
    if table.partitions is None:
        return None
    columns = table.partitions.columns
    if len(columns) > _FLAT:
        return dg.DynamicPartitionsDefinition(name=_dynamic_name(table))
    definitions = {column.name: _of_column(table, column) for column in columns}
    if len(definitions) == 1:
        return definitions[columns[0].name]
    return dg.MultiPartitionsDefinition(definitions)


def backfill_policy(table: WatchedTable) -> dg.BackfillPolicy | None:
    if table.partitions is None:
        return None
    per_run = table.partitions.per_run
    return dg.BackfillPolicy.single_run() if per_run is None else dg.BackfillPolicy.multi_run(per_run)


def describe(partitioning: Partitioning) -> str:
    """What the partitions are, as the sentence that ends a description."""
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


def partition_key(partitioning: Partitioning, values: Mapping[str, str | None]) -> str | None:
    """The Dagster partition that holds a partition of the table; ``None``: no window or listed value fits.

    Raises
    ------
    UsageError : the table is not partitioned by these columns.
    """
    columns = partitioning.columns
    for column in columns:
        if column.name not in values:
            raise UsageError(
                f"partitions: {column.name!r} is no partition column",
                next_step=f"use {', '.join(values)}" if values else "leave partitions out: the table has none",
            )
    keys = {column.name: _column_key(column, values[column.name]) for column in columns}
    known = {name: key for name, key in keys.items() if key is not None}
    if len(known) < len(keys):
        return None
    if len(known) == 1:
        return known[columns[0].name]
    if len(known) > _FLAT:
        return "/".join(f"{name}={key}" for name, key in known.items())
    return str(dg.MultiPartitionKey(known))


def chosen_policy(table: WatchedTable, snapshot: Snapshot, keys: Iterable[str]) -> Policy | None:
    """The table's policy for these Dagster partitions only. ``None``: no live file is in any of them, or the policy
    has partitions of its own and these are others. Raises as :func:`partition_key`.
    """
    assert table.partitions is not None
    chosen, own = set(keys), table.policy.partitions
    wanted = tuple(
        values
        for values in _live(snapshot)
        if partition_key(table.partitions, values) in chosen
        and (not own or any(each.items() <= values.items() for each in own))
    )
    # No filter at all would be the whole table.
    return table.policy.model_copy(update={"partitions": wanted}) if wanted else None


def of_partitions(
    table: WatchedTable, keys: Sequence[str], report: ApplyReport | None, after: Health
) -> dict[str, dict[str, Any]]:
    """Metadata for each of these Dagster partitions: what a run did in it, and how it is now. Raises as
    :func:`partition_key`.
    """
    if table.partitions is None:
        return {}
    partitioning = table.partitions
    counts: dict[str | None, list[Counts]] = {}
    for each in after.partitions:
        counts.setdefault(partition_key(partitioning, each.partition), []).append(each.counts)
    steps: dict[str | None, list[StepReport]] = {}
    for step in report.steps if report else ():
        steps.setdefault(partition_key(partitioning, parse_partition(step.partition)), []).append(step)
    return {
        key: metadata.of_partition(steps.get(key, []), total(counts[key]) if key in counts else None) for key in keys
    }


def missing_partitions(
    table: WatchedTable, snapshot: Snapshot, instance: dg.DagsterInstance
) -> list[dg.AddDynamicPartitionsRequest]:
    """Requests for the keys of columns without ``every`` and ``values`` that are in the table and that Dagster does not
    know yet: what a sensor returns as ``dynamic_partitions_requests``. Raises as :func:`partition_key`.
    """
    if table.partitions is None:
        return []
    columns, live = table.partitions.columns, list(_live(snapshot))
    keys = [partition_key(table.partitions, values) for values in live]
    if len(columns) > _FLAT:
        found = {_dynamic_name(table): {key for key in keys if key is not None}}
    else:
        found = {
            _dynamic_name(table, column): {_escaped(values[column.name]) for values in live}
            for column in columns
            if column.every is None and column.values is None
        }
    missing = {name: each.difference(instance.get_dynamic_partitions(name)) for name, each in found.items()}
    return [
        dg.DynamicPartitionsDefinition(name=name).build_add_request(sorted(each))
        for name, each in missing.items()
        if each
    ]


def _of_column(table: WatchedTable, column: PartitionColumn) -> dg.PartitionsDefinition:
    if column.every is not None and column.start is not None:
        # The window that holds the present counts too: it is where rows are deleted.
        return _WINDOWS[column.every](start_date=_window(column.every, column.start), end_offset=1)
    if column.values is not None:
        return dg.StaticPartitionsDefinition([_escaped(value) for value in column.values])
    return dg.DynamicPartitionsDefinition(name=_dynamic_name(table, column))


def _dynamic_name(table: WatchedTable, column: PartitionColumn | None = None) -> str:
    return naming.op_name(table, "partitions" if column is None else f"partitions/{column.name}")


def _column_key(column: PartitionColumn, value: str | None) -> str | None:
    if column.every is not None and column.start is not None:
        moment = _moment(column, value)
        if moment is None or moment < _window(column.every, column.start):
            return None
        return _window(column.every, moment).strftime(_KEY_FORMAT[column.every])
    if column.values is not None and (NULL_PARTITION if value is None else value) not in column.values:
        return None
    return _escaped(value)


def _moment(column: PartitionColumn, value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        known = column.format
        moment = datetime.strptime(value, known) if known else datetime.fromisoformat(value)  # noqa: DTZ007 (zone: below)
    except ValueError:
        return None
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def _window(every: str, moment: datetime) -> datetime:
    return moment.replace(**_BELOW[every])


def _escaped(value: str | None) -> str:
    """A value as a key: percent-encoded where Dagster gives characters a meaning, so two values never share a key."""
    if value is None:
        return NULL_PARTITION
    return _RESERVED.sub(lambda match: f"%{ord(match[0]):02X}", value)


def _live(snapshot: Snapshot) -> Iterable[dict[str, str | None]]:
    """Partitions with live files, values by column."""
    return (parse_partition(name) for name in snapshot.files["partition"].unique().to_pylist())

"""A table's partitions as Dagster partitions, with the keys of ``service.partitions``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import dagster as dg

from dv_maintenance.dagster import naming
from dv_maintenance.service.partitions import GRID_COLUMNS, column_keys, listed_keys, window_start

if TYPE_CHECKING:
    from dv_maintenance.service.partitions import PartitionColumn
    from dv_maintenance.service.tables_file import WatchedTable
    from dv_maintenance.tables.model import Snapshot

__all__ = ["PARTITIONS_TAG", "backfill_policy", "missing_partitions", "partitions_def"]

# Dagster shows no partition for a run over a range of them; this tag does.
PARTITIONS_TAG = "dv/partitions"

_WINDOWS: Final[Mapping[str, Callable[..., dg.PartitionsDefinition]]] = {
    "hour": dg.HourlyPartitionsDefinition,
    "day": dg.DailyPartitionsDefinition,
    "month": dg.MonthlyPartitionsDefinition,
}


def partitions_def(table: WatchedTable) -> dg.PartitionsDefinition | None:
    """One definition per column; two columns span a grid; more are one list of combinations."""
    if table.partitions is None:
        return None
    columns = table.partitions.columns
    if len(columns) > GRID_COLUMNS:
        return dg.DynamicPartitionsDefinition(name=_dynamic_name(table, None))
    definitions = {column.name: _of_column(table, column) for column in columns}
    if len(definitions) == 1:
        return definitions[columns[0].name]
    return dg.MultiPartitionsDefinition(definitions)


def backfill_policy(table: WatchedTable) -> dg.BackfillPolicy | None:
    if table.partitions is None:
        return None
    per_run = table.partitions.per_run
    return dg.BackfillPolicy.single_run() if per_run is None else dg.BackfillPolicy.multi_run(per_run)


def missing_partitions(
    table: WatchedTable, snapshot: Snapshot, instance: dg.DagsterInstance
) -> list[dg.AddDynamicPartitionsRequest]:
    """Requests for keys in the table that Dagster does not know yet; a sensor returns them as
    ``dynamic_partitions_requests``. Raises UsageError if the table is not partitioned by these columns.
    """
    if table.partitions is None:
        return []
    found = {_dynamic_name(table, column): keys for column, keys in column_keys(table.partitions, snapshot).items()}
    missing = {name: keys.difference(instance.get_dynamic_partitions(name)) for name, keys in found.items()}
    return [
        dg.DynamicPartitionsDefinition(name=name).build_add_request(sorted(keys))
        for name, keys in missing.items()
        if keys
    ]


def _of_column(table: WatchedTable, column: PartitionColumn) -> dg.PartitionsDefinition:
    if column.every is not None and column.start is not None:
        # Includes the current window: rows are deleted there.
        return _WINDOWS[column.every](start_date=window_start(column.every, column.start), end_offset=1)
    if column.values is not None:
        return dg.StaticPartitionsDefinition(listed_keys(column.values))
    return dg.DynamicPartitionsDefinition(name=_dynamic_name(table, column.name))


def _dynamic_name(table: WatchedTable, column: str | None) -> str:
    return naming.op_name(table, "partitions" if column is None else f"partitions/{column}")

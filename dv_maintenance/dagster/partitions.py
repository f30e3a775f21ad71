"""A table's partitions as Dagster partitions, with the keys of ``service.partitions``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import dagster as dg

from dv_maintenance.dagster import naming
from dv_maintenance.service.partitions import GRID_COLUMNS, column_keys, ended, listed_keys, live_keys, window_start

if TYPE_CHECKING:
    from dv_maintenance.service.partitions import PartitionColumn
    from dv_maintenance.service.tables_file import TableSettings
    from dv_maintenance.tables.model import Snapshot

# Dagster shows no partition for a run over a range of them; this tag does.
PARTITIONS_TAG = "dv/partitions"

_WINDOWS: Final[Mapping[str, Callable[..., dg.PartitionsDefinition]]] = {
    "hour": dg.HourlyPartitionsDefinition,
    "day": dg.DailyPartitionsDefinition,
    "month": dg.MonthlyPartitionsDefinition,
}


def partitions_def(table: TableSettings) -> dg.PartitionsDefinition | None:
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


def backfill_policy(table: TableSettings) -> dg.BackfillPolicy | None:
    if table.partitions is None:
        return None
    per_run = table.partitions.per_run
    return dg.BackfillPolicy.single_run() if per_run is None else dg.BackfillPolicy.multi_run(per_run)


def missing_partitions(
    table: TableSettings, snapshot: Snapshot, instance: dg.DagsterInstance
) -> list[dg.AddDynamicPartitionsRequest]:
    """Requests for keys in the table that Dagster does not know yet; a sensor returns them as
    ``dynamic_partitions_requests``. Raises UsageError if the table is not partitioned by these columns.
    """
    return [
        dg.DynamicPartitionsDefinition(name=name).build_add_request(sorted(live - known))
        for name, live, known in _dynamic_keys(table, snapshot, instance)
        if live - known
    ]


def gone_partitions(
    table: TableSettings, snapshot: Snapshot, instance: dg.DagsterInstance
) -> list[dg.DeleteDynamicPartitionsRequest]:
    """Requests to remove keys that no live file has any more. What happened in them stays recorded, and is shown again
    when they come back. None while a run or backfill is active: it may be about to start with such a key. Raises
    UsageError if the table is not partitioned by these columns.
    """
    return [
        dg.DynamicPartitionsDefinition(name=name).build_delete_request(sorted(known - live))
        for name, live, known in _dynamic_keys(table, snapshot, instance)
        if known - live
    ]


def _dynamic_keys(
    table: TableSettings, snapshot: Snapshot, instance: dg.DagsterInstance
) -> Iterator[tuple[str, AbstractSet[str], AbstractSet[str]]]:
    """Of each partition column: its name in Dagster, the keys that live files have, and those that Dagster knows."""
    columns = {} if table.partitions is None else column_keys(table.partitions, snapshot)
    for column, live in columns.items():
        name = _dynamic_name(table, column)
        yield name, live, set(instance.get_dynamic_partitions(name))


def nothing_to_do(
    table: TableSettings, snapshot: Snapshot, due: AbstractSet[str | None], instance: dg.DagsterInstance, most: int
) -> list[dg.AssetMaterialization]:
    """What a run over the partitions without work would record. Without it they would stay "missing" forever, and a
    backfill of missing partitions would start Spark for nothing. Each partition gets one record, the first time that it
    is seen without work, and a window only after its end. "Missing" then means that there is work.

    due : keys of the partitions with work.
    most : how many at a time, the newest first. Dagster stores events one by one.

    A table with ``maintained_within`` gets none: Dagster's freshness policies would count them as maintenance.
    """
    if table.partitions is None or "optimize" not in table.jobs or table.policy.checks.maintained_within is not None:
        return []
    definition = partitions_def(table)
    assert definition is not None
    key, now = naming.job_key(table, "optimize"), datetime.now(UTC).replace(tzinfo=None)
    live = live_keys(table.partitions, snapshot)
    known = list(definition.get_partition_keys(dynamic_partitions_store=instance))
    # A tick adds keys that are new only after its end.
    known += [as_key(table, each) for each in sorted(filter(None, live.difference(known)))]
    recorded = instance.get_materialized_partitions(key)
    waiting = due | recorded
    quiet = [each for each in known if each not in waiting and ended(table.partitions, each, now)]
    said = {
        True: "Nothing to do: the policy requires no work in this partition.",
        False: "Nothing to do: this partition has no live files.",
    }
    return [
        dg.AssetMaterialization(
            key,
            partition=each,
            metadata={"reason": dg.MetadataValue.md(said[each in live]), "version": snapshot.version},
        )
        for each in quiet[-most:]
    ]


def observe_first(table: TableSettings) -> str:
    """What to do before partitions can be chosen; empty where they are known without the table."""
    columns = () if table.partitions is None else table.partitions.columns
    found = len(columns) > GRID_COLUMNS or any(each.every is None and each.values is None for each in columns)
    if not found:
        return ""
    name = naming.table_key(table).to_user_string()
    return (
        f"Its partitions are those of the table. If none are shown yet, observe `{name}` first (Observe on its "
        "page), or switch the sensor on."
    )


def as_key(table: TableSettings, key: str) -> str:
    """A key of ``service.partitions`` as Dagster's own of a grid, which carries its dimensions."""
    columns = () if table.partitions is None else table.partitions.columns
    if len(columns) != GRID_COLUMNS:
        return key
    return dg.MultiPartitionKey(dict(zip(sorted(each.name for each in columns), key.split("|"), strict=True)))


def _of_column(table: TableSettings, column: PartitionColumn) -> dg.PartitionsDefinition:
    if column.every is not None and column.start is not None:
        # Includes the current window: rows are deleted there.
        return _WINDOWS[column.every](start_date=window_start(column.every, column.start), end_offset=1)
    if column.values is not None:
        return dg.StaticPartitionsDefinition(listed_keys(column.values))
    return dg.DynamicPartitionsDefinition(name=_dynamic_name(table, column.name))


def _dynamic_name(table: TableSettings, column: str | None) -> str:
    return naming.op_name(table, "partitions" if column is None else f"partitions/{column}")

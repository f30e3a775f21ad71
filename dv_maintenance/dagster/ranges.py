"""Which Dagster partitions a run should take up: those with work, merged into ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from dv_maintenance.dagster.partitions import partition_key, partitions_def

if TYPE_CHECKING:
    from dv_maintenance.maintenance.tables_file import WatchedTable
    from dv_maintenance.tables.model import Snapshot

__all__ = ["due_keys", "merged", "widest_range"]

# Partitions without work between two with work: cheaper to pass over (a plan has no step for them) than another run.
_BRIDGED = 7


def due_keys(table: WatchedTable, snapshot: Snapshot) -> frozenset[str | None]:
    """Keys of the partitions that the policy plans a step for; ``None`` for those outside of every Dagster partition.
    Raises UsageError: the table is not partitioned like that.
    """
    from dv_maintenance.maintenance.planning.plan import build_plan
    from dv_maintenance.tables.model import parse_partition

    partitioning = table.partitions
    if partitioning is None:
        return frozenset()
    names = {step.partition for step in build_plan(snapshot, table.policy).steps}
    return frozenset(partition_key(partitioning, parse_partition(name)) for name in names)


def widest_range(
    table: WatchedTable, due: Iterable[str | None], store: dg.DagsterInstance
) -> dg.PartitionKeyRange | None:
    """The range with the most of the partitions that are due; the others are left for later runs. ``None``: the whole
    table, since no partition holds some of the work, or Dagster does not know it yet.
    """
    definition, wanted = partitions_def(table), frozenset(due)
    if definition is None:
        return None
    order = definition.get_partition_keys(dynamic_partitions_store=store)
    if not wanted <= set(order):
        return None
    if isinstance(definition, dg.MultiPartitionsDefinition):
        return _rectangle(definition, order, wanted)
    count, first, last = max(merged(order, wanted), key=lambda each: each[0], default=(0, "", ""))
    return dg.PartitionKeyRange(first, last) if count else None


def merged(order: Sequence[str], wanted: Iterable[str | None]) -> list[tuple[int, str, str]]:
    """(wanted keys in it, first, last) of each range, in order.

    >>> merged("abcdefghijklmnop", "acdn")
    [(3, 'a', 'd'), (1, 'n', 'n')]
    """
    wanted = frozenset(wanted)
    places = [place for place, key in enumerate(order) if key in wanted]
    groups: list[list[int]] = []
    for place in places:
        if groups and place - groups[-1][-1] <= _BRIDGED + 1:
            groups[-1].append(place)
        else:
            groups.append([place])
    return [(len(group), order[group[0]], order[group[-1]]) for group in groups]


def _rectangle(
    definition: dg.MultiPartitionsDefinition, order: Sequence[str], wanted: frozenset[str | None]
) -> dg.PartitionKeyRange | None:
    """The rectangle of a grid with the most of the wanted cells: Dagster takes a range of a grid for the product of its
    columns' ranges. It spans all lines that have some, or, where that would be mostly cells without work, one line.
    """
    across, down = definition.partition_dimension_names
    cells = {key: definition.get_partition_key_from_str(key).keys_by_dimension for key in order}
    columns = list(dict.fromkeys(cell[across] for cell in cells.values()))
    lines = list(dict.fromkeys(cell[down] for cell in cells.values()))
    due = [cell for key, cell in cells.items() if key in wanted]
    places = sorted({lines.index(cell[down]) for cell in due})
    spans = {(place, place) for place in places} | ({(places[0], places[-1])} if places else set())
    found = []
    for top, bottom in spans:
        inside = [cell[across] for cell in due if top <= lines.index(cell[down]) <= bottom]
        for _, first, last in merged(columns, inside):
            left, right = columns.index(first), columns.index(last)
            count = sum(left <= columns.index(each) <= right for each in inside)
            area = (right - left + 1) * (bottom - top + 1)
            if top == bottom or area <= (_BRIDGED + 1) * count:
                found.append((count, -area, -left, -top, (first, last, lines[top], lines[bottom])))
    if not found:
        return None
    first, last, high, low = max(found)[-1]
    start, end = ({across: first, down: high}, {across: last, down: low})
    return dg.PartitionKeyRange(str(dg.MultiPartitionKey(start)), str(dg.MultiPartitionKey(end)))

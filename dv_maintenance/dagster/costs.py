"""What rewrites cost, per table and month, from the metadata of Dagster's materializations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg

from dv_maintenance.dagster import naming
from dv_maintenance.dagster.internals import public
from dv_maintenance.service.tables_file import TableSettings

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class MonthlyCost:
    """The rewrites of one table in one month.

    month : ``2026-11``, in UTC.
    runs : runs that rewrote something.
    work_seconds : measured in the tasks.
    bytes_in, bytes_out : of data files read and written.
    """

    month: str
    table: str
    runs: int
    work_seconds: float
    bytes_in: int
    bytes_out: int


@public
def costs_by_month(instance: dg.DagsterInstance, tables: Iterable[TableSettings], since: datetime) -> list[MonthlyCost]:
    """The newest month first, and in it the most expensive table first. Months without rewrites are left out.

    Parameters
    ----------
    since
        materializations after this time.
    """
    found: dict[tuple[str, str], list[tuple[str, Mapping[str, float]]]] = defaultdict(list)
    for table in tables:
        if "optimize" not in table.jobs:
            continue
        wanted = dg.AssetRecordsFilter(naming.job_key(table, "optimize"), after_timestamp=since.timestamp())
        more, cursor = True, None
        while more:
            page = instance.fetch_materializations(wanted, limit=_PAGE, cursor=cursor)
            more, cursor = page.has_more, page.cursor
            for record in page.records:
                numbers = _numbers(record.asset_materialization)
                if numbers.get("steps"):
                    month = datetime.fromtimestamp(record.timestamp, UTC).strftime("%Y-%m")
                    found[month, table.name].append((record.run_id, numbers))
    rows = [_sum(month, name, done) for (month, name), done in found.items()]
    rows.sort(key=lambda row: (-row.work_seconds, row.table))
    return sorted(rows, key=lambda row: row.month, reverse=True)


def _sum(month: str, name: str, done: list[tuple[str, Mapping[str, float]]]) -> MonthlyCost:
    return MonthlyCost(
        month,
        name,
        # A run over partitions has an event for each of them.
        len({run for run, _ in done}),
        round(sum(each.get("work_seconds", 0) for _, each in done), 2),
        int(sum(each.get("bytes_in", 0) for _, each in done)),
        int(sum(each.get("bytes_out", 0) for _, each in done)),
    )


def _numbers(made: dg.AssetMaterialization | None) -> dict[str, float]:
    if made is None:
        return {}
    return {name: entry.value for name, entry in made.metadata.items() if isinstance(entry.value, int | float)}

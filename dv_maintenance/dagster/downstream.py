"""When the assets downstream of a table were materialized: each materialization read the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from dv_maintenance.dagster import naming
from dv_maintenance.dagster.internals import BaseAssetGraph, CheckError
from dv_maintenance.service.reads import DOWNSTREAM_DAYS, Materialization, downstream_reads
from dv_maintenance.service.settings import JOBS

if TYPE_CHECKING:
    from dv_maintenance.service.reads import Reads
    from dv_maintenance.service.tables_file import TableSettings

_DAY: Final = 86_400.0
_PAGE: Final = 1000


def asset_graph(
    context: dg.SensorEvaluationContext | dg.OpExecutionContext | dg.AssetExecutionContext,
) -> BaseAssetGraph[Any] | None:
    """The assets of the code location; ``None`` where Dagster has loaded none, as in ``dg.materialize``."""
    try:
        repository = context.repository_def
    except CheckError:
        return None
    return None if repository is None else repository.asset_graph


def reads_downstream(
    instance: dg.DagsterInstance, graph: BaseAssetGraph[Any] | None, table: TableSettings, now: int
) -> Reads | None:
    """The reads of a table by its downstream assets; ``None`` if it has none, or none was materialized.

    graph : see :func:`asset_graph`.
    now : epoch milliseconds.
    """
    key = naming.table_key(table)
    if graph is None or not graph.has(key):
        return None
    own = {*naming.job_keys(table, JOBS), key}
    since = now / 1000 - DOWNSTREAM_DAYS * _DAY
    made = (each for child in sorted(graph.get(key).child_keys - own) for each in _made(instance, child, since))
    return downstream_reads(made)


def _made(instance: dg.DagsterInstance, key: dg.AssetKey, since: float) -> Iterator[Materialization]:
    asset, cursor = key.to_user_string(), None
    while True:
        found = instance.fetch_materializations(dg.AssetRecordsFilter(key, after_timestamp=since), _PAGE, cursor)
        for record in found.records:
            yield Materialization(asset, record.run_id, round(record.timestamp * 1000))
        if not found.has_more:
            return
        cursor = found.cursor

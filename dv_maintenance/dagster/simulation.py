"""An asset per table that says what its past would have cost under other policies."""

# Without `from __future__ import annotations`: Dagster reads the annotations of assets.

from collections.abc import Iterable, Mapping

import dagster as dg

from dv_maintenance.dagster import metadata, naming
from dv_maintenance.dagster.downstream import asset_graph, reads_downstream
from dv_maintenance.dagster.errors import in_dagster_terms
from dv_maintenance.dagster.internals import beta
from dv_maintenance.dagster.logs import shown_in
from dv_maintenance.service import verbs
from dv_maintenance.service.policies import Policy
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.units import parse_duration


@beta
def build_dv_simulations(
    tables: Iterable[TableSettings], policies: Mapping[str, Policy] | None = None, *, since: str = "30d"
) -> list[dg.AssetsDefinition]:
    """An asset ``<table>/dv/..._simulation`` per table: it replays the table's own log under its policy and others, and
    shows a table, a picture and the numbers. It reads the log only; no schedule or sensor starts it.

    Parameters
    ----------
    policies
        others to compare, by name.
    since
        how far to go back, such as ``30d``.

    Raises
    ------
    UsageError
        ``since`` is not a duration.
    """
    span = parse_duration(since)
    return [_simulation(table, tuple((policies or {}).items()), span) for table in tables]


def _simulation(table: TableSettings, policies: tuple[tuple[str, Policy], ...], since: int) -> dg.AssetsDefinition:
    key = naming.job_key(table, "simulation")
    spec = dg.AssetSpec(
        key,
        deps=[naming.table_key(table)],
        group_name=table.group_name,
        owners=list(table.owners),
        tags=dict(table.tags),
        description="What the table's past would have cost under its policy and others.",
        kinds={"python"},
    )

    @dg.multi_asset(name=naming.op_name(table, "simulation"), specs=[spec])
    def simulation(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        with in_dagster_terms(context), shown_in(context.log):
            outcome = verbs.simulate_watched(
                table,
                policies,
                since=since,
                downstream=lambda now: reads_downstream(context.instance, asset_graph(context), table, now),
            )
        return dg.MaterializeResult(metadata=metadata.render(outcome))

    return simulation

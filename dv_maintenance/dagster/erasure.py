"""The erasure job: delete rows by keys, purge the files that held them, and say when the last bytes can be deleted."""

# Without `from __future__ import annotations`: Dagster reads the annotations of ops.

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from dv_maintenance.dagster import metadata, naming
from dv_maintenance.dagster.internals import public
from dv_maintenance.dagster.ops import delete_rows_op, run, settings_of
from dv_maintenance.dagster.resources import SparkParam, engine_of
from dv_maintenance.errors import UsageError
from dv_maintenance.service.erasure import purge_erased_rows, sum_up
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.tables.table import Table


@public
def build_erasure_job(
    tables: Iterable[TableSettings],
    *,
    columns: Mapping[str, Sequence[str]] | None = None,
    name: str = "dv_erasure",
) -> dg.JobDefinition:
    """A job that erases rows by keys from all these tables: it deletes them, purges the files that held them, and says
    when a vacuum may delete the old files, which hold the last bytes. It runs in one process with one Spark session. A
    table that fails does not stop the others.

    Config::

        keys       where the keys are: a table, or Parquet, CSV or JSON
        columns    by table name, its key columns, which have the same names in the keys
        purge_all  purge every deletion vector, also for rows that others deleted before
        dry_run    only count the rows

    Parameters
    ----------
    columns
        the default of the config's ``columns``.
    """
    watched = tuple(tables)
    names = [table.name for table in watched]
    default = {table: list(of_table) for table, of_table in (columns or {}).items()}
    optional: dict[str, Any] = {"default_value": default} if default else {}
    purges = [(delete_rows_op(table), _purge_erased(table)) for table in watched]

    @dg.op(
        name=f"{name}_report",
        ins={"erased": dg.In(list[dict[str, Any]])},
        out=dg.Out(dict, description="rows_deleted, and expires_at: epoch milliseconds, for all tables."),
        description="What was erased, and when vacuums may delete the last bytes.",
    )
    def report(context: dg.OpExecutionContext, erased: list[dict[str, Any]]) -> dict[str, Any]:
        outcome = sum_up(erased)
        context.log.info(outcome.reason)
        context.add_output_metadata(metadata.render(outcome, names={}))
        return dict(outcome.report)

    @dg.graph(name=name, description="Erases rows by keys: deletes them and purges their files.")
    def erasure() -> None:
        report([purge(delete()) for delete, purge in purges])

    def config_of(config: dict[str, Any]) -> dict[str, Any]:
        missing = sorted({*names} ^ {*config["columns"]})
        if missing:
            raise UsageError(
                f"'columns' must name exactly the tables of this job; missing or unknown: {', '.join(missing)}"
            )
        configs: dict[str, Any] = {}
        for table, (delete, purge) in zip(watched, purges, strict=True):
            rows = {"keys": config["keys"], "on": config["columns"][table.name], "dry_run": config["dry_run"]}
            configs[delete.name] = {"config": rows}
            configs[purge.name] = {"config": {"purge_all": config["purge_all"]}}
        return {"ops": configs}

    schema = {
        "keys": dg.Field(str, description="Where the keys are: a table, or Parquet, CSV or JSON."),
        "columns": dg.Field({str: [str]}, description="The key columns of each table.", **optional),
        "purge_all": dg.Field(
            bool, default_value=False, description="Purge every deletion vector, including those of earlier deletes."
        ),
        "dry_run": dg.Field(bool, default_value=False, description="Only count the rows."),
    }
    return erasure.to_job(
        config=dg.ConfigMapping(config_of, config_schema=schema),
        executor_def=dg.in_process_executor,
        tags={naming.TABLE_TAG: names[0]} if len(names) == 1 else None,
    )


def _purge_erased(table: TableSettings) -> dg.OpDefinition:
    description = "Rewrites the files that held deleted rows, and says when the old ones can be deleted."
    config = {"purge_all": dg.Field(bool, default_value=False)}
    settings = settings_of(table, "purge_erased", description, config)

    @dg.op(**settings, ins={"deleted": dg.In(dict, description="The report of the delete.")})
    def purge_erased(context: dg.OpExecutionContext, deleted: dict[str, Any], spark: SparkParam) -> dict[str, Any]:
        purge_all = context.op_config["purge_all"]

        def work(opened: Table) -> Outcome:
            return purge_erased_rows(table, opened, lambda: engine_of(spark), deleted, purge_all)

        return run(context, table, work)

    return purge_erased

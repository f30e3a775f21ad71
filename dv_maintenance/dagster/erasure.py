"""The erasure job: rows deleted by keys, the files that held them purged, and when the last bytes may go."""

# Without `from __future__ import annotations`: Dagster reads the annotations of ops.

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from dv_maintenance.dagster import metadata, naming
from dv_maintenance.dagster.ops import Done, applied, delete_rows_op, run, settings_of
from dv_maintenance.errors import RefusedError, UsageError
from dv_maintenance.maintenance.tables_file import WatchedTable
from dv_maintenance.tables.table import Table

__all__ = ["build_erasure_job"]


def build_erasure_job(
    tables: Iterable[WatchedTable],
    *,
    columns: Mapping[str, Sequence[str]] | None = None,
    name: str = "dv_erasure",
) -> dg.JobDefinition:
    """A job that erases rows by keys from all these tables: delete them, then purge the files that held them, then say
    from when on a vacuum may remove the old files, with which the last bytes go. In one process: one Spark session.

    Config: ``keys``, where the keys are; ``columns``, for each table by name the columns that the keys are for, in the
    keys called the same (``columns`` here is its default); ``purge_all``, purge every deletion vector, for rows that
    were deleted before by others too; ``dry_run``. A table that fails stops no other one.
    """
    watched = tuple(tables)
    names = [table.name for table in watched]
    default = {table: list(of_table) for table, of_table in (columns or {}).items()}
    optional: dict[str, Any] = {"default_value": default} if default else {}
    purges = [(delete_rows_op(table), _purge_erased(table)) for table in watched]

    @dg.op(
        name=f"{name}_report",
        ins={"erased": dg.In(list[dict[str, Any]])},
        out=dg.Out(dict, description="rows_deleted, and removable_from: epoch milliseconds, for all tables."),
        description="What was erased, and from when on vacuums may remove the last bytes.",
    )
    def report(context: dg.OpExecutionContext, erased: list[dict[str, Any]]) -> dict[str, Any]:
        return _sum_up(context, erased)

    @dg.graph(name=name, description="Erases rows by keys: deletes them and purges their files.")
    def erasure() -> None:
        report([purge(delete()) for delete, purge in purges])

    def config_of(config: dict[str, Any]) -> dict[str, Any]:
        missing = sorted({*names} ^ {*config["columns"]})
        if missing:
            raise UsageError(f"'columns' must name the tables of this job, and no others: see {', '.join(missing)}")
        configs: dict[str, Any] = {}
        for table, (delete, purge) in zip(watched, purges, strict=True):
            rows = {"keys": config["keys"], "on": config["columns"][table.name], "dry_run": config["dry_run"]}
            configs[delete.name] = {"config": rows}
            configs[purge.name] = {"config": {"purge_all": config["purge_all"]}}
        return {"ops": configs}

    schema = {
        "keys": dg.Field(str, description="Where the keys are: a table, or Parquet, CSV or JSON."),
        "columns": dg.Field({str: [str]}, description="For each table the columns that the keys are for.", **optional),
        "purge_all": dg.Field(
            bool, default_value=False, description="Purge every deletion vector: earlier deletes, by anybody, as well."
        ),
        "dry_run": dg.Field(bool, default_value=False, description="Only count the rows."),
    }
    return erasure.to_job(
        config=dg.ConfigMapping(config_of, config_schema=schema),
        executor_def=dg.in_process_executor,
        tags={naming.TABLE_TAG: names[0]} if len(names) == 1 else None,
    )


def _purge_erased(table: WatchedTable) -> dg.OpDefinition:
    description = "Writes the files that held deleted rows without them, and says when the old ones may go."
    config = {"purge_all": dg.Field(bool, default_value=False)}
    settings = settings_of(table, "purge_erased", description, config, spark=True)

    @dg.op(**settings, ins={"deleted": dg.In(dict, description="What the delete before it reported.")})
    def purge_erased(context: dg.OpExecutionContext, deleted: dict[str, Any]) -> dict[str, Any]:
        # Of a delete that was tried more than once, an earlier try may have committed after all.
        all_of_it = context.op_config["purge_all"] or deleted["retried"]
        since = None if all_of_it else deleted["version_before"]
        return run(context, table, lambda opened: _erased(context, table, opened, deleted, since))

    return purge_erased


def _erased(
    context: dg.OpExecutionContext, watched: WatchedTable, table: Table, deleted: Mapping[str, Any], since: int | None
) -> Done:
    """``since``: purge what was deleted after this version; ``None``: all that ever was."""
    from dv_maintenance.maintenance.erasure import plan_purge_since, removable_from
    from dv_maintenance.maintenance.health import iso_timestamp
    from dv_maintenance.maintenance.planning.plan import build_plan

    erased = {
        "name": watched.name,
        "table": table.uri,
        "dry_run": deleted["dry_run"],
        "rows_deleted": deleted["rows_deleted"],
        "removable_from": None,
    }
    if deleted["dry_run"]:
        return Done(erased, "Nothing was deleted, so there is nothing to purge.")
    plan = build_plan(table.snapshot(), purge=True) if since is None else plan_purge_since(table, since)
    purged = applied(context, table, plan)
    last = max(deleted["version_after"], purged.report["version_after"])
    erased |= {"version_after": last, "verified": purged.report["verified"]}
    if since is not None and last == deleted["version_before"]:
        reason = "No row has such a key. What was deleted before this run stays in its files: purge_all takes it out."
        return Done(erased, reason, purged.more)
    try:
        moment = removable_from(table, watched.policy.retention)
    except RefusedError as error:
        kept = f"{purged.reason} The old files stay, with the rows in them: {error.message}."
        return Done(erased, kept, purged.more, purged.problems)
    when = iso_timestamp(moment)
    reason = f"{purged.reason} The old files hold the rows until a vacuum, which may remove them from {when} on."
    more = {"removable_from": dg.MetadataValue.timestamp(moment / 1000), **purged.more}
    return Done({**erased, "removable_from": moment}, reason, more, purged.problems)


def _sum_up(context: dg.OpExecutionContext, erased: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    from dv_maintenance.maintenance.health import iso_timestamp

    rows = [
        dg.TableRecord(
            {
                "table": each["name"],
                "rows_deleted": "not counted" if each["rows_deleted"] is None else f"{each['rows_deleted']:,}",
                "removable_from": "" if each["removable_from"] is None else iso_timestamp(each["removable_from"]),
            }
        )
        for each in erased
    ]
    counts = [each["rows_deleted"] for each in erased]
    total = None if None in counts else sum(counts)
    last = max((each["removable_from"] for each in erased if each["removable_from"] is not None), default=None)
    would = "would be" if any(each["dry_run"] for each in erased) else "were"
    reason = f"{'Rows' if total is None else f'{total:,} rows'} of {len(rows):,} tables {would} deleted."
    if last is not None:
        reason += f" Vacuums may remove the last of the old files from {iso_timestamp(last)} on."
    context.log.info(reason)
    report = {"rows_deleted": total, "removable_from": last}
    moment = {} if last is None else {"removable_from": dg.MetadataValue.timestamp(last / 1000)}
    context.add_output_metadata(
        {**metadata.of_report(reason, report), **moment, "tables": dg.MetadataValue.table(rows)}
    )
    return report

"""Verbs on versions: restore one, checkpoint the log, make the first one, or leave the work to the table's engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from dv_maintenance.errors import UsageError
from dv_maintenance.service.reports.versions import (
    of_checkpoint,
    of_convert,
    of_engine_sql,
    of_publish,
    of_recount,
    of_restore,
)
from dv_maintenance.units import parse_instant

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.service.engines import EngineOf
    from dv_maintenance.service.outcome import Outcome
    from dv_maintenance.tables.table import Table


def restore(
    table: Table,
    *,
    version: int | None = None,
    timestamp: str | int | None = None,
    dry_run: bool = False,
    vacuums_over: Sequence[int] = (),
) -> Outcome:
    """Make an older version the newest.

    timestamp : ISO 8601 with a zone, or epoch milliseconds.

    For ``vacuums_over`` and the errors, see ``maintenance.restore``.
    """
    from dv_maintenance.maintenance.restore import restore as run

    moment = _instant(table, timestamp) if isinstance(timestamp, str) else timestamp
    return of_restore(run(table, version=version, timestamp=moment, dry_run=dry_run, vacuums_over=vacuums_over))


def _instant(table: Table, text: str) -> int:
    try:
        return parse_instant(text)
    except ValueError as error:
        raise UsageError(f"timestamp: {error}", table=table.uri) from None


def checkpoint(table: Table, *, clean_log: bool = False, dry_run: bool = False) -> Outcome:
    """Write a checkpoint of the log, and clean the log. Raises the errors of ``maintenance.checkpoint``."""
    from dv_maintenance.maintenance.checkpoint import checkpoint as run

    return of_checkpoint(run(table, clean_log=clean_log, dry_run=dry_run))


def publish(table: Table, *, dry_run: bool = False) -> Outcome:
    """Publish commits that a catalog has ratified. Raises the errors of ``maintenance.publish``."""
    from dv_maintenance.maintenance.publish import publish as run

    return of_publish(run(table, dry_run=dry_run))


def recount(table: Table, *, dry_run: bool = False, on_progress: Callable[[int, int], None] | None = None) -> Outcome:
    """Correct what the log says of whole files. Raises the errors of ``maintenance.recount``."""
    from dv_maintenance.maintenance.recount import recount as run

    return of_recount(run(table, dry_run=dry_run, on_progress=on_progress))


def convert(
    table: Table,
    partition_types: Mapping[str, pa.DataType] | None = None,
    *,
    rewrite: bool = False,
    dry_run: bool = False,
) -> Outcome:
    """Turn a folder of Parquet files into a table. Raises the errors of ``maintenance.convert``."""
    from dv_maintenance.maintenance.convert import convert as run

    return of_convert(run(table, partition_types, rewrite=rewrite, dry_run=dry_run))


def engine_sql(
    table: Table, engine: EngineOf, job: Literal["optimize", "purge", "vacuum"], *, catalog: str | None = None
) -> Outcome:
    """Maintenance by the table's own engine. Raises UsageError for an engine that is not Spark, and the errors of
    ``maintenance.engine_sql``.
    """
    from dv_maintenance.maintenance.engine_sql import engine_sql as run
    from dv_maintenance.service.engines import spark_of

    spark = spark_of(engine, table, "has no SQL")
    return of_engine_sql(run(table, lambda: spark.session, job, catalog=catalog))

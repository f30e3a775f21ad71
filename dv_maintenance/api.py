"""The Python API: one function for each verb, with typed results. Import it as ``import dv_maintenance as dvm``.

A table is what :func:`open_table` returns, or its path. Work that rewrites files or finds rows takes an ``engine``:
``"spark"`` (the default) starts a local session, or takes the active one; ``"local"`` and ``"auto"`` work in this
process; a ``SparkSession`` or an engine is used as it is and stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from dv_maintenance.dml.merge import Merge
from dv_maintenance.engine import Engine, get_engine
from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.planning.steps import MaintenancePlan
from dv_maintenance.maintenance.rewriting import RewriteRequest, requested
from dv_maintenance.tables import open_table
from dv_maintenance.units import epoch_millis, parse_duration, parse_instant

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from dv_maintenance.dml.operation import DmlReport
    from dv_maintenance.engine.spark import SparkEngine
    from dv_maintenance.maintenance.convert import ConvertReport
    from dv_maintenance.maintenance.downgrade import DowngradeReport
    from dv_maintenance.maintenance.execution.report import ApplyReport
    from dv_maintenance.maintenance.fsck.report import FsckReport
    from dv_maintenance.maintenance.health import Health
    from dv_maintenance.maintenance.recount import RecountReport
    from dv_maintenance.tables.model import HistoryEntry
    from dv_maintenance.tables.reports import (
        CheckpointReport,
        ManifestReport,
        PublishReport,
        RestoreReport,
        UndeleteReport,
        VacuumReport,
    )
    from dv_maintenance.tables.table import Table

Partition = Mapping[str, str | None] | str
TableOrPath: TypeAlias = "Table | str | PathLike[str]"


# -- looking -----------------------------------------------------------------------------------------------------------


def health(table: TableOrPath, version: int | None = None) -> Health:
    """Files, deletion vectors and rows, in total and by partition, from the log alone.

    Parameters
    ----------
    version
        an older version; by default the newest.

    Raises
    ------
    TableNotFoundError, UsageError, DamagedTableError, UnsupportedFeatureError, StorageError
    """
    from dv_maintenance.maintenance.health import health as measure

    return measure(_opened(table).snapshot(version))


def fsck(table: TableOrPath, version: int | None = None, *, deep: bool = False) -> FsckReport:
    """Whether every file that readers need exists; with ``deep`` also whether its content is intact.

    Raises
    ------
    RefusedError
        the format has no such check.
    """
    from dv_maintenance.maintenance.fsck import fsck as check

    return check(_opened(table), version, deep=deep)


def history(table: TableOrPath, limit: int | None = None) -> list[HistoryEntry]:
    """The commits, newest first, at most ``limit``, with what they did to deletion vectors."""
    return _opened(table).history(limit)


def read(
    table: TableOrPath,
    version: int | None = None,
    *,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> pa.RecordBatchReader:
    """The live rows, without a Spark session. Files are opened while the reader is consumed.

    Raises
    ------
    UsageError
        the version or a column does not exist.
    """
    import pyarrow as pa

    from dv_maintenance.maintenance.read import read as rows

    return pa.RecordBatchReader.from_batches(
        *rows(_opened(table), version, columns if columns is None else _listed(columns), limit)
    )


def changes(table: TableOrPath, first: int, last: int | None = None) -> pa.RecordBatchReader:
    """The rows that the versions ``first`` to ``last`` inserted, deleted or updated, with ``_change_type``,
    ``_commit_version`` and ``_commit_timestamp``.

    Raises
    ------
    RefusedError
        the format has no change feed, or it does not reach back so far.
    """
    import pyarrow as pa

    from dv_maintenance.maintenance.changes import read_changes

    feed, batches = read_changes(_opened(table), first, last)
    return pa.RecordBatchReader.from_batches(feed.schema, batches)


# -- rewriting files ---------------------------------------------------------------------------------------------------


def plan(
    table: TableOrPath,
    policy: Policy | None = None,
    *,
    purge: bool = False,
    partitions: Iterable[Partition] = (),
    missing_ok: bool = False,
) -> MaintenancePlan:
    """What a policy would do, and why; nothing is changed. ``repr`` explains the plan, ``apply`` runs it.

    Parameters
    ----------
    purge
        every deletion vector goes, whatever the thresholds, and nothing else is rewritten.
    partitions
        only these, such as ``"day=2026-11-20"`` or ``{"day": "2026-11-20"}``, in place of the policy's.
    missing_ok
        accept ``partitions`` that no live file has.

    Raises
    ------
    UsageError
        one of ``partitions`` is not known to the table.
    RefusedError, UnsupportedFeatureError
        files of the table may not be rewritten.
    """
    if not isinstance(policy, Policy | None):
        raise UsageError(f"not a policy: {type(policy).__name__}", next_step="give a dvm.Policy")
    opened = _opened(table)
    request = RewriteRequest(policy, _listed(partitions), missing_ok, purge)
    return requested(opened, opened.snapshot(), request, now=epoch_millis())


def apply(
    table: TableOrPath, what: MaintenancePlan | Policy | None = None, *, engine: Engine | SparkSession | str = "spark"
) -> ApplyReport:
    """Run a plan, or plan by a policy (by default with its defaults) and run that.

    Every commit is verified; a plan that the table has outgrown is planned again.

    Raises
    ------
    ConflictError
        other writers replaced the files in every attempt.
    VerificationError
        a gate failed; nothing was committed.
    """
    from dv_maintenance.maintenance.execution.apply import apply as run

    opened = _opened(table)
    made = what if isinstance(what, MaintenancePlan) else plan(opened, what)
    with _engine(engine) as started:
        return run(opened, started, made)


def purge(
    table: TableOrPath,
    partitions: Iterable[Partition] = (),
    *,
    missing_ok: bool = False,
    engine: Engine | SparkSession | str = "spark",
) -> ApplyReport:
    """Rewrite every file with a deletion vector, even a lone one. ``plan(table, purge=True)`` shows what it would do.

    ``partitions`` and ``missing_ok`` are those of ``plan``. Raises as ``plan`` and ``apply``.
    """
    opened = _opened(table)
    made = plan(opened, purge=True, partitions=partitions, missing_ok=missing_ok)
    return apply(opened, made, engine=engine)


def zorder(
    table: TableOrPath,
    columns: Sequence[str],
    partitions: Iterable[Partition] = (),
    *,
    target_file_size: int | str | None = None,
    missing_ok: bool = False,
    engine: Engine | SparkSession | str = "spark",
) -> ApplyReport:
    """Order the rows of files along a space-filling curve through ``columns``, so that filters skip more files."""
    opened = _opened(table)
    request = RewriteRequest(
        partitions=_listed(partitions),
        missing_ok=missing_ok,
        order_by=_listed(columns),
        target_file_size=target_file_size,
    )
    return apply(opened, requested(opened, opened.snapshot(), request), engine=engine)


def cluster(
    table: TableOrPath,
    *,
    full: bool = False,
    target_file_size: int | str | None = None,
    engine: Engine | SparkSession | str = "spark",
) -> ApplyReport:
    """Cluster what is not clustered yet by the table's own columns; ``full``: also what other columns clustered."""
    opened = _opened(table)
    request = RewriteRequest(cluster=True, recluster=full, target_file_size=target_file_size)
    return apply(opened, requested(opened, opened.snapshot(), request), engine=engine)


def manifest(
    table: TableOrPath, *, purge_first: bool = False, engine: Engine | SparkSession | str = "spark"
) -> ManifestReport:
    """Write symlink manifests for readers without deletion vectors; ``purge_first`` removes these if there are any."""
    from dv_maintenance.maintenance.manifest import write_manifests

    with _engine(engine) as started:
        return write_manifests(_opened(table), started, purge_first)


def downgrade(
    table: TableOrPath,
    *,
    truncate_history: bool = False,
    dry_run: bool = False,
    engine: Engine | SparkSession | str = "spark",
) -> DowngradeReport:
    """Make the table readable without deletion vectors, step by step; run it again until it has finished."""
    from dv_maintenance.maintenance.downgrade import downgrade as run

    with _engine(engine) as started:
        return run(_opened(table), started, truncate_history=truncate_history, dry_run=dry_run)


# -- deleting files ----------------------------------------------------------------------------------------------------


def vacuum(
    table: TableOrPath,
    *,
    retention: int | str | None = None,
    dry_run: bool = False,
    policy: Policy | None = None,
    allow_short_retention: bool = False,
    lite: bool = False,
) -> VacuumReport:
    """Delete the files that no version inside the retention needs.

    Parameters
    ----------
    retention
        such as ``"168h"``, or milliseconds; by default the policy's, else the table's own property.
    policy
        what else to keep (pinned versions, streams, clones), the largest share to delete, the quarantine.
    allow_short_retention
        accept a retention below the table's property: running readers may break.
    lite
        read only the log; do not list the table.

    Raises
    ------
    RefusedError
        the retention is too short, or the run would delete too large a share of the files.
    """
    from dv_maintenance.maintenance.vacuum import vacuum as run

    request = replace((policy or Policy()).vacuum_request, dry_run=dry_run, lite=lite)
    request = replace(request, allow_short_retention=allow_short_retention)
    if retention is not None:
        millis = retention if isinstance(retention, int) else _parsed(parse_duration, retention)
        request = replace(request, retention=millis)
    return run(_opened(table), request)


def undelete(
    table: TableOrPath, *, since: int | str | None = None, until: int | str | None = None, dry_run: bool = False
) -> UndeleteReport:
    """Undelete files that vacuums quarantined, from ``since`` to ``until`` (ISO 8601, or epoch milliseconds)."""
    from dv_maintenance.maintenance.undelete import undelete as run

    return run(_opened(table), since=_instant(since), until=_instant(until), dry_run=dry_run)


# -- changing rows -----------------------------------------------------------------------------------------------------


def delete(
    table: TableOrPath,
    where: str | None = None,
    *,
    keys: DataFrame | str | None = None,
    on: Sequence[str] = (),
    dry_run: bool = False,
    engine: Engine | SparkSession | str = "spark",
) -> DmlReport:
    """Delete rows by deletion vectors: those for which a condition in Spark SQL is true, or those whose columns ``on``
    equal a key. The condition ``true`` deletes all rows.

    Parameters
    ----------
    keys
        a DataFrame, or the path of a table, or of Parquet, CSV or JSON files.
    engine
        ``"local"`` takes simple conditions only; for them no engine starts Spark.

    Raises
    ------
    UsageError
        both or neither of ``where`` and ``keys`` are given, Spark does not understand the condition, or a column does
        not exist.
    RefusedError
        the table allows no deletion vectors, or may not be changed.
    """
    from dv_maintenance.dml.delete import delete as run
    from dv_maintenance.service.verbs.rows import check_selection

    opened = _opened(table)
    check_selection(where, keys, opened.uri)
    with _engine(engine) as started:
        chosen = started if keys is None else _spark(started)
        return run(opened, chosen, where, keys=keys, on=_listed(on), dry_run=dry_run)


def update(
    table: TableOrPath,
    set: Mapping[str, str],
    where: str | None = None,
    *,
    dry_run: bool = False,
    engine: SparkEngine | SparkSession | Literal["spark"] = "spark",
) -> DmlReport:
    """Set columns to Spark SQL expressions, in the rows for which a condition is true; by default in all rows."""
    from dv_maintenance.dml.update import update as run

    with _engine(engine) as started:
        return run(_opened(table), _spark(started), set, where, dry_run=dry_run)


def merge(
    table: TableOrPath,
    source: DataFrame | str,
    on: str,
    *,
    target_alias: str = "target",
    source_alias: str = "source",
    engine: SparkEngine | SparkSession,
) -> Merge:
    """Begin a MERGE; add its clauses to the result, then ``execute()`` it; ``execute(dry_run=True)`` only counts.

    >>> begun = merge(orders, source, "target.id = source.id", engine=spark)  # doctest: +SKIP
    >>> begun.when_matched_update_all().when_not_matched_insert_all().execute()  # doctest: +SKIP
    """
    from dv_maintenance.dml.merge import merge as begin

    started = _taken(engine)
    return begin(_opened(table), _spark(started), source, on, target_alias=target_alias, source_alias=source_alias)


# -- versions and the log ----------------------------------------------------------------------------------------------


def restore(
    table: TableOrPath,
    version: int | None = None,
    *,
    timestamp: int | str | None = None,
    vacuums_over: Iterable[int] = (),
    dry_run: bool = False,
) -> RestoreReport:
    """Make an older version the newest: by number, or the newest at a time (ISO 8601, or epoch milliseconds).

    Parameters
    ----------
    vacuums_over
        versions at which vacuums began that were killed before they ended.
    """
    from dv_maintenance.maintenance.restore import restore as run

    moment, over = _instant(timestamp), frozenset(vacuums_over)
    return run(_opened(table), version=version, timestamp=moment, vacuums_over=over, dry_run=dry_run)


def checkpoint(table: TableOrPath, *, clean_log: bool = False, dry_run: bool = False) -> CheckpointReport:
    """Write a checkpoint of the log; ``clean_log`` also deletes log files beyond the log's own retention."""
    from dv_maintenance.maintenance.checkpoint import checkpoint as run

    return run(_opened(table), clean_log=clean_log, dry_run=dry_run)


def publish(table: TableOrPath, *, dry_run: bool = False) -> PublishReport:
    """Copy the commits that a table's catalog has ratified to its log, and tell the catalog."""
    from dv_maintenance.maintenance.publish import publish as run

    return run(_opened(table), dry_run=dry_run)


def recount(table: TableOrPath, *, dry_run: bool = False) -> RecountReport:
    """Correct row counts, sizes and cardinalities in a Delta table's log by the files themselves."""
    from dv_maintenance.maintenance.recount import recount as run

    return run(_opened(table), dry_run=dry_run)


def convert(
    place: str | PathLike[str],
    partition_types: Mapping[str, pa.DataType] | None = None,
    *,
    format: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    rewrite: bool = False,
    dry_run: bool = False,
) -> ConvertReport:
    """Turn a folder of Parquet files into a table.

    Parameters
    ----------
    partition_types
        the type of each column that folders (``day=2026-11-20``) name.
    format
        by default the first format that adopts files.
    rewrite
        write files that not every reader reads with the others again, next to the originals.
    """
    from dv_maintenance.maintenance.convert import convert as run
    from dv_maintenance.tables import open_adopting_table

    if format is None:
        table: Table = open_adopting_table(fspath(place), storage_options)
    else:
        table = open_table(place, format, storage_options)
    return run(table, partition_types, rewrite=rewrite, dry_run=dry_run)


def example_table(place: str | PathLike[str], rows: int = 100_000) -> Table:
    """Create a small Delta table to try things on, with the columns ``id``, ``country`` (its partitions) and ``total``.
    Deletion vectors delete half of the rows of two countries.

    Raises
    ------
    UsageError
        there is a table already.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.registry import detect
    from dv_maintenance.testing.delta_builder import DeltaBuilder

    place = fspath(place)
    if detect(Storage(place)) is not None:
        raise UsageError("there is a table already", table=place, next_step="name a new folder")
    schema = pa.schema([("id", pa.int64()), ("country", pa.string()), ("total", pa.float64())])
    builder = DeltaBuilder(place).create(schema, partition_by=["country"])
    countries = [("AT", "DE", "FR", "IT")[at % 4] for at in range(rows)]
    builder.append(pa.table({"id": range(rows), "country": countries, "total": [9.99] * rows}, schema=schema))
    of_two = pa.array(["AT", "DE"])
    builder.delete(lambda row: pc.and_(pc.less(row["id"], rows // 2), pc.is_in(row["country"], of_two)))
    return open_table(place)


# -- arguments ---------------------------------------------------------------------------------------------------------


def _opened(table: TableOrPath) -> Table:
    if isinstance(table, str | PathLike):
        return open_table(table)
    if not hasattr(table, "snapshot"):
        raise UsageError(f"not a table: {type(table).__name__}", next_step="give a path, or what open_table returned")
    return table


def _listed(names: Iterable[Any]) -> tuple[Any, ...]:
    """A single name or partition counts as a list of one."""
    return (names,) if isinstance(names, str | Mapping) else tuple(names)


def _taken(engine: Any) -> Engine:
    """An engine that the caller owns. Raises UsageError."""
    if hasattr(engine, "createDataFrame"):
        from dv_maintenance.engine.spark import SparkEngine

        return SparkEngine(engine)
    if callable(getattr(engine, "run", None)) and callable(getattr(engine, "close", None)):
        found: Engine = engine
        return found
    raise UsageError(
        f"not an engine: {type(engine).__name__}",
        next_step="give 'spark', 'local', 'auto', a SparkSession, or an engine",
    )


@contextmanager
def _engine(engine: Any) -> Iterator[Engine]:
    if not isinstance(engine, str):
        yield _taken(engine)
        return
    started = get_engine(engine)
    try:
        yield started
    finally:
        started.close()


def _spark(engine: Engine) -> SparkEngine:
    from dv_maintenance.engine.auto import AutoEngine
    from dv_maintenance.engine.spark import SparkEngine

    found = engine.spark if isinstance(engine, AutoEngine) else engine
    if not isinstance(found, SparkEngine):
        raise UsageError(
            f"the {engine.name} engine can't find rows by Spark SQL",
            next_step="give 'spark', a SparkSession or a SparkEngine",
        )
    return found


def _instant(moment: int | str | None) -> int | None:
    return _parsed(parse_instant, moment) if isinstance(moment, str) else moment


def _parsed(parse: Callable[[str], int], text: str) -> int:
    """Raises UsageError."""
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(str(error)) from None

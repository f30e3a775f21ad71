"""What both sides do to a table, in a process that has imported nothing yet or in a session that is warm."""

from __future__ import annotations

from typing import Any

from peers.tables import TARGET

CORES = 2
EVERYWHERE = "id % 30 = 7"
EVERY_DV = {"compaction.delete-ratio-threshold": "0", "compaction.min.file-num": "2"}

# -- ours ----------------------------------------------------------------------------------------------------------


def purge(place: str, *, threads: int = CORES) -> None:
    from dv_maintenance.engine.local import LocalEngine

    purge_by(LocalEngine(threads=threads), place)


def purge_in_spark(spark: Any, place: str) -> None:
    from dv_maintenance.engine.spark.engine import SparkEngine

    purge_by(SparkEngine(spark), place)


def purge_by(engine: Any, place: str) -> None:
    from dv_maintenance.maintenance.execution.apply import purge
    from dv_maintenance.tables import open_table

    report = purge(open_table(place), engine)
    if report.steps and not report.verified:
        raise AssertionError(report)


def purge_unread(place: str) -> None:
    """Without reading each new ORC file again before the commit."""
    from unittest.mock import patch

    from dv_maintenance.engine.writer import RollingWriter

    with patch.object(RollingWriter, "_new_sums", lambda _: None):
        purge(place)


def optimize(place: str) -> None:
    from dv_maintenance.engine.local import LocalEngine
    from dv_maintenance.maintenance.execution.apply import apply
    from dv_maintenance.maintenance.meter.of_table import decide_for
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.tables import open_table

    table = open_table(place)
    apply(table, LocalEngine(threads=CORES), decide_for(table, table.snapshot(), Policy(target_file_size=TARGET)))


def delete(spark: Any, place: str) -> None:
    from dv_maintenance.dml.delete import delete
    from dv_maintenance.tables import open_table

    delete(open_table(place), spark, "id = 17")


def erase(spark: Any, place: str) -> None:
    """Delete a row of each partition."""
    from dv_maintenance.dml.delete import delete
    from dv_maintenance.tables import open_table

    delete(open_table(place), spark, EVERYWHERE)


def scan(_: None, place: str) -> None:
    """Make batches and discard them, on one core."""
    import pyarrow as pa

    from dv_maintenance.engine.scan import scan
    from dv_maintenance.tables import open_table

    pa.set_cpu_count(1)
    table = open_table(place)
    for task in table.scan_tasks(table.snapshot()):
        for _batch in scan(task):
            pass


def vacuum(place: str) -> None:
    from dv_maintenance.tables import open_table
    from dv_maintenance.tables.guard import VacuumRequest

    open_table(place).vacuum(VacuumRequest(dry_run=True))


# -- others --------------------------------------------------------------------------------------------------------


def compact(place: str) -> None:
    from deltalake import DeltaTable, WriterProperties

    # The tables are in snappy, and ours stays with it.
    same = WriterProperties(compression="SNAPPY")
    DeltaTable(place).optimize.compact(target_size=TARGET, max_concurrent_tasks=CORES, writer_properties=same)


def full_vacuum(place: str) -> None:
    """Dry runs only: it would delete the files of live deletion vectors."""
    from deltalake import DeltaTable

    DeltaTable(place).vacuum(dry_run=True, full=True)


def reorg(spark: Any, place: str) -> None:
    spark.sql(f"REORG TABLE delta.`{place}` APPLY (PURGE)").collect()


def delta_delete(spark: Any, place: str) -> None:
    spark.sql(f"DELETE FROM delta.`{place}` WHERE id = 17").collect()


def delta_erase(spark: Any, place: str) -> None:
    spark.sql(f"DELETE FROM delta.`{place}` WHERE {EVERYWHERE}").collect()


def delta_copy(spark: Any, place: str) -> None:
    """Copy-on-write."""
    spark.conf.set("spark.databricks.delta.delete.deletionVectors.persistent", "false")
    delta_delete(spark, place)


def paimon_compact(engine: Any, place: str) -> None:
    if not engine.compact(place, options=EVERY_DV):
        raise AssertionError("nothing was compacted")


def compact_files(place: str, threads: int = CORES) -> None:
    import lance

    lance.dataset(place).optimize.compact_files(num_threads=threads)

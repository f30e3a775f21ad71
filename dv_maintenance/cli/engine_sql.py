"""``dvm engine-sql``: maintenance by the table's own engine in Spark, checked by our reader."""

from __future__ import annotations

from argparse import Namespace
from contextlib import closing
from typing import TYPE_CHECKING

from dv_maintenance.cli.access import open_table
from dv_maintenance.cli.output import Output, count

if TYPE_CHECKING:
    from dv_maintenance.maintenance.engine_sql import EngineSqlReport

__all__ = ["engine_sql"]


def engine_sql(args: Namespace, out: Output) -> int:
    from dv_maintenance.engine.spark import SparkEngine
    from dv_maintenance.maintenance.engine_sql import engine_sql as run

    target = open_table(args, out)
    with closing(SparkEngine(conf=dict(args.spark_conf))) as spark:
        report = run(target, lambda: spark.session, args.job, catalog=args.catalog)
    out.result(report.to_json(), lambda: _text(report))
    return 0 if report.verified else 1


def _text(report: EngineSqlReport) -> str:
    checked = {
        "content": f"rows of {count(len(report.checked))} version(s) compared with the ones before",
        "keys": f"rows of {count(len(report.checked))} version(s) compared with the ones before, but for keys of which "
        "rows waited for compaction: each of these is there once",
        "engine": f"rows of {count(len(report.checked))} version(s) compared with the ones before by the engine itself",
        "rows": f"rows of {count(len(report.checked))} version(s) counted: their files can't be read here",
        "files": "every live file and deletion vector is there",
    }[report.by]
    lines = [
        f"{report.table}  version {report.version_before} -> {report.version_after}",
        report.statement,
        f"files with deletion vectors: {count(report.dvs_before)} -> {count(report.dvs_after)}",
        checked if report.verified else "NOT VERIFIED:",
    ]
    return "\n".join([*lines, *(f"  {problem}" for problem in report.problems)])

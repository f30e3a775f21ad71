"""Verbs that change rows: delete, update, merge. Spark starts when the rows have to be found."""

from __future__ import annotations

from argparse import Namespace
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from dv_maintenance.cli.access import open_table
from dv_maintenance.cli.output import Output, count
from dv_maintenance.errors import UsageError

if TYPE_CHECKING:
    from dv_maintenance.dml.operation import DmlReport
    from dv_maintenance.engine.spark import SparkEngine

__all__ = ["delete", "merge", "update"]


def delete(args: Namespace, out: Output) -> int:
    from dv_maintenance.dml.delete import delete as run

    if (args.where is None) == (args.keys is None):
        raise UsageError("say which rows: --where or --keys, not both", next_step="to delete every row: --where true")
    target = open_table(args, out)
    with closing(_spark(args)) as spark:
        report = run(target, spark, args.where, keys=args.keys, on=args.on, dry_run=args.dry_run)
    return _changed(report, out)


def update(args: Namespace, out: Output) -> int:
    from dv_maintenance.dml.update import update as run

    columns = [column for column, _ in args.set]
    if len(set(columns)) < len(columns):
        raise UsageError("a column is set twice")
    target = open_table(args, out)
    with closing(_spark(args)) as spark:
        report = run(target, spark, dict(args.set), args.where)
    return _changed(report, out)


def merge(args: Namespace, out: Output) -> int:
    from dv_maintenance.dml.clauses import with_clauses
    from dv_maintenance.dml.merge import merge as begin
    from dv_maintenance.dml.source import read_rows

    target = open_table(args, out)
    with closing(_spark(args)) as spark:
        begun = with_clauses(begin(target, spark, args.using, args.on), args.when)
        report = replace(begun, source=lambda session: read_rows(session, args.using, target.storage.options)).execute()
    return _changed(report, out)


def _spark(args: Namespace) -> SparkEngine:
    from dv_maintenance.engine.spark import SparkEngine

    if args.engine != "spark":
        raise UsageError(
            f"the {args.engine} engine does not know what a condition means", next_step="leave --engine out"
        )
    return SparkEngine()


def _changed(report: DmlReport, out: Output) -> int:
    out.result(report.to_json(), lambda: _text(report))
    return 0


def _text(report: DmlReport) -> str:
    keys = [] if report.keys is None else [report.keys.told()]
    if report.version_after == report.version_before and not report.dry_run:
        return "\n".join([f"{report.table}  version {report.version_after}", "no such rows", *keys])
    rows = [
        (count(number), what)
        for number, what in (
            (report.rows_deleted, "deleted"),
            (report.rows_updated, "updated"),
            (report.rows_inserted, "inserted"),
        )
        if number != 0
    ]
    would = "would be " if report.dry_run else ""
    told = ", ".join(f"{number} rows {would}{what}" for number, what in rows) or "no rows"
    version = f"{report.version_before}" + ("" if report.dry_run else f" -> {report.version_after}")
    files = f"files: {count(report.files_removed)} out, {count(report.files_added)} in"
    dvs = f"deletion vectors: {count(report.dvs_removed)} out, {count(report.dvs_added)} in"
    return "\n".join(
        [
            f"{report.table}  version {version}",
            told,
            *keys,
            f"{files}; {dvs}",
            f"{report.seconds:.1f} s, attempts: {report.attempts}",
        ]
    )

"""``dvm restore``: an older version becomes the newest. Moves no data, starts no Spark."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from dv_maintenance.cli.access import open_table
from dv_maintenance.cli.output import Output, bytes_text, count

if TYPE_CHECKING:
    from dv_maintenance.maintenance.restore import RestoreReport

__all__ = ["restore"]


def restore(args: Namespace, out: Output) -> int:
    from dv_maintenance.maintenance.restore import restore as run

    report = run(
        open_table(args, out),
        version=args.version,
        timestamp=args.timestamp,
        dry_run=args.dry_run,
        vacuums_over=args.vacuum_over,
    )
    out.result(report.to_json(), lambda: _text(report))
    return 0 if report.verified else 1


def _text(report: RestoreReport) -> str:
    result = report.result
    if result.version_after == result.version_before and not result.dry_run:
        return f"{report.table}  version {result.version_before}\nnothing to do: it is as in version {result.restored}"
    would = "would restore" if result.dry_run else "restored"
    back = f"{count(result.files_restored)} files ({bytes_text(result.bytes_restored)}) back"
    lines = [
        f"{report.table}  version {result.version_before} -> {result.version_after}",
        f"{would} version {result.restored}",
        f"{back}, {count(result.dvs_restored)} of them with a deletion vector",
        f"{count(result.files_removed)} files ({bytes_text(result.bytes_removed)}) out",
        f"then {count(result.files_after)} files, {bytes_text(result.bytes_after)}",
    ]
    if result.schema_changed:
        lines.append("the schema goes back to that of then")
    if result.properties:
        lines.append(f"properties that change: {', '.join(result.properties)}")
    if result.features:
        lines.append(f"table features that come back: {', '.join(result.features)}")
    return "\n".join([*lines, *(f"NOT VERIFIED: {problem}" for problem in report.problems)])

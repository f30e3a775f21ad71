"""``dvm downgrade``: a table without deletion vectors, which old readers can read. Spark starts for the purge."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Final

from dv_maintenance.cli.access import open_engine, open_table
from dv_maintenance.cli.output import Output, count, table

if TYPE_CHECKING:
    from dv_maintenance.maintenance.downgrade import DowngradeReport

__all__ = ["downgrade"]

_MARKS: Final = {"done": "done", "due": "next", "waiting": "waits", "later": ""}


def downgrade(args: Namespace, out: Output) -> int:
    from dv_maintenance.maintenance.downgrade import downgrade as run

    target = open_table(args, out)
    with open_engine(args) as engine, out.progress("purging") as step:
        report = run(target, engine, truncate_history=args.truncate_history, dry_run=args.dry_run, on_progress=step)
    out.result(report.to_json(), lambda: _text(report))
    return 0


def _text(report: DowngradeReport) -> str:
    from dv_maintenance.maintenance.health import iso_timestamp

    steps = [(each.name, _MARKS[each.state], each.explanation) for each in report.steps]
    lines = [
        f"{report.table}  version {report.version_before} -> {report.version_after}",
        table(("step", "", "what it does"), steps, left=3),
    ]
    if report.rows_purged:
        lines.append(f"{count(report.rows_purged)} deleted rows were purged from data files")
    if report.finished:
        lines.append("finished: readers need no deletion vectors")
    elif report.waits_until is not None:
        lines.append(f"run it again after {iso_timestamp(report.waits_until)}")
    return "\n".join(lines)

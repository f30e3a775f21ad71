"""``dvm undelete``: what vacuums with ``--quarantine`` set aside comes back. Starts no Spark."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from dv_maintenance.cli.access import open_table
from dv_maintenance.cli.output import Output, bytes_text, count

if TYPE_CHECKING:
    from dv_maintenance.maintenance.undelete import UndeleteReport

__all__ = ["undelete"]


def undelete(args: Namespace, out: Output) -> int:
    from dv_maintenance.maintenance.undelete import undelete as run

    report = run(open_table(args, out), since=args.since, until=args.until, dry_run=args.dry_run)
    out.result(report.to_json(), lambda: _text(report))
    return 0


def _text(report: UndeleteReport) -> str:
    found = report.result
    lines = [
        f"{report.table}  version {found.version}",
        f"{'would put back' if found.dry_run else 'put back'} {count(found.files)} files, {bytes_text(found.bytes)}",
    ]
    if found.taken:
        lines.append(f"left {count(found.taken)} in quarantine: there is a file of that name")
    lines += [f"left {count(files)} in quarantine: {reason}" for reason, files in found.held.items()]
    if found.gone:
        lines.append(f"{count(found.gone)} went meanwhile: a vacuum emptied the quarantine")
    if found.files and not found.dry_run:
        lines.append("no version was changed, and the next vacuum takes what none needs again: restore or protect it")
    return "\n".join(lines)

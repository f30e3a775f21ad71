"""``dvm checkpoint``: write a checkpoint, and delete log files beyond the log retention. Starts no Spark."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from dv_maintenance.cli.access import open_table
from dv_maintenance.cli.output import Output, count

if TYPE_CHECKING:
    from dv_maintenance.maintenance.checkpoint import CheckpointReport

__all__ = ["checkpoint"]


def checkpoint(args: Namespace, out: Output) -> int:
    from dv_maintenance.maintenance.checkpoint import checkpoint as run

    report = run(open_table(args, out), clean_log=args.clean_log, dry_run=args.dry_run)
    out.result(report.to_json(), lambda: _text(report))
    return 0


def _text(report: CheckpointReport) -> str:
    from dv_maintenance.maintenance.health import iso_timestamp

    result = report.result
    lines = [f"{report.table}  version {result.version}"]
    if not result.dry_run:
        lines.append("wrote its checkpoint" if result.written else "it has a checkpoint already")
    if result.cutoff is not None:
        would = "would delete" if result.dry_run else "deleted"
        lines.append(
            f"{would} {count(result.log_files_expired)} log files from before {iso_timestamp(result.cutoff)}; "
            f"the oldest version is {result.first_version}"
        )
    return "\n".join(lines)

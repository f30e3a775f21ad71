"""``dvm rename-manifests``: V2 names for the manifests of a Lance table. Starts no Spark."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from dv_maintenance.cli.access import open_table
from dv_maintenance.cli.output import Output, count

if TYPE_CHECKING:
    from dv_maintenance.maintenance.rename_manifests import RenameReport

__all__ = ["rename_manifests"]


def rename_manifests(args: Namespace, out: Output) -> int:
    from dv_maintenance.maintenance.rename_manifests import rename_manifests as run

    report = run(open_table(args, out), dry_run=args.dry_run)
    out.result(report.to_json(), lambda: _text(report))
    return 0


def _text(report: RenameReport) -> str:
    result = report.result
    lines = [f"{report.table}  version {result.version}"]
    if not result.renamed:
        lines.append("nothing to do: all manifests have V2 names")
    elif result.dry_run:
        lines += [
            f"would rename {count(result.renamed)} manifests; {count(result.done)} have V2 names already",
            "not safe beside writers, and no reader opens the table until it is done: stop them all first",
        ]
    else:
        lines.append(f"renamed {count(result.renamed)} manifests; {count(result.done)} had V2 names already")
        lines.append("a writer that was open meanwhile must reopen the table")
    return "\n".join(lines)

"""The verb that orders a table's files by some columns."""

from __future__ import annotations

from argparse import Namespace

from dv_maintenance.cli.access import open_engine, open_table
from dv_maintenance.cli.output import Output
from dv_maintenance.cli.work import applied

__all__ = ["zorder"]


def zorder(args: Namespace, out: Output) -> int:
    from dv_maintenance.maintenance.execution.apply import apply
    from dv_maintenance.maintenance.planning.explain import explain
    from dv_maintenance.maintenance.zorder import plan_zorder

    target = open_table(args, out)
    size = args.target_file_size
    plan = plan_zorder(target, target.snapshot(), args.columns, args.partition, target_size=size)
    if args.dry_run:
        out.result(plan.to_json(), lambda: explain(plan))
        return 0
    with open_engine(args) as engine, out.progress("ordering") as step:
        report = apply(target, engine, plan, on_progress=step)
    return applied(report, out)

"""Verbs that change a table: apply, purge, vacuum, manifest. Spark starts with the first rewrite, if there is any."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from dv_maintenance.cli.access import load_policy, open_engine, open_table
from dv_maintenance.cli.output import Output, bytes_text, count, table
from dv_maintenance.errors import UsageError

if TYPE_CHECKING:
    from dv_maintenance.maintenance.execution.apply import ApplyReport
    from dv_maintenance.maintenance.manifest import ManifestReport
    from dv_maintenance.maintenance.vacuum import VacuumReport

__all__ = ["applied", "apply", "manifest", "purge", "vacuum"]

_SHOWN = 20


def apply(args: Namespace, out: Output) -> int:
    from dv_maintenance.maintenance.execution.apply import apply as run
    from dv_maintenance.maintenance.planning.explain import explain
    from dv_maintenance.maintenance.planning.plan import build_plan
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan

    if args.plan and (args.policy or args.overrides):
        raise UsageError("--plan brings its own policy", next_step="leave out --policy and --set, or make a new plan")
    target = open_table(args, out)
    plan = MaintenancePlan.load(args.plan) if args.plan else build_plan(target.snapshot(), load_policy(args))
    if args.dry_run:
        out.result(plan.to_json(), lambda: explain(plan))
        return 0
    with open_engine(args) as engine, out.progress("rewriting") as step:
        report = run(target, engine, plan, on_progress=step)
    return applied(report, out)


def purge(args: Namespace, out: Output) -> int:
    from dv_maintenance.maintenance.execution.apply import purge as run

    target = open_table(args, out)
    with open_engine(args) as engine, out.progress("purging") as step:
        report = run(target, engine, args.partition, on_progress=step)
    return applied(report, out)


def vacuum(args: Namespace, out: Output) -> int:
    from dv_maintenance.maintenance.vacuum import vacuum as run
    from dv_maintenance.tables.guard import VacuumGuard

    report = run(
        open_table(args, out),
        retention=args.retention,
        dry_run=args.dry_run,
        lite=args.lite,
        allow_short_retention=args.allow_short_retention,
        clones=args.protect,
        clones_under=args.clones_under,
        guard=VacuumGuard(
            args.max_deleted_share,
            tuple(args.protect_version),
            tuple(args.protect_stream),
            args.quarantine,
            args.quarantine_retention,
        ),
    )
    out.result(report.to_json(), lambda: _vacuum_text(report))
    return 0


def manifest(args: Namespace, out: Output) -> int:
    from dv_maintenance.maintenance.manifest import write_manifests

    target = open_table(args, out)
    with open_engine(args) as engine:
        report = write_manifests(target, engine, args.purge_first)
    out.result(report.to_json(), lambda: _manifest_text(report))
    return 0


def applied(report: ApplyReport, out: Output) -> int:
    """Print what was done; the exit code."""
    out.result(report.to_json(), lambda: _apply_text(report))
    return 0 if report.verified else 1


def _apply_text(report: ApplyReport) -> str:
    if not report.steps:
        return f"{report.table}  version {report.version_after}\nnothing to do"
    rows = [
        (
            step.partition or "(whole table)",
            f"{count(step.files_removed)} -> {count(step.files_added)}",
            count(step.dvs_removed),
            count(step.rows_purged),
            f"{bytes_text(step.bytes_in)} -> {bytes_text(step.bytes_out)}",
            f"{step.seconds:.1f} s",
        )
        for step in report.steps[:_SHOWN]
    ]
    lines = [
        f"{report.table}  version {report.version_before} -> {report.version_after}",
        table(("partition", "files", "DVs out", "rows purged", "bytes", "work"), rows),
    ]
    if len(report.steps) > _SHOWN:
        lines.append(f"... and {count(len(report.steps) - _SHOWN)} more steps (--json has them all)")
    if carried := sum(step.rows_carried for step in report.steps):
        lines.append(
            f"{count(carried)} rows that others deleted meanwhile are deleted in the new files, for a later purge"
        )
    lines.append("verified: no query returns anything else than before" if report.verified else "NOT VERIFIED:")
    return "\n".join([*lines, *(f"  {problem}" for problem in report.problems)])


def _vacuum_text(report: VacuumReport) -> str:
    from dv_maintenance.maintenance.health import iso_timestamp

    kinds = [f"{count(report.data_files)} data", f"{count(report.dv_files)} DV"]
    # Print what only some formats have where there is any.
    some = {"change": report.change_files, "index": report.index_files, "transaction": report.transaction_files}
    kinds += [f"{count(files)} {kind}" for kind, files in some.items() if files]
    what = (
        f"{', '.join(kinds)} and {count(report.other_files)} other files"
        + (f" and {count(report.version_files)} versions" if report.version_files else "")
        + f", {bytes_text(report.bytes)}, out of use before {iso_timestamp(report.cutoff)}"
    )
    lines = [
        f"{report.table}  version {report.version_after}",
        ("would delete " if report.dry_run else "set aside " if report.quarantine else "deleted ") + what,
    ]
    if report.quarantine:
        lines.append(f"they are in {report.quarantine}; 'dvm undelete' puts them back")
    if report.emptied:
        lines.append(f"deleted {count(report.emptied)} files whose time in quarantine was over")
    lines += [f"kept {count(files)}: {reason}" for reason, files in report.kept.items()]
    lines += [f"protected {told}" for told in report.protected]
    if report.refused:
        lines.append(f"REFUSED without --dry-run: {report.refused}")
    if report.paths:
        lines += [f"  {path}" for path in report.paths[:_SHOWN]]
        if len(report.paths) > _SHOWN:
            lines.append(f"  ... and {count(len(report.paths) - _SHOWN)} more (--json has them all)")
    return "\n".join(lines)


def _manifest_text(report: ManifestReport) -> str:
    if report.note is not None:
        return f"{report.table}  version {report.version}\n{report.note}"
    lines = [
        f"{report.table}  version {report.version}" + (", after a purge" if report.purged else ""),
        f"wrote {count(len(report.manifests))} manifest(s) that list {count(report.files)} data files"
        + (f", removed {count(len(report.removed))}" if report.removed else ""),
    ]
    return "\n".join(lines + [f"  {path}" for path in report.manifests[:_SHOWN]])

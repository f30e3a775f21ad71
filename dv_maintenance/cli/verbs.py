"""The verbs of the command line that run one verb of the service and print its outcome."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dv_maintenance.cli.access import (
    entry,
    hide,
    load_policy,
    open_future_table,
    open_table,
    spark_engine,
    working,
)
from dv_maintenance.cli.output import Output, dump_json, read_file, write_file
from dv_maintenance.errors import DamagedTableError, RefusedError, UsageError
from dv_maintenance.service import verbs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dv_maintenance.service.outcome import Outcome
    from dv_maintenance.service.tables_file import TableSettings, WatchConfig
    from dv_maintenance.tables.table import Table


# -- verbs that only read the log; none of them starts Spark -----------------------------------------------------------


def health(args: Namespace, out: Output) -> int:
    # Policies take a while to import.
    own = entry(args, out)
    policy = load_policy(args, own) if args.policy or args.overrides or own is not None else None
    return _print(verbs.health(open_table(args, out), args.version, policy), out)


def fsck(args: Namespace, out: Output) -> int:
    target = open_table(args, out)
    with out.progress("reading files" if args.deep else "looking for files", "files") as step:
        outcome = verbs.fsck(target, args.version, deep=args.deep, on_progress=step)
    return _print(outcome, out)


def plan(args: Namespace, out: Output) -> int:
    if args.name is not None or args.table.endswith((".yaml", ".yml")):
        return _plan_like_sensor(args, out)
    if args.cursor:
        raise UsageError("--cursor is a sensor's", next_step="name a file of tables, and one of its tables")
    planned = verbs.plan(open_table(args, out), load_policy(args))
    if args.output:
        write_file(args.output, dump_json(planned.report))
    return _print_plan(planned, args, out)


def _plan_like_sensor(args: Namespace, out: Output) -> int:
    if args.policy or args.overrides or args.storage_option or args.format:
        raise UsageError(
            "the file has the policies and storage options of its tables",
            next_step="omit --policy, --set, --storage-option and --format",
        )
    if args.name is None:
        raise UsageError("this is a file of tables", next_step=f"name one of them: dvm plan {args.table} NAME")
    decided = verbs.plan_like_sensor(_tables_of(args.table, out), args.name, cursor=read_file(args.cursor))
    if args.output and decided.report["plan"]:
        write_file(args.output, dump_json(decided.report["plan"]))
    code = _print(decided, out)
    if not out.json and decided.report["plan"]:
        _print_plan(replace(decided, report=decided.report["plan"]), args, out)
    return code


def _tables_of(path: str, out: Output) -> list[WatchConfig]:
    """Every document of a file of tables. Storage options and tokens are never printed."""
    from dv_maintenance.service.tables_file import WatchConfig

    configs = WatchConfig.load_all(path)
    hide(configs, out)
    return configs


def history(args: Namespace, out: Output) -> int:
    return _print(verbs.history(open_table(args, out), args.limit), out)


def simulate(args: Namespace, out: Output) -> int:
    from dv_maintenance.service.policies import load

    overrides = [f"{key}={value}" for key, value in args.overrides]
    policies = [(path, load(path, overrides)) for path in args.policy]
    if args.table.endswith((".yaml", ".yml")):
        configs = _tables_of(args.table, out)
        found = [each for config in configs for each in verbs.simulate_tables(config, policies, since=args.since)]
        report: Mapping[str, Any] = {"tables": [each.report for each in found]}
    else:
        chosen = policies or [("defaults" if not overrides else ", ".join(overrides), load(None, overrides))]
        found = [verbs.simulate(open_table(args, out), chosen, since=args.since)]
        report = found[0].report
    if args.output:
        pictures = [each.picture for each in found if each.picture is not None]
        if len(pictures) != 1:
            raise UsageError(f"there are {len(pictures)} pictures", next_step="simulate one table with --output")
        write_file(args.output, pictures[0].svg())
    from dv_maintenance.cli.render import text

    out.result(report, lambda: "\n\n".join(text(each) for each in found))
    return 1 if any(each.problems for each in found) else 0


def scan(args: Namespace, out: Output) -> int:
    from dv_maintenance.cli.access import storage_options
    from dv_maintenance.service import lake
    from dv_maintenance.service.reports.lake import of_lake

    with out.progress("scanning", "tables") as step:
        if args.root.endswith((".yaml", ".yml")):
            if args.policy or args.overrides or args.storage_option:
                raise UsageError(
                    "the file has the policies and storage options of its tables",
                    next_step="omit --policy, --set and --storage-option, or scan a folder",
                )
            configs, unlisted = _tables_of(args.root, out), list[lake.LakeTable]()
            entries = [each for config in configs for each in config.tables]
        else:
            options = storage_options(args, out)
            entries, unlisted = lake.in_folder(args.root, load_policy(args), options, args.format)
        found = lake.rank([*lake.scan(entries, on_progress=step), *unlisted], args.sort)
    _print(of_lake(found, limit=args.limit), out)
    if args.metrics:
        from dv_maintenance.service.metrics import exposition, publish

        publish(exposition(found), args.metrics)
    return 1 if any(each.error for each in found) else 0


def watch(args: Namespace, out: Output) -> int:
    from dv_maintenance.service.inspection import inspect_tables
    from dv_maintenance.service.reports.health import of_inspections

    if not args.once:
        raise UsageError("only an orchestrator's sensor watches continuously", next_step="add --once to inspect once")
    found = [each for config in _tables_of(args.tables, out) for each in inspect_tables(config)[0]]
    _print(of_inspections(found), out)
    return 1 if any(each.error for each in found) else 0


def check(args: Namespace, out: Output) -> int:
    from dv_maintenance.service.file_check import check_file

    return _print(check_file(args.file, open_tables=args.open), out)


# -- verbs that rewrite or delete files; Spark starts with the first rewrite, if there is any --------------------------


def apply(args: Namespace, out: Output) -> int:
    if args.plan and (args.policy or args.overrides):
        raise UsageError("--plan brings its own policy", next_step="omit --policy and --set, or make a new plan")
    if args.plan is None:
        policy = load_policy(args, entry(args, out))
        return _rewrite(args, out, "rewriting", verbs.RewriteRequest(policy, dry_run=args.dry_run))
    target = open_table(args, out)
    with working(args, out, "planning" if args.dry_run else "rewriting") as (engine, step):
        outcome = verbs.apply(target, lambda: engine, args.plan, dry_run=args.dry_run, on_progress=step)
    return _print_plan(outcome, args, out) if args.dry_run else _print(outcome, out)


def purge(args: Namespace, out: Output) -> int:
    request = verbs.RewriteRequest(
        partitions=tuple(args.partition), missing_ok=args.missing_ok, purge=True, dry_run=args.dry_run
    )
    return _rewrite(args, out, "purging", request)


def zorder(args: Namespace, out: Output) -> int:
    request = verbs.RewriteRequest(
        partitions=tuple(args.partition),
        missing_ok=args.missing_ok,
        order_by=tuple(args.columns),
        target_file_size=args.target_file_size,
        dry_run=args.dry_run,
    )
    return _rewrite(args, out, "ordering", request)


def cluster(args: Namespace, out: Output) -> int:
    request = verbs.RewriteRequest(
        cluster=True, recluster=args.full, target_file_size=args.target_file_size, dry_run=args.dry_run
    )
    return _rewrite(args, out, "clustering", request)


def _rewrite(args: Namespace, out: Output, doing: str, request: verbs.RewriteRequest) -> int:
    target = open_table(args, out)
    own = entry(args, out)
    reads = None
    if own is not None:
        from dv_maintenance.service.inspection import reads_now

        reads = reads_now(own)
    with working(args, out, "planning" if request.dry_run else doing) as (engine, step):
        outcome = verbs.rewrite(target, lambda: engine, request, reads=reads, on_progress=step)
    return _print_plan(outcome, args, out) if request.dry_run else _print(outcome, out)


def downgrade(args: Namespace, out: Output) -> int:
    target = open_table(args, out)
    with working(args, out, "purging") as (engine, step):
        outcome = verbs.downgrade(
            target,
            lambda: engine,
            truncate_history=args.truncate_history,
            dry_run=args.dry_run,
            on_progress=step,
        )
    return _print(outcome, out)


def vacuum(args: Namespace, out: Output) -> int:
    from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest

    guard = VacuumGuard(
        args.max_deleted_share,
        tuple(args.protect_version),
        tuple(args.protect_stream),
        args.quarantine,
        args.quarantine_retention,
    )
    own, target = entry(args, out), open_table(args, out)
    if own is not None:
        return _print(_vacuum_by_policy(args, own, target, out), out)
    with out.progress("looking for expired files" if args.dry_run else "vacuuming"):
        request = VacuumRequest(
            retention=args.retention,
            dry_run=args.dry_run,
            lite=args.lite,
            allow_short_retention=args.allow_short_retention,
            clones=tuple(args.protect),
            clones_under=tuple(args.clones_under),
            guard=guard,
        )
        outcome = verbs.vacuum(target, request)
    return _print(outcome, out)


def _vacuum_by_policy(args: Namespace, own: TableSettings, target: Table, out: Output) -> Outcome:
    """By what the file keeps, and what the options keep besides."""
    guards = {
        "retention": args.retention,
        "clones": args.protect,
        "clones_under": args.clones_under,
        "protected_versions": args.protect_version,
        "protected_streams": args.protect_stream,
        "max_deleted_share": args.max_deleted_share,
        **({"quarantine": True, "quarantine_retention": args.quarantine_retention} if args.quarantine else {}),
    }
    # Nobody observes it here.
    watched = own.model_copy(update={"observe": False})
    with out.progress("looking for expired files" if args.dry_run else "vacuuming"):
        return verbs.vacuum_by_policy(
            watched,
            target,
            guards=guards,
            allow_short_retention=args.allow_short_retention,
            dry_run=args.dry_run,
            lite=args.lite,
        )[0]


def undelete(args: Namespace, out: Output) -> int:
    target = open_table(args, out)
    return _print(verbs.undelete(target, since=args.since, until=args.until, dry_run=args.dry_run), out)


def manifest(args: Namespace, out: Output) -> int:
    target = open_table(args, out)
    with working(args, out, "writing manifests") as (engine, _):
        outcome = verbs.manifest(target, lambda: engine, purge_first=args.purge_first, dry_run=args.dry_run)
    return _print(outcome, out)


def rename_manifests(args: Namespace, out: Output) -> int:
    return _print(verbs.rename_manifests(open_table(args, out), dry_run=args.dry_run), out)


# -- verbs on versions -------------------------------------------------------------------------------------------------


def restore(args: Namespace, out: Output) -> int:
    outcome = verbs.restore(
        open_table(args, out),
        version=args.version,
        timestamp=args.timestamp,
        dry_run=args.dry_run,
        vacuums_over=args.vacuum_over,
    )
    return _print(outcome, out)


def checkpoint(args: Namespace, out: Output) -> int:
    return _print(verbs.checkpoint(open_table(args, out), clean_log=args.clean_log, dry_run=args.dry_run), out)


def publish(args: Namespace, out: Output) -> int:
    return _print(verbs.publish(open_table(args, out), dry_run=args.dry_run), out)


def recount(args: Namespace, out: Output) -> int:
    target = open_table(args, out)
    with out.progress("reading footers", "files") as step:
        outcome = verbs.recount(target, dry_run=args.dry_run, on_progress=step)
    return _print(outcome, out)


def convert(args: Namespace, out: Output) -> int:
    target = open_future_table(args, out)
    return _print(verbs.convert(target, args.partition_by, rewrite=args.rewrite, dry_run=args.dry_run), out)


def engine_sql(args: Namespace, out: Output) -> int:
    target = open_table(args, out)
    with out.progress(f"running {args.job} in Spark"), spark_engine(dict(args.spark_conf)) as spark:
        outcome = verbs.engine_sql(target, lambda: spark, args.job, catalog=args.catalog)
    return _print(outcome, out)


# -- verbs that change rows; Spark starts when the rows have to be found -----------------------------------------------


def delete(args: Namespace, out: Output) -> int:
    target = open_table(args, out)
    with working(args, out, "deleting rows") as (engine, _):
        outcome = verbs.delete_rows(
            target, lambda: engine, where=args.where, keys=args.keys, on=args.on, dry_run=args.dry_run
        )
    return _print(outcome, out)


def update(args: Namespace, out: Output) -> int:
    target = open_table(args, out)
    with working(args, out, "updating rows") as (engine, _):
        outcome = verbs.update_rows(target, lambda: engine, args.set, args.where, dry_run=args.dry_run)
    return _print(outcome, out)


def merge(args: Namespace, out: Output) -> int:
    target = open_table(args, out)
    with working(args, out, "merging rows") as (engine, _):
        outcome = verbs.merge_rows(target, lambda: engine, args.using, args.on, args.when, dry_run=args.dry_run)
    return _print(outcome, out)


# -- what all of them share --------------------------------------------------------------------------------------------


def _print(outcome: Outcome, out: Output) -> int:
    """Print an outcome; the exit code."""
    from dv_maintenance.cli.render import text

    out.result(outcome.report, lambda: text(outcome))
    if outcome.damage:
        return DamagedTableError.exit_code
    if outcome.refused:
        return RefusedError.exit_code
    return 1 if outcome.problems else 0


def _print_plan(outcome: Outcome, args: Namespace, out: Output) -> int:
    """A terminal shows a view of the plan. A file or a pipe gets Markdown, which is plain text."""
    if out.json or not (args.all or out.on_terminal):
        out.result(outcome.report, lambda: outcome.texts["explanation"])
        return 0
    from dv_maintenance.service.plan_view import markdown, plan_view

    if args.all and (args.markdown or not out.on_terminal):
        out.text(markdown(outcome.report))
    elif args.markdown:
        out.text(outcome.texts["explanation"])
    else:
        from dv_maintenance.cli.plan_view import show_plan

        view = plan_view(outcome.report)
        out.draw(lambda stream: show_plan(view, stream, every_step=args.all))
    return 0

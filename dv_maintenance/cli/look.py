"""Verbs that only look: health, plan, history, watch. None of them starts Spark."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING

from dv_maintenance.cli.access import load_policy, open_table
from dv_maintenance.cli.output import Output, bytes_text, count, dump_json, percent, table, write_file
from dv_maintenance.errors import UsageError

if TYPE_CHECKING:
    from dv_maintenance.maintenance.health import Counts, Health
    from dv_maintenance.service.inspection import Inspection
    from dv_maintenance.tables.model import HistoryEntry

__all__ = ["health", "history", "plan", "watch"]

# Partitions and commits that a person gets to see at once; --json has them all.
_SHOWN = 50


def health(args: Namespace, out: Output) -> int:
    from dv_maintenance.maintenance.health import health as look_at

    state = look_at(open_table(args, out).snapshot(args.version))
    out.result(state.to_json(), lambda: _health_text(state))
    return 0


def plan(args: Namespace, out: Output) -> int:
    from dv_maintenance.maintenance.planning.explain import explain
    from dv_maintenance.maintenance.planning.plan import build_plan

    target = open_table(args, out)
    snapshot = target.snapshot()
    # A plan that apply would refuse is no plan.
    target.check_writable(snapshot, "rewrite")
    made = build_plan(snapshot, load_policy(args))
    if args.output:
        write_file(args.output, dump_json(made.to_json()))
    out.result(made.to_json(), lambda: explain(made))
    return 0


def history(args: Namespace, out: Output) -> int:
    entries = open_table(args, out).history(args.limit)
    out.result({"versions": [_entry_json(entry) for entry in entries]}, lambda: _history_text(entries))
    return 0


def watch(args: Namespace, out: Output) -> int:
    from dv_maintenance.maintenance.tables_file import WatchConfig
    from dv_maintenance.service.inspection import inspect_tables

    if not args.once:
        raise UsageError("watching for ever is the Dagster sensor's job", next_step="add --once for one look")
    config = WatchConfig.load(args.tables)
    out.hide(value for entry in config.tables for value in entry.storage_options.values())
    found, _ = inspect_tables(config)
    out.result({"tables": [each.to_json() for each in found]}, lambda: _inspections_text(found))
    return 1 if any(each.error for each in found) else 0


def _inspections_text(found: list[Inspection]) -> str:
    rows = [
        (
            each.name,
            "?" if each.version is None else each.version,
            percent(each.deleted_ratio),
            ", ".join(each.due) or "-",
        )
        for each in found
    ]
    lines = [table(("table", "version", "deleted", "due"), rows)]
    for each in found:
        lines += [f"{each.name}: {job}: {reason}" for job, why in each.reasons.items() for reason in why]
        lines += [f"{each.name}: warning: {warning}" for warning in each.warnings]
        lines += [f"{each.name}: error: {each.error}"] if each.error else []
    return "\n".join(lines)


def _health_text(state: Health) -> str:
    from dv_maintenance.maintenance.health import iso_timestamp
    from dv_maintenance.tables.model import partition_name

    worst = sorted(state.partitions, key=lambda each: each.counts.deleted_ratio or 0, reverse=True)
    rows = [("all", *_cells(state.counts))]
    if any(each.partition for each in worst):
        rows += [(partition_name(each.partition), *_cells(each.counts)) for each in worst[:_SHOWN]]
    lines = [
        f"{state.table}  {state.format}, version {state.version} of {iso_timestamp(state.timestamp)}",
        table(("partition", "files", "with DVs", "live rows", "deleted rows", "deleted", "size"), rows),
    ]
    if len(worst) > _SHOWN:
        lines.append(f"... and {len(worst) - _SHOWN} partitions with a smaller share of deleted rows")
    lines += [f"warning: {warning}" for warning in state.warnings]
    return "\n".join(lines)


def _cells(counts: Counts) -> tuple[str, ...]:
    return (
        count(counts.files),
        count(counts.files_with_dv),
        count(counts.live_rows),
        count(counts.deleted_rows),
        percent(counts.deleted_ratio),
        bytes_text(counts.size_bytes),
    )


def _entry_json(entry: HistoryEntry) -> dict[str, object]:
    from dv_maintenance.maintenance.health import iso_timestamp

    return {**asdict(entry), "timestamp": iso_timestamp(entry.timestamp)}


def _history_text(entries: list[HistoryEntry]) -> str:
    from dv_maintenance.maintenance.health import iso_timestamp

    rows = [
        (
            entry.version,
            iso_timestamp(entry.timestamp),
            entry.operation,
            entry.engine or "-",
            f"+{count(entry.files_added)} -{count(entry.files_removed)}",
            f"+{count(entry.dvs_added)} -{count(entry.dvs_removed)}",
            count(entry.rows_deleted_by_dvs),
        )
        for entry in entries
    ]
    return table(("version", "time", "operation", "engine", "files", "DVs", "rows in new DVs"), rows, left=4)

"""Reports as Dagster metadata: numbers that plot, a table of steps, reasons and bars as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

if TYPE_CHECKING:
    from dv_maintenance.maintenance.apply import ApplyReport, StepReport
    from dv_maintenance.maintenance.health import Counts, Health
    from dv_maintenance.maintenance.manifest import ManifestReport
    from dv_maintenance.maintenance.steps import MaintenancePlan
    from dv_maintenance.maintenance.vacuum import VacuumReport
    from dv_maintenance.maintenance.watch import Look
    from dv_maintenance.tables.model import Snapshot

__all__ = ["of_health", "of_look", "of_manifest", "of_partition", "of_plan", "of_run", "of_schema", "of_vacuum"]

Metadata = dict[str, Any]
# Rows and names shown in the UI; the event log is no place for a plan of a million files.
_SHOWN = 50
_BARS_SHOWN = 20
_BAR_WIDTH = 20


def of_health(state: Health) -> Metadata:
    bars = _bars(state)
    picture: Metadata = {"deleted_ratio_by_partition": dg.MetadataValue.md(bars)} if bars else {}
    rows = {"dagster/row_count": state.counts.live_rows}
    return _known({"version": state.version, **_counts(state.counts), **rows}) | picture | _warnings(state.warnings)


def of_schema(snapshot: Snapshot) -> Metadata:
    """Columns in the table's order, as Arrow spells their types."""
    columns = [
        dg.TableColumn(
            field.name,
            str(field.type),
            description="Partition column" if field.name in snapshot.partition_columns else None,
            constraints=dg.TableColumnConstraints(nullable=field.nullable),
        )
        for field in snapshot.schema
    ]
    return {"dagster/column_schema": dg.TableSchema(columns)}


def of_look(look: Look) -> Metadata:
    numbers: Metadata = {"version": look.version, "deleted_ratio": _rounded(look.deleted_ratio)}
    reasons = [f"- **{job}**: {'; '.join(why)}" for job, why in look.reasons.items()]
    due: Metadata = {"due": dg.MetadataValue.md("\n".join(reasons))} if reasons else {}
    return _known(numbers) | due | _warnings(look.warnings)


def of_plan(plan: MaintenancePlan) -> Metadata:
    from dv_maintenance.maintenance.explain import explain

    rows = [
        dg.TableRecord(
            {
                "step": step.id,
                "action": step.action,
                "partition": step.partition,
                "files": len(step.inputs),
                "rows_purged": step.expected.rows_purged,
                "bytes_read": step.cost.bytes_read,
                "reason": step.reason,
            }
        )
        for step in plan.steps[:_SHOWN]
    ]
    table: Metadata = {"plan": dg.MetadataValue.table(rows)} if rows else {}
    return {"steps": len(plan.steps), "reason": dg.MetadataValue.md(explain(plan))} | table


def of_run(plan: MaintenancePlan | None, report: ApplyReport | None, after: Health, *, per_partition: bool) -> Metadata:
    """What a run of ``dv/optimize`` did and how the table is now; for ``per_partition`` only what all its partitions
    share, each adds :func:`of_partition`. ``None``: there was nothing to plan for.
    """
    if plan is None or report is None:
        return {"version_before": after.version, "version_after": after.version}
    problems: Metadata = {"problems": dg.MetadataValue.md(_bullets(report.problems))} if report.problems else {}
    shared: Metadata = {
        "version_before": report.version_before,
        "version_after": report.version_after,
        "verified": report.verified,
        **problems,
    }
    return shared if per_partition else of_health(after) | of_plan(plan) | _work(report.steps) | shared


def of_partition(steps: Sequence[StepReport], now: Counts | None) -> Metadata:
    """One Dagster partition: the steps done in it and how it is now; ``None``: no live file is in it."""
    if steps:
        reason = _bullets(f"{step.action}: {step.reason}" for step in steps[:_SHOWN])
    elif now is None:
        reason = "Nothing to do: no live file is in this partition."
    else:
        reason = (
            f"Nothing to do: the plan left its {now.files:,} files alone, {now.files_with_dv:,} of them with deletion "
            "vectors. The run's plan says why."
        )
    state = {"files": 0} if now is None else _counts(now)
    rows = {"dagster/partition_row_count": 0 if now is None else now.live_rows}
    return {"reason": dg.MetadataValue.md(reason)} | _work(steps) | _known(state | rows)


def of_vacuum(report: VacuumReport) -> Metadata:
    numbers: Metadata = {
        "version_after": report.version_after,
        "files_deleted": report.deleted,
        "data_files": report.data_files,
        "dv_files": report.dv_files,
        "change_files": report.change_files,
        "other_files": report.other_files,
        "bytes": report.bytes,
        "out_of_use_before": dg.MetadataValue.timestamp(report.cutoff / 1000),
    }
    kept = [f"{files:,}: {reason}" for reason, files in report.kept.items()]
    return numbers | ({"kept": dg.MetadataValue.md(_bullets(kept))} if kept else {})


def of_manifest(report: ManifestReport) -> Metadata:
    return {
        "version": report.version,
        "manifests": len(report.manifests),
        "files": report.files,
        "removed": len(report.removed),
        "purged_first": report.purged,
        "paths": dg.MetadataValue.md(_bullets([f"`{path}`" for path in report.manifests[:_SHOWN]])),
    }


def _counts(counts: Counts) -> Metadata:
    return {
        "files": counts.files,
        "files_with_dv": counts.files_with_dv,
        "deleted_rows": counts.deleted_rows,
        "deleted_ratio": _rounded(counts.deleted_ratio),
        "size_bytes": counts.size_bytes,
    }


def _work(steps: Sequence[StepReport]) -> Metadata:
    return {
        "steps": len(steps),
        "files_removed": sum(step.files_removed for step in steps),
        "files_added": sum(step.files_added for step in steps),
        "dvs_removed": sum(step.dvs_removed for step in steps),
        "rows_purged": sum(step.rows_purged for step in steps),
        "bytes_in": sum(step.bytes_in for step in steps),
        "bytes_out": sum(step.bytes_out for step in steps),
        "work_seconds": round(sum(step.seconds for step in steps), 2),
    }


def _bars(state: Health) -> str:
    """The partitions with the largest share of deleted rows as bars in a Markdown table; empty where there is nothing
    to compare. A table shows in every theme and can be searched, unlike an image.
    """
    from dv_maintenance.tables.model import partition_name

    rows = [(partition_name(each.partition), each.counts) for each in state.partitions if each.counts.deleted_rows]
    if len(state.partitions) < 2 or not rows:
        return ""
    rows.sort(key=lambda row: (-(row[1].deleted_ratio or 0), row[0]))
    longest = rows[0][1].deleted_ratio or 1
    lines = [
        f"| `{name}` | {_bar(counts.deleted_ratio, longest)} | {counts.files_with_dv:,} of {counts.files:,} |"
        for name, counts in rows[:_BARS_SHOWN]
    ]
    hidden = f"{len(rows) - _BARS_SHOWN:,} more are not shown. " if len(rows) > _BARS_SHOWN else ""
    clean = f"{len(state.partitions) - len(rows):,} of {len(state.partitions):,} partitions have no deleted rows."
    head = ["| partition | rows deleted | | files with DVs |", "|:--|--:|:--|--:|"]
    return "\n".join([*head, *lines, "", hidden + clean])


def _bar(ratio: float | None, longest: float) -> str:
    return "unknown | " if ratio is None else f"{ratio:.2%} | {'█' * max(1, round(_BAR_WIDTH * ratio / longest))}"


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 4)


def _known(numbers: Metadata) -> Metadata:
    """Without what the log does not say: a missing point in a plot is right, a zero is not."""
    return {name: number for name, number in numbers.items() if number is not None}


def _warnings(warnings: tuple[str, ...]) -> Metadata:
    return {"warnings": dg.MetadataValue.md(_bullets(warnings))} if warnings else {}


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)

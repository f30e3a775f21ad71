"""Reports as Dagster metadata: numbers that plot, a table of steps, reasons as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg

if TYPE_CHECKING:
    from dv_maintenance.maintenance.apply import ApplyReport
    from dv_maintenance.maintenance.health import Health
    from dv_maintenance.maintenance.manifest import ManifestReport
    from dv_maintenance.maintenance.steps import MaintenancePlan
    from dv_maintenance.maintenance.vacuum import VacuumReport
    from dv_maintenance.maintenance.watch import Look

__all__ = ["of_apply", "of_health", "of_look", "of_manifest", "of_plan", "of_vacuum"]

Metadata = dict[str, Any]
# Rows and names shown in the UI; the event log is no place for a plan of a million files.
_SHOWN = 50


def of_health(state: Health) -> Metadata:
    counts = state.counts
    numbers: Metadata = {
        "version": state.version,
        "files": counts.files,
        "files_with_dv": counts.files_with_dv,
        "deleted_rows": counts.deleted_rows,
        "deleted_ratio": _rounded(counts.deleted_ratio),
        "size_bytes": counts.size_bytes,
        "dagster/row_count": counts.live_rows,
    }
    return _known(numbers) | _warnings(state.warnings)


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


def of_apply(report: ApplyReport) -> Metadata:
    steps = report.steps
    numbers: Metadata = {
        "version_before": report.version_before,
        "version_after": report.version_after,
        "steps": len(steps),
        "files_removed": sum(step.files_removed for step in steps),
        "files_added": sum(step.files_added for step in steps),
        "dvs_removed": sum(step.dvs_removed for step in steps),
        "rows_purged": sum(step.rows_purged for step in steps),
        "bytes_in": sum(step.bytes_in for step in steps),
        "bytes_out": sum(step.bytes_out for step in steps),
        "work_seconds": round(sum(step.seconds for step in steps), 2),
        "verified": report.verified,
    }
    problems: Metadata = {"problems": dg.MetadataValue.md(_bullets(report.problems))} if report.problems else {}
    return numbers | problems


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


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 4)


def _known(numbers: Metadata) -> Metadata:
    """Without what the log does not say: a missing point in a plot is right, a zero is not."""
    return {name: number for name, number in numbers.items() if number is not None}


def _warnings(warnings: tuple[str, ...]) -> Metadata:
    return {"warnings": dg.MetadataValue.md(_bullets(warnings))} if warnings else {}


def _bullets(lines: Any) -> str:
    return "\n".join(f"- {line}" for line in lines)

"""Versions that were restored, checkpointed, converted or made by the table's own engine, as outcomes."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from dv_maintenance.remedies import setting
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.reports.plain import of_report
from dv_maintenance.service.text import number, size, was
from dv_maintenance.tables.registry import a_table
from dv_maintenance.units import count
from dv_maintenance.units import iso_timestamp as iso

if TYPE_CHECKING:
    from dv_maintenance.maintenance.convert import ConvertReport
    from dv_maintenance.maintenance.engine_sql import EngineSqlReport
    from dv_maintenance.maintenance.recount import RecountReport
    from dv_maintenance.tables.model import HistoryEntry
    from dv_maintenance.tables.reports import CheckpointReport, PublishReport, RestoreReport

_CHECKED: Final = {
    "content": "rows of {} compared with the version before",
    "keys": "rows of {} compared with the version before, except for keys whose rows waited for compaction: each "
    "of these exists once",
    "engine": "rows of {} compared with the version before by the engine itself",
    "rows": "rows of {} counted: this release can't read their files",
    "files": "every live file and deletion vector exists",
}


def of_restore(report: RestoreReport) -> Outcome:
    if report.version_after == report.version_before and not report.dry_run:
        reason = f"There was nothing to do: the table already equals version {report.restored:,}."
        return replace(of_report(reason, report.to_json()), problems=report.problems)
    if report.dry_run:
        reason = f"Version {report.restored:,} would be restored; nothing was changed."
    else:
        reason = f"Version {report.restored:,} was restored."
    with_dv = f"{report.dvs_restored:,} with a deletion vector"
    details = [
        f"added: {count(report.files_restored, 'file')} ({size(report.bytes_restored)}), {with_dv}",
        f"removed: {count(report.files_removed, 'file')} ({size(report.bytes_removed)})",
        f"afterwards: {count(report.files_after, 'file')} ({size(report.bytes_after)})",
    ]
    if report.schema_changed:
        details.append("the schema becomes that of the restored version")
    if report.properties:
        details.append(f"properties that change: {', '.join(report.properties)}")
    if report.features:
        details.append(f"table features that return: {', '.join(report.features)}")
    return replace(of_report(reason, report.to_json()), details=tuple(details), problems=report.problems)


def of_checkpoint(report: CheckpointReport) -> Outcome:
    if report.dry_run:
        return _planned_checkpoint(report)
    wrote = "was written" if report.written else "existed already"
    deleted = f"{count(report.log_files_deleted, 'log file')} {was(report.log_files_deleted)} deleted"
    renewed = "" if report.pointer is None else f"; _last_checkpoint, which {report.pointer}, was renewed"
    reason = f"The checkpoint of version {report.version:,} {wrote}{renewed}; {deleted}."
    outcome = of_report(reason, report.to_json())
    if report.cutoff is None:
        return outcome
    return replace(
        outcome,
        numbers={name: each for name, each in outcome.numbers.items() if name != "cutoff"},
        moments={"cutoff": report.cutoff},
        details=(f"the oldest version is {report.first_version}",),
    )


def _planned_checkpoint(report: CheckpointReport) -> Outcome:
    if report.present:
        writes = f"Version {report.version:,} already has a checkpoint: none would be written"
    else:
        last = "there is none yet" if report.last is None else f"the last one is of version {report.last:,}"
        writes = (
            f"A checkpoint of version {report.version:,} would be written, with "
            f"{count(report.live_files, 'live file')}: {last}, and readers replay {count(report.replayed, 'commit')}"
        )
    if report.pointer is not None:
        writes += f". _last_checkpoint {report.pointer}, and would be renewed"
    if report.cutoff is None:
        deletes = f"No log file would be deleted without {setting('clean_log', True)}"
    elif report.log_files_expired:
        files, first = count(report.log_files_expired, "log file"), report.first_version
        deletes = f"{files} would be deleted: versions before {first:,} could no longer be read"
    else:
        deletes = f"No log file would be deleted: later versions need all those from before {iso(report.cutoff)}"
    outcome = of_report(f"{writes}. {deletes}. Nothing was changed.", report.to_json())
    numbers = {name: each for name, each in outcome.numbers.items() if name not in {"cutoff", "last"}}
    return replace(outcome, numbers=numbers, moments={} if report.cutoff is None else {"cutoff": report.cutoff})


def of_publish(report: PublishReport) -> Outcome:
    would = "would be" if report.dry_run else ""
    told = f"{count(len(report.right), 'commit')} had a right copy already"
    done = [
        f"{count(len(found), 'commit')} {would or was(len(found))} {what}"
        for what, found in (("published", report.copied), ("published again over a wrong copy", report.replaced))
        if found
    ]
    reason = f"{'; '.join([*done, told])}. The newest version is {report.version:,}."
    return of_report(reason[0].upper() + reason[1:], report.to_json())


def of_recount(report: RecountReport) -> Outcome:
    found = [f"{count(report.wrong, 'wrong number')}", f"{count(report.missing, 'missing one')}"]
    files = f"of {count(report.files, 'data file')}"
    if not (report.wrong or report.missing):
        reason = f"The numbers {files} are right: nothing was changed."
    elif report.dry_run:
        reason = f"{' and '.join(found)} {files} would be corrected; nothing was changed."
    else:
        reason = f"{' and '.join(found)} {files} {was(report.wrong + report.missing)} corrected."
    details = (f"physical rows by the statistics: {report.rows_before:,} -> {report.rows_after:,}",)
    return replace(of_report(reason, report.to_json()), details=details if report.wrong or report.missing else ())


def of_convert(report: ConvertReport) -> Outcome:
    if report.version is not None and not report.converted:
        reason = f"There was nothing to do: it is already {a_table(report.format)}."
        return of_report(reason, report.to_json())
    what = f"{count(report.files, 'Parquet file')} ({count(report.rows, 'row')}, {size(report.bytes)})"
    if report.converted:
        reason = f"{what} became {a_table(report.format)}."
    else:
        reason = f"{what} would become {a_table(report.format)}; nothing was written."
    details = [f"columns: {', '.join(report.columns)}"]
    if report.partition_columns:
        details.append(f"partitioned by {', '.join(report.partition_columns)}")
    if report.rewritten:
        done = "written again" if report.converted else "would be written again"
        details.append(f"{count(report.rewritten, 'file')} {done}; the originals stay until a vacuum deletes them")
    if report.ignored:
        details.append(f"{count(report.ignored, 'other file')} not included")
    return replace(of_report(reason, report.to_json()), details=tuple(details))


def of_engine_sql(report: EngineSqlReport) -> Outcome:
    reason = (
        f"The table's engine ran its {report.job}: version {report.version_before:,} became "
        f"{report.version_after:,}, checked by {report.by}."
    )
    checked = _CHECKED[report.by].format(count(len(report.checked), "version"))
    details = [report.statement, f"files with deletion vectors: {report.dvs_before:,} -> {report.dvs_after:,}"]
    if report.verified:
        details.append(checked)
    return replace(of_report(reason, report.to_json()), details=tuple(details), problems=report.problems)


def of_history(entries: list[HistoryEntry]) -> Outcome:
    rows: list[dict[str, str | int]] = [
        {
            # Nobody reads an id beyond 2^53 as a number, and a page in a browser would round it.
            "version": entry.version if entry.version < 1 << 53 else str(entry.version),
            "time": iso(entry.timestamp),
            "operation": entry.operation,
            "engine": entry.engine or "-",
            "files": f"+{number(entry.files_added)} -{number(entry.files_removed)}",
            "DVs": f"+{number(entry.dvs_added)} -{number(entry.dvs_removed)}",
            "rows in new DVs": number(entry.rows_deleted_by_dvs),
        }
        for entry in entries
    ]
    versions = [{**asdict(entry), "timestamp": iso(entry.timestamp)} for entry in entries]
    return Outcome("", tables={"versions": tuple(rows)} if rows else {}, report={"versions": versions})

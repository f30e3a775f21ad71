"""What was deleted, quarantined, undeleted, listed or renamed, as outcomes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dv_maintenance.remedies import run
from dv_maintenance.service.outcome import Number, Outcome
from dv_maintenance.service.reports.plain import of_report
from dv_maintenance.service.text import shown, size, was
from dv_maintenance.units import count, day_of

if TYPE_CHECKING:
    from dv_maintenance.tables.reports import ManifestReport, RenameReport, UndeleteReport, VacuumReport


def of_vacuum(report: VacuumReport) -> Outcome:
    kinds = {
        "data": report.data_files,
        "DV": report.dv_files,
        "change data": report.change_files,
        "index": report.index_files,
        "transaction": report.transaction_files,
        "version": report.version_files,
        "other": report.other_files,
    }
    some = {
        "index_files": report.index_files,
        "transaction_files": report.transaction_files,
        "version_files": report.version_files,
    }
    numbers: dict[str, Number] = {
        "version_after": report.version_after,
        "files_deleted": 0 if report.quarantine else report.deleted,
        **({"files_set_aside": report.deleted} if report.quarantine else {}),
        **({"quarantine_emptied": report.emptied} if report.emptied else {}),
        "data_files": report.data_files,
        "dv_files": report.dv_files,
        "change_files": report.change_files,
        "other_files": report.other_files,
        # Of formats that have such files.
        **{name: files for name, files in some.items() if files},
        "bytes_deleted": 0 if report.dry_run else report.bytes,
    }
    expiring, moments = report.expiring or (), {"cutoff": report.cutoff}
    if expiring:
        numbers["expiring_bytes"] = sum(each.bytes for each in expiring)
        moments["more_can_go_from"] = expiring[0].at
    rows: tuple[dict[str, str | int], ...] = tuple(
        {"from": day_of(each.at), "files": each.files, "size": size(each.bytes)} for each in expiring
    )
    lines = {
        "kept": tuple(f"{count(files, 'file')}: {reason}" for reason, files in report.kept.items()),
        "protected": report.protected,
        "paths": shown(report.paths or ()),
    }
    refused = f"A run without dry run would be refused: {report.refused}"
    return Outcome(
        _vacuumed(report, {kind: files for kind, files in kinds.items() if files}),
        numbers,
        moments=moments,
        tables={"can_go_later": rows} if rows else {},
        details=(refused,) if report.refused else (),
        lines={name: each for name, each in lines.items() if each},
        refused=report.refused or "",
        report=report.to_json(),
    )


def _vacuumed(report: VacuumReport, kinds: dict[str, int]) -> str:
    found = sum(kinds.values()) if report.dry_run else report.deleted
    done = f"{'would be' if report.dry_run else was(found)} {'quarantined' if report.quarantine else 'deleted'}"
    each = ", ".join(f"{files:,} {kind}" for kind, files in kinds.items())
    reason = "No file has expired."
    if kinds:
        reason = f"{count(found, 'expired file')} ({size(report.bytes)}) {done}: {each}."
    if report.quarantine and not report.dry_run:
        reason += f" The quarantine is {report.quarantine}; {run('undelete', report.table)} brings files back."
    if report.emptied:
        reason += (
            f" {count(report.emptied, 'file')} {was(report.emptied)} deleted from the quarantine: "
            "their time there was up."
        )
    if report.expiring:
        first, more = report.expiring[0], sum(each.files for each in report.expiring)
        total = size(sum(each.bytes for each in report.expiring))
        reason += f" {count(more, 'more file')} ({total}) can go from {day_of(first.at)} on"
        last = day_of(report.expiring[-1].at)
        reason += "." if len(report.expiring) == 1 else f", the last of them on {last}."
    return reason


def of_undelete(report: UndeleteReport) -> Outcome:
    would = "would be" if report.dry_run else was(report.files)
    kept = {"A file of that name exists": report.taken, **report.held}
    details = []
    if report.gone:
        details.append(f"{count(report.gone, 'file')} left the quarantine concurrently: a vacuum emptied it")
    if report.files and not report.dry_run:
        details.append(
            "the versions are unchanged, and the next vacuum removes these files again: first restore or protect a "
            "version that needs them"
        )
    outcome = of_report(f"{count(report.files, 'file')} ({size(report.bytes)}) {would} undeleted.", report.to_json())
    left = tuple(f"{count(files, 'file')}: {reason}" for reason, files in kept.items() if files)
    return replace(outcome, details=tuple(details), lines={"left in quarantine": left} if left else {})


def of_manifest(report: ManifestReport) -> Outcome:
    if report.dry_run and report.note is None:
        first = "purge the deletion vectors, then " if report.purged else ""
        reason = f"A run would {first}write manifests of the live files. Nothing was changed."
        return Outcome(reason, {"version": report.version, "files": report.files}, report=report.to_json())
    purged = " Deletion vectors were purged first." if report.purged else ""
    old = f" {count(len(report.removed), 'old manifest')} {was(len(report.removed))} removed." if report.removed else ""
    reason = report.note or (
        f"{count(len(report.manifests), 'manifest')} {'lists' if len(report.manifests) == 1 else 'list'} the "
        f"{count(report.files, 'data file')} of version {report.version}.{purged}{old}"
    )
    return Outcome(
        reason,
        {
            "version": report.version,
            "manifests": len(report.manifests),
            "files": report.files,
            "removed": len(report.removed),
            "purged_first": report.purged,
        },
        lines={"paths": shown(report.manifests)} if report.manifests else {},
        report=report.to_json(),
    )


def of_rename(report: RenameReport) -> Outcome:
    details: tuple[str, ...] = ()
    if not report.renamed:
        reason = "There was nothing to do: all manifests have V2 names."
    elif report.dry_run:
        reason = f"{count(report.renamed, 'manifest')} would be renamed; {report.done:,} have V2 names already."
        details = (
            "not safe while writers are active, and no reader can open the table until it is done: stop them all first",
        )
    else:
        reason = (
            f"{count(report.renamed, 'manifest')} {was(report.renamed)} renamed; {report.done:,} had V2 names before."
        )
        details = ("a writer that had the table open must reopen it",)
    return replace(of_report(reason, report.to_json()), details=details)

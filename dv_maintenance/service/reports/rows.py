"""Row changes as outcomes."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.reports.plain import of_report
from dv_maintenance.service.text import was
from dv_maintenance.units import count

if TYPE_CHECKING:
    from dv_maintenance.dml.operation import DmlReport

_PARTICIPLES: Final = {"DELETE": "deleted", "UPDATE": "updated", "MERGE": "changed"}


def of_changes(report: DmlReport) -> Outcome:
    """A DELETE, UPDATE or MERGE; under ``dry_run`` its expected result."""
    keys = "" if report.keys is None else f" {report.keys.in_words().capitalize()}."
    counts = {} if report.keys is None else {f"keys_{name}": each for name, each in asdict(report.keys).items()}
    outcome = of_report(_reason(report) + keys, report.to_json())
    details = (
        f"files: {report.files_removed:,} removed, {report.files_added:,} added",
        f"deletion vectors: {report.dvs_removed:,} removed, {report.dvs_added:,} added",
        f"{report.seconds:.1f} s, attempts: {report.attempts}",
    )
    return replace(outcome, numbers={**outcome.numbers, **counts}, details=details)


def _reason(report: DmlReport) -> str:
    changed = {"updated": report.rows_updated, "inserted": report.rows_inserted}
    done = [(_rows(report.rows_deleted), "deleted")] if report.rows_deleted != 0 else []
    deletes = bool(done)
    done += [(count(rows, "row"), what) for what, rows in changed.items() if rows]
    if report.dry_run:
        would = done or [(count(0, "row"), _PARTICIPLES[report.operation])]
        return f"{', '.join(f'{rows} would be {what}' for rows, what in would)}; nothing was changed."
    if report.version_after == report.version_before or not done:
        return "No rows match."
    whole = f"{count(report.files_removed, 'file')} {was(report.files_removed)} removed whole"
    what = ", ".join(f"{rows} {what}" for rows, what in done)
    reason = f"{what}: {whole}, {report.dvs_added:,} got a deletion vector."
    return f"{reason} The rows' bytes remain until a purge and a vacuum." if deletes else reason


def _rows(rows: int | None) -> str:
    return "all rows of some files without row counts" if rows is None else count(rows, "row")

"""After a delete by keys: purge the files that held the rows, and say when a vacuum may delete the old files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.erasure import expires_at, plan_purge_since
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.reports.plain import of_report
from dv_maintenance.service.text import was
from dv_maintenance.service.verbs.rewrites import apply_plan
from dv_maintenance.units import count, iso_timestamp

if TYPE_CHECKING:
    from dv_maintenance.engine import Engine
    from dv_maintenance.service.tables_file import TableSettings
    from dv_maintenance.tables.table import Table


def purge_erased_rows(
    watched: TableSettings,
    table: Table,
    engine: Callable[[], Engine],
    deleted: Mapping[str, Any],
    purge_all: bool = False,
) -> Outcome:
    """Rewrite the files that held deleted rows, without these rows.

    deleted : the report of ``verbs.delete_rows``.
    purge_all : also purge rows deleted before it.

    Raises the errors of ``verbs.apply_plan``.
    """
    # If a delete was retried, an earlier attempt may have committed nevertheless.
    since = None if purge_all or deleted["retried"] else deleted["version_before"]
    erased = {
        "name": watched.name,
        "table": table.uri,
        "dry_run": deleted["dry_run"],
        "rows_deleted": deleted["rows_deleted"],
        "expires_at": None,
    }
    if deleted["dry_run"]:
        return of_report("Nothing was deleted, so there is nothing to purge.", erased)
    plan = build_plan(table.snapshot(), purge=True) if since is None else plan_purge_since(table, since)
    purged = apply_plan(table, engine, plan)
    last = purged.report["version_after"]  # the purge began at the delete's version or later
    erased |= {"version_after": last, "verified": purged.report["verified"]}
    if since is not None and last == deleted["version_before"]:
        reason = (
            "No row has any of these keys. Rows deleted before this run remain in their files: purge_all purges them."
        )
        return replace(_outcome(reason, erased, purged), problems=())
    try:
        moment = expires_at(table, watched.policy.retention)
    except RefusedError as error:
        kept = f"{purged.reason} The old files, which still hold the rows, are kept: {error.message}."
        return _outcome(kept, erased, purged)
    reason = (
        f"{purged.reason} The old files still hold the rows; a vacuum may delete them from {iso_timestamp(moment)} on."
    )
    outcome = _outcome(reason, {**erased, "expires_at": moment}, purged)
    numbers = {name: number for name, number in outcome.numbers.items() if name != "expires_at"}
    return replace(outcome, numbers=numbers, moments={"expires_at": moment})


def sum_up(erased: Sequence[Mapping[str, Any]]) -> Outcome:
    """The reports of :func:`purge_erased_rows` for several tables as one."""
    rows = tuple(
        {
            "table": each["name"],
            "rows_deleted": "not counted" if each["rows_deleted"] is None else f"{each['rows_deleted']:,}",
            "expires_at": "" if each["expires_at"] is None else iso_timestamp(each["expires_at"]),
        }
        for each in erased
    )
    counts = [each["rows_deleted"] for each in erased]
    total = None if None in counts else sum(counts)
    last = max((each["expires_at"] for each in erased if each["expires_at"] is not None), default=None)
    would = "would be" if any(each["dry_run"] for each in erased) else was(total or 0)
    reason = f"{'Rows' if total is None else count(total, 'row')} of {count(len(rows), 'table')} {would} deleted."
    if last is not None:
        reason += f" Vacuums may delete the last of the old files from {iso_timestamp(last)} on."
    return Outcome(
        reason,
        {} if total is None else {"rows_deleted": total},
        moments={} if last is None else {"expires_at": last},
        tables={"tables": rows},
        report={"rows_deleted": total, "expires_at": last},
    )


def _outcome(reason: str, erased: Mapping[str, Any], purged: Outcome) -> Outcome:
    """``purged`` with the report and the numbers of the erasure added at the front."""
    erasure = of_report(reason, erased)
    numbers = {**erasure.numbers, **{name: purged.numbers[name] for name in _WORK if name in purged.numbers}}
    return replace(purged, reason=reason, numbers=numbers, report=erased)


# The numbers of the purge that are shown.
_WORK = (
    "steps",
    "files_removed",
    "files_added",
    "dvs_removed",
    "rows_purged",
    "bytes_in",
    "bytes_out",
    "work_seconds",
)

"""Is a table in good order? Measurements compared with the limits of its policy, each with a reason and its numbers.

What the log does not say is never guessed: the finding is then a warning that says so, unless its limits are off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from dv_maintenance.errors import (
    DamagedTableError,
    DvMaintenanceError,
    RefusedError,
    RetryableError,
    StorageError,
    UsageError,
)
from dv_maintenance.maintenance.deadlines import to_erase
from dv_maintenance.maintenance.fsck import FEW, damage_of, fsck
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.manifest import manifests_written, no_manifests
from dv_maintenance.maintenance.planning.deadlines import MARGIN
from dv_maintenance.maintenance.planning.facts import file_facts
from dv_maintenance.maintenance.planning.limits import DurationLimits, RatioLimits, RetentionLimits, Severity
from dv_maintenance.maintenance.planning.policy import Policy, target_file_size
from dv_maintenance.maintenance.vacuum import foreseen
from dv_maintenance.remedies import run
from dv_maintenance.tables.capabilities import PreflightTable, SymlinkManifestTable
from dv_maintenance.tables.fsck import DV
from dv_maintenance.tables.registry import known_format, title_of
from dv_maintenance.units import (
    DAY,
    count,
    day_of,
    epoch_millis,
    format_duration,
    format_size,
    iso_timestamp,
    minute_of,
)

if TYPE_CHECKING:
    from dv_maintenance.maintenance.fsck import Damage
    from dv_maintenance.maintenance.health import Counts, Health
    from dv_maintenance.tables.model import ExpiredFiles, OldestDv, Snapshot
    from dv_maintenance.tables.table import Table

READABLE = "readable"
ERASE_WITHIN = "erase_within"
OLDEST_DV = "oldest_dv"
RETENTION = "retention"
FSCK = "fsck"
# The question that each check answers.
CHECKS: Mapping[str, str] = {
    READABLE: "Can the newest version be read, and do all its files exist?",
    "deleted_ratio": "How many of the table's rows are deleted, but still in its files?",
    OLDEST_DV: "How long ago were rows deleted that are still in live files?",
    ERASE_WITHIN: "Will deleted rows be gone from storage in time?",
    "small_files": "How many files would merging small ones save?",
    RETENTION: "Does vacuum keep unneeded files long enough for running queries?",
    "deletion_files": "Do all deletion files exist and, where they have no checksum, agree with the table?",
    "manifest_lag": "Do the symlink manifests agree with the table?",
    FSCK: "Are all footers and deletion vectors intact?",
}
# The log alone answers these.
LOG_CHECKS = ("deleted_ratio", OLDEST_DV, ERASE_WITHIN, "small_files", RETENTION, "manifest_lag")


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check.

    severity : ``None`` if all is well.
    reason : the answer in words.
    numbers : times in seconds, sizes in bytes, shares of 1; unknown numbers are left out.
    rows : one row per problem, all with the same keys.
    until : when the table crosses the next limit without a commit, epoch milliseconds; ``None``: never.
    """

    check: str
    severity: Severity | None
    reason: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    rows: Sequence[Mapping[str, Any]] = ()
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What the caller of :func:`check_snapshot` found out before, so that no check reads it again.

    oldest_dv : since when the oldest deletion vector exists.
    expired : what a dry run of a vacuum found; without it the check ``retention`` says nothing of files.
    """

    oldest_dv: Callable[[], OldestDv | None]
    expired: ExpiredFiles | None = None


@dataclass(frozen=True, slots=True)
class _Inspection:
    table: Table
    snapshot: Snapshot
    policy: Policy
    now: int
    counts: Counts
    known: Known | None = None
    damage: Callable[[], tuple[Damage, ...] | None] = lambda: None
    """The quick check of the storage."""


def check_table(
    open_table: Callable[[], Table],
    policy: Policy | None = None,
    *,
    checks: Iterable[str] = tuple(CHECKS),
    now: int | None = None,
) -> list[Finding]:
    """The findings of these checks, in the order of ``CHECKS``.

    A table that can't be read has a single finding, :data:`READABLE`, if that check is requested; otherwise each check
    reports that its answer is unknown. ``now``: epoch milliseconds.
    """
    asked = [name for name in CHECKS if name in set(checks)]
    now = epoch_millis(now)
    try:
        table = open_table()
        snapshot = table.snapshot()
        state = health(snapshot)
        files = cache(lambda: damage_of(table, snapshot))
        inspection = _Inspection(table, snapshot, policy or Policy(), now, state.counts, damage=files)
        # Whether all files exist takes a request for each of them.
        answer = _readable(snapshot, state, files) if READABLE in asked else None
    except (DvMaintenanceError, OSError) as error:
        if READABLE not in asked:
            return [_unreached(name, error) for name in asked]
        return [unreadable(error, str(error))]
    rest = [_answer(name, inspection) for name in asked if name != READABLE]
    return rest if answer is None else [answer, *rest]


def check_snapshot(
    table: Table,
    snapshot: Snapshot,
    policy: Policy,
    *,
    checks: Iterable[str] = LOG_CHECKS,
    now: int | None = None,
    known: Known | None = None,
) -> list[Finding]:
    """The findings of those of ``LOG_CHECKS`` that are named, in their order, for a version that was just read. What
    can't be found out is a finding, too. ``now``: epoch milliseconds.
    """
    now = epoch_millis(now)
    asked = set(checks)
    inspection = _Inspection(table, snapshot, policy, now, health(snapshot).counts, known)
    return [_answer(name, inspection) for name in LOG_CHECKS if name in asked]


def unreadable(error: BaseException, reason: str) -> Finding:
    """The finding of :data:`READABLE` for a table that can't be read."""
    # A retry may succeed: the storage is unavailable, the table is not damaged.
    severity: Severity = "warn" if isinstance(error, RetryableError) else "error"
    return Finding(READABLE, severity, reason, {"error": type(error).__name__})


def _answer(name: str, inspection: _Inspection) -> Finding:
    try:
        return _ANSWERS[name](inspection)
    except (DvMaintenanceError, OSError) as error:
        return _unknown(name, error)


def _unreached(name: str, error: Exception) -> Finding:
    """The answer of a check for a table that can't be read. To ``FSCK`` that is an answer."""
    return replace(unreadable(error, str(error)), check=FSCK) if name == FSCK else _unknown(name, error)


def _unknown(name: str, error: Exception) -> Finding:
    # What is refused is known.
    prefix = "" if isinstance(error, RefusedError | UsageError) else "unknown: "
    return Finding(name, "warn", f"{prefix}{error}", {"error": type(error).__name__})


def readable(table: Table, snapshot: Snapshot) -> Finding:
    """The finding of :data:`READABLE` for a newest version that was just read: the one answer for sensors, reports and
    metrics. An error: readers fail. Files are looked for in tables of up to ``FEW``; only :func:`check_table` has time
    for more.
    """
    return _readable(snapshot, health(snapshot), lambda: damage_of(table, snapshot, most=FEW))


def _readable(snapshot: Snapshot, state: Health, files: Callable[[], tuple[Damage, ...] | None]) -> Finding:
    numbers: dict[str, Any] = {"version": state.version, "files": state.counts.files, "warnings": len(state.warnings)}
    said = "; ".join(state.warnings)
    try:
        damage = files()
    except StorageError as error:
        reason = f"the log can be read, but whether all files exist is unknown: {error}"
        numbers |= {"error": type(error).__name__}
        return Finding(READABLE, "warn", "; ".join([reason, *state.warnings]), numbers)
    except DamagedTableError as error:
        return unreadable(error, str(error))
    if damage:
        numbers |= {"damaged": len(damage)}
        reason = f"{_named(damage)}; {run('fsck', snapshot.table)} shows how to repair it"
        return Finding(READABLE, "error", reason, numbers, _rows(damage))
    faults = set(snapshot.warnings) - set(snapshot.notes)
    there = "" if damage is None else f", and all its files exist ({count(state.counts.files, 'live file')})"
    return Finding(READABLE, "warn" if faults else None, said or f"the newest version is readable{there}", numbers)


def _named(damage: Sequence[Damage]) -> str:
    first = damage[0]
    more = f"; and {len(damage) - 1} more" if len(damage) > 1 else ""
    return f"{first.path or first.uri}: {first.reason}. {first.effect.rstrip('.')}{more}"


def _rows(damage: Sequence[Damage]) -> list[dict[str, Any]]:
    return [
        {
            "file": each.path or each.uri,
            "kind": each.kind,
            "fault": each.fault,
            "reason": each.reason,
            "live rows": "unknown" if each.live_rows is None else str(each.live_rows),
        }
        for each in damage
    ]


def _deleted_ratio(inspection: _Inspection) -> Finding:
    limits, counts = inspection.policy.checks.deleted_ratio, inspection.counts
    numbers: dict[str, Any] = {"files_with_dv": counts.files_with_dv, "deleted_rows": counts.deleted_rows}
    if counts.deleted_ratio is None:
        reason = f"unknown: the log does not give the number of rows of {count(counts.files_with_unknown_rows, 'file')}"
        return Finding("deleted_ratio", "warn" if limits.on else None, reason, numbers)
    numbers |= {"deleted_ratio": round(counts.deleted_ratio, 4)}
    reason = f"{counts.deleted_ratio:.2%} of the rows are deleted, in {counts.files_with_dv} of {counts.files} files"
    severity = limits.crossed(counts.deleted_ratio)
    return Finding("deleted_ratio", severity, reason + _limit("deleted_ratio", limits, severity), numbers)


def _oldest_dv(inspection: _Inspection) -> Finding:
    limits, known = inspection.policy.checks.oldest_dv, inspection.known
    oldest = inspection.table.oldest_dv(inspection.snapshot) if known is None else known.oldest_dv()
    if oldest is None:
        return Finding(OLDEST_DV, None, "there are no deletion vectors", {"age_seconds": 0})
    age = max(inspection.now - oldest.timestamp, 0)
    severity = limits.crossed(age)
    crossed = _limit(OLDEST_DV, limits, severity)
    until = _next(inspection.now, (oldest.timestamp + limit for limit in (limits.warn, limits.error) if limit))
    if not oldest.exact:
        reason = (
            f"rows deleted by {minute_of(oldest.timestamp)} are still in live files; "
            f"older commits were deleted, or are too many for a check to read{crossed}"
        )
        unsure = severity or ("warn" if limits.on else None)
        return Finding(OLDEST_DV, unsure, reason, {"at_least_seconds": age // 1000}, until=until)
    # Stored, and read later: an age would be wrong by then.
    reason = f"rows deleted on {minute_of(oldest.timestamp)} are still in live files{crossed}"
    return Finding(OLDEST_DV, severity, reason, {"age_seconds": age // 1000}, until=until)


def _erase_within(inspection: _Inspection) -> Finding:
    """A warning from two nightly windows before a deadline on, an error after it, and where no deadline can be kept."""
    found = to_erase(inspection.table, inspection.snapshot, inspection.policy, now=inspection.now)
    if found is None:
        return Finding(ERASE_WITHIN, None, "the policy has no erase_within")
    by = found.by
    slack = None if by is None else by - inspection.now
    unsure = bool(found.unknown) or any(not each.exact for each in found.waiting.values())
    severity: Severity | None = "warn" if unsure or (slack is not None and slack < MARGIN) else None
    if found.forgotten or found.erasure.problem is not None or (slack is not None and slack < 0):
        severity = "error"
    numbers = {
        "slack_seconds": None if slack is None else slack // 1000,
        "purge_by": None if found.live is None else iso_timestamp(found.live.by),
        "vacuum_by": None if found.unneeded is None else iso_timestamp(found.unneeded.by),
        "quarantine_emptied_by": None if found.aside is None else iso_timestamp(found.aside.by),
        "erase_by": None if by is None else iso_timestamp(by),
    }
    known = {name: number for name, number in numbers.items() if number is not None}
    limit = "" if severity is None else f"; the limit is {format_duration(found.erasure.erase_within)} (erase_within)"
    until = None if by is None else _next(inspection.now, (by - MARGIN, by))
    return Finding(ERASE_WITHIN, severity, "; ".join(found.sentences()) + limit, known, until=until)


def _small_files(inspection: _Inspection) -> Finding:
    facts = file_facts(inspection.snapshot)
    target = target_file_size(inspection.policy, inspection.snapshot)
    smallest = target * 3 // 4 if inspection.policy.min_file_size is None else inspection.policy.min_file_size
    small = facts.live_bytes < smallest
    # The files that a merge of a partition's small files produces, at least one.
    merged = -(-facts.per_partition(np.where(small, facts.live_bytes, 0)) // target)
    saved = facts.per_partition(small) - np.maximum(merged, 1)
    spare = int(np.maximum(saved, 0).sum())
    share = spare / len(facts) if len(facts) else 0.0
    numbers = {
        "files": len(facts),
        "small_files": int(small.sum()),
        "files_to_spare": spare,
        "share_to_spare": round(share, 4),
    }
    limits = inspection.policy.checks.small_files
    severity = limits.crossed(share)
    reason = (
        f"merging files with less than {format_size(smallest)} of live rows would save {spare} of {len(facts)} files"
        f"{f', {share:.2%}' if severity else ''}{_limit('small_files', limits, severity)}"
    )
    return Finding("small_files", severity, reason, numbers)


def _retention(inspection: _Inspection) -> Finding:
    known = inspection.known
    expired = _expired(inspection) if known is None else known.expired
    kept_for = _kept_for(inspection) if expired is None else expired.retention
    known_as = known_format(inspection.table.format)
    default = None if known_as is None else known_as.retention
    limits = inspection.policy.checks.of_retention(default)
    severity = limits.crossed(kept_for)
    numbers, found = {"retention_seconds": kept_for // 1000}, ""
    rows: list[dict[str, Any]] = []
    if expired is not None:
        size = sum(max(file.size, 0) for file in expired.files)
        numbers |= {"expired_files": len(expired.files), "reclaimable_bytes": size}
        found = (
            f"; unneeded for longer: {count(len(expired.files), 'file')} ({format_size(size)})" if expired.files else ""
        )
        if expired.expiring:
            more = sum(each.bytes for each in expired.expiring)
            numbers |= {"expiring_bytes": more}
            found += f"; {format_size(more)} more can go from {day_of(expired.expiring[0].at)} on"
            rows = [
                {"from": day_of(each.at), "files": each.files, "size": format_size(each.bytes)}
                for each in expired.expiring
            ]
    by_default = f", {known_as.title}'s default" if known_as is not None and kept_for == default else ""
    reason = f"vacuum keeps unneeded files for {format_duration(kept_for)}{by_default}"
    return Finding(RETENTION, severity, reason + _limit(RETENTION, limits, severity) + found, numbers, rows)


def _expired(inspection: _Inspection) -> ExpiredFiles:
    # Refuse a retention of the policy that is shorter than the table's own, as vacuum does.
    return foreseen(inspection.table, inspection.policy.vacuum_request, inspection.now).expired


def _kept_for(inspection: _Inspection) -> int:
    """The retention in force, milliseconds. Raises RefusedError where vacuum would, without a search for files."""
    own, asked = inspection.table.retention(inspection.snapshot), inspection.policy.retention
    if asked is not None and asked < own:
        raise RefusedError(
            f"vacuum would refuse a retention of {format_duration(asked)}: the table's own is {format_duration(own)}",
            table=inspection.table.uri,
            version=inspection.snapshot.version,
            next_step=f"set the policy's retention to at least {format_duration(own)}, or lower the table's own",
        )
    return own if asked is None else asked


def _deletion_files(inspection: _Inspection) -> Finding:
    if not isinstance(inspection.table, PreflightTable):
        return _deletion_files_exist(inspection)
    faults = inspection.table.preflight(inspection.snapshot.version)
    with_dv = inspection.snapshot.files.num_rows - inspection.snapshot.files["dv_id"].null_count
    numbers = {"version": inspection.snapshot.version, "deletion_files": with_dv, "faults": len(faults)}
    if not faults:
        return Finding("deletion_files", None, f"{count(with_dv, 'deletion file')}, all read and intact", numbers)
    first = faults[0]
    more = f"; and {len(faults) - 1} more" if len(faults) > 1 else ""
    reason = f"fragment {first.fragment}, {first.file}: {first.reason}{more}"
    rows = [
        {"fragment": fault.fragment, "file": fault.file, "fault": fault.kind, "reason": fault.reason}
        for fault in faults
    ]
    return Finding("deletion_files", "error", reason, numbers, rows)


def _deletion_files_exist(inspection: _Inspection) -> Finding:
    """For formats whose deletion files have checksums: each reader checks these."""
    damage = inspection.damage()
    if damage is None:
        return Finding(
            "deletion_files", None, f"deletion files of {title_of(inspection.table.format)} tables have checksums", {}
        )
    concerned = [each for each in damage if each.kind == DV]
    with_dv = inspection.snapshot.files.num_rows - inspection.snapshot.files["dv_id"].null_count
    numbers = {"version": inspection.snapshot.version, "deletion_files": with_dv, "faults": len(concerned)}
    if concerned:
        reason = f"{_named(concerned)}; {run('fsck', inspection.table.uri)} shows how to repair it"
        return Finding("deletion_files", "error", reason, numbers, _rows(concerned))
    reason = f"the files of {count(with_dv, 'deletion vector')} exist, and are large enough; fsck reads their bytes"
    return Finding("deletion_files", None, reason, numbers)


def _fsck(inspection: _Inspection) -> Finding:
    report = fsck(inspection.table, deep=True)
    known = {"version": report.version, "footers": report.footers, "deletion_vectors": report.dvs}
    numbers = {name: number for name, number in known.items() if number is not None}
    numbers |= {"bytes": report.bytes, "damaged": len(report.damage)}
    if report.damage:
        ways = " ".join(
            f"{each.how}{f' ({each.command_line})' if each.command else ''}" for each in report.remedies[:3]
        )
        return Finding(FSCK, "error", f"{_named(report.damage)}. To repair it: {ways}", numbers, _rows(report.damage))
    unread = f"; not {count(report.unread, 'file')} in a format that this release can't read" if report.unread else ""
    read = f"{count(report.footers or 0, 'footer')} and {count(report.dvs or 0, 'deletion vector')}"
    reason = f"{read}, all read: they agree with the log{unread}"
    return Finding(FSCK, None, reason, numbers)


def _manifest_lag(inspection: _Inspection) -> Finding:
    if not isinstance(inspection.table, SymlinkManifestTable):
        return Finding("manifest_lag", None, no_manifests(inspection.table), {})
    limits, written = inspection.policy.checks.manifest_lag, manifests_written(inspection.table)
    if written is None:
        missing: Severity | None = "error" if limits.error is not None else "warn" if limits.on else None
        return Finding("manifest_lag", missing, "there are no manifests", {})
    lag = max(inspection.snapshot.timestamp - written, 0)
    reason = (
        f"the newest version is {_about(lag)} younger than the manifests" if lag else "newer than the newest version"
    )
    severity = limits.crossed(lag)
    return Finding(
        "manifest_lag", severity, reason + _limit("manifest_lag", limits, severity), {"lag_seconds": lag // 1000}
    )


_ANSWERS: Mapping[str, Callable[[_Inspection], Finding]] = {
    "deleted_ratio": _deleted_ratio,
    OLDEST_DV: _oldest_dv,
    ERASE_WITHIN: _erase_within,
    "small_files": _small_files,
    RETENTION: _retention,
    "deletion_files": _deletion_files,
    "manifest_lag": _manifest_lag,
    FSCK: _fsck,
}


def _limit(check: str, limits: RatioLimits | DurationLimits | RetentionLimits, severity: Severity | None) -> str:
    """Which limit was crossed, and the key of the policy that has it; nothing if none was."""
    if severity is None:
        return ""
    if isinstance(limits, RatioLimits):
        share = limits.error if severity == "error" else limits.warn
        text = f"{(share or 0) * 100:.4g}%"
    else:
        text = format_duration((limits.error if severity == "error" else limits.warn) or 0)
    kind = "lower limit" if isinstance(limits, RetentionLimits) else "limit"
    return f"; the {kind} is {text} (checks.{check}.{severity})"


def _next(now: int, limits: Iterable[int]) -> int | None:
    """The first moment beyond one of these, epoch milliseconds."""
    return min((limit + 1 for limit in limits if limit >= now), default=None)


def _about(millis: int) -> str:
    """A duration for people, in the largest unit of which it has at least two."""
    for size, unit in ((DAY, "days"), (3_600_000, "hours"), (60_000, "minutes"), (1000, "seconds")):
        if millis >= 2 * size:
            return f"{millis // size} {unit}"
    return f"{millis} ms" if millis < 1000 else "1 second"

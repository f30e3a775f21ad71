"""Inspect tables: what changed since the last inspection, and which work is due, with reasons.

An inspection of an unchanged table is cheap: one probe for the newest version. It has no side effects. The next
inspection builds on the :class:`Inspection` itself, which is converted to and from JSON.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import ConfigDict, Field, TypeAdapter

from dv_maintenance import __version__
from dv_maintenance.engine.spark.shared import only_looking
from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.maintenance.checks import readable
from dv_maintenance.maintenance.health import Health, health
from dv_maintenance.maintenance.manifest import files_changed, manifests_written
from dv_maintenance.maintenance.meter.decide import is_due
from dv_maintenance.maintenance.meter.of_table import due_for
from dv_maintenance.maintenance.planning.deadlines import erasure_of
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.vacuum import foreseen
from dv_maintenance.service.kept import KeptSnapshots
from dv_maintenance.service.reads import Reads, reads_of
from dv_maintenance.service.tables_file import Job, TableSettings, WatchConfig
from dv_maintenance.tables.capabilities import EngineOnlyTable, SymlinkManifestTable
from dv_maintenance.tables.model import ExpiredFiles, Snapshot
from dv_maintenance.tables.quarantine import overdue
from dv_maintenance.tables.table import Probe, Table
from dv_maintenance.tracing import span
from dv_maintenance.units import DAY, count, epoch_millis, format_duration, format_size

_log = logging.getLogger(__name__)

_JOBS: tuple[Job, ...] = ("optimize", "vacuum")
_HOUR, _DAY = 3_600_000, DAY

# How often a table is read, at a time in epoch milliseconds, and warnings; see ``service.reads.reads_of``.
ReadsNow = Callable[[int], tuple[Reads | None, tuple[str, ...]]]
# The reads by downstream assets, at a time in epoch milliseconds.
Downstream = Callable[[int], Reads | None]


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the inspection of one table found.

    ``version`` : the newest version; ``None``: the table was never inspected.
    ``changed`` : the version differs from the last inspection's, or this is the first inspection.
    ``deleted_ratio`` : share of the physical rows that are deleted.
    ``due`` : jobs worth starting.
    ``reasons`` : why, by job.
    ``error`` : why the table could not be inspected, with the numbers of the last inspection, or which files of it are
        missing or damaged.
    ``vacuum_checked`` : epoch milliseconds of the last search for expired files.
    ``next_due_at`` : when ``optimize`` will be due without another commit, epoch milliseconds; ``None``: never.
    ``settings`` : fingerprint of the policy, the jobs and this release.
    ``stamp`` : of the version, see ``tables.table.Probe``.
    ``another`` : since the last inspection another table has taken its place, and nothing of the last one holds.
    ``optimizer`` : what else maintains the table, see ``Snapshot``.
    ``health`` : set when a version is inspected for the first time; not part of the state.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    name: str
    version: int | None = None
    changed: bool = False
    deleted_ratio: float | None = None
    due: tuple[Job, ...] = ()
    reasons: Mapping[Literal["optimize", "vacuum", "manifest"], tuple[str, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    error: str | None = None
    vacuum_checked: int | None = None
    next_due_at: int | None = None
    settings: str = ""
    stamp: str = ""
    another: bool = False
    optimizer: str = ""
    health: Annotated[Health | None, Field(exclude=True)] = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = orjson.loads(_adapter().dump_json(self))
        return body


@dataclass(slots=True)
class Seen:
    """What an inspection read, for a caller that needs it too.

    snapshot : set if the inspection read one: at a new version, under new settings, or when time made a run due.
    expired : set if the inspection searched for expired files.
    kept : the snapshots of earlier inspections to build on; ``None``: each is read in full.
    """

    snapshot: Snapshot | None = None
    expired: ExpiredFiles | None = None
    kept: KeptSnapshots | None = None

    def read(self, table: Table, version: int | None) -> Snapshot:
        """The table at its newest version, read once."""
        if self.snapshot is None:
            if self.kept is None or version is None:
                self.snapshot = table.snapshot(version)
            else:
                self.snapshot = self.kept.snapshot(table, version)
        return self.snapshot


def inspect_tables(
    config: WatchConfig, state: Mapping[str, Inspection] | None = None, *, now: int | None = None
) -> tuple[list[Inspection], dict[str, Inspection]]:
    """Every table of the file, in its order, and the state to pass in next time. A table that can't be inspected, or
    whose files are missing, has an ``error`` and nothing due, and does not stop the others.
    """
    state = state or {}
    found = [_inspect_safely(entry, state.get(entry.name), now) for entry in config.tables]
    # What was due stays in the state: it is due again once the table can be read.
    shown = [replace(each, due=(), reasons={}) if each.error else each for each in found]
    return shown, {each.name: each for each in found}


def inspect_table(
    table: Table,
    policy: Policy | None = None,
    last: Inspection | None = None,
    *,
    name: str | None = None,
    jobs: Iterable[Job] = _JOBS,
    now: int | None = None,
    reads: ReadsNow | None = None,
    seen: Seen | None = None,
    newest: Probe | None = None,
) -> Inspection:
    """Inspect one table.

    last : what the last inspection returned.
    now : epoch milliseconds.
    reads : asked how often the table is read, and for warnings, where that matters; by default ``reads_per_day`` of the
        policy counts.
    seen : filled in with what was read.
    newest : the newest version, if the caller has just asked for it.

    ``optimize`` is due when a run is worth its start; see ``meter.decide``. ``vacuum`` is due when the log has enough
    expired files; they are searched every ``vacuum_every``, as files expire without a commit. ``manifest`` is due when
    the table's files changed after its manifests were written, and never in formats that write their own manifests.

    Raises the errors of reading the table's newest version.
    """
    policy, jobs, seen = policy or Policy(), tuple(jobs), seen or Seen()
    now = epoch_millis(now)
    settings = hashlib.sha256(orjson.dumps([policy.model_dump(mode="json"), jobs, __version__])).hexdigest()[:16]
    with span("inspect", table=table.uri, format=table.format) as traced:
        newest = newest or table.probe(last.version if last is not None else None)
        version, another = newest.version, last is not None and _is_another(table, last, newest)
        if another:
            last = None
        changed = last is None or last.version != version
        if last is None or last.settings != settings:
            # The result under other settings does not apply.
            last = Inspection(name or table.uri)
        found = replace(
            last,
            name=name or last.name,
            version=version,
            changed=changed,
            error=None,
            health=None,
            settings=settings,
            stamp=newest.stamp,
            another=another,
        )
        if last.version != version or _became_due(last, now):
            snapshot = seen.read(table, version)
            found = _inspect_snapshot(found, table, snapshot, policy, jobs, now, reads)
            if "manifest" in jobs and isinstance(table, SymlinkManifestTable):
                found = _check_manifests(found, table, snapshot)
        elif "manifest" in last.due:
            found = _check_manifests(found, table)
        if "vacuum" in jobs and _vacuum_to_check(found, policy, now):
            found = _check_vacuum(found, table, policy, now, seen)
        traced.set(version=version, changed=changed, due=",".join(found.due))
    _log_inspection(found)
    return found


def _is_another(table: Table, last: Inspection, newest: Probe) -> bool:
    """Whether the table was dropped and created again since the last inspection, whatever its version number. A table
    that was rolled back counts, too: versions after the present one will be others. Raises StorageError.
    """
    if last.version is None or not last.stamp or not newest.stamp:
        return False
    if newest.version == last.version:
        return newest.stamp != last.stamp
    # A version that was cleaned up meanwhile proves nothing.
    return not table.follows(newest.version, last.version) or table.stamp(last.version) not in (None, last.stamp)


def _log_inspection(found: Inspection) -> None:
    if found.another:
        _log.info("%s: another table than at the last inspection: starting over", found.name)
    if not found.changed:
        _log.debug("%s: still at version %s, due: %s", found.name, found.version, ", ".join(found.due) or "nothing")
        return
    due = "; ".join(f"{job}: {', '.join(why)}" for job, why in found.reasons.items())
    _log.info("%s: version %s, due: %s", found.name, found.version, due or "nothing")
    for warning in found.warnings:
        _log.info("%s: %s", found.name, warning)


def reads_now(entry: TableSettings, downstream: Downstream = lambda _now: None) -> ReadsNow:
    """How a watched table's reads are found when they matter. ``downstream``: what an orchestrator knows of them."""
    return lambda now: reads_of(entry, entry.policy.reads_per_day, downstream(now), now)


def _inspect_safely(entry: TableSettings, last: Inspection | None, now: int | None) -> Inspection:
    seen = Seen()
    try:
        with only_looking():
            table = entry.open()
            found = inspect_table(
                table, entry.policy, last, name=entry.name, jobs=entry.jobs, now=now, reads=reads_now(entry), seen=seen
            )
            answer = readable(table, seen.read(table, found.version))
        return replace(found, error=answer.reason) if answer.severity == "error" else found
    except (DvMaintenanceError, OSError) as error:
        return replace(last or Inspection(entry.name), name=entry.name, changed=False, error=str(error))


def _became_due(last: Inspection, now: int) -> bool:
    """Whether time alone has made a run due: readers go on paying."""
    return "optimize" not in last.due and last.next_due_at is not None and last.next_due_at <= now


def _inspect_snapshot(
    found: Inspection,
    table: Table,
    snapshot: Snapshot,
    policy: Policy,
    jobs: tuple[Job, ...],
    now: int,
    reads: ReadsNow | None,
) -> Inspection:
    state = health(snapshot)
    found = replace(
        found,
        deleted_ratio=state.counts.deleted_ratio,
        warnings=state.warnings,
        health=state,
        optimizer=snapshot.optimizer,
    )
    erasure = erasure_of(table, snapshot, policy)
    if erasure is not None and erasure.problem is not None:
        # Work goes on: whatever is purged early is gone early.
        found = replace(found, warnings=(*found.warnings, erasure.problem))
    if "optimize" not in jobs:
        return _with(found, "optimize", ())
    known, warnings = reads(now) if reads is not None else (None, ())
    found = replace(found, warnings=(*found.warnings, *(f"reads: {each}" for each in warnings)))
    plan = due_for(table, snapshot, policy, now=now, reads=known)
    steps = plan.steps
    if not is_due(plan, now):
        return _with(replace(found, next_due_at=_look_again(plan.next_due_at, known, now)), "optimize", ())
    found = replace(found, next_due_at=None)
    if isinstance(table, EngineOnlyTable) and (why_not := table.engine_only_reason(snapshot)):
        # A run would be refused at every version.
        return replace(_with(found, "optimize", ()), warnings=(*found.warnings, f"optimize: {why_not}"))
    files = sum(len(step.inputs) for step in steps)
    dvs = sum(step.expected.dvs_removed for step in steps)
    size = format_size(sum(step.cost.bytes_read for step in steps))
    why = [f"files to replace: {files}, reading {size}"]
    if dvs:
        why.append(f"deletion vectors to purge: {dvs}")
    metered = [step.metered for step in steps if step.metered is not None]
    if metered:
        paid, cost = sum(each.paid for each in metered), sum(each.cost for each in metered)
        why.append(f"readers have paid {paid:.3g} s of CPU for them, a rewrite costs {cost:.3g}; {plan.basis}")
    return _with(found, "optimize", tuple(why))


def _look_again(due: int | None, reads: Reads | None, now: int) -> int | None:
    """When to look again without a commit: work that is due but can't be done yet, once an hour; and every day where
    reads are observed, as they may become more.
    """
    if reads is not None and reads.source != "declared":
        due = min(now + _DAY, now + _DAY if due is None else due)
    return now + _HOUR if due is not None and due <= now else due


def _vacuum_to_check(found: Inspection, policy: Policy, now: int) -> bool:
    """The interval is over, or there is a commit since the vacuum was due: perhaps the vacuum itself."""
    checked = found.vacuum_checked
    return checked is None or now - checked >= policy.vacuum_every or (found.changed and "vacuum" in found.due)


def _check_vacuum(found: Inspection, table: Table, policy: Policy, now: int, seen: Seen) -> Inspection:
    found = replace(found, vacuum_checked=now)
    if found.optimizer and not policy.beside_optimizer:
        return _with(found, "vacuum", ())
    try:
        result = foreseen(table, policy.vacuum_request, now)
        seen.expired = result.expired
        policy.guard.check(result.refused, table=table.uri, version=result.version_before)
    except DvMaintenanceError as error:
        # This concerns old versions, not the newest one: a warning is enough.
        warnings = [each for each in found.warnings if not each.startswith("vacuum: ")]
        return replace(_with(found, "vacuum", ()), warnings=(*warnings, f"vacuum: {error}"))
    expired, why = result.expired, []
    size = sum(max(file.size, 0) for file in expired.files)
    # A deadline does not ask how many bytes hold the deleted rows.
    if expired.files and (size >= policy.vacuum_min_bytes or policy.erase_within is not None):
        unneeded = f"unneeded for more than {format_duration(expired.retention)}"
        why.append(f"{count(len(expired.files), 'file')} ({format_size(size)}) {unneeded}")
    # Files that were quarantined are deleted by a later vacuum: a quiet table has no other reason for one.
    if policy.quarantine and overdue(table.storage, now - policy.quarantine_retention):
        why.append(f"files have been in quarantine for more than {format_duration(policy.quarantine_retention)}")
    return _with(found, "vacuum", tuple(why))


def _check_manifests(found: Inspection, table: Table, snapshot: Snapshot | None = None) -> Inspection:
    """``snapshot``: ``None`` if the version was inspected before; then only new manifests can change the result."""
    written = manifests_written(table)
    if written is not None and written >= files_changed(table):
        return _with(found, "manifest", ())
    reason = "there are no manifests" if written is None else "the table is newer than its manifests"
    if snapshot is None:
        return _with(found, "manifest", found.reasons.get("manifest", (reason,)))
    with_dv = snapshot.files.num_rows - snapshot.files["dv_id"].null_count
    purge = (f"{count(with_dv, 'file')} with DVs: purge first",) if with_dv else ()
    return _with(found, "manifest", (reason, *purge))


def _with(found: Inspection, job: Job, reasons: tuple[str, ...]) -> Inspection:
    """The inspection with a job due for these reasons; without reasons the job is not due."""
    due = tuple(each for each in found.due if each != job) + ((job,) if reasons else ())
    others = {name: why for name, why in found.reasons.items() if name != job}
    return replace(found, due=due, reasons={**others, job: reasons} if reasons else others)


@cache
def _adapter() -> TypeAdapter[Inspection]:
    return TypeAdapter(Inspection)

"""One round of work on steps that are valid for a snapshot: rewrite, gates, one commit, reading back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.engine.row_counts import count_rows
from dv_maintenance.errors import ConflictError, DvMaintenanceError, RefusedError, UsageError, VerificationError
from dv_maintenance.maintenance.execution.verify import check_outputs, check_result, check_version
from dv_maintenance.maintenance.planning.steps import MaintenancePlan, PlanStep
from dv_maintenance.tables.gates import check_committable
from dv_maintenance.tables.model import FileKey, partition_name
from dv_maintenance.tables.table import CommitOutcome, Replacement
from dv_maintenance.tables.work import OutputFile, RewriteBin
from dv_maintenance.tracing import finished, span
from dv_maintenance.units import count

if TYPE_CHECKING:
    from dv_maintenance.engine import Engine
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table
    from dv_maintenance.tables.work import RewriteResult, RewriteTask

_log = logging.getLogger(__name__)

NOTHING_COMMITTED: Final = "the new files were deleted, nothing was committed"
_FOOTER_THREADS: Final = 16
_NOT_DELETED: Final = "the new files could not be deleted, a vacuum will; nothing was committed"
# A commit raises these only if it certainly committed nothing.
_NOT_COMMITTED = (ConflictError, RefusedError, UsageError, VerificationError)
_MEND = "report this bug and attach the plan; the table is unchanged"


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed step.

    result : what the engine returned; ``None`` if nothing had to be read.
    carried : rows of the new files that others deleted concurrently.
    problem : what reading the version back found wrong, if anything.
    """

    step: PlanStep
    result: RewriteResult | None
    version: int
    attempts: int
    carried: int
    problem: str | None


@dataclass(frozen=True, slots=True)
class Round:
    """The result of a round.

    snapshot : the committed version as it was read back; ``None`` if nothing was committed or it could not be read.
    verified : reading back found nothing wrong.
    work_seconds : time of the rewrites and their gates.
    commit_seconds : time of the commit and of reading it back.
    """

    outcome: CommitOutcome
    committed: tuple[Committed, ...]
    snapshot: Snapshot | None
    verified: bool
    work_seconds: float
    commit_seconds: float


def run_round(
    table: Table,
    engine: Engine,
    snapshot: Snapshot,
    steps: Sequence[PlanStep],
    plan: MaintenancePlan,
    on_rewritten: Callable[[int], None],
    *,
    attempts_before: int,
) -> Round:
    """Rewrite, check, commit and read back.

    New files of steps that are not committed are deleted in every case, unless it is unknown whether they were
    committed. ``on_rewritten``: called with the number of finished rewrites after each of them.

    Raises
    ------
    VerificationError : a rewrite failed its gate.

    Errors of the engine and the table pass through.
    """
    began = time.monotonic()
    removed = without_live_rows(table, snapshot, [step for step in steps if step.action == "remove"])
    rewrites = [step for step in steps if step.id not in removed]
    with span("rewrite", table=table.uri, version=snapshot.version, steps=len(rewrites)):
        results = _rewrite(table, engine, snapshot, rewrites, plan, on_rewritten)
    rewritten = time.monotonic()
    replacements = [_replacement(plan.bin_of(step), step, results.get(step.id), plan.unit) for step in steps]
    with _uncertain(table, _outputs(results.values())), span("commit", table=table.uri) as traced:
        outcome = table.commit(snapshot, replacements, operation=_operation(plan))
        traced.set(version=outcome.version, attempts=outcome.attempts, lost=len(outcome.lost))
    exchanges = {each.id: _exchange(each, outcome) for each in replacements if each.id in outcome.committed}
    named = {output.uri for exchange in exchanges.values() for output, _ in exchange.outputs}
    _discard(table, [output for output in _outputs(results.values()) if output.uri not in named])
    if outcome.version is None:
        return Round(outcome, (), None, True, rewritten - began, time.monotonic() - rewritten)
    versions = {step: outcome.versions.get(step, outcome.version) for step in exchanges}
    problems = {}
    last: Snapshot | None = snapshot
    for version in dict.fromkeys(versions.values()):
        made = [exchange for step, exchange in exchanges.items() if versions[step] == version]
        last, problems[version] = _read_back(table, last, version, made, outcome.moved)
    carried = {each.id: sum(each.deleted) for each in outcome.rebased}
    _log.info(
        "%s: committed %d of %d steps in version %d, commit attempts: %d",
        table.uri,
        len(exchanges),
        len(steps),
        outcome.version,
        outcome.attempts,
    )
    if outcome.rebased:
        _log.info(
            "%s: rebased %s: %s that others deleted concurrently, still deleted",
            table.uri,
            count(len(outcome.rebased), "step"),
            count(sum(carried.values()), "row"),
        )
    for problem in filter(None, problems.values()):
        _log.error("%s: not verified: %s", table.uri, problem)
    attempts = attempts_before + outcome.attempts
    committed = tuple(
        Committed(
            step,
            results.get(step.id),
            versions[step.id],
            attempts,
            carried.get(step.id, 0),
            "; ".join(filter(None, (problems[versions[step.id]], *outcome.problems))) or None,
        )
        for step in steps
        if step.id in versions
    )
    verified = not any(problems.values())
    return Round(outcome, committed, last, verified, rewritten - began, time.monotonic() - rewritten)


@dataclass(frozen=True, slots=True)
class _Exchange:
    """What a commit removed, and what it added with the number of deleted rows. ``recounted``: see ``Replacement``."""

    inputs: tuple[FileKey, ...]
    outputs: tuple[tuple[OutputFile, int], ...]
    recounted: int = 0


def _exchange(replacement: Replacement, outcome: CommitOutcome) -> _Exchange:
    rebased = next((each for each in outcome.rebased if each.id == replacement.id), None)
    if rebased is None:
        outputs = [(output, 0) for output in replacement.outputs]
        return _Exchange(replacement.inputs, tuple(outputs), replacement.recounted)
    outputs = list(zip(replacement.outputs, rebased.deleted, strict=True))
    live = tuple(each for each in outputs if not each[1] or each[1] < each[0].rows)
    return _Exchange(rebased.inputs, live, replacement.recounted)


def _replacement(bin: RewriteBin, step: PlanStep, result: RewriteResult | None, unit: str) -> Replacement:
    same = (bin.id, bin.partition, bin.inputs)
    if result is None:
        return Replacement(*same)
    logged = [each.physical_rows for each in step.inputs]
    recounted = 0 if None in logged else result.rows_read - sum(rows or 0 for rows in logged)
    if bin.order_by:
        # The new position of each row is not kept: it costs eight bytes per row, for the rare concurrent delete.
        return Replacement(*same, result.outputs, order_by=bin.order_by, unit=unit, recounted=recounted)
    counts = zip(result.source_rows, result.source_purged, strict=True)
    kept = tuple(rows - purged for rows, purged in counts)
    return Replacement(*same, result.outputs, kept, details=result.details, recounted=recounted)


def without_live_rows(table: Table, snapshot: Snapshot, steps: Sequence[PlanStep]) -> frozenset[str]:
    """Ids of the steps whose files are wholly deleted. Where the log's counts are only statistics, the files say so
    themselves: a file with live rows is rewritten.
    """
    every = frozenset(step.id for step in steps)
    if snapshot.exact_rows or not steps:
        return every
    bins = [RewriteBin(step.id, step.partition, _keys(step)) for step in steps]
    tasks = table.rewrite_tasks(snapshot, bins, target_bytes=1)
    sources = [(task.id, source) for task in tasks for source in task.scan.sources]
    with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
        counts = pool.map(lambda each: count_rows(each[1], table.storage), sources)
        live = {
            step
            for (step, source), rows in zip(sources, counts, strict=True)
            if source.dv is None or rows != source.dv.cardinality
        }
    return every - live


def _rewrite(
    table: Table,
    engine: Engine,
    snapshot: Snapshot,
    steps: Sequence[PlanStep],
    plan: MaintenancePlan,
    on_rewritten: Callable[[int], None],
) -> dict[str, RewriteResult]:
    """Results that passed their gates, by step id."""
    if not steps:
        return {}
    check_committable(table)
    bins = [plan.bin_of(step) for step in steps]
    wanted = table.rewrite_tasks(snapshot, bins, plan.target_file_size, plan.policy.compression)
    tasks = {task.id: task for task in wanted}
    if list(tasks) != [step.id for step in steps]:
        raise VerificationError("the table returned tasks other than those requested", next_step=_MEND)
    done: dict[str, RewriteResult] = {}
    reasons = {step.id: step.reason for step in steps}

    def on_done(result: RewriteResult) -> None:
        done[result.task_id] = result
        finished(
            "task",
            result.seconds,
            table=table.uri,
            version=snapshot.version,
            rows=result.rows_read,
            rows_purged=result.rows_purged,
            bytes=result.bytes_read,
            reason=reasons.get(result.task_id),
        )
        on_rewritten(len(done))

    try:
        found = engine.run(
            [_with_room(tasks[step.id], step) for step in steps],
            storage_options=table.storage.options,
            on_done=on_done,
        )
        done.update((result.task_id, result) for result in found)
        if set(done) != set(tasks) or len(found) != len(tasks):
            raise VerificationError("the engine reported tasks other than those it was given")
        for step in steps:
            check_result(step, tasks[step.id], done[step.id])
        check_outputs(table.storage, _outputs(done.values()))
    except BaseException as error:
        _discard(table, _outputs(done.values()))
        if isinstance(error, VerificationError):
            _log.error("%s: a gate failed, nothing was committed: %s", table.uri, error.message)
            error.done = NOTHING_COMMITTED
            error.next_step = error.next_step or _MEND
        raise
    return done


def _with_room(task: RewriteTask, step: PlanStep) -> RewriteTask:
    """A slightly wrong estimate must not leave a tiny last file."""
    if step.expected.files_after != 1:
        return task
    return replace(task, target_bytes=max(task.target_bytes, step.expected.bytes_after * 5 // 4))


def _operation(plan: MaintenancePlan) -> Mapping[str, Any]:
    """Metrics for the table's history, under the names of the formats that define them."""
    selection = [partition_name(each) for each in plan.policy.partitions]
    tags = {"compactionTags": True} if plan.policy.compaction_tags else {}
    if plan.purge:
        return {"name": "REORG", "parameters": {"predicate": selection, "applyPurge": True}, **tags}
    order = {"clusterBy" if plan.unit else "zOrderBy": list(plan.order_by)} if plan.order_by else {}
    return {"name": "OPTIMIZE", "parameters": {"predicate": selection, **order}, **tags}


@contextmanager
def _uncertain(table: Table, outputs: Sequence[OutputFile]) -> Iterator[None]:
    """If a commit fails, delete the new files only if certainly no commit names them.

    A request whose answer was lost may have succeeded, and deleting a live file loses its rows.
    """
    try:
        yield
    except DvMaintenanceError as error:
        if error.uncommitted or isinstance(error, _NOT_COMMITTED):
            error.done = NOTHING_COMMITTED if _discard(table, outputs) else _NOT_DELETED
            raise
        error.done = "new files were written; it is unknown whether the commit that names them succeeded"
        error.next_step = error.next_step or "check the history, then run again; vacuum deletes uncommitted files"
        raise


def _read_back(
    table: Table,
    known: Snapshot | None,
    version: int,
    exchanges: Sequence[_Exchange],
    moved: Mapping[FileKey, FileKey],
) -> tuple[Snapshot | None, str | None]:
    """The committed version, ``None`` if it can't be read; and what is wrong with it, ``None`` if nothing is.

    ``known``: a version that was read before, which is often the one that was committed on.
    """
    after = None
    try:
        parent = table.parent_of(version)
        before = known if known is not None and known.version == parent else table.snapshot(parent)
        after = table.snapshot(version)
        problem = check_version(
            table,
            before,
            after,
            (key for exchange in exchanges for key in exchange.inputs),
            (output for exchange in exchanges for output in exchange.outputs),
            moved,
            sum(exchange.recounted for exchange in exchanges),
        )
    except Exception as error:  # noqa: BLE001 - the commit stands, whatever keeps us from looking at it
        problem = f"it could not be read back: {error}"
    return after, f"version {version}: {problem}" if problem else None


def _discard(table: Table, outputs: Sequence[OutputFile]) -> bool:
    """Best effort: vacuum finds the files that could not be deleted. Returns whether all could."""
    if not outputs:
        return True
    try:
        table.storage.delete([table.storage.path_of_uri(output.uri) for output in outputs])
    except (DvMaintenanceError, OSError) as error:
        _log.warning("%s: %d new files without a commit are left to vacuum: %s", table.uri, len(outputs), error)
        return False
    return True


def _keys(step: PlanStep) -> tuple[FileKey, ...]:
    return tuple(FileKey(each.path, each.dv_id) for each in step.inputs)


def _outputs(results: Iterable[RewriteResult]) -> list[OutputFile]:
    return [output for result in results for output in result.outputs]

"""Bring a table, from any intermediate state, to one that readers without deletion vectors can read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import ConflictError, DamagedTableError, DvMaintenanceError, RefusedError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.execution.rehearsal import rehearsed
from dv_maintenance.maintenance.fsck.deep import read
from dv_maintenance.maintenance.fsck.quick import quick_check
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.remedies import Remedy, run
from dv_maintenance.report import Report
from dv_maintenance.tables.capabilities import DowngradableTable
from dv_maintenance.tables.fsck import FsckTable
from dv_maintenance.tables.gates import check_committable
from dv_maintenance.tables.registry import title_of

if TYPE_CHECKING:
    from dv_maintenance.engine import Engine
    from dv_maintenance.maintenance.execution.apply import OnProgress
    from dv_maintenance.tables.capabilities import DowngradeStep
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table

# Other writers may undo steps. After so many steps the downgrade gives up.
_PATIENCE: Final = 10


@dataclass(frozen=True, slots=True, repr=False)
class DowngradeReport(Report):
    """The result of a downgrade.

    steps : the state of each step.
    taken : names of the steps carried out by this call, in order.
    rows_purged : deleted rows that these steps removed from the data files for good.
    finished : if false, ``steps`` lists what is left to do.
    waits_until : when to run it again, epoch milliseconds.
    """

    version_before: int
    version_after: int
    steps: tuple[DowngradeStep, ...]
    taken: tuple[str, ...]
    rows_purged: int
    finished: bool
    waits_until: int | None


def downgrade(
    table: Table,
    engine: Engine,
    *,
    truncate_history: bool = False,
    dry_run: bool = False,
    now: int | None = None,
    on_progress: OnProgress | None = None,
) -> DowngradeReport:
    """Carry out the steps that are due, until none is left or one has to wait.

    An interrupted downgrade continues at the same step when it is run again.

    dry_run : only report the state of the table.
    truncate_history : finally delete the history, once no reader can need it; old writers can then write the table.
    now : epoch milliseconds.

    Raises
    ------
    RefusedError, UnsupportedFeatureError : the format has no downgrade, or files with deletion vectors may not be
        rewritten; nothing was changed.
    ConflictError : other writers continue to add deletion vectors.

    Errors of the purge, the engine and the table pass through; steps that were finished before are kept.
    """
    if not isinstance(table, DowngradableTable):
        raise RefusedError(f"{title_of(table.format)} tables have no feature to drop", table=table.uri)
    snapshot = table.snapshot()
    check_committable(table, dry_run=dry_run)
    dirty = snapshot.files["dv_id"].null_count < snapshot.files.num_rows
    if dirty:
        # Before the first step, not in the middle.
        rehearsed(table, snapshot, build_plan(snapshot, purge=True))
        _check_files(table, snapshot)
    before, taken, rows = snapshot.version, list[str](), 0
    with _telling(taken):
        while True:
            steps = table.downgrade_steps(truncate_history=truncate_history, now=now)
            step = next((each for each in steps if each.state != "done"), None)
            if dry_run or step is None or step.state != "due":
                break
            if len(taken) == len(steps) + _PATIENCE:
                raise ConflictError(
                    "other writers continue to add deletion vectors, or enable them again",
                    table=table.uri,
                    next_step="stop the writers that add deletion vectors to the table, then run it again",
                )
            # The purge is the only step that can fail for a reason which no check finds, such as workers that can't run
            # our code. So it comes before the step that changes the table's properties, and again after it if needed.
            name = "purge" if dirty and not taken else step.name
            taken.append(name)
            if name == "purge":
                report = purge(table, engine, on_progress=on_progress)
                rows += sum(each.rows_purged for each in report.steps)
            else:
                table.take_downgrade_step(name, truncate_history=truncate_history, now=now)
        after = table.version(before)
    return DowngradeReport(
        table=table.uri,
        format=table.format,
        version_before=before,
        version_after=after,
        steps=steps,
        taken=tuple(taken),
        rows_purged=rows,
        finished=step is None,
        waits_until=None if step is None else step.waits_until,
    )


def _check_files(table: Table, snapshot: Snapshot) -> None:
    """Raise DamagedTableError if the purge would fail, which comes after the first commits."""
    dirty = replace(snapshot, files=snapshot.files.filter(snapshot.files["dv_id"].is_valid()))
    if not isinstance(table, FsckTable):
        return
    looked = quick_check(table, dirty)
    faults = looked.faults or read(table, dirty, looked.needed, ()).faults
    if faults:
        raise DamagedTableError(
            f"{faults[0].path}: {faults[0].reason}",
            table=table.uri,
            version=snapshot.version,
            next_step=Remedy(
                "see {} for every damaged file and how to repair the table", (run("fsck", table.uri, deep=True),)
            ),
        )


@contextmanager
def _telling(taken: Sequence[str]) -> Iterator[None]:
    """Add the steps begun to every error. The last of them may be done in part."""
    try:
        yield
    except DvMaintenanceError as error:
        if taken:
            begun = f"steps begun: {', '.join(dict.fromkeys(taken))}"
            error.done = f"{begun}; last step: {error.done or 'it may be done in part'}"
        raise

"""Bring a table to a state that readers without deletion vectors can read, from wherever it stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.errors import ConflictError, DvMaintenanceError, RefusedError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.tables.capabilities import DowngradableTable

if TYPE_CHECKING:
    from dv_maintenance.engine import Engine
    from dv_maintenance.maintenance.execution.apply import OnProgress
    from dv_maintenance.tables.capabilities import DowngradeStep
    from dv_maintenance.tables.table import Table

__all__ = ["DowngradeReport", "downgrade"]

# Steps that other writers may undo before it is no use to go on.
_PATIENCE: Final = 10


@dataclass(frozen=True, slots=True)
class DowngradeReport:
    """``steps``: where the table stands by now; ``taken``: names of those carried out here, in order; ``rows_purged``:
    rows of data files that are gone for good with them. Not ``finished``: the steps say what is left, and
    ``waits_until`` (epoch milliseconds) when to run it again.
    """

    table: str
    format: str
    version_before: int
    version_after: int
    steps: tuple[DowngradeStep, ...]
    taken: tuple[str, ...]
    rows_purged: int
    finished: bool
    waits_until: int | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def downgrade(
    table: Table,
    engine: Engine,
    *,
    truncate_history: bool = False,
    dry_run: bool = False,
    now: int | None = None,
    on_progress: OnProgress | None = None,
) -> DowngradeReport:
    """Take the steps that are due, until none is or one has to wait; with ``dry_run`` only say where the table stands.

    Broken off anywhere, it goes on from there when it is run again. ``truncate_history``: history is deleted in the
    end, once nobody can need it, and old writers can write the table again too. ``now``: epoch milliseconds.

    Raises
    ------
    RefusedError, UnsupportedFeatureError : the format can't, or files with deletion vectors may not be rewritten:
        nothing was changed.
    ConflictError : other writers go on adding deletion vectors.
    What purging, the engine and the table raise; what was done by then stays done.
    """
    if not isinstance(table, DowngradableTable):
        raise RefusedError(f"{table.format} tables have no feature to give up", table=table.uri)
    snapshot = table.snapshot()
    if snapshot.files["dv_id"].null_count < snapshot.files.num_rows:
        table.check_writable(snapshot, "rewrite")  # before the first step, not in the middle
    before, taken, rows = snapshot.version, list[str](), 0
    with _telling(taken):
        while True:
            steps = table.downgrade_steps(truncate_history=truncate_history, now=now)
            step = next((each for each in steps if each.state != "done"), None)
            if dry_run or step is None or step.state != "due":
                break
            if len(taken) == len(steps) + _PATIENCE:
                raise ConflictError(
                    "other writers go on adding deletion vectors, or allow them again",
                    table=table.uri,
                    next_step="stop what writes deletion vectors to the table, then run it again",
                )
            taken.append(step.name)
            if step.name == "purge":
                report = purge(table, engine, on_progress=on_progress)
                rows += sum(each.rows_purged for each in report.steps)
            else:
                table.take_downgrade_step(step.name, truncate_history=truncate_history, now=now)
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


@contextmanager
def _telling(taken: Sequence[str]) -> Iterator[None]:
    """Around all steps: an error names those that were begun, of which the last one may be done in part."""
    try:
        yield
    except DvMaintenanceError as error:
        if taken:
            begun = f"steps begun: {', '.join(dict.fromkeys(taken))}"
            error.done = f"{begun}; of the last one: {error.done or 'it may be done in part'}"
        raise

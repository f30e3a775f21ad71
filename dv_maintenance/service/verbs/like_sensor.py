"""What a sensor would decide for a table of a tables file now, and the plan that its run would make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.meter.of_table import decide_for
from dv_maintenance.service.cursor import Cursor
from dv_maintenance.service.decision import Attempts
from dv_maintenance.service.due import without_rewrites
from dv_maintenance.service.evaluation import Limits, evaluate
from dv_maintenance.service.inspection import reads_now
from dv_maintenance.service.observe import Observer
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.reports.work import KEPT_LISTED, of_plan
from dv_maintenance.service.tables_file import table_called
from dv_maintenance.service.verbs.state import opened
from dv_maintenance.units import epoch_millis
from dv_maintenance.units import iso_timestamp as iso

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dv_maintenance.service.checks import Finding
    from dv_maintenance.service.decision import Decision
    from dv_maintenance.service.due import RunRequest
    from dv_maintenance.service.evaluation import Orchestrator
    from dv_maintenance.service.observe import Observation
    from dv_maintenance.service.tables_file import TableSettings, WatchConfig

_SECONDS: Final = 3600.0
_UNKNOWN: Final = ("runs at work", "runs that ended", "when the last vacuum ended", "reads by downstream assets")


class NoOrchestrator:
    """Knows of no run, and records nothing. See :class:`~dv_maintenance.service.evaluation.Orchestrator`."""

    def busy(self, table: TableSettings) -> str | None:
        del table
        return None

    def attempts(self, request: RunRequest) -> Attempts:
        del request
        return Attempts()

    def last_vacuum(self, table: TableSettings) -> int | None:
        del table
        return None

    def last_observed(self, table: TableSettings) -> None:
        del table

    def downstream(self, table: TableSettings, now: int) -> None:
        del table, now

    def partition_keys(self, table: TableSettings) -> Sequence[str]:
        del table
        return ()

    def record(self, table: TableSettings, observation: Observation) -> None:
        """Nobody reads it."""

    def check(self, table: TableSettings, finding: Finding) -> None:
        """Nobody reads it."""


def plan_like_sensor(
    configs: Sequence[WatchConfig], name: str, *, cursor: str | None = None, orchestrator: Orchestrator | None = None
) -> Outcome:
    """The decision by :func:`~dv_maintenance.service.evaluation.evaluate`, as a sensor takes it, and the table's plan
    with its reads and with what is spent of its limits. ``report["plan"]`` is ``None`` without ``optimize`` in the
    table's jobs.

    configs : the documents of the file.
    name : of the table.
    cursor : of a sensor or watcher; ``None``: as at its first inspection.
    orchestrator : ``None``: runs are not known.

    Raises
    ------
    UsageError : the file has no such table, or the cursor can't be read.

    The errors of an inspection of the table pass through.
    """
    config, table = table_called(configs, name)
    Cursor.from_json(cursor)
    known = orchestrator or NoOrchestrator()
    looked = evaluate([table], cursor, known, Observer(data_versions=True), Limits(_SECONDS, _SECONDS, requests=1))
    if table.name in looked.errors:
        raise looked.errors[table.name]
    now = epoch_millis()
    inspection = looked.cursor.tables[table.name].inspection
    decision = looked.decisions.get(table.name)
    requests = without_rewrites(looked.requests) if config.at_night else list(looked.requests)
    unknown = () if orchestrator else (*_UNKNOWN, *(("the range of partitions",) if table.partitions else ()))
    planned, refused = Outcome(""), ""
    if "optimize" in table.jobs:
        opened_table = opened(table)
        snapshot = opened_table.snapshot(inspection.version)
        reads = reads_now(table, lambda at: known.downstream(table, at))(now)[0]
        plan = decide_for(opened_table, snapshot, table.policy, reads=reads, now=now, listed=KEPT_LISTED)
        planned = replace(of_plan(plan), report=plan.to_json())
        try:
            opened_table.check_writable(snapshot, "rewrite")
        except RefusedError as error:
            refused = str(error) if any("optimize" in each.jobs for each in requests) else ""
    withheld = _withheld(config, now) if tuple(requests) != looked.requests else ""
    damage = (decision.reason,) if decision is not None and decision.kind == "damaged" else ()
    # A cursor has no reasons: at a version that it has seen, there are none.
    due = tuple(
        f"{job}: {'; '.join(inspection.reasons.get(job, ('since an earlier inspection',)))}" for job in inspection.due
    )
    return replace(
        planned,
        reason=_reason(decision, requests, withheld),
        tables={},
        details=(
            *((f"The run would be refused: {refused}",) if refused else ()),
            *((f"Not known here: {', '.join(unknown)}.",) if unknown else ()),
        ),
        lines={name: lines for name, lines in (("due", due), ("warnings", inspection.warnings)) if lines},
        damage=damage,
        refused=refused,
        report={
            "table": table.name,
            "version": inspection.version,
            "requested": [_request(each) for each in requests],
            "decision": _decision(decision),
            "due": {job: list(inspection.reasons.get(job, ())) for job in inspection.due},
            "held": withheld,
            "warnings": list(inspection.warnings),
            "refused": refused,
            "unknown": list(unknown),
            "plan": planned.report or None,
        },
    )


def _withheld(config: WatchConfig, now: int) -> str:
    """Why a sensor requests no rewrite."""
    if config.window is None:
        return "rewrites are left to the run that has a budget"
    return f"rewrites are left to the run of the window, which opens next at {iso(config.window.opens_next(now))}"


def _reason(decision: Decision | None, requests: Sequence[RunRequest], withheld: str) -> str:
    if requests:
        (run,) = requests
        part = f" for partitions {' to '.join(run.partitions)}" if run.partitions else ""
        more = "; ".join(each for each in (decision.reason if decision else "", withheld) if each)
        return f"A sensor would request a run of {' and '.join(run.jobs)}{part}{f' ({more})' if more else ''}."
    why = withheld or (decision.reason if decision else "") or "nothing is due"
    return f"A sensor would request no run: {why}{'' if why.endswith('.') else '.'}"


def _request(run: RunRequest) -> Mapping[str, Any]:
    return {"jobs": list(run.jobs), "partitions": None if run.partitions is None else list(run.partitions)}


def _decision(decision: Decision | None) -> Mapping[str, Any]:
    if decision is None:
        return {"kind": "nothing", "reason": "", "again": None}
    again = None if decision.again is None else iso(decision.again)
    return {"kind": decision.kind, "reason": decision.reason, "again": again}

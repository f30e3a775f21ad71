"""What the demo reports: before and after, the runs in between, and what is left to do in Dagster's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dv_maintenance.cli.output import bytes_text, count, table
from dv_maintenance.service.text import percent
from dv_maintenance.units import epoch_millis

if TYPE_CHECKING:
    from dv_maintenance.cli.demo.location import Run
    from dv_maintenance.cli.demo.state import State
    from dv_maintenance.maintenance.planning.left_alone import LeftAlone
    from dv_maintenance.service.inspection import Inspection

_HEAD = (
    "table",
    "",
    "rows",
    "files",
    "with DV",
    "deleted rows",
    "share",
    "data",
    "on disk",
    "versions",
    "scan",
    "SHA-256",
)


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table.

    left_alone : files that kept deleted rows, and why.
    used : what happened to the table afterwards.
    due : the inspection after that.
    """

    name: str
    uri: str
    before: State
    after: State
    left_alone: Sequence[LeftAlone]
    used: str
    due: Inspection


@dataclass(frozen=True, slots=True)
class Report:
    """The whole demo.

    seconds : the time of all ``runs``.
    ui : the command that opens Dagster's page.
    """

    tables: Sequence[TableReport]
    runs: Sequence[Run]
    seconds: float
    manifests: str
    ui: str

    def to_json(self) -> dict[str, Any]:
        return {
            "tables": [_table_json(each) for each in self.tables],
            "content_unchanged": True,
            "runs": [asdict(run) for run in self.runs],
            "run_seconds": self.seconds,
            "manifests": self.manifests,
            "ui": self.ui,
        }

    def to_text(self) -> str:
        return "\n".join(
            [
                "",
                table(_HEAD, [row for each in self.tables for row in _rows(each)], left=2),
                "",
                f"No row changed. {len(self.runs)} Dagster runs took {self.seconds:.0f} s:",
                *(f"  {_run(run)}" for run in self.runs),
                *self._left_alone(),
                "",
                f"Manifests for readers without deletion vectors: {self.manifests}",
                "",
                "The tables have changed since, and need work again:",
                *(f"  {each.name}: {each.used}; {_due(each.due)}" for each in self.tables),
                "",
                f"Open Dagster's page on http://127.0.0.1:3000 with: {self.ui}",
                "Start the sensor dv_accumulation there, or materialize the last days of orders_optimize.",
            ]
        )

    def _left_alone(self) -> list[str]:
        lines = [
            f"  {each.name}: {count(kept.files)} files keep {count(kept.deleted_rows)} deleted rows: {kept.reason}"
            for each in self.tables
            for kept in each.left_alone
        ]
        return ["", "Left alone by the policy:", *lines] if lines else []


def _table_json(each: TableReport) -> dict[str, Any]:
    return {
        "name": each.name,
        "uri": each.uri,
        "before": asdict(each.before),
        "after": asdict(each.after),
        "left_alone": [asdict(kept) for kept in each.left_alone],
        "since_then": each.used,
        "next_due_at": each.due.next_due_at,
        "due": {job: each.due.reasons.get(job, ()) for job in each.due.due},
    }


def _due(found: Inspection) -> str:
    if found.due or found.next_due_at is None:
        return f"due: {', '.join(found.due) or 'nothing'}"
    minutes = max(1, -(-(found.next_due_at - epoch_millis()) // 60_000))
    return f"due in {minutes} min, because it has just changed"


def _rows(each: TableReport) -> list[tuple[str, ...]]:
    return [(each.name, "before", *_cells(each.before)), ("", "after", *_cells(each.after))]


def _cells(state: State) -> tuple[str, ...]:
    return (
        count(state.rows),
        count(state.files),
        count(state.files_with_dv),
        count(state.deleted_rows),
        percent(state.deleted_ratio),
        bytes_text(state.size_bytes),
        bytes_text(state.disk_bytes),
        count(state.versions),
        f"{state.scan_seconds:.2f} s",
        state.content[:8],
    )


def _run(run: Run) -> str:
    what = f"{', '.join(run.assets)}{f', {run.partitions}' if run.partitions else ''}" if run.assets else "all tables"
    return f"{run.seconds:4.1f} s  {run.asked_by}: {what}"

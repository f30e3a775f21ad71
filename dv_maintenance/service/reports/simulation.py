"""What policies would have cost, as an outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dv_maintenance.service.chart import Bar, Picture
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.units import DAY, count
from dv_maintenance.units import iso_timestamp as iso

if TYPE_CHECKING:
    from dv_maintenance.maintenance.simulation.compare import Comparison
    from dv_maintenance.maintenance.simulation.replay import Replayed
    from dv_maintenance.tables.model import Snapshot


def of_comparison(snapshot: Snapshot, found: Comparison) -> Outcome:
    """A row per policy, the cheapest of those that were asked for as reason, and a bar chart of the costs."""
    asked = found.rules[:-2]
    best = min(asked, key=lambda rule: rule.cost)
    trace, happened = found.past.trace, found.past.happened
    worst = max((rule.cost for rule in found.rules), default=0.0)
    days = (trace.end - trace.start) / DAY
    reason = (
        f"{best.rule}: {best.cost:.3g} s of CPU in {days:.3g} days, {_ratio(best.cost, found.bound)}; "
        f"{count(best.runs, 'run')}, {found.amplification(best.written):.2f} bytes written per byte that was added"
    )
    rows = tuple(_row(rule, found) for rule in found.rules)
    bars = [Bar(rule.rule, rule.cost / worst) for rule in found.rules] if worst > 0 else []
    since = f"{count(happened.commits, 'commit')} since {iso(trace.start)}"
    details = [f"{since}, {count(found.statements, 'statement')} of writers", f"reads: {found.basis}"]
    written = f"{found.amplification(happened.written):.2f} bytes written per byte that was added"
    details.append(f"what happened: {count(happened.runs, 'run')} of maintenance, {written}")
    if not found.past.complete:
        details.append("older commits were cleaned up: the simulation begins with the oldest that is left")
    return Outcome(
        reason,
        tables={"policies": rows},
        picture=Picture.of(bars, "cost by policy", "Cost by policy, as a share of the largest"),
        details=tuple(details),
        report=_report(snapshot, found),
    )


def _ratio(cost: float, bound: float) -> str:
    return f"{cost / bound:.2f} times the least possible" if bound > 1e-6 else "with nothing that a rule could save"


def _row(rule: Replayed, found: Comparison) -> dict[str, str | int]:
    return {
        "policy": rule.rule,
        "cpu_s": f"{rule.cost:.4g}",
        "x_least": f"{rule.cost / found.bound:.2f}" if found.bound > 1e-6 else "-",
        "read_s": f"{rule.reading:.4g}",
        "rewrite_s": f"{rule.rewriting:.4g}",
        "start_s": f"{rule.starting:.4g}",
        "runs": rule.runs,
        "amplification": f"{found.amplification(rule.written):.2f}",
        "disturbed": rule.disturbed,
        "late_days": f"{rule.late_days:.1f}",
    }


def _report(snapshot: Snapshot, found: Comparison) -> dict[str, Any]:
    trace, happened = found.past.trace, found.past.happened
    return {
        "table": snapshot.table,
        "format": snapshot.format,
        "version": snapshot.version,
        "since": iso(trace.start),
        "until": iso(trace.end),
        "complete": found.past.complete,
        "reads": found.basis,
        "statements": found.statements,
        "bytes_appended": found.appended,
        "least_cpu_seconds": round(found.bound, 6),
        "happened": {
            "commits": happened.commits,
            "runs": happened.runs,
            "amplification": round(found.amplification(happened.written), 4),
        },
        "policies": [
            {
                "policy": rule.rule,
                "cpu_seconds": round(rule.cost, 6),
                "reading": round(rule.reading, 6),
                "rewriting": round(rule.rewriting, 6),
                "starting": round(rule.starting, 6),
                "storing": round(rule.storing, 6),
                "runs": rule.runs,
                "amplification": round(found.amplification(rule.written), 4),
                "disturbed": rule.disturbed,
                "late_rows": rule.late,
                "late_days": round(rule.late_days, 3),
            }
            for rule in found.rules
        ],
    }

"""``dvm read`` and ``dvm changes``: rows on the screen or in a file. Both read in this process, without Spark."""

from __future__ import annotations

import os
import tempfile
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING

from dv_maintenance.cli.access import open_table
from dv_maintenance.cli.output import Output
from dv_maintenance.service import reading

if TYPE_CHECKING:
    from dv_maintenance.service.outcome import Outcome

__all__ = ["changes", "read"]

# Rows on a screen, unless --limit says otherwise.
_SHOWN = 20


def read(args: Namespace, out: Output) -> int:
    """Without ``-o``: --json counts the rows, otherwise the first ones are shown as JSON lines."""
    show = not (args.output or out.json)
    limit = _SHOWN if show and args.limit is None else args.limit
    target = open_table(args, out)

    def rows(output: str | None) -> Outcome:
        return reading.rows(target, output, version=args.version, columns=args.columns, limit=limit)

    if not show:
        return _print(rows(args.output), out)
    shown = _show(rows, out)
    if args.limit is None and shown.report["rows"] == _SHOWN:
        out.note(f"the first {_SHOWN} rows; --limit N shows more, -o FILE writes all")
    return 0


def changes(args: Namespace, out: Output) -> int:
    """As :func:`read`."""
    target = open_table(args, out)
    if args.output or out.json:
        return _print(reading.changes(target, args.first, args.last, args.output), out)
    shown = _show(lambda output: reading.changes(target, args.first, args.last, output, limit=_SHOWN), out)
    _warn(shown, out)
    if shown.report["rows"] == _SHOWN:
        out.note(f"the first {_SHOWN} rows; -o FILE writes all")
    return 0


def _show(rows: Callable[[str], Outcome], out: Output) -> Outcome:
    """Rows as JSON lines."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.jsonl")
        outcome = rows(path)
        with open(path, encoding="utf-8") as file:
            out.text(file.read())
    return outcome


def _print(outcome: Outcome, out: Output) -> int:
    out.result(outcome.report, lambda: outcome.reason)
    _warn(outcome, out)
    return 0


def _warn(outcome: Outcome, out: Output) -> None:
    for warning in outcome.lines.get("warnings", ()):
        out.note(warning)

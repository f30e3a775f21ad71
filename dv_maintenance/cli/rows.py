"""``dvm read`` and ``dvm changes``: rows on the screen or in a file. Without a condition both read in this process."""

from __future__ import annotations

import os
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.cli.access import open_table, working
from dv_maintenance.cli.output import Output, table
from dv_maintenance.service import reading

if TYPE_CHECKING:
    from dv_maintenance.service.outcome import Outcome

# Rows on a screen, unless --limit says otherwise.
_SHOWN: Final = 20
_CELL: Final = 40
# Control characters would act on the terminal.
_SAFE: Final = str.maketrans({code: f"\\x{code:02x}" for code in [*range(32), *range(0x7F, 0xA0)]} | {10: "\\n"})


def read(args: Namespace, out: Output) -> int:
    """Without ``-o``: --json counts the rows, otherwise the first ones are shown."""
    show = not (args.output or out.json)
    limit = _SHOWN if show and args.limit is None else args.limit
    target = open_table(args, out)

    def rows(output: str | None) -> Outcome:
        if args.where is None:
            return reading.rows(target, output, version=args.version, columns=args.columns, limit=limit)
        with working(args, out, "finding rows") as (engine, _):
            return reading.rows_where(
                target,
                lambda: engine,
                args.where,
                output,
                version=args.version,
                columns=args.columns,
                limit=limit,
            )

    if not show:
        return _print(rows(args.output), out)
    shown = _show(rows, args, out)
    if args.limit is None and shown.report["rows"] == _SHOWN:
        out.note(f"the first {_SHOWN} rows; --limit N shows more, -o FILE writes all")
    return 0


def changes(args: Namespace, out: Output) -> int:
    """As :func:`read`."""
    target = open_table(args, out)
    if args.output or out.json:
        return _print(reading.changes(target, args.first, args.last, args.output), out)
    shown = _show(lambda output: reading.changes(target, args.first, args.last, output, limit=_SHOWN), args, out)
    _warn(shown, out)
    if shown.report["rows"] == _SHOWN:
        out.note(f"the first {_SHOWN} rows; -o FILE writes all")
    return 0


def _show(rows: Callable[[str], Outcome], args: Namespace, out: Output) -> Outcome:
    """Rows in the form that was asked for: by default a table on a terminal, JSON lines elsewhere."""
    form = args.form or ("table" if out.on_terminal else "jsonl")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.csv" if form == "csv" else "rows.jsonl")
        outcome = rows(path)
        with open(path, encoding="utf-8", newline="") as file:
            out.text(_table(file.read(), out) if form == "table" else file.read())
    return outcome


def _table(lines: str, out: Output) -> str:
    import orjson

    rows = [orjson.loads(line) for line in lines.split("\n") if line]
    if not rows:
        return "no rows"
    names = list(rows[0])
    numbers = {name for name in names if all(isinstance(row[name], int | float | None) for row in rows)}
    cells = [[_cell(row[name]) for name in names] for row in rows]
    shown = _that_fit(names, cells) if out.on_terminal else len(names)
    words = {at for at, name in enumerate(names) if name not in numbers}
    if shown < len(names):
        out.note(f"and {len(names) - shown:,} more columns; --columns A,B chooses, --as jsonl shows all")
    head = [name.translate(_SAFE) for name in names[:shown]]
    return table(head, [row[:shown] for row in cells], left=words)


def _cell(value: Any) -> str:
    import orjson

    text = "NULL" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()
    text = text.translate(_SAFE)
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"


def _that_fit(names: Sequence[str], cells: Sequence[Sequence[str]]) -> int:
    """How many columns fit beside each other on the terminal; at least one."""
    room = shutil.get_terminal_size().columns
    for at, name in enumerate(names):
        room -= max(len(name), *(len(row[at]) for row in cells)) + (2 if at else 0)
        if room < 0:
            return max(at, 1)
    return len(names)


def _print(outcome: Outcome, out: Output) -> int:
    out.result(outcome.report, lambda: outcome.reason)
    _warn(outcome, out)
    return 0


def _warn(outcome: Outcome, out: Output) -> None:
    for warning in outcome.lines.get("warnings", ()):
        out.note(warning)

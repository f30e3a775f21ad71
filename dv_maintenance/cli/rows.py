"""``dvm read``: write the live rows of a table to a file or the screen. Reads in this process, without Spark."""

from __future__ import annotations

import os
import tempfile
from argparse import Namespace

from dv_maintenance.cli.access import open_table
from dv_maintenance.cli.output import Output, count

__all__ = ["read"]

# Rows on a screen, unless --limit says otherwise.
_SHOWN = 20


def read(args: Namespace, out: Output) -> int:
    """Without ``-o``: --json counts the rows, else the first ones are shown as JSON lines."""
    from dv_maintenance.maintenance import read as reading

    show = not (args.output or out.json)
    limit = _SHOWN if show and args.limit is None else args.limit
    schema, batches = reading.read(open_table(args, out), args.version, args.columns, limit)
    if args.output:
        rows = reading.write_rows(schema, batches, args.output)
        out.result({"rows": rows, "output": args.output}, lambda: f"wrote {count(rows)} rows to {args.output}")
    elif show:  # write_rows knows how each type reads as JSON
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows.jsonl")
            rows = reading.write_rows(schema, batches, path)
            with open(path, encoding="utf-8") as file:
                out.text(file.read())
        if args.limit is None and rows == _SHOWN:
            out.note(f"the first {_SHOWN} rows; --limit N shows more, -o FILE writes all")
    else:
        rows = sum(batch.num_rows for batch in batches)
        out.result({"rows": rows, "output": None}, lambda: count(rows))
    return 0

"""``dvm changes``: what each version of a range changed, row by row. Reads in this process, without Spark."""

from __future__ import annotations

import os
import tempfile
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from dv_maintenance.cli.access import open_table
from dv_maintenance.cli.output import Output, count

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.tables.capabilities import ChangeFeed

__all__ = ["changes"]

# Rows on a screen; -o FILE has them all.
_SHOWN = 20


def changes(args: Namespace, out: Output) -> int:
    """Without ``-o``: --json counts the rows, else the first ones are shown as JSON lines."""
    from dv_maintenance.maintenance.changes import read_changes
    from dv_maintenance.maintenance.read import write_rows

    feed, batches = read_changes(open_table(args, out), args.first, args.last)
    types: Counter[str] = Counter()
    counted = _counted(batches, types)
    if args.output:
        write_rows(feed.schema, counted, args.output)
    elif out.json:
        for _ in counted:
            pass
    else:
        _show(feed, counted, out)
        return 0
    document = {
        "from": feed.first,
        "to": feed.last,
        "rows": types.total(),
        "changes": dict(types),
        "inferred": list(feed.inferred),
        "output": args.output,
    }
    out.result(document, lambda: f"wrote {_summary(document)} to {args.output}")
    _note(feed, out)
    return 0


def _show(feed: ChangeFeed, batches: Iterable[pa.RecordBatch], out: Output) -> None:
    from dv_maintenance.maintenance.read import write_rows

    with tempfile.TemporaryDirectory() as folder:  # write_rows knows how each type reads as JSON
        path = os.path.join(folder, "rows.jsonl")
        shown = write_rows(feed.schema, _head(batches), path)
        with open(path, encoding="utf-8") as file:
            out.text(file.read())
    _note(feed, out)
    if shown == _SHOWN:
        out.note(f"the first {_SHOWN} rows; -o FILE writes all")


def _head(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    left = _SHOWN
    for batch in islice(batches, _SHOWN):  # none of them is empty
        yield batch.slice(0, left)
        left -= min(left, batch.num_rows)
        if not left:
            return


def _counted(batches: Iterable[pa.RecordBatch], types: Counter[str]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for found in batch.column("_change_type").value_counts().to_pylist():
            types[str(found["values"])] += found["counts"]
        yield batch


def _summary(document: dict[str, Any]) -> str:
    parts = ", ".join(f"{count(rows)} {kind}" for kind, rows in sorted(document["changes"].items()))
    return f"{count(document['rows'])} changes" + (f" ({parts})" if parts else "")


def _note(feed: ChangeFeed, out: Output) -> None:
    if feed.inferred:
        versions = ", ".join(map(str, feed.inferred[:10])) + (", ..." if len(feed.inferred) > 10 else "")
        out.note(f"no change data feed was on in version {versions}: an update there reads as a delete and an insert")

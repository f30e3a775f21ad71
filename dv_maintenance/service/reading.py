"""Rows of a version, and rows that a range of versions changed: counted, or written to a file, in this process.

A face that shows rows passes its own file: :func:`~dv_maintenance.maintenance.read.write_rows` decides how each type
reads as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from dv_maintenance.service.engines import EngineOf
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.units import count

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.tables.table import Table


def rows(
    table: Table,
    output: str | None = None,
    *,
    version: int | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> Outcome:
    """The live rows. Raises the errors of ``maintenance.read``.

    output : an ``.arrow``, ``.parquet``, ``.csv`` or ``.jsonl`` file; ``None``: only count them.
    """
    from dv_maintenance.maintenance.read import read

    return _written(*read(table, version, columns, limit), output)


def rows_where(
    table: Table,
    engine: EngineOf,
    where: str,
    output: str | None = None,
    *,
    version: int | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> Outcome:
    """The live rows for which a condition in Spark SQL is true; otherwise as :func:`rows`.

    Errors of ``dml.read`` pass through.
    """
    from dv_maintenance.dml.read import matching_rows
    from dv_maintenance.maintenance.read import check_output, chosen_schema

    check_output(output)
    snapshot = table.snapshot(version)
    schema = chosen_schema(snapshot, columns, limit)
    return _written(schema, matching_rows(table, engine(), where, snapshot, schema, limit), output)


def _written(schema: pa.Schema, batches: Iterable[pa.RecordBatch], output: str | None) -> Outcome:
    from dv_maintenance.maintenance.read import write_rows

    if output is None:
        found = sum(batch.num_rows for batch in batches)
        return Outcome(f"{count(found, 'row')}.", report={"rows": found, "output": None})
    found = write_rows(schema, batches, output)
    return Outcome(f"Wrote {count(found, 'row')} to {output}.", report={"rows": found, "output": output})


def changes(
    table: Table, first: int, last: int | None = None, output: str | None = None, *, limit: int | None = None
) -> Outcome:
    """The rows that the versions from ``first`` to ``last`` changed. ``output``: as in :func:`rows`. Raises the errors
    of ``maintenance.changes``.
    """
    from dv_maintenance.maintenance.changes import read_changes
    from dv_maintenance.maintenance.read import write_rows

    feed, batches = read_changes(table, first, last)
    types: Counter[str] = Counter()
    counted = _counted(batches if limit is None else _head(batches, limit), types)
    if output is None:
        for _ in counted:
            pass
    else:
        write_rows(feed.schema, counted, output)
    parts = ", ".join(f"{each:,} {kind}" for kind, each in sorted(types.items()))
    what = count(types.total(), "change") + (f" ({parts})" if parts else "")
    versions = ", ".join(map(str, feed.inferred[:10])) + (", ..." if len(feed.inferred) > 10 else "")
    return Outcome(
        f"{what}." if output is None else f"Wrote {what} to {output}.",
        lines={
            "warnings": (
                f"no change data feed was on in version {versions}: an update there reads as a delete and an insert",
            )
        }
        if feed.inferred
        else {},
        report={
            "from": feed.first,
            "to": feed.last,
            "rows": types.total(),
            "changes": dict(types),
            "inferred": list(feed.inferred),
            "output": output,
        },
    )


def _head(batches: Iterable[pa.RecordBatch], left: int) -> Iterator[pa.RecordBatch]:
    for batch in islice(batches, left):  # none of them is empty
        yield batch.slice(0, left)
        left -= min(left, batch.num_rows)
        if not left:
            return


def _counted(batches: Iterable[pa.RecordBatch], types: Counter[str]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for found in batch.column("_change_type").value_counts().to_pylist():
            types[str(found["values"])] += found["counts"]
        yield batch

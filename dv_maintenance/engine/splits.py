"""Distributes files among reading tasks: large files are split into spans, small ones are packed together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from dv_maintenance.engine.rows.filtering import keep_matching
from dv_maintenance.engine.scan import open_source
from dv_maintenance.engine.span import WHOLE, Span
from dv_maintenance.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from dv_maintenance.tables.predicate import Predicate
    from dv_maintenance.tables.work import ScanTask, SourceFile

OPEN_COST: Final = 4 << 20
"""The cost of opening a file, in bytes that could be read instead."""


@dataclass(frozen=True, slots=True)
class ScanSplit:
    """What one task reads: the row groups of each source of ``task`` in the span at the same index."""

    task: ScanTask
    spans: tuple[Span, ...]


def plan_splits(tasks: Sequence[ScanTask], target_bytes: int) -> list[ScanSplit]:
    """Splits of about ``target_bytes`` that together read the ``tasks`` of one table, largest first.

    Sizes are those of the log; no file is opened. A file of more than ``target_bytes`` is split into spans of equal
    size. How evenly they share its row groups depends on its writer.
    """
    pieces = [
        (size, replace(task, sources=(source,)), span)
        for task in tasks
        for source in task.sources
        # A file that a library reads whole is one piece, whatever its size.
        for size, span in (_spans(source.size, target_bytes) if _can_be_cut(source) else [(source.size, WHOLE)])
    ]
    pieces.sort(key=lambda piece: -piece[0])
    splits: list[ScanSplit] = []
    weight = 0
    for size, task, span in pieces:
        if not splits or weight + size + OPEN_COST > target_bytes or not _alike(splits[-1].task, task):
            splits.append(ScanSplit(task, (span,)))
            weight = 0
        else:
            packed = splits[-1]
            splits[-1] = ScanSplit(
                replace(packed.task, sources=packed.task.sources + task.sources), (*packed.spans, span)
            )
        weight += size + OPEN_COST
    return splits


def scan_split(
    split: ScanSplit, storage_options: Mapping[str, str] | None = None, predicate: Predicate | None = None
) -> Iterator[pa.RecordBatch]:
    """Live rows of a split, as batches of its task's schema, none of them empty. With a bound ``predicate`` only rows
    for which it may be true, as far as that can be decided here. Raises as ``scan.scan``.
    """
    for source, span in zip(split.task.sources, split.spans, strict=True):
        with open_source(source, split.task, Storage(source.uri, storage_options)) as reader:
            for batch in reader.batches(span, predicate):
                kept = batch if predicate is None else keep_matching(batch, predicate)
                if kept.num_rows:
                    yield kept


def _spans(size: int, target_bytes: int) -> Iterator[tuple[int, Span]]:
    count = max(1, -(-size // target_bytes))
    for number in range(count):
        start, stop = size * number // count, size * (number + 1) // count
        # The last split extends to the end of the file: no row group may be left over.
        yield stop - start, Span(start, None if number == count - 1 else stop)


def _can_be_cut(source: SourceFile) -> bool:
    return source.format == "parquet"


def _alike(one: ScanTask, other: ScanTask) -> bool:
    return one.match_by == other.match_by and (
        one.schema is other.schema or one.schema.equals(other.schema, check_metadata=True)
    )

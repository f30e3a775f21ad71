"""Row groups left out by a condition, and the rows of the others: never one that the condition is true for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.conditions import SCHEMA, holds, predicates, rows, sayable

from dv_maintenance.engine.splits import plan_splits, scan_split
from dv_maintenance.tables.predicate import And, Compare, IsNull, Not, Predicate, bind
from dv_maintenance.tables.work import ScanTask


def found(task: ScanTask, predicate: Predicate, target: int = 1 << 30) -> pa.Table:
    bound = bind(predicate, task.schema)
    splits = plan_splits([task], target)
    return pa.Table.from_batches([batch for each in splits for batch in scan_split(each, None, bound)], task.schema)


@settings(max_examples=examples(50), suppress_health_check=list(HealthCheck))
@given(physical=rows(), more=rows(), dead=st.sets(st.integers(0, 7)), predicate=predicates(), group=st.integers(1, 4))
def test_every_row_that_a_condition_is_true_for_is_read(
    lake: Any,
    physical: list[dict[str, Any]],
    more: list[dict[str, Any]],
    dead: set[int],
    predicate: Predicate,
    group: int,
) -> None:
    numbered = [{**row, "n": at} for at, row in enumerate([*physical, *more])]
    schema = SCHEMA.append(pa.field("n", pa.int64()))
    source = lake.write(
        pa.Table.from_pylist(numbered, schema), row_group_size=group, store_decimal_as_integer=group > 2
    )
    deleted = {at for at in dead if at < len(numbered)}
    task = ScanTask((replace(source, dv=lake.dv(deleted) if deleted else None),), schema)
    kept = set(found(task, predicate)["n"].to_pylist())
    assert not kept & deleted
    if sayable(predicate):
        assert {row["n"] for row in numbered if row["n"] not in deleted and holds(predicate, row)} <= kept


@pytest.mark.parametrize(
    ("predicate", "read"),
    [
        (Compare(("id",), "=", 17), [1]),
        (Compare(("id",), "<", 20), [0, 1]),
        (And((Compare(("id",), ">=", 19), Compare(("s",), "<", "v25"))), [1, 2]),
        (IsNull(("s",)), [3]),
        (Not(IsNull(("s",))), [0, 1, 2]),
        (Compare(("later",), "=", 1), [0, 1, 2, 3]),
        (Compare(("a.b",), "=", 1), [0, 1, 2, 3]),
    ],
    ids=str,
)
def test_row_groups_that_can_hold_none_are_not_even_read(lake: Any, predicate: Predicate, read: list[int]) -> None:
    numbers = range(40)
    table = pa.table(
        {
            "id": numbers,
            "s": [f"v{n}" if n < 30 else None for n in numbers],
            "a.b": numbers,
            "a": [{"b": n} for n in numbers],
        }
    )
    source = lake.write(table, row_group_size=10)
    spoil(lake.root / "in put.parquet", {0, 1, 2, 3} - set(read))
    schema = pa.schema([*table.schema, pa.field("later", pa.int64())])
    task = ScanTask((source,), schema)
    assert {number // 10 for number in found(task, predicate)["id"].to_pylist()} <= set(read)


def spoil(path: Any, groups: set[int]) -> None:
    """Any reader of these row groups notices."""
    metadata = pq.read_metadata(path)
    data = bytearray(path.read_bytes())
    for number in groups:
        for leaf in range(metadata.num_columns):
            chunk = metadata.row_group(number).column(leaf)
            begin = chunk.dictionary_page_offset or chunk.data_page_offset
            data[begin : begin + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(data)


def test_widened_columns_and_bounds_that_are_none(lake: Any) -> None:
    """The statistics are those of the type on the day the file was written."""
    stored = pa.table({"n": pa.array([1, 2], pa.int8()), "d": pa.array([1, 2], pa.date32())})
    schema = pa.schema([("n", pa.int64()), ("d", pa.timestamp("us"))])
    task = ScanTask((lake.write(stored),), schema)
    assert found(task, Compare(("n",), ">", 1)).num_rows == 1
    assert found(task, Compare(("n",), ">", 2)).num_rows == 0
    bytes_as_text = pa.table({"s": pa.array([b"\xff", b"a"], pa.binary())}).cast(pa.schema([("s", pa.binary())]))
    assert found(ScanTask((lake.write(bytes_as_text),), bytes_as_text.schema), Compare(("s",), "=", b"a")).num_rows == 1


@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck))
@given(
    sizes=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 50)), min_size=1, max_size=5),
    target=st.integers(200, 20_000),
)
def test_splits_share_out_every_row_once(lake: Any, sizes: list[tuple[int, int]], target: int) -> None:
    tasks, first = [], 0
    schema = pa.schema([("id", pa.int64())])
    for number, (count, group) in enumerate(sizes):
        table = pa.table({"id": range(first, first + count)}, schema)
        tasks.append(ScanTask((lake.write(table, f"{number}.parquet", row_group_size=group),), schema))
        first += count
    splits = plan_splits(tasks, target)
    read = [each for split in splits for batch in scan_split(split) for each in batch["id"].to_pylist()]
    assert sorted(read) == list(range(first))


def test_small_files_are_packed_and_large_ones_cut(lake: Any) -> None:
    schema = pa.schema([("id", pa.int64())])
    source = lake.write(pa.table({"id": range(10)}, schema))
    small = [ScanTask((replace(source, size=1 << 20),), schema) for _ in range(50)]
    large = ScanTask((replace(source, size=300 << 20),), schema)
    splits = plan_splits([*small, large], 128 << 20)
    # 5 MiB each, what opening costs included: four beside the last 100 MiB, 25 to a split of their own.
    assert [len(split.spans) for split in splits] == [1, 1, 5, 25, 21]

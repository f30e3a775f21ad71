"""Health: counts that add up, and honesty about what the log does not say."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from test_plan import file, snapshots, table

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.maintenance.health import health
from dv_maintenance.tables.model import FILES_SCHEMA, Snapshot
from dv_maintenance.tables.partition_spec import by_columns

COUNTS = ("files", "files_with_dv", "files_with_unknown_rows", "deleted_rows", "size_bytes")


def test_counts_per_partition_and_in_total() -> None:
    state = health(
        table(
            file("a", size=10, rows=100, deleted=25, partition="p=x%20y"),
            file("b", size=20, rows=100, partition="p=x%20y"),
            file("c", size=40, rows=1, partition="p=__HIVE_DEFAULT_PARTITION__"),
        )
    ).to_json()
    assert {key: state[key] for key in ("format", "version", "timestamp", "warnings")} == {
        "format": "memory",
        "version": 7,
        "timestamp": "1970-01-01T00:00:00.000Z",
        "warnings": [],
    }
    assert state["partitions"] == [
        {
            "partition": {"p": None},
            "files": 1,
            "files_with_dv": 0,
            "files_with_unknown_rows": 0,
            "physical_rows": 1,
            "deleted_rows": 0,
            "live_rows": 1,
            "deleted_ratio": 0.0,
            "size_bytes": 40,
        },
        {
            "partition": {"p": "x y"},
            "files": 2,
            "files_with_dv": 1,
            "files_with_unknown_rows": 0,
            "physical_rows": 200,
            "deleted_rows": 25,
            "live_rows": 175,
            "deleted_ratio": 0.125,
            "size_bytes": 30,
        },
    ]
    assert (state["files"], state["live_rows"], state["deleted_ratio"]) == (3, 176, 0.124378)


@given(snapshots())
@settings(max_examples=examples(30))
def test_partitions_add_up(snapshot: Snapshot) -> None:
    state = health(snapshot).to_json()
    for name in COUNTS:
        assert state[name] == sum(each[name] for each in state["partitions"])
    assert (state["live_rows"] is None) == bool(state["files_with_unknown_rows"])
    assert state["deleted_rows"] == sum(row["deleted_rows"] for row in snapshot.files.to_pylist())


def test_unknown_rows_make_sums_unknown() -> None:
    state = health(table(file("a", rows=None, deleted=3), file("b", rows=5))).to_json()
    assert (state["physical_rows"], state["live_rows"], state["deleted_ratio"]) == (None, None, None)
    assert (state["files_with_unknown_rows"], state["deleted_rows"]) == (1, 3)
    assert "does not give the number of rows of 1 file, 1 of them with a deletion vector" in state["warnings"][0]


def test_a_table_without_files() -> None:
    state = health(table()).to_json()
    assert (state["files"], state["live_rows"], state["deleted_ratio"], state["partitions"]) == (0, 0, 0.0, [])


def test_a_log_in_pieces() -> None:
    """Chunks with dictionaries of their own, sliced, as replays leave them."""
    pieces = [
        pa.Table.from_pylist([file(f"{p}{n}", partition=f"p={p}", deleted=n) for n in range(3)], schema=FILES_SCHEMA)
        for p in "ba"
    ]
    whole = pa.concat_tables([pieces[0].slice(1), pieces[1].slice(0, 0), pieces[1].slice(2)])
    snapshot = Snapshot(
        table="t",
        format="memory",
        version=0,
        timestamp=0,
        schema=pa.schema([]),
        specs=by_columns("p"),
        properties={},
        files=whole,
    )
    counted = [
        (each.partition["p"], each.counts.files, each.counts.deleted_rows) for each in health(snapshot).partitions
    ]
    assert counted == [("a", 1, 2), ("b", 2, 3)]


def test_sums_beyond_what_floats_hold() -> None:
    rows = 2**53 + 1
    assert health(table(file("a", rows=rows), file("b", rows=2))).counts.physical_rows == rows + 2


@pytest.mark.parametrize("broken", [{"size": -1}, {"rows": -1}, {"deleted": 2000}])
def test_impossible_numbers(broken: dict[str, int]) -> None:
    with pytest.raises(DamagedTableError, match="the log lists bad with"):
        health(table(file("ok"), file("bad", **broken)))


def test_no_pandas_for_a_look() -> None:
    """Importing it takes longer than all the rest."""
    code = """
import sys
import pyarrow as pa
from dv_maintenance.maintenance.health import health
from dv_maintenance.tables.model import FILES_SCHEMA, Snapshot
from dv_maintenance.tables.partition_spec import by_columns
columns = [pa.nulls(2, pa.int64()).cast(field.type) if field.nullable else None for field in FILES_SCHEMA]
numbers = pa.Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer(bytes(16))])
text = numbers.cast(pa.string())
for place, field in enumerate(FILES_SCHEMA):
    if columns[place] is None:
        columns[place] = numbers if field.type == pa.int64() else text
nothing = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(bytes(8)), pa.py_buffer(b"")])
columns[1] = pa.DictionaryArray.from_arrays(numbers.cast(pa.int32()), nothing)
files = pa.Table.from_arrays(columns, schema=FILES_SCHEMA)
health(Snapshot(table="t", format="m", version=0, timestamp=0, schema=pa.schema([]), specs=by_columns(),
                properties={}, files=files)).to_json()
assert "pandas" not in sys.modules and "pydantic" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)

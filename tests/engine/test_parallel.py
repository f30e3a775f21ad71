"""Columns in threads: the file is the one that a single thread writes, apart from where its parts are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.releases import needs_int96
from test_rewrite_task import COLUMNS, read_duckdb, read_polars, read_pyarrow, rows

from dv_maintenance.engine import rewrite as rewriting
from dv_maintenance.engine.cores import default_threads
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.parquet import layout, output, row_group_copy, writer
from dv_maintenance.engine.parquet.output import _shares
from dv_maintenance.engine.rewrite import rewrite
from dv_maintenance.errors import DamagedTableError

ROWS, GROUP = 600, 100
# Of each row group; no row group is copied.
DELETED = list(range(7, ROWS, 50))
DESCRIBED = (
    "physical_type",
    "path_in_schema",
    "compression",
    "encodings",
    "num_values",
    "has_dictionary_page",
    "total_compressed_size",
    "total_uncompressed_size",
)
MORE = {
    "nan": (pa.float64(), [1.0, math.nan, -0.0]),
    "word": (pa.string(), ["one", "two", None]),
    "old": (pa.timestamp("us", "UTC"), [-(10**15), 0]),
}
EVERYTHING = pa.table(
    {
        name: pa.array([values[(row * 7 + row // GROUP) % len(values)] for row in range(ROWS)], kind)
        for name, (kind, values) in {**COLUMNS, **MORE}.items()
    }
)


@pytest.fixture(autouse=True)
def small_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "ROW_GROUP_ROWS", GROUP // 2)


def described(path: Path) -> Any:
    """All that the footer says, without places."""
    footer = pq.read_metadata(path)
    groups = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        columns = []
        for leaf in range(group.num_columns):
            chunk = group.column(leaf)
            found = [getattr(chunk, name) for name in DESCRIBED]
            stats = chunk.statistics
            bounds = (stats.min_raw, stats.max_raw) if stats is not None and stats.has_min_max else ()
            counts = None if stats is None else (stats.null_count, stats.num_values)
            found += [str(bounds), counts]  # as text: NaN differs from itself
            columns.append(
                (found, chunk.dictionary_page_offset is None, chunk.has_offset_index, chunk.has_column_index)
            )
        groups.append((group.num_rows, group.total_byte_size, columns))
    return footer.schema.to_arrow_schema(), footer.metadata, footer.created_by, groups


def in_order(path: Path) -> bool:
    """Whether the column chunks of each row group follow each other in the order of the schema."""
    footer = pq.read_metadata(path)
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        chunks = [group.column(leaf) for leaf in range(group.num_columns)]
        starts = [min(filter(None, (each.dictionary_page_offset, each.data_page_offset))) for each in chunks]
        if starts != sorted(starts):
            return False
    return True


def shown(table: pa.Table) -> list[str]:
    """Its rows as text: NaN differs from itself."""
    return [str(row) for row in rows(table)]


ASKED: dict[str, Callable[[], Iterator[int]]] = {
    "always four": lambda: cycle([4]),
    "from the second row group on": lambda: iter([1] * 4 + [9] * 1000),
    "now and then": lambda: cycle([1, 3, 2, 5, 1]),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"use_deprecated_int96_timestamps": True}, marks=needs_int96),
        {"use_dictionary": False, "store_decimal_as_integer": True},
    ],
    ids=["usual", "int96", "plain"],
)
def test_the_file_is_the_same(lake: Any, options: dict[str, Any], asked: Callable[[], Iterator[int]]) -> None:
    source = lake.write(EVERYTHING, row_group_size=GROUP, **options)
    stats = tuple((name,) for name in ("word", "nan", "old", "i64"))
    task = lake.task([replace(source, dv=lake.dv(DELETED))], EVERYTHING.schema, stats_columns=stats)
    alone = rewrite(replace(task, output_uri=lake.uri("alone")))
    answers = asked()
    found = rewrite(task, threads=lambda: next(answers))
    one, other = next((lake.root / "alone").iterdir()), lake.outputs()[0]
    assert described(other) == described(one)
    assert in_order(other)
    assert found.outputs[0].stats == alone.outputs[0].stats
    live = EVERYTHING.take([row for row in range(ROWS) if row not in set(DELETED)])
    for read in (read_pyarrow, read_duckdb, read_polars):
        assert shown(read(str(other))) == shown(read(str(one)))
    assert shown(read_pyarrow(str(other))) == shown(live)


@pytest.mark.parametrize("int96", [False, pytest.param(True, marks=needs_int96)])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("target", [4_000, 128 << 20], ids=["several files", "one file"])
def test_beside_row_groups_that_are_copied(
    lake: Any, monkeypatch: pytest.MonkeyPatch, target: int, first: int, *, int96: bool
) -> None:
    monkeypatch.setattr(row_group_copy, "_LARGE_ROWS", GROUP)
    options = {"use_deprecated_int96_timestamps": int96, "store_decimal_as_integer": True, "write_page_index": True}
    source = lake.write(EVERYTHING, row_group_size=GROUP, **options)
    gone = [first * GROUP + 7, (first + 1) * GROUP + 7, 3 * GROUP, 3 * GROUP + 1]
    task = lake.task([replace(source, dv=lake.dv(gone))], EVERYTHING.schema, target_bytes=target)
    alone = rewrite(replace(task, output_uri=lake.uri("alone")))
    found = rewrite(task, threads=lambda: 4)
    assert found.details["row_groups_copied"] == 3
    assert (len(found.outputs) > 1) is (target == 4_000)
    ours, others = ([lake.path(each.uri) for each in result.outputs] for result in (found, alone))
    # Where a file ends also depends on unused bytes, which Arrow's own footer leaves in it.
    (schema, keys, writer, _), *_ = map(described, others)
    assert all(described(each)[:3] == (schema, keys, writer) for each in (*ours, *others))
    assert [group for each in ours for group in described(each)[3]] == [
        group for each in others for group in described(each)[3]
    ]
    stored = read_pyarrow(str(lake.root / "in put.parquet"))
    written = pa.concat_tables(read_pyarrow(str(each)) for each in ours)
    assert shown(written) == shown(stored.take([row for row in range(ROWS) if row not in gone]))


@needs_int96
def test_an_old_pyarrow_writes_no_int96(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its timestamps outside 1677 to 2262 wrap around: rows beside a copied row group would change."""
    monkeypatch.setattr(row_group_copy, "_LARGE_ROWS", GROUP)
    far = pa.table({"id": range(ROWS), "t": pa.array([-(1 << 54) + row for row in range(ROWS)], pa.timestamp("us"))})
    source = lake.write(far, row_group_size=GROUP, use_deprecated_int96_timestamps=True)
    task = lake.task([replace(source, dv=lake.dv([7]))], far.schema)
    assert rewrite(task).details["row_groups_copied"] == ROWS // GROUP - 1
    monkeypatch.setattr(layout, "encodes_far_instants", lambda: False)
    assert rewrite(replace(task, output_uri=lake.uri("old"))).details["row_groups_copied"] == 0
    (path,) = (lake.root / "old").iterdir()
    assert pq.read_schema(path).field("t").type == pa.timestamp("us")
    assert pq.read_table(path).equals(far.take([row for row in range(ROWS) if row != 7]))


def test_several_columns_are_encoded_at_a_time(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Pool(output.ThreadPoolExecutor):  # type: ignore[misc,name-defined]
        def __init__(self, threads: int) -> None:
            made.append(threads)
            super().__init__(threads)

    monkeypatch.setattr(output, "ThreadPoolExecutor", Pool)
    task = lake.task([lake.write(EVERYTHING, row_group_size=GROUP)], EVERYTHING.schema)
    rewrite(task, threads=lambda: 2)
    assert made == []
    rewrite(task, threads=lambda: 4)
    assert made == [4] * (ROWS // GROUP)


def test_the_last_task_gets_all_threads(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    got: dict[str, list[int]] = {}

    def note(task: Any, options: Any, on_rows: Any, threads: Callable[[], int]) -> Any:
        got[task.id] = [threads()]
        found = rewriting.rewrite(task, options, on_rows, threads)
        got[task.id].append(threads())
        return found

    monkeypatch.setattr("dv_maintenance.engine.local.rewrite_retrying", note)
    source = lake.write(EVERYTHING, row_group_size=GROUP)
    tasks = [lake.task([source], EVERYTHING.schema, id=f"{number}") for number in range(3)]
    LocalEngine(threads=1).run(tasks)
    assert [got[task.id] for task in tasks] == [[0, 0], [0, 0], [1, 1]]
    LocalEngine(threads=8).run(tasks[:1])
    assert got["0"] == [8, 8]


def test_damage_is_found_in_threads_too(lake: Any) -> None:
    source = lake.write(EVERYTHING, row_group_size=GROUP, compression="none", use_dictionary=False)
    path = lake.root / "in put.parquet"
    leaf = EVERYTHING.schema.get_field_index("word")
    chunk = next(
        column
        for column in (pq.read_metadata(path).row_group(3).column(at) for at in range(leaf, leaf + 99))
        if column.path_in_schema == "word"
    )
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset : chunk.data_page_offset + 20] = b"\xff" * 20
    path.write_bytes(data)
    with pytest.raises(DamagedTableError):
        rewrite(lake.task([source], EVERYTHING.schema), threads=lambda: 4)
    assert lake.outputs() == []


@pytest.mark.parametrize(
    ("sizes", "threads", "expected"),
    [
        ([], 3, [range(0)]),
        ([5], 3, [range(1)]),
        ([5, 5], 1, [range(2)]),
        ([5, 5], 2, [range(1), range(1, 2)]),
        ([1] * 16, 2, [range(at, at + 2) for at in range(0, 16, 2)]),
        ([100, 1, 1, 1], 2, [range(1), range(1, 4)]),
        ([0, 0, 0], 2, [range(1), range(1, 2), range(2, 3)]),
    ],
)
def test_shares_are_consecutive_and_about_equal(sizes: list[int], threads: int, expected: list[range]) -> None:
    assert _shares(sizes, threads) == expected


LIMITS = {
    "none": ({}, 16, 64, 4),
    "one core": ({}, 1, 64, 2),
    "three cores": ({}, 3, 64, 3),
    "little memory": ({}, 16, 3, 3),
    "a container's quota": ({"cpu.max": "250000 100000\n"}, 16, 64, 2),
    "a container without a quota": ({"cpu.max": "max 100000\n", "memory.max": "max\n"}, 16, 64, 4),
    "a container's memory": ({"memory.max": f"{3 << 30}\n"}, 16, 64, 3),
    "version 1": ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 16, 64, 3),
    "version 1, without a quota": ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 16, 64, 4),
    "version 1, memory": ({"memory/memory.limit_in_bytes": f"{1 << 29}\n"}, 16, 64, 2),
}


@pytest.mark.parametrize(("files", "cores", "gigabytes", "expected"), LIMITS.values(), ids=LIMITS)
def test_threads_are_what_the_process_may_use(
    files: dict[str, str], cores: int, gigabytes: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 1 << 12, "SC_PHYS_PAGES": gigabytes << 18}.__getitem__)
    assert default_threads(tmp_path) == expected

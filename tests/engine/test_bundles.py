"""Which rewrites travel together."""

from __future__ import annotations

import pyarrow as pa
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dv_maintenance.engine.spark.bundles import bundled, parts_of, seconds_of
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.work import RewriteTask, ScanTask, SourceFile


def task(size: int, *, files: int = 1, columns: int = 5, place: str = "file:///t") -> RewriteTask:
    sources = tuple(SourceFile(FileKey(f"{at}"), f"{place}/{at}", size) for at in range(files))
    schema = pa.schema([(f"c{at}", pa.int64()) for at in range(columns)])
    return RewriteTask("t", ScanTask(sources, schema), place, 1 << 27)


def test_two_thousand_small_files_are_a_few_bundles_for_each_core() -> None:
    bundles = bundled([task(3 << 10)] * 2000, 2)
    assert 4 <= len(bundles) <= 16
    assert max(map(len, bundles)) < 2 * min(map(len, bundles))


def test_large_files_are_alone() -> None:
    assert bundled([task(1 << 28)] * 3, 2) == [[0], [1], [2]]
    assert bundled([task(3 << 10), task(1 << 28), task(3 << 10)], 2) == [[1], [0, 2]]
    assert bundled([task(3 << 10, files=5000)] * 2, 2) == [[0], [1]]


def test_what_is_slow_travels_in_smaller_company() -> None:
    small, wide, far = (
        len(bundled([each] * 1000, 2)[0]) for each in (task(9), task(9, columns=1000), task(9, place="s3://b/t"))
    )
    assert small > 10 * wide
    assert small > 10 * far


def test_a_large_cluster_gets_more_bundles() -> None:
    tasks = [task(3 << 10)] * 20_000
    assert len(bundled(tasks, 2)) < len(bundled(tasks, 50))
    assert len(bundled(tasks, None)) > 8


@given(
    st.lists(st.tuples(st.integers(0, 1 << 29), st.integers(1, 3), st.integers(1, 300)), max_size=60),
    st.none() | st.integers(1, 200),
)
@settings(max_examples=examples(60))
def test_every_task_is_in_one_bundle_and_no_bundle_is_long(
    shapes: list[tuple[int, int, int]], slots: int | None
) -> None:
    tasks = [task(size, files=files, columns=columns) for size, files, columns in shapes]
    bundles = bundled(tasks, slots)
    assert sorted(number for bundle in bundles for number in bundle) == list(range(len(tasks)))
    assert all(bundles)
    assert all(len(bundle) == 1 or sum(seconds_of(tasks[number]) for number in bundle) < 8 for bundle in bundles)


@given(st.integers(2, 3000))
@settings(max_examples=examples(60))
def test_parts_of_a_bundle_are_few_and_smaller(count: int) -> None:
    bundle = list(range(5, 5 + count))
    parts = parts_of(bundle)
    assert [number for part in parts for number in part] == bundle
    assert 2 <= len(parts) <= 16

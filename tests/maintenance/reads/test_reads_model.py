from __future__ import annotations

import numpy as np

from dv_maintenance.maintenance.reads import Reads, contradiction
from dv_maintenance.maintenance.reads.model import DAY

ONE = ["day=2026-01-01/shop=3"]


def at(*days: float) -> np.ndarray:
    return np.array([round(day * DAY) for day in days], np.int64)


def count(reads: Reads, start: float, end: float, *names: str) -> list[float]:
    names = names or ("",)
    rows = np.arange(len(names))
    return reads.count(np.repeat(at(start), len(names)), np.repeat(at(end), len(names)), names, rows).tolist()


def test_a_declared_rate_is_constant() -> None:
    reads = Reads.declared(40)
    assert count(reads, 100, 100.5) == [20.0]
    assert count(reads, 2, 1) == [0.0]
    assert reads.per_day(now=0) == 40
    assert reads.source == "declared"


def test_reads_at_the_start_are_left_out_and_those_at_the_end_are_counted() -> None:
    reads = Reads.observed("spark event logs", at(3, 1, 2), 0, 4 * DAY)
    assert count(reads, 1, 3) == [2.0]
    assert count(reads, 0.5, 1) == [1.0]


def test_outside_the_observation_the_mean_rate_is_assumed() -> None:
    reads = Reads.observed("spark event logs", at(10.5, 11.5, 11.6, 11.7), 10 * DAY, 12 * DAY)
    assert count(reads, 9, 10) == [2.0]
    assert count(reads, 12, 15) == [6.0]
    assert count(reads, 9, 15) == [2.0 + 4.0 + 6.0]
    assert reads.per_day(12 * DAY, days=1) == 3.0
    assert reads.per_day(12 * DAY, days=4) == 2.0


def test_a_few_minutes_of_logs_are_not_taken_for_a_rate_per_day() -> None:
    reads = Reads.observed("spark event logs", at(10, 10.001), 10 * DAY, round(10.002 * DAY))
    assert count(reads, 0, 10) == [21.0]
    assert count(reads, 11, 12) == [2.0]


def test_a_file_is_read_with_the_whole_table_and_with_its_partition() -> None:
    by_partition = {"day=2026-01-01/shop=3": at(1, 2), "shop=4": at(3)}
    reads = Reads.observed("spark event logs", at(1.5), 0, 4 * DAY, by_partition)
    names = ("day=2026-01-01/shop=3", "day=2026-01-01/shop=4", "day=2026-01-02/shop=4", "day=2026-01-02/shop=3")
    assert count(reads, 0, 4, *names) == [3.0, 2.0, 2.0, 1.0]
    assert count(reads, 0, 1, *names) == [1.0, 0.0, 0.0, 0.0]
    assert reads.per_day(4 * DAY, days=4) == 1.0


def test_the_columns_of_a_name_may_be_in_any_order() -> None:
    reads = Reads.observed("spark event logs", at(), 0, 4 * DAY, {"shop=3/day=2026-01-01": at(1)})
    assert count(reads, 0, 4, *ONE) == [1.0]


def test_a_read_of_two_partitions_is_one_read_of_the_table() -> None:
    reads = Reads.observed("spark event logs", at(), 0, 4 * DAY, {"d=1": at(1), "d=2": at(1)}, selective=at(1))
    assert count(reads, 0, 4, "d=1", "d=2", "d=3") == [1.0, 1.0, 0.0]
    assert reads.per_day(4 * DAY, days=4) == 0.25


def test_many_files_of_a_partition_are_counted_at_once() -> None:
    reads = Reads.observed("spark event logs", at(0.5), 0, 2 * DAY, {"d=1": at(1, 1.5)})
    codes = np.array([1, 0, 1, 0], np.int64)
    assert reads.count(at(0, 0, 1, 1), at(2, 2, 2, 2), ["d=0", "d=1"], codes).tolist() == [3.0, 1.0, 1.0, 0.0]
    assert reads.count(at(), at(), ["d=0"], np.zeros(0, np.int64)).tolist() == []


def test_a_declared_rate_is_contradicted_from_a_factor_of_three() -> None:
    reads = Reads.observed("downstream assets", at(*np.arange(1, 7.5, 0.5)), 0, 7 * DAY)
    assert contradiction(4, reads, 7 * DAY) is None
    assert contradiction(0.7, reads, 7 * DAY) is None
    said = "reads_per_day is 10, but downstream assets show 1.86 reads a day"
    assert contradiction(10, reads, 7 * DAY) == said
    assert contradiction(0.1, reads, 7 * DAY) is not None
    assert contradiction(0.1, Reads.observed("spark event logs", at(), 0, 7 * DAY), 7 * DAY) is not None

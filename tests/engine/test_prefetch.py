"""A source is decoded in one thread and encoded in another: the same rows, errors and files as in one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dv_maintenance.engine import rewrite as rewriting
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.parquet.reader import SourceReader
from dv_maintenance.engine.parquet.writer import ParquetFiles
from dv_maintenance.engine.prefetch import prefetched, read_ahead
from dv_maintenance.errors import DamagedTableError

DELETED = [0, 699, 701, *range(1400, 2100), 4999]
ROWS = pa.table({"id": pa.array(range(5000)), "text": [f"{row % 7}" for row in range(5000)]})


def test_items_keep_their_order() -> None:
    assert list(read_ahead(iter(range(1, 100)))) == list(range(1, 100))
    assert list(read_ahead(iter(()))) == []


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield from (1, 2, 3)
        raise DamagedTableError("cut off")

    found: list[int] = []
    with pytest.raises(DamagedTableError, match="cut off"):
        found.extend(read_ahead(items()))
    assert found == [1, 2, 3]


def test_items_are_read_before_they_are_asked_for_but_not_without_end() -> None:
    read: list[int] = []
    seventeen = threading.Event()

    def items() -> Iterator[int]:
        for number in range(1, 1000):
            read.append(number)
            if number == 17:
                seventeen.set()
            yield number

    ahead = read_ahead(items())
    assert next(ahead) == 1
    assert seventeen.wait(10)
    ahead.close()
    assert len(read) == 17


def test_nobody_reads_once_it_is_closed() -> None:
    closed = False
    begun, late = threading.Event(), []

    def items() -> Iterator[int]:
        for number in range(1, 1000):
            begun.set()
            late.append(closed)
            yield number

    ahead = read_ahead(items())
    next(ahead)
    ahead.close()
    closed = True
    assert begun.is_set()
    assert not any(late)


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_task_gets_a_second_thread_if_one_is_free(lake: Any, monkeypatch: pytest.MonkeyPatch, tasks: int) -> None:
    used = []
    all_decoded = threading.Barrier(tasks)

    def counted(items: Iterator[Any]) -> Iterator[Any]:
        used.append(threading.current_thread().name)
        return read_ahead(items)

    def units(*args: Any) -> Any:
        yield from usual(*args)
        all_decoded.wait(10)  # so that none is done, and leaves a core free, while the other still decodes

    usual = rewriting._units
    monkeypatch.setattr(rewriting, "read_ahead", counted)
    monkeypatch.setattr(rewriting, "_units", units)
    source = lake.write(ROWS, row_group_size=700)
    task = lake.task([replace(source, dv=lake.dv(DELETED))], ROWS.schema)
    wanted = [replace(task, id=f"{number}") for number in range(tasks)]
    results = LocalEngine(threads=2).run(wanted)
    assert len(used) == (1 if tasks == 1 else 0)
    for result in results:
        assert (result.rows_written, result.rows_purged) == (5000 - len(DELETED), len(DELETED))
    check_outputs(lake)


@pytest.mark.parametrize("busy", [0, 1, 3, 100])
def test_a_core_may_become_free_in_the_middle_of_a_source(
    lake: Any, busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``busy``: batches until then."""
    answers: list[bool] = []

    def threads() -> int:
        answers.append(len(answers) >= busy)
        return 1 + answers[-1]

    # They ask as well.
    for who in (SourceReader, ParquetFiles):
        monkeypatch.setattr(who, "threads", property(lambda _: lambda: 1, lambda *_: None), raising=False)
    source = lake.write(ROWS, row_group_size=700)
    task = lake.task([replace(source, dv=lake.dv(DELETED))], ROWS.schema)
    result = rewriting.rewrite(task, threads=threads)
    assert result.rows_written == 5000 - len(DELETED)
    assert len(answers) == min(busy + 1, 7)  # nobody asks once a thread reads ahead
    check_outputs(lake)


def check_outputs(lake: Any) -> None:
    kept = ROWS.filter(pa.array([row not in set(DELETED) for row in range(5000)]))
    assert lake.outputs()
    for path in lake.outputs():
        assert pq.read_table(path).equals(kept)


def test_a_damaged_source_fails_as_in_one_thread(lake: Any) -> None:
    source = lake.write(ROWS, row_group_size=700, compression="none", use_dictionary=False)
    path = lake.root / "in put.parquet"
    at = pq.read_metadata(path).row_group(5).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[at : at + 20] = bytes(20)
    path.write_bytes(bytes(data))
    with pytest.raises(DamagedTableError, match=r"in%20put\.parquet"):
        LocalEngine(threads=2).run([lake.task([replace(source, dv=lake.dv([1]))], ROWS.schema)])
    assert not lake.outputs()


class Opened:
    """Files by number; ``open``: those that are open now. Number 3 can't be opened."""

    def __init__(self, count: int) -> None:
        self.open: set[int] = set()
        self.most = 0
        self.openers = [partial(self._opened, number) for number in range(count)]

    @contextmanager
    def _opened(self, number: int) -> Iterator[int]:
        if number == 3:
            raise DamagedTableError("no file")
        self.open.add(number)
        self.most = max(self.most, len(self.open))
        try:
            yield number
        finally:
            self.open.discard(number)


@pytest.mark.parametrize("most", [0, 1, 2, 8])
def test_files_are_opened_in_order_and_closed(most: int) -> None:
    files = Opened(3)
    found = []
    for number in prefetched(files.openers, most):
        found.append(number)
        assert number in files.open
        assert number - 1 not in files.open
    assert (found, files.open) == ([0, 1, 2], set())
    assert files.most <= most + 1


@pytest.mark.parametrize("most", [0, 1, 2, 8])
def test_what_can_not_be_opened_fails_after_those_before_it(most: int) -> None:
    files = Opened(6)
    found: list[int] = []
    with pytest.raises(DamagedTableError, match="no file"):
        found.extend(prefetched(files.openers, most))
    assert (found, files.open) == ([0, 1, 2], set())


@pytest.mark.parametrize("most", [0, 1, 2, 8])
def test_no_file_stays_open_if_the_reader_stops(most: int) -> None:
    files = Opened(6)
    with closing(prefetched(files.openers, most)) as opened:
        assert next(opened) == 0
    assert not files.open


def test_the_next_file_is_opened_meanwhile() -> None:
    second = threading.Event()

    @contextmanager
    def opened(number: int) -> Iterator[int]:
        if number:
            second.set()
        yield number

    with closing(prefetched([partial(opened, number) for number in range(2)], 1)) as files:
        assert next(files) == 0
        assert second.wait(10)

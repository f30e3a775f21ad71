"""Files of object stores: the same bytes as of any other file, whatever was expected and however it is read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dv_maintenance.errors import StorageError
from dv_maintenance.storage import Storage, remote_input
from dv_maintenance.storage.remote_input import RemoteInput
from dv_maintenance.testing.faults import Recorder
from dv_maintenance.testing.faulty_access import injected
from dv_maintenance.testing.locations import Bucket

DATA = bytes(range(200))
REQUEST, UNREAD, GAP = 10, 40, 3


class Stored(BytesIO):
    """A reader of obstore, as far as it is used; ``read_here``: how many bytes were read through it."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.size, self.read_here = len(data), 0

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        self.read_here += len(found)
        return found


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote_input, "_REQUEST_BYTES", REQUEST)
        patch.setattr(remote_input, "_UNREAD_BYTES", UNREAD)
        patch.setattr(remote_input, "_GAP_BYTES", GAP)
        yield


class Fetches:
    """Counts the bytes of each request, and the most that was fetched and not read yet."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.lock = threading.Lock()

    def __call__(self, start: int, length: int) -> bytes:
        with self.lock:
            self.ranges.append((start, length))
        return DATA[start : start + length]

    @property
    def size(self) -> int:
        return sum(length for _, length in self.ranges)


@contextmanager
def opened(fetch: Callable[[int, int], Any]) -> Iterator[tuple[RemoteInput, Stored]]:
    stored = Stored(DATA)
    with remote_input.remote_input("some/file", stored, fetch) as file:
        yield file, stored


def settled(file: RemoteInput) -> None:
    """Wait until no request is under way."""
    for piece in list(file._expecting._pieces):
        if piece.data is not None:
            piece.data.result()


places = st.integers(-20, 220)
expectations = st.tuples(st.just("expect"), st.lists(st.tuples(places, places), max_size=5))
reads = st.tuples(st.just("read"), st.tuples(st.integers(0, 200), st.integers(0, 100)))


@given(st.lists(expectations | reads, max_size=20))
def test_the_bytes_are_those_of_the_file(steps: list[Any]) -> None:
    """Whatever ranges it expects: damaged footers name some that overlap, or that lie outside the file."""
    with opened(Fetches()) as (file, _):
        for kind, step in steps:
            if kind == "expect":
                file.expect(step)
                continue
            start, length = step
            assert file.read_at(length, start) == DATA[start : start + length]
            file.seek(start)
            assert file.read(length) == DATA[start : start + length]
        assert file.size() == len(DATA)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(1, 70))
def test_each_byte_that_is_expected_is_fetched_once(lengths: list[int], at_once: int) -> None:
    fetch = Fetches()
    with opened(fetch) as (file, stored):
        start = 0
        for length in lengths:
            length = min(length, len(DATA) - start)
            file.expect([(start, length)])
            start += length
        unread = 0
        for at in range(0, start, at_once):
            settled(file)
            unread = max(unread, fetch.size - at)
            file.read_at(min(at_once, start - at), at)
        assert (fetch.size, stored.read_here) == (start, 0)
        assert max(length for _, length in fetch.ranges) <= REQUEST
        # What one read takes from several requests is partly read while the next ones begin.
        assert unread <= UNREAD + REQUEST


def test_requests_run_at_once_and_before_anything_is_read() -> None:
    four = threading.Barrier(4)

    def fetch(start: int, length: int) -> bytes:
        four.wait(10)
        return DATA[start : start + length]

    with opened(fetch) as (file, _):
        file.expect([(0, 40)])
        settled(file)
        assert file.read_at(40, 0) == DATA[:40]


def test_what_is_read_twice_is_fetched_once() -> None:
    """Floats are searched for NaN before their row group is copied."""
    fetch = Fetches()
    with opened(fetch) as (file, stored):
        file.expect([(0, 30)])
        file.read_at(8, 11)
        for at in range(0, 30, 5):
            file.read_at(5, at)
        assert (fetch.size, stored.read_here) == (30, 0)
        assert not file._expecting._pieces


def test_ranges_that_are_close_share_requests() -> None:
    fetch = Fetches()
    with opened(fetch) as (file, stored):
        file.expect([(0, 3), (5, 2), (10, 7), (30, 4), (40, 1), (38, 1)])
        for start, length in ((0, 3), (5, 2), (10, 7), (30, 4), (40, 1), (38, 1)):
            file.read_at(length, start)
        # 0 to 17 as two; 33 and 40 are too far from each other, and 38 does not follow 40.
        assert sorted(fetch.ranges) == [(0, 8), (8, 9), (30, 4), (38, 1), (40, 1)]
        assert stored.read_here == 0
        file.expect([])
        assert not file._expecting._pieces
        assert not file._expecting._unread


def test_what_was_not_expected_is_read_directly() -> None:
    fetch = Fetches()
    with opened(fetch) as (file, stored):
        file.expect([(50, 20), (100, 10)])
        assert file.read_at(100, 30) == DATA[30:130]
        assert stored.read_here == 20 + 30 + 20
        assert fetch.size == 30


def test_what_is_partly_read_remains_until_it_is_read() -> None:
    fetch = Fetches()
    with opened(fetch) as (file, stored):
        file.expect([(0, 30)])
        file.read_at(15, 0)
        file.expect([(30, 30)])
        file.read_at(45, 15)
        assert (fetch.size, stored.read_here) == (60, 0)


def test_what_is_never_read_does_not_fill_the_memory() -> None:
    fetch = Fetches()
    with opened(fetch) as (file, stored):
        file.expect([(0, 200)])
        for at in range(5, 200, 10):
            assert file.read_at(5, at) == DATA[at : at + 5]
            held = sum(piece.stop - piece.start for piece in file._expecting._pieces if piece.data is not None)
            assert held <= UNREAD
        assert (fetch.size, stored.read_here) == (200, 0)
        assert file.read_at(200, 0) == DATA


def test_nothing_after_the_end_is_fetched() -> None:
    fetch = Fetches()
    with opened(fetch) as (file, _):
        file.expect([(150, 1 << 62), (1 << 62, 10), (-5, 10)])
        settled(file)
        assert sorted(fetch.ranges) == [(start, 10) for start in range(150, 190, 10)]


def test_a_request_that_fails_does_so_where_its_bytes_are_read() -> None:
    def fetch(start: int, length: int) -> bytes:
        if start >= 20:
            raise ConnectionResetError("gone")
        return DATA[start : start + length]

    with opened(fetch) as (file, _):
        file.expect([(0, 40)])
        assert file.read_at(20, 0) == DATA[:20]
        for _again in range(2):
            with pytest.raises(StorageError, match="storage failed on some/file"):
                file.read_at(20, 10)


def test_an_answer_that_breaks_off() -> None:
    with opened(lambda start, length: DATA[start : start + length // 2]) as (file, _):
        file.expect([(0, 10)])
        with pytest.raises(StorageError, match="only 5 of 10 bytes of some/file arrived"):
            file.read_at(10, 0)


def test_once_it_is_closed_no_request_begins() -> None:
    begun = threading.Event()
    free = threading.Event()
    fetched: list[int] = []
    in_time: list[bool] = []

    def fetch(start: int, length: int) -> bytes:
        fetched.append(start)
        begun.set()
        in_time.append(free.wait(10))
        return DATA[start : start + length]

    with opened(fetch) as (file, _):
        file.expect([(0, 200)])
        assert begun.wait(10)
    assert not in_time  # closing waits for no answer
    free.set()
    assert len(fetched) <= 4


def test_small_reads_one_after_the_other_do_not_seek(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever seeks loses obstore's buffer, and asks the store again."""
    with opened(Fetches()) as (file, stored):
        monkeypatch.setattr(stored, "seek", lambda *_: pytest.fail("it was at that place"))
        assert [file.read(3) for _ in range(4)] == [DATA[at : at + 3] for at in range(0, 12, 3)]


def test_a_size_that_is_known_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Storage, "default_access", bucket := Bucket())
    sizes: list[int | None] = []
    original = bucket.open_reader

    def open_reader(store: Any, key: str, size: int | None = None) -> Any:
        sizes.append(size)
        return original(store, key, size)

    monkeypatch.setattr(bucket, "open_reader", open_reader)
    storage = Storage("s3://lake")
    storage.put("f", DATA)
    for size in (None, 200):
        with storage.open_input("f", size) as file:
            file.expect([(100, 10)])
            assert file.read() == DATA
    assert sizes == [None, 200]


def test_faults_of_its_requests_are_seen_below_the_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Storage, "default_access", Bucket())
    Storage("s3://lake").put("f", DATA)
    recorder = Recorder()
    with injected(recorder), Storage("s3://lake").open_input("f") as file:
        file.expect([(100, 10)])
        assert file.read_at(20, 95) == DATA[95:115]
    assert [call.operation for call in recorder.calls if call.path == "f"].count("read range") == 1

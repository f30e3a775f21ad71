"""Listings by folder and deletes in bulk, in an object store in memory."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Barrier, active_count
from typing import Any

import pytest

from dv_maintenance.errors import StorageError
from dv_maintenance.storage import Storage
from dv_maintenance.storage.interleaved import interleaved

KEYS = [
    "root.parquet",
    *(f"p={value}/{name}" for value in ("1", "10", "a%3Ab", "ü é", "#?*") for name in ("a", "deep/b", "_hidden/c")),
    "_delta_log/00000000000000000000.json",
    "_other/x",
]


class Watched:
    """The store, and what it is asked."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.listed: list[str | None] = []
        self.deleted: list[Any] = []
        self.failing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def list(self, prefix: str | None = None, **options: Any) -> Any:
        self.listed.append(prefix)
        return self.inner.list(prefix, **options)

    def delete(self, keys: Any) -> None:
        self.deleted.append(keys)
        if self.failing and not isinstance(keys, str):
            self.inner.delete(keys[:2])
            raise OSError("connection lost")
        if keys == "p=10/a":
            raise OSError("this one can't be deleted")
        self.inner.delete(keys)


@pytest.fixture
def storage() -> Storage:
    found = Storage("memory:///t")
    for key in KEYS:
        found.put(key, b"x")
    return found


@pytest.fixture
def store(storage: Storage) -> Watched:
    found = Watched(storage._stores[storage.uri])
    storage._stores[storage.uri] = found
    return found


def skip(path: str, is_dir: bool) -> bool:
    return path.rpartition("/")[2].startswith("_")


def test_a_walk_by_folder_finds_the_same(storage: Storage, store: Watched) -> None:
    assert {info.path for info in storage.walk(by_folder=True)} == set(KEYS)
    found = set(storage.walk(skip=skip, by_folder=True))
    assert found == set(storage.walk(skip=skip))
    assert len(found) == 11
    store.listed.clear()
    assert len(list(storage.walk(skip=skip, by_folder=True))) == 11
    assert sorted(map(str, store.listed)) == ["p=#?*", "p=1", "p=10", "p=a%3Ab", "p=ü é"]


def test_objects_are_deleted_a_thousand_per_request(storage: Storage, store: Watched) -> None:
    paths = [f"many/{number}" for number in range(2500)]
    for path in paths:
        storage.put(path, b"")
    assert storage.delete(paths) == 2500
    assert sorted(map(len, store.deleted)) == [500, 1000, 1000]
    assert {info.path for info in storage.walk()} == set(KEYS)


def test_what_fails_in_bulk_is_deleted_one_by_one(storage: Storage, store: Watched) -> None:
    """Half of the request may have been done."""
    store.failing = True
    gone = ["root.parquet", "p=1/a", "p=1/deep/b", "p=a%3Ab/a"]
    assert storage.delete(gone) == 4
    assert {info.path for info in storage.walk()} == set(KEYS) - set(gone)
    with pytest.raises(StorageError, match="p=10/a"):
        storage.delete(["p=10/a", "p=10/deep/b"])
    assert "p=10/deep/b" not in {info.path for info in storage.walk()}


def test_sources_are_read_at_the_same_time() -> None:
    together = Barrier(3)

    def source(number: int) -> Iterator[int]:
        together.wait(20)  # needs all three
        yield from range(number, 300, 3)

    assert sorted(interleaved([source(number) for number in range(3)], 3)) == list(range(300))
    assert list(interleaved([], 3)) == []


def test_the_first_error_ends_all() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise StorageError("no more")

    def endless() -> Iterator[int]:
        while True:
            yield 0

    before = active_count()
    with pytest.raises(StorageError, match="no more"):
        list(interleaved([endless(), broken()], 2))
    some = interleaved([endless(), endless(), endless()], 2)
    assert next(some) == 0
    some.close()
    assert active_count() == before

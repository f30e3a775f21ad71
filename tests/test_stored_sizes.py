"""Sizes of many files: on disk, and in an object store by listings that prove only what exists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dv_maintenance.errors import StorageError
from dv_maintenance.storage import Storage
from dv_maintenance.storage.sizes import stored_sizes
from dv_maintenance.testing.locations import Bucket


class Counted(Bucket):
    """A bucket that counts requests; ``late``: names that listings do not have yet."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = self.listed = 0
        self.late: set[str] = set()

    def open_store(self, root: str, options: Any) -> Any:
        return self

    def head(self, key: str) -> Any:
        self.heads += 1
        return self.store.head(key)

    def list(self, prefix: str | None = None, **options: Any) -> Iterator[list[Any]]:
        for page in self.store.list(prefix, **options):
            self.listed += len(page)
            yield [meta for meta in page if meta["path"] not in self.late]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Counted:
    bucket = Counted()
    monkeypatch.setattr(Storage, "default_access", bucket)
    return bucket


def test_on_disk(tmp_path: Path) -> None:
    (tmp_path / "a b").write_bytes(b"12")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a b")
    (tmp_path / "outside").write_bytes(b"123")
    storage = Storage(str(tmp_path))
    paths = ["a b", "gone", "folder", "a b/below", "link", f"file://{tmp_path}/outside", "a b"]
    assert stored_sizes(storage, paths) == [2, None, None, None, 2, 3, 2]
    assert stored_sizes(storage, []) == []


def test_a_file_that_may_not_be_looked_at_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: object, path: str) -> Any:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(type(Storage.default_access), "stat", denied)
    with pytest.raises(StorageError):
        stored_sizes(Storage(str(tmp_path)), ["a"])


def test_few_objects_are_asked_for_by_name(bucket: Counted) -> None:
    bucket.store.put("a b", b"12")
    assert stored_sizes(Storage("s3://lake"), ["a b", "gone"]) == [2, None]
    assert (bucket.heads, bucket.listed) == (2, 0)


def test_many_objects_are_listed(bucket: Counted) -> None:
    paths = [f"p={number % 7}/{number:04}" for number in range(3000)]
    for path in paths:
        bucket.store.put(path, b"1")
    bucket.store.put("p=3/0", b"12")
    seen: list[tuple[int, int]] = []
    sizes = stored_sizes(Storage("s3://lake"), [*paths, "p=3/0"], lambda done, total: seen.append((done, total)))
    assert sizes == [1] * 3000 + [2]
    assert bucket.heads == 0
    assert seen[-1] == (3001, 3001)


def test_what_a_listing_lacks_is_asked_for_by_name(bucket: Counted) -> None:
    paths = [f"{number:04}" for number in range(500)]
    for path in paths[1:]:
        bucket.store.put(path, b"1")
    bucket.late = {"0007", "0499"}
    assert stored_sizes(Storage("s3://lake"), paths) == [None] + [1] * 499
    assert bucket.heads == 3


def test_a_listing_of_too_many_other_objects_is_given_up(bucket: Counted) -> None:
    wanted = [f"{number:06}" for number in range(0, 40_000, 200)]
    for number in range(40_000):
        bucket.store.put(f"{number:06}", b"1")
    assert stored_sizes(Storage("s3://lake"), wanted) == [1] * 200
    assert bucket.heads > 0
    assert bucket.listed < 40_000

"""Storage for dry runs: it refuses what the real one refuses, and leaves no trace."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dv_maintenance.errors import RefusedError
from dv_maintenance.storage import FileExistsAlreadyError, Storage
from dv_maintenance.storage.rehearsal import Rehearsal

ROWS = pa.table({"id": range(100)})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "a table").mkdir()
    (tmp_path / "a table" / "old").write_bytes(b"old")
    return tmp_path / "a table"


def files(place: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in place.rglob("*") if file.is_file()}


def test_what_was_written_can_be_read_by_name_and_is_nowhere(place: Path) -> None:
    before, storage = files(place), Rehearsal.of(Storage(str(place)))
    storage.put("new", b"new")
    storage.put("old", b"changed")
    storage.create("log/0", b"first", staging="log/.0.tmp")
    assert (storage.get("new"), storage.get("old"), storage.head("log/0").size) == (b"new", b"changed", 5)
    assert storage.open_input(storage.uri_of("log/0")).read() == b"first"
    assert [info.path for info in storage.list()] == ["old"]
    with pytest.raises(FileExistsAlreadyError):
        storage.create("log/0", b"second")
    with pytest.raises(FileExistsAlreadyError):
        storage.create("old", b"second")
    assert storage.delete(["old", "new"]) == 2
    assert storage.move("old", "moved")
    assert not storage.move("never", "moved")
    storage.assume(storage.uri_of("elsewhere rehearsed"), 7)
    assert storage.head("elsewhere rehearsed").size == 7
    assert files(place) == before


def test_streams(place: Path) -> None:
    before, storage = files(place), Rehearsal.of(Storage(str(place)))
    with storage.open_output("p=1/a.parquet") as sink:
        pq.write_table(ROWS, sink)
        written = sink.tell()
    assert storage.head("p=1/a.parquet").size == written
    with storage.open_input("p=1/a.parquet") as file:
        assert pq.read_table(file).equals(ROWS)
    assert storage._streams is not None
    assert not list(Path(storage._streams.name).iterdir())
    assert storage.head("p=1/a.parquet").size == written
    assert files(place) == before


WRITES: list[Callable[[Storage, str], Any]] = [
    lambda storage, path: storage.put(path, b""),
    lambda storage, path: storage.create(path, b""),
    lambda storage, path: storage.delete([path]),
    lambda storage, path: storage.move(path, "new"),
    lambda storage, path: storage.move("old", path),
    lambda storage, path: storage.open_output(path),
]


@pytest.mark.parametrize("number", range(len(WRITES)))
@pytest.mark.parametrize("path", ["link/a", "../a", "s3://elsewhere/a"])
def test_refusals_are_those_of_the_storage(place: Path, path: str, number: int) -> None:
    (place / "link").symlink_to(place.parent)
    before, storage = files(place.parent), Storage(str(place))
    with pytest.raises(RefusedError) as real:
        WRITES[number](storage, path)
    with pytest.raises(RefusedError) as rehearsed:
        WRITES[number](Rehearsal.of(storage), path)
    assert str(rehearsed.value) == str(real.value)
    assert files(place.parent) == before


def test_it_stays_one(place: Path) -> None:
    storage = Rehearsal.of(Storage(str(place), {"secret": "x"}))
    for each in (pickle.loads(pickle.dumps(storage)), storage.at(str(place))):
        assert (type(each), each.uri, each.options) == (Rehearsal, storage.uri, {"secret": "x"})

"""Preflight: every fault of every deletion file, with its kind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from support.raw_manifest import Record, message, newest_manifest, patch, records, without
from support.tables import lance_table as opened

from dv_maintenance.dv import DeletionVector
from dv_maintenance.dv.lance import ARRAY, BITMAP, encode
from dv_maintenance.errors import UsageError


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("bad_arrow_schema", "unreadable", "its columns are (row_id: int64)"),
        ("bad_count_mismatch", "count", "it holds 5990 offsets, the manifest says 6000"),
        ("bad_garbage_arrow", "unreadable", "not an Arrow IPC file"),
        ("bad_missing_deletion", "missing", "does not exist"),
        ("bad_offset_out_of_range", "offset", "1 of its offsets, up to 1000000, are past the fragment's 12000 rows"),
        ("bad_truncated_bitmap", "unreadable", "truncated"),
    ],
)
def test_damaged_golden_tables(golden_copy: Callable[[str], Path], name: str, kind: str, reason: str) -> None:
    path = golden_copy(f"lance/{name}")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    (fault,) = opened(path).preflight()
    assert (fault.fragment, fault.kind) == (0, kind)
    assert reason in fault.reason
    assert fault.file == opened(path).snapshot().files["dv_id"][0].as_py()
    assert fault.to_json() == {"fragment": 0, "file": fault.file, "kind": kind, "reason": fault.reason}
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_sound_golden_tables(golden: Path) -> None:
    looked = 0
    for path in sorted((golden / "lance").iterdir()):
        if path.is_dir() and not path.name.startswith("bad_"):
            table = opened(path)
            for version in (entry.version for entry in table.history()):
                assert table.preflight(version) == (), path.name
                looked += 1
    assert looked > 100


@pytest.fixture
def path(pylance: ModuleType, tmp_path: Path) -> Path:
    """Eight fragments of ten rows; of the first seven, three are deleted."""
    dataset = pylance.write_dataset(pa.table({"id": range(80)}), str(tmp_path / "t"), max_rows_per_file=10)
    dataset.delete("id < 70 and id % 10 in (1, 5, 9)")
    return tmp_path / "t"


def deletion(path: Path, fragment: int) -> Path:
    (file,) = (path / "_deletions").glob(f"{fragment}-*.arrow")
    return file


def change_fragment(path: Path, id: int, change: Callable[[list[Record]], list[Record]]) -> None:
    def fragment(data: bytes) -> bytes:
        fields = records(data)
        return message(*change(fields)) if dict(fields).get(1, 0) == id else data

    patch(newest_manifest(path), lambda fields: [(n, fragment(v) if n == 2 else v) for n, v in fields])


def inner(number: int, *more: Record) -> Callable[[list[Record]], list[Record]]:
    """Fields of an embedded message, encoded again."""

    def change(fields: list[Record]) -> list[Record]:
        numbers = [n for n, _ in more]
        return [(n, message(*without(records(v), *numbers), *more) if n == number else v) for n, v in fields]

    return change


def positions(*values: int) -> DeletionVector:
    return DeletionVector.from_positions(values)


def test_every_fault_at_once(path: Path) -> None:
    deletion(path, 0).unlink()
    deletion(path, 1).write_bytes(deletion(path, 1).read_bytes()[:50])
    deletion(path, 2).write_bytes(encode(BITMAP, positions(1, 5, 9)))
    deletion(path, 3).write_bytes(encode(ARRAY, positions(1, 5)))
    deletion(path, 4).write_bytes(encode(ARRAY, positions(1, 5, 10)))
    deletion(path, 5).write_bytes(encode(ARRAY, positions(1, 10, 11, 12)))
    change_fragment(path, 6, inner(3, (7, 4)))
    table = opened(path)
    faults = table.preflight()
    assert [(fault.fragment, fault.kind) for fault in faults] == [
        (0, "missing"),
        (1, "unreadable"),
        (2, "unreadable"),
        (3, "count"),
        (4, "offset"),
        (5, "count"),
        (5, "offset"),
        (6, "base"),
    ]
    assert "3 of its offsets, up to 12, are past the fragment's 10 rows" in faults[6].reason
    assert all(fault.file == f"_deletions/{deletion(path, fault.fragment).name}" for fault in faults[1:7])
    assert [fault.fragment for fault in table.preflight(fragments=[3, 5, 7])] == [3, 5, 5]
    assert table.preflight(version=1) == ()
    with pytest.raises(UsageError, match="no version 9"):
        table.preflight(version=9)


def test_rows_that_the_manifest_gets_wrong(path: Path) -> None:
    """Deletions that end where the manifest says rows end: the data file knows who is right."""
    change_fragment(path, 2, lambda fields: [*without(fields, 4), (4, 9)])
    (fault,) = opened(path).preflight()
    assert (fault.fragment, fault.kind) == (2, "rows")
    assert "fragment 2 has 9 rows, its data file has 10" in fault.reason
    assert fault.file.startswith("data/")


def test_without_counts_the_files_alone_are_compared(path: Path) -> None:
    change_fragment(path, 2, lambda fields: without(fields, 4))
    change_fragment(path, 3, inner(3, (4, 0)))
    assert opened(path).preflight() == ()
    deletion(path, 2).write_bytes(encode(ARRAY, positions(1, 5, 10)))
    deletion(path, 3).write_bytes(encode(ARRAY, positions(1, 5, 8, 9)))
    assert [(fault.fragment, fault.kind) for fault in opened(path).preflight()] == [(2, "offset")]


def test_a_data_file_without_a_row_count(path: Path) -> None:
    change_fragment(path, 2, lambda fields: without(fields, 4))
    shutil.rmtree(path / "data")
    (fault,) = opened(path).preflight()
    assert (fault.fragment, fault.kind) == (2, "rows")
    assert "does not exist" in fault.reason


def test_lance_says_the_same(pylance: ModuleType, path: Path) -> None:
    """``validate`` stops at the first fault; it must not find any that we do not."""
    cases: list[tuple[Callable[[Path], Any], str | None]] = [
        (lambda file: None, None),
        (lambda file: file.write_bytes(encode(ARRAY, positions(1, 5))), "count"),
        (lambda file: file.write_bytes(encode(ARRAY, positions(1, 5, 10))), "offset"),
        (lambda file: file.write_bytes(b""), "unreadable"),
        (lambda file: file.unlink(), "missing"),
    ]
    for number, (change, kind) in enumerate(cases):
        copy = shutil.copytree(path, path.parent / f"copy {number}")
        change(deletion(copy, 4))
        assert [fault.kind for fault in opened(copy).preflight()] == ([kind] if kind else [])
        dataset = pylance.dataset(str(copy))
        if kind:
            with pytest.raises((OSError, ValueError, pa.ArrowException)):
                dataset.validate()
        else:
            dataset.validate()

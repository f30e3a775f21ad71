"""Checkpoints on demand, and log cleanup: it never deletes a needed version, and never half of a protected range."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from effort import sampled
from support.readers import READERS

from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.maintenance.checkpoint import checkpoint
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.testing.delta_builder import DeltaBuilder
from dv_maintenance.testing.memory import MemoryTable

SCHEMA = pa.schema([("id", pa.int64())])
DAY = 86_400_000
START = 20_000 * DAY  # a midnight, in epoch milliseconds


class Days:
    """One commit a day at noon, of one row each; checkpoints where requested."""

    def __init__(self, place: str, checkpoints: tuple[int, ...] = (), **properties: str) -> None:
        self.now = START + DAY // 2
        self.builder = DeltaBuilder(place, clock=lambda: self.now)
        named = {f"delta.{name}": value for name, value in properties.items()}
        self.builder.create(SCHEMA, properties=named, features=["checkpointProtection"])
        for day in range(1, 9):
            self.now = START + day * DAY + DAY // 2
            self.builder.append(pa.table({"id": [day]}, schema=SCHEMA))
            if day in checkpoints:
                self.builder.checkpoint()


def versions(place: Path) -> set[int]:
    return {int(path.name[:20]) for path in (place / "_delta_log").glob("0*.json")}


def clean(place: Path, day: float, **options: bool) -> tuple[int, int]:
    """Version that the log begins with, and files deleted; ``day`` is what day it is, by a retention of two."""
    result = checkpoint(open_table(str(place)), clean_log=True, now=START + int(day * DAY), **options)
    return result.first_version, result.log_files_deleted


TWO = "interval 2 days"


def test_a_checkpoint_is_written_once(tmp_path: Path) -> None:
    Days(str(tmp_path))
    first, second = (checkpoint(open_table(str(tmp_path))) for _ in range(2))
    assert (first.version, first.written, first.cutoff) == (8, True, None)
    assert (second.written, second.first_version) == (False, 0)
    assert load_snapshot(open_table(str(tmp_path)).storage).segment.checkpoint_version == 8
    assert versions(tmp_path) == set(range(9))


@pytest.mark.parametrize(
    ("day", "first"),
    # On day 5 the cutoff is the midnight at which day 3 begins, and on it by the clock only as that day ends.
    sampled(
        [(5.0, 2), (5.99, 2), (6.0, 2), (7.99, 4), (8.0, 4), (9.0, 6), (10.99, 6), (11.0, 8), (99.0, 8)], 3, first=1
    ),
)
def test_the_newest_checkpoint_before_the_cutoff_stays(tmp_path: Path, day: float, first: int) -> None:
    Days(str(tmp_path), (2, 4, 6), logRetentionDuration=TWO)
    begins, deleted = clean(tmp_path, day)
    assert begins == first
    assert versions(tmp_path) == set(range(first, 9))
    assert deleted == first + sum(version < first for version in (2, 4, 6))
    for reader in READERS.values():
        assert sorted(reader(tmp_path)["id"].to_pylist()) == list(range(1, 9))


def test_a_checkpoint_of_the_very_cutoff_is_not_before_it(tmp_path: Path) -> None:
    Days(str(tmp_path), (2, 4, 6), logRetentionDuration=TWO)
    cutoff = (START + 6 * DAY) / 1000
    os.utime(tmp_path / "_delta_log" / f"{6:020}.json", (cutoff, cutoff))
    assert clean(tmp_path, 8)[0] == 4


def test_no_log_file_expires_without_an_old_checkpoint(tmp_path: Path) -> None:
    Days(str(tmp_path), logRetentionDuration=TWO)
    assert clean(tmp_path, 8) == (0, 0)
    assert versions(tmp_path) == set(range(9))


def test_a_dry_run_counts(tmp_path: Path) -> None:
    Days(str(tmp_path), (2, 4), logRetentionDuration=TWO)
    result = checkpoint(open_table(str(tmp_path)), clean_log=True, dry_run=True, now=START + 8 * DAY)
    assert (result.first_version, result.log_files_expired, result.log_files_deleted, result.written) == (
        4,
        5,
        0,
        False,
    )
    assert versions(tmp_path) == set(range(9))


@pytest.mark.parametrize("day", [8, 10, 99])
def test_a_dry_run_counts_what_the_run_deletes(tmp_path: Path, day: int) -> None:
    """Also where the log will begin with the checkpoint that the run writes first."""
    Days(str(tmp_path), (2, 4), logRetentionDuration=TWO)
    now = START + day * DAY
    dry, real = (
        checkpoint(open_table(str(tmp_path)), clean_log=True, dry_run=dry_run, now=now) for dry_run in (True, False)
    )
    assert (dry.log_files_expired, dry.first_version) == (real.log_files_deleted, real.first_version)
    assert real.log_files_deleted == (10 if day == 99 else 5)


def test_a_protected_range_is_deleted_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    builder = Days(str(tmp_path), (2, 4, 6), logRetentionDuration=TWO).builder
    metadata = load_snapshot(builder.storage).metadata.to_json()
    metadata["configuration"]["delta.requireCheckpointProtectionBeforeVersion"] = "5"
    builder.commit([{"metaData": metadata}])
    assert clean(tmp_path, 8) == (0, 0)
    assert clean(tmp_path, 9)[0] == 6
    assert versions(tmp_path) == {6, 7, 8, 9}


def test_a_table_may_keep_its_log(tmp_path: Path) -> None:
    Days(str(tmp_path), (2,), enableExpiredLogCleanup="false")
    with pytest.raises(RefusedError, match="enableExpiredLogCleanup"):
        clean(tmp_path, 99)


def test_an_interval_that_means_nothing_is_refused(tmp_path: Path) -> None:
    Days(str(tmp_path), (2,), logRetentionDuration="a month")
    with pytest.raises(RefusedError, match="logRetentionDuration"):
        clean(tmp_path, 99)


def test_an_unreadable_checkpoint_does_not_begin_a_log(tmp_path: Path) -> None:
    Days(str(tmp_path), (4,), logRetentionDuration=TWO)
    path = tmp_path / "_delta_log" / f"{4:020d}.checkpoint.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    os.utime(path, (1, 1))
    with pytest.raises(DamagedTableError):
        clean(tmp_path, 8)
    assert versions(tmp_path) == set(range(9))


def test_files_of_an_old_version_are_deleted_with_it(tmp_path: Path) -> None:
    Days(str(tmp_path), (4,), logRetentionDuration=TWO)
    log = tmp_path / "_delta_log"
    old = [
        f"{1:020d}.crc",
        f".{1:020d}.json.crc",
        f"{2:020d}.{5:020d}.compacted.json",
        f"{1:020d}.checkpoint.x.parquet",
        f"{3:020d}.json#1",
    ]
    new = [f"{4:020d}.crc", f"{9:020d}.json#1", f".{6:020d}.json.crc", "notes.txt", "_last_vacuum_info"]
    for name in (*old, *new):
        (log / name).write_text("{}")
    clean(tmp_path, 8)
    left = {path.name for path in log.iterdir()}
    assert not left & set(old)
    assert left >= set(new)


def test_a_log_does_not_begin_with_what_was_only_staged(tmp_path: Path) -> None:
    Days(str(tmp_path), (4,), logRetentionDuration=TWO)
    assert clean(tmp_path, 8)[0] == 4
    (tmp_path / "_delta_log" / f"{2:020d}.json#1").write_text("{}")
    assert clean(tmp_path, 5)[0] == 4


def test_formats_without_checkpoints_say_so(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="need no checkpoints"):
        checkpoint(MemoryTable(tmp_path))

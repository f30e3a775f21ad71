"""Which version was the newest at a time: by the files' times, or by those that commits carry."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dv_maintenance.errors import DamagedTableError, UsageError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.segment import CommitFile, commit_files
from dv_maintenance.tables.delta.log.timeline import modified_times, version_at

SCHEMA = json.dumps({"type": "struct", "fields": []})


def table(path: Path, files: list[int], stamps: dict[int, int | None] | None = None) -> Storage:
    """A log whose commits were modified at ``files`` (milliseconds) and have in-commit timestamps from the first of
    ``stamps`` on.
    """
    log = path / "_delta_log"
    log.mkdir()
    configuration = {}
    if stamps:
        configuration = {
            "delta.enableInCommitTimestamps": "true",
            "delta.inCommitTimestampEnablementVersion": str(min(stamps)),
        }
    for version, modified in enumerate(files):
        info = {"timestamp": 7, "operation": "X"}
        if stamps and stamps.get(version) is not None:
            info = {"inCommitTimestamp": stamps[version], **info}
        actions = [{"commitInfo": info}]
        if version == 0 or (stamps and version == min(stamps)):
            actions += [
                {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["inCommitTimestamp"]}},
                {"metaData": {"id": "a", "schemaString": SCHEMA, "configuration": configuration if version or (
                    stamps and not min(stamps)) else {}}},
            ]  # fmt: skip
        file = log / f"{version:020d}.json"
        file.write_text("\n".join(map(json.dumps, actions)))
        os.utime(file, ns=(modified * 1_000_000, modified * 1_000_000))
    return Storage(str(path))


def at(storage: Storage, timestamp: int) -> int:
    return version_at(storage, load_snapshot(storage), timestamp)


def test_clocks_that_go_back_are_pushed_forward() -> None:
    commits = [CommitFile("", version, version, time) for version, time in enumerate([5, 3, 3, 9, 9], start=7)]
    assert modified_times(commits) == {7: 5, 8: 6, 9: 7, 10: 9, 11: 10}


@pytest.mark.parametrize(("timestamp", "version"), [(1000, 0), (1999, 0), (2000, 1), (2001, 2), (2999, 2), (9999, 3)])
def test_by_the_times_of_files(tmp_path: Path, timestamp: int, version: int) -> None:
    assert at(table(tmp_path, [1000, 2000, 1500, 3000]), timestamp) == version


def test_a_time_before_the_log(tmp_path: Path) -> None:
    storage = table(tmp_path, [1000, 2000])
    with pytest.raises(UsageError, match=r"1970-01-01T00:00:00\.999Z") as caught:
        at(storage, 999)
    assert "1970-01-01T00:00:01.000Z" in (caught.value.next_step or "")


@pytest.mark.parametrize(
    ("timestamp", "version"), [(1000, 0), (2500, 1), (2999, 1), (3000, 2), (3499, 2), (3500, 3), (4000, 4), (9000, 4)]
)
def test_by_in_commit_timestamps_from_their_version_on(tmp_path: Path, timestamp: int, version: int) -> None:
    storage = table(tmp_path, [1000, 2000, 9000, 9000, 9000], {2: 3000, 3: 3500, 4: 4000})
    assert at(storage, timestamp) == version


def test_a_commit_without_its_timestamp(tmp_path: Path) -> None:
    storage = table(tmp_path, [1000, 2000, 3000], {0: 1000, 1: None, 2: 3000})
    with pytest.raises(DamagedTableError, match=r"1\.json has no in-commit timestamp"):
        at(storage, 2000)


def test_every_commit_is_a_moment(tmp_path: Path) -> None:
    storage = table(tmp_path, [1000, 2000, 1500])
    for version, time in modified_times(commit_files(storage)[0]).items():
        assert at(storage, time) == version

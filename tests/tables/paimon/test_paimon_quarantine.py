"""What a vacuum of a Paimon table sets aside, what comes back, and snapshots that are pinned."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.paimon_lake import DAY, HOUR, LASTING, Lake, gone, lake

from dv_maintenance.cli import main
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest
from dv_maintenance.tables.paimon.vacuum import undelete as undeleting
from dv_maintenance.tables.quarantine import QUARANTINE

ASIDE = VacuumGuard(1, quarantine=True)


@pytest.fixture
def table(tmp_path: Path) -> Lake:
    """Snapshots 1 to 3 add a file each, 4 merges them, 5 adds one."""
    return history(tmp_path / "t")


def history(path: Path, **options: Any) -> Lake:
    table = lake(path, **options)
    table.compact([table.add_file() for _ in range(3)])
    table.add_file()
    return table


def files(table: Lake) -> Mapping[str, bytes]:
    return {path: data for path, data in table.everything().items() if not path.startswith(QUARANTINE)}


def aside(table: Lake) -> set[str]:
    return set(table.everything()) - set(files(table))


def check(table: Lake) -> None:
    """As ``Lake.check``, which takes what is aside for the table's."""
    stored = set(files(table))
    ids = table.numbers()
    assert ids == list(range(ids[0], table.version + 1))
    for number in ids:
        assert table.needs[number] <= stored, number


def test_there_and_back(table: Lake) -> None:
    before = files(table)
    result = table.vacuum(guard=ASIDE)
    assert result.quarantine is not None
    assert result.deleted == len(gone(result)) == len(aside(table)) > 6
    assert table.numbers() == [5]
    check(table)
    dry = table.table().undelete(dry_run=True)
    done = table.table().undelete()
    assert (dry.files, dry.bytes, dry.held) == (done.files, done.bytes, done.held)
    assert (done.files, done.held) == (result.deleted, {})
    assert table.numbers() == [1, 2, 3, 4, 5]
    assert {**files(table), "snapshot/EARLIEST": b"1"} == {**before, "snapshot/EARLIEST": b"1"}
    assert files(table)["snapshot/EARLIEST"] == b"1"
    check(table)
    assert table.table().snapshot(2).files.num_rows == 2


def test_without_it_they_are_gone(table: Lake) -> None:
    table.vacuum(guard=VacuumGuard(1))
    assert table.table().undelete().files == 0
    assert table.numbers() == [5]


def test_its_time_is_over(table: Lake) -> None:
    now = table.now + 2 * DAY
    count = table.vacuum(now=now, guard=ASIDE).deleted
    for path in aside(table):
        os.utime(table.path / path, (0, 0))
    assert table.vacuum(now=now + 7 * DAY - 2000).emptied == 0
    assert len(aside(table)) == count
    assert table.vacuum(now=now + 7 * DAY + 2000).emptied == count
    assert aside(table) == set()
    assert table.table().undelete().files == 0


def test_a_gap_stays_a_gap(table: Lake) -> None:
    """The first batch alone would leave a gap, with which no engine opens the table."""
    now = table.now + 2 * DAY
    table.vacuum(now=now, guard=VacuumGuard(1, versions=(3,), quarantine=True))
    assert table.numbers() == [3, 4, 5]
    table.vacuum(now=now + DAY, guard=ASIDE)
    found = table.table().undelete(until=now + 1000)
    assert found.held == {undeleting.GAP: 2}
    assert table.numbers() == [5]
    check(table)
    assert table.table().undelete().held == {}
    assert table.numbers() == [1, 2, 3, 4, 5]
    check(table)


def test_a_snapshot_without_its_files_stays_aside(table: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    table.vacuum(guard=ASIDE)
    manifests = sorted(path for path in aside(table) if "/manifest/manifest-list" in path)
    own = sorted(table.needs[4] & {path.split("/", 2)[2] for path in manifests})
    next((table.path / QUARANTINE).rglob(own[0].rpartition("/")[2])).unlink()
    assert main(["undelete", str(table.path)]) == 0
    assert undeleting.LACKING in capsys.readouterr().out
    assert table.numbers() == [5]
    check(table)


def test_rolled_back_meanwhile(table: Lake) -> None:
    """Snapshots of another history may not come back beside those of this one."""
    table.tag("one", 1)
    table.vacuum(guard=ASIDE)
    (table.path / "snapshot/snapshot-1").write_bytes((table.path / "tag/tag-one").read_bytes())
    (table.path / "snapshot/snapshot-5").unlink()
    found = table.table().undelete()
    assert found.held == {undeleting.NEWER: 3}
    assert table.numbers() == [1]


def test_changelogs_come_back(tmp_path: Path) -> None:
    table = history(tmp_path / "t", options={**LASTING, "changelog.time-retained": "2 h"})
    before = {path for path in files(table) if "/EARLIEST" not in path}
    table.vacuum(now=table.now + 2 * DAY, guard=ASIDE)
    left = table.numbers("changelog")
    done = table.table().undelete()
    assert done.held == {}
    assert table.numbers() == [1, 2, 3, 4, 5]
    assert before <= set(files(table))
    lasting = table.numbers("changelog")
    assert lasting == list(range(lasting[0], left[-1] + 1))
    check(table)


def test_changelogs_come_back_beside_newer_ones(tmp_path: Path) -> None:
    table = history(tmp_path / "t", options={**LASTING, "changelog.time-retained": "2 h"})
    third = table.table().snapshot(3).timestamp
    table.vacuum(now=table.now + HOUR + HOUR // 2, guard=VacuumGuard(1))
    assert (table.numbers(), table.numbers("changelog")) == ([5], [1, 2, 3, 4])
    before = files(table)
    table.vacuum(now=third + 2 * HOUR, guard=ASIDE)
    assert table.numbers("changelog") == [3, 4]
    assert table.table().undelete().held == {}
    assert table.numbers("changelog") == [1, 2, 3, 4]
    assert set(before) <= set(files(table))
    check(table)


def test_a_branch(tmp_path: Path) -> None:
    table = lake(tmp_path / "t")
    table.add_file()
    branch = table.branch_off("b", 1)
    assert branch is not None
    branch.add_file()
    branch.add_file()
    ids = branch.numbers()
    branch.vacuum(guard=ASIDE)
    assert branch.numbers() == ids[-1:]
    assert branch.table().undelete().held == {}
    assert branch.numbers() == ids


def test_files_outside_of_the_table_are_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    table = lake(tmp_path / "t", options={"data-file.external-paths": f"file://{outside}"})
    first = table.new_file()
    place = outside / "bucket-0" / first.name
    place.parent.mkdir(parents=True)
    (table.path / "bucket-0" / first.name).rename(place)
    os.utime(place, (0, 0))
    entry = tuple({**dict(first.entry), "_EXTERNAL_PATH": f"file://{place}"}.items())
    first = type(first)(first.name, first.size, first.partition, first.bucket, first.level, first.rows, entry)
    table.commit("APPEND", add=[first])
    table.commit("OVERWRITE", add=[table.new_file()], delete=[first])
    before = table.everything()
    with pytest.raises(RefusedError, match="lies outside the table's folder, and can't be quarantined"):
        table.vacuum(guard=ASIDE)
    assert (table.everything(), place.exists()) == (before, True)
    assert "quarantined" in (table.vacuum(guard=ASIDE, dry_run=True).refused or "")
    table.vacuum(guard=VacuumGuard(1))
    assert not place.exists()


def test_a_pinned_snapshot_stays(table: Lake) -> None:
    now = table.now + DAY + HOUR
    report = vacuum(table.table(), VacuumRequest(now=now, guard=VacuumGuard(1, versions=(2,))))
    assert table.numbers() == [2, 3, 4, 5]
    (protected,) = report.protected
    assert protected == f"in snapshot 2, which is pinned: {len(table.needs[2])} files"
    assert report.kept["in snapshot 2, which is pinned"] > 0
    table.check()
    with pytest.raises(RefusedError, match="snapshot 1 is to be protected, but does not exist"):
        vacuum(table.table(), VacuumRequest(now=now, guard=VacuumGuard(1, versions=(1,))))
    vacuum(table.table(), VacuumRequest(now=now, guard=VacuumGuard(1)))
    assert table.numbers() == [5], "without the pin it goes"


def test_a_pin_by_a_tag_that_outlived_its_snapshot(table: Lake) -> None:
    table.tag("two", 2)
    vacuum(table.table(), VacuumRequest(now=table.now + 2 * DAY, guard=VacuumGuard(1)))
    report = vacuum(table.table(), VacuumRequest(now=table.now + 2 * DAY, guard=VacuumGuard(1, versions=(2,))))
    assert report.protected == (f"in snapshot 2, which is pinned: {len(table.needs[2])} files",)
    table.check()


def test_what_a_consumer_has_yet_to_read_is_not_set_aside(table: Lake) -> None:
    table.consume("c", 3)
    table.vacuum(guard=ASIDE)
    assert table.numbers() == [3, 4, 5]
    table.consume("c", 6)
    table.vacuum(guard=ASIDE)
    assert table.numbers() == [5], "without it they go"

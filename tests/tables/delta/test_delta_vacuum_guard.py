"""What a vacuum is kept from: pinned versions, streams, clones, and a share of the table that it may not delete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.raw_log import HOUR, NOW, SIZE, LogWriter, add, encoded, remove

from dv_maintenance.cli import main
from dv_maintenance.dv.descriptor import DvDescriptor
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.checkpoint_writer import write_checkpoint
from dv_maintenance.tables.delta.vacuum.streams import StreamOffset, stream_offset
from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest

OLD = NOW - 1000 * HOUR


@pytest.fixture
def table(tmp_path: Path) -> LogWriter:
    """Versions 1 to 4 replace the only file, 1 and 2 with a deletion vector; all of that is long ago."""
    table = LogWriter(tmp_path / "t", at=OLD)
    before = None
    for version in range(1, 5):
        path, dv = table.data(OLD), table.dv(OLD) if version < 3 else None
        gone = [] if before is None else [remove(before[0], before[1], at=OLD + version)]
        table.append(add(path, dv), *gone, at=OLD + version)
        before = (path, dv)
    return table


def files(table: LogWriter, version: int) -> set[str]:
    """Of a version: its data file and its deletion vector."""
    rows = load_snapshot(table.storage, version).files
    (dv,) = rows["dv"].to_pylist()
    found = {rows["path"][0].as_py()}
    return found if dv is None else found | {path for path in table.files() if path.endswith(".bin") and _in(dv, path)}


def _in(dv: dict[str, str], path: str) -> bool:
    return DvDescriptor("u", dv["path_or_inline"], None, 0, 0).relative_path() == path


def run(table: LogWriter, **guard: Any) -> None:
    vacuum(open_table(str(table.path)), VacuumRequest(now=NOW, guard=VacuumGuard(**guard)))


# -- versions ----------------------------------------------------------------------------------------------------------


def test_a_pinned_version_stays(table: LogWriter) -> None:
    wanted = {version: files(table, version) for version in range(1, 5)}
    assert len(wanted[2]) == 2
    report = vacuum(open_table(str(table.path)), VacuumRequest(now=NOW, guard=VacuumGuard(versions=(2,))))
    assert table.files() == wanted[2] | wanted[4]
    assert report.kept["in version 2, which is pinned"] == 2
    assert report.protected == ("in version 2, which is pinned: 2 files",)
    run(table)
    assert table.files() == wanted[4], "without the pin it goes"


def test_a_lite_vacuum_does_not_forget_what_was_pinned(table: LogWriter) -> None:
    wanted = {version: files(table, version) for version in (2, 4)}
    vacuum(open_table(str(table.path)), VacuumRequest(now=NOW, lite=True, guard=VacuumGuard(versions=(2,))))
    assert table.files() == wanted[2] | wanted[4]
    vacuum(open_table(str(table.path)), VacuumRequest(now=NOW, lite=True))
    assert table.files() == wanted[4]


def test_a_pinned_version_that_is_not_there_stops_it(table: LogWriter) -> None:
    before = table.files()
    with pytest.raises(RefusedError, match="version 9 is to be protected") as caught:
        run(table, versions=(9,))
    assert "from protected_versions if" in str(caught.value)
    assert table.files() == before


# -- streams -----------------------------------------------------------------------------------------------------------


def checkpoint(folder: Path, table: LogWriter, batches: list[tuple[int, bool]], commits: int) -> str:
    """Each batch ends at a version, or within the first state of the table."""
    (folder / "offsets").mkdir(parents=True)
    (folder / "commits").mkdir()
    (folder / "metadata").write_text('{"id":"1"}')
    table_id = load_snapshot(table.storage).metadata.id
    for number, (version, initial) in enumerate(batches):
        offset = {
            "sourceVersion": 1, "reservoirId": table_id, "reservoirVersion": version, "index": 0,
            "isStartingVersion": initial,
        }  # fmt: skip
        body = f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(offset)}'
        (folder / f"offsets/{number}").write_text(body)
        (folder / f"offsets/.{number}.crc").write_text("x")
    for number in range(commits):
        (folder / f"commits/{number}").write_text('v1\n{"nextBatchWatermarkMs":0}')
    return str(folder)


@pytest.mark.parametrize(
    ("batches", "commits", "wanted"),
    [
        ([(1, False), (3, False)], 2, StreamOffset(3, initial=False)),
        ([(2, False), (3, False)], 1, StreamOffset(2, initial=False)),  # the second batch is run again
        ([(2, True)], 0, StreamOffset(2, initial=True)),
        ([(2, True), (3, False)], 1, StreamOffset(2, initial=True)),
        ([(3, False)], 0, StreamOffset(-1, initial=False)),
    ],
)
def test_where_a_stream_goes_on(
    table: LogWriter, tmp_path: Path, batches: list[tuple[int, bool]], commits: int, wanted: StreamOffset
) -> None:
    place = checkpoint(tmp_path / "c", table, batches, commits)
    assert stream_offset(Storage(place), load_snapshot(table.storage).metadata.id) == wanted


def test_what_a_stream_has_yet_to_read_stays(table: LogWriter, tmp_path: Path) -> None:
    place = checkpoint(tmp_path / "c", table, [(2, False), (3, False)], 1)
    wanted = {version: files(table, version) for version in range(1, 5)}
    report = vacuum(open_table(str(table.path)), VacuumRequest(now=NOW, guard=VacuumGuard(streams=(place,))))
    # Version 2 is read, and what it took out may be, as a change.
    assert table.files() == wanted[1] | wanted[2] | wanted[3] | wanted[4]
    assert report.protected == (f"for the stream {place}, which continues at version 2: 6 files",)
    later = checkpoint(tmp_path / "d", table, [(4, False)], 1)
    run(table, streams=(later,))
    assert table.files() == wanted[3] | wanted[4]


def test_a_stream_in_its_first_state_needs_all_of_it(table: LogWriter, tmp_path: Path) -> None:
    wanted = {version: files(table, version) for version in range(1, 5)}
    run(table, streams=(checkpoint(tmp_path / "c", table, [(3, True)], 1),))
    assert table.files() == wanted[2] | wanted[3] | wanted[4]


def test_folders_that_are_no_checkpoint_stop_it(table: LogWriter, tmp_path: Path) -> None:
    before = table.files()
    other = LogWriter(tmp_path / "other")
    for place in (str(tmp_path / "nowhere"), checkpoint(tmp_path / "c", other, [(0, False)], 1)):
        with pytest.raises(RefusedError, match="is not the checkpoint folder of a stream that reads this table"):
            run(table, streams=(place,))
    assert table.files() == before


def test_a_stream_whose_commits_are_gone_stops_it(table: LogWriter, tmp_path: Path) -> None:
    place = checkpoint(tmp_path / "c", table, [(1, False)], 1)
    write_checkpoint(table.storage, load_snapshot(table.storage, 3))
    for version in range(3):
        (table.path / f"_delta_log/{version:020d}.json").unlink()
    with pytest.raises(RefusedError, match="continues at version 1, whose commit is no longer in the log"):
        run(table, streams=(place,))


# -- clones ------------------------------------------------------------------------------------------------------------


def test_what_a_clone_names_stays(table: LogWriter, tmp_path: Path) -> None:
    wanted = {version: files(table, version) for version in range(1, 5)}
    clone = LogWriter(tmp_path / "clone", at=OLD)
    (data,) = (path for path in wanted[2] if path.endswith(".parquet"))
    (dv,) = wanted[2] - {data}
    absolute = {"storageType": "p", "pathOrInlineDv": table.storage.uri_of(dv), "offset": 1}
    clone.append(add(table.storage.uri_of(encoded(data)), {**absolute, "sizeInBytes": 30, "cardinality": 1}), at=OLD)
    report = vacuum(open_table(str(table.path)), VacuumRequest(now=NOW, clones=[str(clone.path)]))
    assert table.files() == wanted[2] | wanted[4]
    assert report.protected == (f"of the clone {clone.path}: 2 files",)
    with pytest.raises(RefusedError, match="can't be read"):
        vacuum(open_table(str(table.path)), VacuumRequest(now=NOW, clones=[str(tmp_path / "nowhere")]))
    run(table)
    assert table.files() == wanted[4], "a vacuum that does not know of the clone takes its files"


def test_clones_are_found(table: LogWriter, tmp_path: Path) -> None:
    wanted = {version: files(table, version) for version in range(1, 5)}
    (data,) = (path for path in wanted[2] if path.endswith(".parquet"))
    clone = LogWriter(tmp_path / "lake/deep/clone", at=OLD)
    clone.append(add(table.storage.uri_of(encoded(data))), at=OLD)
    own = LogWriter(tmp_path / "lake/own", at=OLD)
    own.append(add(own.data(OLD)), at=OLD)
    under = [str(tmp_path / "lake"), str(tmp_path)]
    report = vacuum(open_table(str(table.path)), VacuumRequest(now=NOW, clones_under=under))
    assert report.protected == (f"of the clone file://{clone.path}: 1 file",)
    assert table.files() == {data} | wanted[4]
    (own.path / f"_delta_log/{1:020d}.json").write_text("{")
    with pytest.raises(RefusedError, match="which may be a clone of it, can't be read") as caught:
        vacuum(open_table(str(table.path)), VacuumRequest(now=NOW, clones_under=under))
    assert "clones_under" in str(caught.value)
    assert main(["vacuum", str(table.path), "--clones-under", str(tmp_path / "lake/deep")]) == 0
    assert table.files() == {data} | wanted[4]
    assert main(["vacuum", str(table.path)]) == 0
    assert table.files() == wanted[4], "a vacuum that does not look for the clone takes its files"


# -- probes ------------------------------------------------------------------------------------------------------------


def test_a_pin_on_a_version_whose_files_are_gone_says_so(table: LogWriter) -> None:
    run(table)
    report = vacuum(open_table(str(table.path)), VacuumRequest(now=NOW, guard=VacuumGuard(versions=(2,))))
    assert report.protected == ("in version 2, which is pinned: 2 files, 2 of them gone already",)


@pytest.mark.parametrize("share", ["0", "1.5", "-1", "nan", "x"])
def test_shares_that_make_no_sense(table: LogWriter, share: str) -> None:
    before = table.files()
    assert main(["vacuum", str(table.path), "--max-deleted-share", share]) == 2
    assert table.files() == before


def test_an_empty_table(tmp_path: Path) -> None:
    table = LogWriter(tmp_path / "empty", at=OLD)
    report = vacuum(
        open_table(str(table.path)), VacuumRequest(now=NOW, guard=VacuumGuard(0.1, versions=(0,), quarantine=True))
    )
    assert (report.deleted, report.quarantine) == (0, None)
    assert report.protected == ("in version 0, which is pinned: 0 files",)


# -- the share ---------------------------------------------------------------------------------------------------------


def test_a_cap_that_is_given_holds_for_small_tables(table: LogWriter) -> None:
    before = table.files()
    with pytest.raises(RefusedError, match=r"would delete 5 files, 83.3% of all files") as caught:
        run(table, max_deleted_share=0.5)
    assert caught.value.exit_code == 3
    assert "max_deleted_share=1" in str(caught.value)
    assert (table.files(), load_snapshot(table.storage).version) == (before, 4), "not even a commit"
    dry = vacuum(open_table(str(table.path)), VacuumRequest(now=NOW, dry_run=True, guard=VacuumGuard(0.5)))
    assert "83.3%" in (dry.refused or "")
    run(table, max_deleted_share=0.9)
    assert len(table.files()) == 1


def orphans(table: LogWriter, live: int, others: int) -> None:
    table.append(*(add(table.data(OLD)) for _ in range(live)), at=OLD)
    for _ in range(others):
        table.data(OLD)


def test_a_log_that_knows_little_of_the_files(tmp_path: Path) -> None:
    """What is guarded against: the log of an old backup, the folder above the table."""
    for number, (live, others, refused) in enumerate([(10, 99, False), (10, 100, True), (150, 140, False)]):
        table = LogWriter(tmp_path / str(number), at=OLD)
        orphans(table, live, others)
        if refused:
            with pytest.raises(RefusedError, match="max_deleted_share"):
                run(table)
            assert len(table.files()) == live + others
            assert main(["vacuum", str(table.path)]) == 3
            assert main(["vacuum", str(table.path), "--max-deleted-share", "1"]) == 0
        else:
            run(table)
        assert len(table.files()) == live


def test_many_small_files_that_were_merged_may_go(tmp_path: Path) -> None:
    """Most of the files, but not of the bytes."""
    table = LogWriter(tmp_path, at=OLD)
    big = table.touch("part-big.parquet", OLD, "x" * 1000 * SIZE)
    table.append(add(big, size=1000 * SIZE), at=OLD)
    for _ in range(150):
        table.data(OLD)
    run(table)
    assert table.files() == {big}
    table.data(OLD)
    with pytest.raises(RefusedError):
        run(table, max_deleted_share=0.2)


def test_what_the_history_took_out_may_go(tmp_path: Path) -> None:
    """A table that was overwritten; with its tombstones in the state, or only in commits before a checkpoint."""
    for dropped in (False, True):
        table = LogWriter(tmp_path / str(dropped), at=OLD)
        paths = [table.data(OLD) for _ in range(150)]
        table.append(*map(add, paths), at=OLD)
        table.append(*(remove(path, at=OLD) for path in paths), add(table.data(OLD)), at=OLD)
        if dropped:
            write_checkpoint(table.storage, load_snapshot(table.storage))
        run(table)
        assert len(table.files()) == 1


def test_the_policy_says_the_same() -> None:
    policy = Policy.from_mapping(
        {"max_deleted_share": 0.3, "protected_versions": [41], "protected_streams": ["s3://lake/c"]}
    )
    assert policy.guard == VacuumGuard(0.3, (41,), ("s3://lake/c",))

"""What each snapshot of a Paimon table did to the live files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from effort import sampled
from golden_tables import names_in
from support.paimon_writer import NEW, OLD, DataFile, PaimonWriter
from support.places import GOLDEN

from dv_maintenance.dv import DeletionVector
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.file_log import FileLog, FileLogTable
from dv_maintenance.testing.file_logs import check_windows

NAMES = names_in("paimon", (path.parent.name for path in (GOLDEN / "paimon").glob("*/expected.json")))


def opened(place: Path) -> FileLogTable:
    table = open_table(str(place))
    assert isinstance(table, FileLogTable)
    return table


def checked(place: Path) -> FileLog:
    """The whole log, once it agrees with every snapshot."""
    table = opened(place)
    check_windows(table, [entry.version for entry in table.history()][::-1])
    log = table.file_log(table.snapshot(), 0)
    entries = {entry.version: entry for entry in table.history()}
    for commit in log.commits:
        entry = entries[commit.version]
        said = (commit.timestamp, commit.operation, commit.data_changed)
        assert said == (entry.timestamp, entry.operation, entry.data_changed)
    return log


def short(log: FileLog, version: int) -> tuple[set[tuple[bool, int, int]], set[tuple[bool, int, int]]]:
    """What a commit added and removed: whether a file has a DV, its rows, its deleted rows."""
    rows = [row for row in log.changes.to_pylist() if log.commits[row["commit"]].version == version]
    came, gone = (
        {(row["dv_id"] is not None, row["physical_rows"], row["deleted_rows"]) for row in rows if row["added"] is added}
        for added in (True, False)
    )
    return came, gone


def rows_of(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": first + index, "v": "x"} for index in range(count)]


# The deep ones are the rarer: hidden levels, data evolution and expired snapshots are always judged.
ALWAYS = {"append_dv_dangling_entry", "append_dv_expired", "data_evolution_dv", "pk_dv_compacted", "pk_dv_l0_hidden"}


@pytest.mark.parametrize("name", [*sorted(ALWAYS & {*NAMES}), *sampled(sorted({*NAMES} - ALWAYS), 20)])
def test_golden_tables(golden: Path, name: str) -> None:
    checked(golden / "paimon" / name / "table")


@pytest.fixture(params=[OLD, NEW])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> PaimonWriter:
    return PaimonWriter(tmp_path / "t", writer=request.param)


def test_deletes_and_a_compaction(written: PaimonWriter) -> None:
    """Older writers don't write down how many rows a DV names. A DV that moves with its index file changes its id."""
    first, second = written.append(rows_of(0, 10)), written.append(rows_of(10, 8))
    written.delete({first: [1]})
    written.delete({second: [2, 3]})
    output = written.data_file(rows_of(0, 9))
    written.dvs.pop(first.key)
    written.write_index()
    written.commit("COMPACT", add=[output], delete=[first])
    log = checked(written.path)
    assert [short(log, version) for version in range(1, 6)] == [
        ({(False, 10, 0)}, set()),
        ({(False, 8, 0)}, set()),
        ({(True, 10, 1)}, {(False, 10, 0)}),
        ({(True, 10, 1), (True, 8, 2)}, {(True, 10, 1), (False, 8, 0)}),
        ({(False, 9, 0), (True, 8, 2)}, {(True, 10, 1), (True, 8, 2)}),
    ]


def test_levels_that_readers_do_not_see(tmp_path: Path) -> None:
    """A file appears when a compaction takes it off level 0, and its name stays."""
    columns, options = {"id": "BIGINT NOT NULL", "v": "STRING"}, {"bucket": "1", "deletion-vectors.enabled": "true"}
    written = PaimonWriter(tmp_path / "t", columns, primary_keys=["id"], options=options)
    low = written.append(rows_of(0, 10), kinds=[0] * 10)
    up = replace(low, level=5)
    written.commit("COMPACT", add=[up], delete=[low])
    later = written.append(rows_of(5, 3), kinds=[0] * 3)
    written.dvs[up.key] = DeletionVector.from_positions([5, 6, 7])
    written.write_index()
    written.commit("COMPACT", add=[replace(later, level=4)], delete=[later])
    # To a higher level, where it was seen before.
    written.commit("COMPACT", add=[replace(later, level=5)], delete=[replace(later, level=4)])
    log = checked(written.path)
    assert [short(log, version) for version in range(1, 6)] == [
        (set(), set()),
        ({(False, 10, 0)}, set()),
        (set(), set()),
        ({(True, 10, 3), (False, 3, 0)}, {(False, 10, 0)}),
        (set(), set()),
    ]


def test_files_that_together_hold_rows(tmp_path: Path) -> None:
    """With data evolution a file that adds a column makes the logical file larger."""
    options = {
        "bucket": "-1",
        "row-tracking.enabled": "true",
        "data-evolution.enabled": "true",
        "deletion-vectors.enabled": "true",
    }
    written = PaimonWriter(tmp_path / "t", {"id": "BIGINT", "v": "STRING"}, options=options)

    def put(first: int, count: int, columns: list[str] | None = None) -> DataFile:
        age = {"_MIN_SEQUENCE_NUMBER": written.version + 1, "_MAX_SEQUENCE_NUMBER": written.version + 1}
        return written.append(rows_of(first, count), **{"_FIRST_ROW_ID": first, "_WRITE_COLS": columns, **age})

    anchor = put(0, 4)
    put(4, 2)
    written.delete({anchor: [1]})
    patch = put(0, 4, ["v"])
    written.delete({anchor: [1, 2], patch: [3]})
    written.commit("OVERWRITE", delete=[anchor, patch])
    log = checked(written.path)
    rows = [row for row in log.changes.to_pylist() if row["physical_rows"] == 4]
    both = anchor.size + patch.size
    assert [(row["commit"], row["added"], row["size"], row["deleted_rows"]) for row in rows] == [
        (0, True, anchor.size, 0),
        (2, False, anchor.size, 0),
        (2, True, anchor.size, 1),
        (3, False, anchor.size, 1),
        (3, True, both, 1),
        (4, False, both, 1),
        (4, True, both, 2),
        (5, False, both, 2),
    ]


def test_a_file_that_comes_and_goes_in_one_commit_was_never_live(written: PaimonWriter) -> None:
    kept = written.append(rows_of(0, 10))
    brief, new = written.data_file(rows_of(10, 5)), written.data_file(rows_of(15, 3))
    written.commit("APPEND", add=[brief, new], delete=[brief])
    written.delete({kept: [1]})
    log = checked(written.path)
    assert short(log, 2) == ({(False, 3, 0)}, set())


def test_what_was_expired_is_left_out(written: PaimonWriter) -> None:
    for start in range(0, 50, 10):
        written.append(rows_of(start, 10))
    for version in (1, 2):
        (written.path / "snapshot" / f"snapshot-{version}").unlink()
    log = checked(written.path)
    assert ([commit.version for commit in log.commits], log.base, log.complete) == ([4, 5], 3, False)
    table = opened(written.path)
    assert table.file_log(table.snapshot(), log.commits[0].timestamp).complete
    oldest = table.file_log(table.snapshot(3), 0)
    assert (oldest.commits, oldest.changes.num_rows, oldest.base, oldest.complete) == ((), 0, 3, False)


def test_only_what_is_needed_is_read(written: PaimonWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written.append(rows_of(0, 100))
    for start in range(1, 30):
        written.delete({file: [start]})
    table = opened(written.path)
    snapshot = table.snapshot()
    times = {entry.version: entry.timestamp for entry in table.history()}
    get, read = Storage.get, list[str]()

    def watched(storage: Storage, path: str) -> bytes:
        read.append(path)
        return get(storage, path)

    monkeypatch.setattr(Storage, "get", watched)
    log = table.file_log(snapshot, times[27])
    assert ([commit.version for commit in log.commits], log.base, log.complete) == ([27, 28, 29, 30], 26, True)
    assert sorted(path for path in read if "snapshot-" in path) == [f"snapshot/snapshot-{at}" for at in range(26, 30)]
    # Four deltas without a manifest, and what the index was before and after each.
    manifests = [path for path in read if path.startswith("manifest/")]
    assert len(manifests) == len({*manifests}) == 4 + 5


@pytest.mark.parametrize("kind", ["snapshot", "delta", "index"])
def test_a_damaged_commit_is_named(written: PaimonWriter, kind: str) -> None:
    file = written.append(rows_of(0, 10))
    written.delete({file: [1]})
    written.delete({file: [2]})
    written.delete({file: [3]})
    table = opened(written.path)
    snapshot = table.snapshot()
    body = json.loads((written.path / "snapshot" / "snapshot-3").read_text())
    manifests = {"delta": body["deltaManifestList"], "index": body["indexManifest"]}
    name = f"manifest/{manifests[kind]}" if kind in manifests else "snapshot/snapshot-3"
    (written.path / name).write_bytes(b"damage")
    with pytest.raises(DamagedTableError, match=name) as error:
        table.file_log(snapshot, 0)
    assert (error.value.table, error.value.version) == (table.uri, 3)


def test_a_table_without_a_snapshot(written: PaimonWriter) -> None:
    table = opened(written.path)
    log = table.file_log(table.snapshot(), 0)
    assert (log.commits, log.changes.num_rows, log.base, log.complete) == ((), 0, 0, True)

"""Which files make up a version, whatever else lies in the log."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.raw_log import PROTOCOL, RawLog, add, metadata, remove

from dv_maintenance.errors import DamagedTableError, TableNotFoundError, UsageError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.actions import Metadata, Protocol
from dv_maintenance.tables.delta.log.replay import tombstones
from dv_maintenance.tables.delta.log.segment import commit_files, latest_version, read_commit, segment


@pytest.fixture
def log(tmp_path: Path) -> RawLog:
    return RawLog(tmp_path / "a table")


def commits(log: RawLog, first: int, last: int) -> None:
    for version in range(first, last + 1):
        log.commit(version, *([PROTOCOL, metadata()] if version == 0 else []), add(f"f{version}"))


def paths(log: RawLog, version: int | None = None) -> list[str]:
    return sorted(load_snapshot(log.storage, version).files["path"].to_pylist())


def test_no_table(tmp_path: Path) -> None:
    for probe in (latest_version, segment, load_snapshot):
        with pytest.raises(TableNotFoundError):
            probe(Storage(str(tmp_path / "nothing")))


def test_a_log_without_commits_is_damaged(log: RawLog) -> None:
    log.put("00000000000000000000.crc", "{}")
    with pytest.raises(DamagedTableError, match="neither a commit nor a complete checkpoint"):
        latest_version(log.storage)


def test_names_that_are_no_commits_are_left_out(log: RawLog) -> None:
    commits(log, 0, 1)
    for name in (
        ".00000000000000000002.json.crc",
        "00000000000000000002.json.tmp",
        "00000000000000000002.crc",
        "_staged_commits/00000000000000000002.7f7e4a3c-0000-0000-0000-000000000000.json",
        "00000000000000000002.checkpoint.0000000001.0000000002.parquet",
        "00000000000000000002.00000000000000000003.compacted.json",
        "_commits/00000000000000000009.json",
        "2.json",
    ):
        log.put(name, "not json")
    assert latest_version(log.storage) == 1
    assert paths(log) == ["f0", "f1"]


@pytest.mark.parametrize("known", [None, 0, 1, 2, 7])
def test_latest_version_from_any_known_one(log: RawLog, known: int | None) -> None:
    commits(log, 0, 2)
    assert latest_version(log.storage, known) == 2


def test_a_gap_is_damage_and_names_the_file(log: RawLog) -> None:
    commits(log, 0, 3)
    (log.log / "00000000000000000002.json").unlink()
    with pytest.raises(DamagedTableError, match=r"00000000000000000002\.json is missing"):
        load_snapshot(log.storage)
    assert paths(log, 1) == ["f0", "f1"]


def test_a_stray_absurd_version_is_a_gap_at_once(log: RawLog) -> None:
    commits(log, 0, 1)
    log.commit(10**18)
    with pytest.raises(DamagedTableError, match=r"00000000000000000002\.json is missing"):
        load_snapshot(log.storage)


@pytest.mark.parametrize("version", [-1, 4, 10**30])
def test_unknown_version_names_the_range(log: RawLog, version: int) -> None:
    commits(log, 0, 3)
    with pytest.raises(UsageError, match="0 to 3"):
        segment(log.storage, version)


def test_versions_that_were_cleaned_up(log: RawLog) -> None:
    commits(log, 0, 5)
    log.parquet("00000000000000000003.checkpoint.parquet", PROTOCOL, metadata(), add("old"))
    for version in range(4):
        (log.log / f"{version:020d}.json").unlink()
    log.hint(3)
    assert paths(log) == ["f4", "f5", "old"]
    assert paths(log, 3) == ["old"]
    for version in (0, 2):
        with pytest.raises(UsageError, match="3 to 5"):
            load_snapshot(log.storage, version)


@pytest.mark.parametrize(
    "hint",
    [b"", b"{", b"[]", b'"x"', b"{}", b'{"version": "3"}', b'{"version": -1}', b'{"version": true}', b"\xff\xfe"],
)
def test_a_damaged_last_checkpoint_is_a_warning(log: RawLog, hint: bytes) -> None:
    commits(log, 0, 3)
    log.parquet("00000000000000000002.checkpoint.parquet", PROTOCOL, metadata(), add("cp"))
    log.put("_last_checkpoint", hint)
    snapshot = load_snapshot(log.storage)
    assert snapshot.files["path"].to_pylist() == ["cp", "f3"]
    assert "_last_checkpoint is damaged" in snapshot.warnings[0]


@pytest.mark.parametrize("hint", [0, 1, 2, 9, 10**25])
def test_a_stale_or_dangling_last_checkpoint_changes_nothing(log: RawLog, hint: int) -> None:
    commits(log, 0, 3)
    log.parquet("00000000000000000001.checkpoint.parquet", PROTOCOL, metadata(), add("cp1"))
    log.parquet("00000000000000000002.checkpoint.parquet", PROTOCOL, metadata(), add("cp2"))
    log.hint(hint)
    assert latest_version(log.storage) == 3
    assert segment(log.storage).checkpoint_version == 2
    assert segment(log.storage, 1).checkpoint_version == 1
    assert segment(log.storage, 0).checkpoint_version is None


def test_an_incomplete_multipart_checkpoint_is_no_checkpoint(log: RawLog) -> None:
    commits(log, 0, 2)
    log.parquet("00000000000000000001.checkpoint.0000000001.0000000002.parquet", PROTOCOL, metadata())
    log.parquet("00000000000000000002.checkpoint.0000000003.0000000003.parquet", add("x"))
    log.hint(1)
    snapshot = load_snapshot(log.storage)
    assert snapshot.segment.checkpoint_version is None
    assert snapshot.files["path"].to_pylist() == ["f0", "f1", "f2"]
    log.parquet("00000000000000000001.checkpoint.0000000002.0000000002.parquet", add("part2"))
    assert paths(log) == ["f2", "part2"]


def test_compacted_logs_stand_in_for_their_range(log: RawLog) -> None:
    commits(log, 0, 5)
    log.json("00000000000000000001.00000000000000000002.compacted.json", add("c12"))
    log.json("00000000000000000001.00000000000000000004.compacted.json", add("c14"), remove("f0"))
    log.json("00000000000000000004.00000000000000000009.compacted.json", add("beyond"))
    assert paths(log) == ["c14", "f5"]
    assert paths(log, 4) == ["c14"]
    assert paths(log, 3) == ["c12", "f0", "f3"]
    assert paths(log, 1) == ["f0", "f1"]


def test_an_empty_compacted_log_does_not_hide_its_commits(log: RawLog) -> None:
    commits(log, 0, 3)
    log.put("00000000000000000001.00000000000000000002.compacted.json", b"")
    assert paths(log) == ["f0", "f1", "f2", "f3"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"add":{"path":"a","size":1,"partitionValues":{}}}\n{"remove":{"path":"a"}}\n',  # contradicts itself
        b'{"add":',
        b'{"add":{"size":1}}',
    ],
)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_damaged_compacted_log_is_left_aside(log: RawLog, body: bytes, checkpoint: bool) -> None:
    commits(log, 0, 3)
    if checkpoint:
        log.parquet("00000000000000000000.checkpoint.parquet", PROTOCOL, metadata(), add("f0"))
    name = "00000000000000000001.00000000000000000002.compacted.json"
    log.put(name, body)
    snapshot = load_snapshot(log.storage)
    assert sorted(snapshot.files["path"].to_pylist()) == ["f0", "f1", "f2", "f3"]
    assert [warning for warning in snapshot.warnings if "compacted" in warning and name in warning]
    assert len(tombstones(log.storage, snapshot)) == 0
    log.put("00000000000000000002.json", b"{")
    with pytest.raises(DamagedTableError, match=name):  # the first of the damages
        load_snapshot(log.storage)


def test_unknown_actions_of_a_line_are_ignored(log: RawLog) -> None:
    """Protocol: readers ignore actions and fields that they do not know; so does delta-spark."""
    lines = [
        {**PROTOCOL, "note": ["of", "whom"]},
        {**metadata(), "future": {"x": 1}, "more": [1, 2], "commitInfo": None},
        {"future": {"x": 1}},
        {"future": [1], "another": 2},
        {},
        {"add": None},
        {**add("f0"), "why": [{"a": 1}], "when": 5},
    ]
    log.put("00000000000000000000.json", b"\n".join(json.dumps(line).encode() for line in lines))
    assert paths(log) == ["f0"]
    assert load_snapshot(log.storage).protocol == Protocol.from_json(PROTOCOL["protocol"], where="")


@pytest.mark.parametrize("name", ["99999999999999999999.json", "09999999999999999999.checkpoint.parquet"])
def test_a_version_that_no_table_can_have(log: RawLog, name: str) -> None:
    commits(log, 0, 1)
    log.put(name, b"{}")
    for read in (latest_version, segment, lambda storage: segment(storage, 0), commit_files):
        with pytest.raises(DamagedTableError, match=f"{name} names a version that no table can have") as caught:
            read(log.storage)
        assert json.loads(json.dumps(caught.value.to_json()))


def test_links_to_folders_are_named(log: RawLog, tmp_path: Path) -> None:
    commits(log, 0, 1)
    place = Path(log.storage.local("_delta_log"))
    (place / "loop").symlink_to(place)
    assert load_snapshot(log.storage).warnings == (
        "_delta_log/loop is a link to a folder: dvm neither writes nor deletes in it",
    )
    (place / "00000000000000000002.json").symlink_to(tmp_path)
    with pytest.raises(DamagedTableError, match=r"2\.json is a link to a folder, where a file of the log should be"):
        load_snapshot(log.storage)


def test_commits_after_a_version(log: RawLog) -> None:
    commits(log, 0, 4)
    assert [file.start for file in commit_files(log.storage, 2)[0]] == [3, 4]
    assert commit_files(log.storage, 4) == ([], 4)
    assert [file.start for file in commit_files(log.storage)[0]] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON"),
        ('{"add": NaN}', "not JSON"),
        ("[]", "not a JSON object"),
        ('{"add": {}, "remove": {}}', "2 actions"),
        ("1", "not a JSON object"),
        ("\xff", "not JSON"),
    ],
)
def test_damage_names_the_file_and_the_line(log: RawLog, line: str, problem: str) -> None:
    log.put("00000000000000000000.json", json.dumps(PROTOCOL).encode() + b"\n\n" + line.encode("latin-1") + b"\n")
    with pytest.raises(DamagedTableError, match=rf"00000000000000000000\.json, line 3: {problem}"):
        read_commit(log.storage, 0)


def test_actions_a_line_is_not_may_be_spelt_out(log: RawLog) -> None:
    log.put("00000000000000000000.json", '{"add":null,"txn":{"appId":"a","version":1},"remove":null}\r\n  \n')
    assert read_commit(log.storage, 0) == [{"txn": {"appId": "a", "version": 1}}]


def test_protocol_and_metadata_survive_the_round_trip() -> None:
    for body in (PROTOCOL["protocol"], {"minReaderVersion": 1, "minWriterVersion": 2}):
        assert Protocol.from_json(body, where="f").to_json() == body
    body = metadata(delta__appendOnly="true")["metaData"] | {"name": "n", "description": "d"}
    assert Metadata.from_json(body, where="f").to_json() == body


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("protocol", 1),
        ("protocol", {"minReaderVersion": 1}),
        ("protocol", {"minReaderVersion": True, "minWriterVersion": 2}),
        ("protocol", {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [1]}),
        ("protocol", {"minReaderVersion": "3", "minWriterVersion": 7}),
        ("metaData", {"schemaString": "{}"}),
        ("metaData", {"id": "x", "schemaString": {}}),
        ("metaData", {"id": "x", "schemaString": "", "configuration": {"a": 1}}),
        ("metaData", {"id": "x", "schemaString": "", "partitionColumns": [1]}),
        ("metaData", {"id": "x", "schemaString": "", "format": []}),
        ("txn", {"appId": "a"}),
        ("domainMetadata", {"domain": "d", "configuration": "", "removed": "no"}),
        ("add", None),
        ("add", []),
        ("add", {"path": ""}),
        ("add", {"path": 1}),
        ("add", add("x")["add"] | {"size": "1"}),
        ("add", add("x")["add"] | {"size": 1.5}),
        ("add", add("x")["add"] | {"size": 2**70}),
        ("add", add("x")["add"] | {"size": None}),
        ("add", add("x")["add"] | {"size": -1}),
        ("add", add("x")["add"] | {"stats": {}}),
        ("add", add("x")["add"] | {"partitionValues": []}),
        ("add", add("x")["add"] | {"partitionValues": {"a": 1}}),
        ("add", add("x")["add"] | {"tags": "t"}),
        ("add", add("x")["add"] | {"deletionVector": []}),
        ("add", add("x")["add"] | {"deletionVector": {"storageType": "u"}}),
        ("add", add("x", {"storageType": "u", "pathOrInlineDv": "p", "offset": 2**40})["add"]),
        ("add", add("x", {"storageType": "u", "pathOrInlineDv": "p", "sizeInBytes": 1})["add"]),
        ("add", add("x", {"storageType": "r", "pathOrInlineDv": "p", "sizeInBytes": 1, "cardinality": 1})["add"]),
        ("add", add("x", {"storageType": "u", "pathOrInlineDv": "p", "sizeInBytes": 1, "cardinality": -1})["add"]),
        ("remove", {}),
    ],
)
def test_fields_of_the_wrong_type_are_damage(log: RawLog, kind: str, body: object) -> None:
    log.start(add("fine"))
    log.commit(1, add("fine too"), {kind: body})
    with pytest.raises(DamagedTableError) as caught:
        load_snapshot(log.storage)
    if kind != "add" or not isinstance(body, dict) or "path" not in body:
        assert "00000000000000000001.json" in str(caught.value)


def test_a_table_elsewhere_reads_the_same(log: RawLog, tmp_path: Path) -> None:
    commits(log, 0, 1)
    shutil.move(tmp_path / "a table", tmp_path / "b")
    assert load_snapshot(Storage((tmp_path / "b").as_uri())).version == 1


@pytest.mark.parametrize("version", [None, 2])
def test_a_newest_version_without_its_first_commits_is_damage(log: RawLog, version: int | None) -> None:
    """However it is asked for: no version is left to choose from."""
    commits(log, 0, 2)
    (log.log / f"{0:020d}.json").unlink()
    with pytest.raises(DamagedTableError, match=r"00000000000000000000\.json is missing"):
        load_snapshot(log.storage, version)
    with pytest.raises(UsageError, match="no longer be read"):
        load_snapshot(log.storage, 1)

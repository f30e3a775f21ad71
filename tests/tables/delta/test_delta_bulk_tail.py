"""Commits by columns against the same commits action by action, over logs of every shape that a writer may leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from support.raw_log import PROTOCOL, Action, RawLog, add, dv, metadata, remove

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log import bulk_tail, replay
from dv_maintenance.tables.delta.log.bulk import ADD_TYPES, REMOVE_TYPES
from dv_maintenance.tables.delta.log.replay import TOMBSTONE_COLUMNS
from dv_maintenance.tables.delta.log.segment import CommitFile, commit_path, parse_actions
from dv_maintenance.tables.delta.log.tail import Newer, Tail
from dv_maintenance.tables.delta.rows.files import ADD_COLUMNS

STORAGE = Storage("/a/table")
Columns = tuple[tuple[str, ...], tuple[str, ...]]
ALL: Columns = (tuple(ADD_TYPES), tuple(REMOVE_TYPES))
NEEDED: Columns = (ADD_COLUMNS, TOMBSTONE_COLUMNS)


def by_columns(commits: list[bytes], columns: Columns) -> Newer | None:
    texts = [(CommitFile(commit_path(at), at, at, 0), data) for at, data in enumerate(commits)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_tail, "read_texts", lambda *_: iter(texts))
        return bulk_tail.bulk_tail(STORAGE, [file for file, _ in texts], *columns, keyed=True)


def by_actions(commits: list[bytes], columns: Columns) -> Newer | None:
    """``None`` if the log is damaged."""
    tail = Tail(STORAGE.uri)
    try:
        for at, data in enumerate(commits):
            tail.read(parse_actions(data, where=commit_path(at), table=STORAGE.uri), commit_path(at))
        return tail.newer(*columns, keyed=True)
    except DamagedTableError:
        return None


def rows(table: pa.Table) -> list[Any]:
    maps = {field.name for field in table.schema if pa.types.is_map(field.type)}
    return [
        {name: dict(value) if name in maps and value is not None else value for name, value in row.items()}
        for row in table.to_pylist()
    ]


def assert_same(found: Newer, expected: Newer) -> None:
    assert found.adds.schema == expected.adds.schema
    assert found.removes.schema == expected.removes.schema
    assert rows(found.adds) == rows(expected.adds)
    assert rows(found.removes) == rows(expected.removes)
    for name in ("protocol", "metadata", "domains", "transactions"):
        assert getattr(found, name) == getattr(expected, name)
    assert (found.prints is None) == (expected.prints is None)
    if found.prints is not None:
        assert found.prints.tolist() == expected.prints.tolist()
    keys = [each.keys.keys.to_pylist() if each.keys else [] for each in (found, expected)]
    assert sorted(keys[0]) == sorted(keys[1])


# -- any log -----------------------------------------------------------------------------------------------------------

paths = st.sampled_from(["a", "b%20b", "p=1/c", "ü", "d\\/e", "f\t", 'g"', "%C3%BC", "x" * 70 + "1", "x" * 70 + "2"])
values = st.sampled_from(["", "1", "ü", "2024-01-01", "true"])
descriptors = st.builds(
    dv,
    st.sampled_from(["0123456789abcdefghij", "é"]),
    st.sampled_from([None, 0, 1]),
    st.integers(0, 9),
    st.sampled_from("upi"),
)
stats = st.sampled_from(['{"numRecords":5}', '{"numRecords": 6,"minValues":{"a":"é"}}', "{}", "", '{"numRecords":-1}'])
bodies = st.fixed_dictionaries(
    {"path": paths, "size": st.integers(0, 2**63 - 1), "partitionValues": st.fixed_dictionaries({"p": values})},
    optional={
        "deletionVector": st.none() | descriptors,
        "stats": st.none() | stats,
        "modificationTime": st.integers(0, 9),
        "deletionTimestamp": st.integers(0, 9),
        "dataChange": st.booleans(),
        "tags": st.none() | st.dictionaries(st.sampled_from(["t", "u"]), values, max_size=2),
        "baseRowId": st.integers(0, 9),
        "extendedFileMetadata": st.booleans(),
    },
)
# What a writer should not write, and what one may in the future.
ODD: list[Action] = [
    {"path": ""},
    {"path": None},
    {"path": 5},
    {"path": "a\0b"},
    {"path": "\ud800"},
    {"size": 1.0},
    {"size": True},
    {"size": 2**63},
    {"size": "1"},
    {"size": None},
    {"partitionValues": {"p": None}},
    {"partitionValues": {"p": 1}},
    {"partitionValues": {"q": "1"}},
    {"partitionValues": {"p": "1", "q": "2"}},
    {"partitionValues": {}},
    {"partitionValues": None},
    {"partitionValues": [["p", "1"]]},
    {"deletionVector": {}},
    {"deletionVector": {"storageType": "u"}},
    {"deletionVector": {**dv(), "maxRowIndex": 3}},
    {"deletionVector": {**dv(), "offset": 2**31}},
    {"deletionVector": {**dv(), "offset": 1.0}},
    {"deletionVector": "none"},
    {"dataChange": 1},
    {"stats": {"numRecords": 1}},
    {"later": {"than": "this"}},
]
others = st.sampled_from(
    [
        b'{"commitInfo":{"operation":"WRITE"}}',
        b'{"txn":{"appId":"a","version":3}}',
        b'{"domainMetadata":{"domain":"d","configuration":"1","removed":false}}',
        b'{"domainMetadata":{"domain":"d","configuration":"","removed":true}}',
        b'{"cdc":{"path":"_change_data/x","partitionValues":{},"size":1,"dataChange":false}}',
        json.dumps(PROTOCOL).encode(),
        json.dumps(metadata()).encode(),
        b'{"later":{"than":"this"}}',
    ]
)
BROKEN = [
    b"",
    b"  ",
    b"{}",
    b"[]",
    b"null",
    b"{",
    b"}",
    b'{"add":null}',
    b'{"add":5}',
    b'{"add":{"path":"a"},"remove":null}',
    b'{"add":{"path":"a"},"remove":{"path":"a"}}',
    b'{"add":{"path":"a"},"txn":{"appId":"a","version":3}}',
    b'{"add":{"path":"a"}}{"add":{"path":"b"}}',
    b'{"add":{"path":"a","path":"b"}}',
    b'{"add":{"path":"a"},"add":{"path":"b"}}',
    b'{"add":{"path":"a","size":-0}}',
    b'{"add":{"path":"a","size":01}}',
    b'{"add":{"path":"a","size":1e3}}',
    b'{"add":{"path":"a","size":NaN}}',
    b'{"add":{"path":"\xff"}}',
    b'{"add":{"path":"a\x01"}}',
    b'{"add":{"path":"a",}}',
    b'{ "add":{"path":"a"}}',
    b'{"add" : {"path":"a"}}',
    b'{"\\u0061dd":{"path":"a"}}',
    b'{"add":{"\\u0070ath":"a"}}',
    b'{"add":{"path":"a"}}\r',
    b'{"add":\n{"path":"a"}}',
    b'{"removes":{"path":"a"}}',
    b'{"add":{"path":"a"}} // b',
]


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    match draw(st.sampled_from(["bulk"] * 30 + ["odd", "other", "other", "broken"])):
        case "other":
            return draw(others)
        case "broken":
            return draw(st.sampled_from(BROKEN))
        case how:
            body = draw(bodies) | (draw(st.sampled_from(ODD)) if how == "odd" else {})
            compact = draw(st.sampled_from([(",", ":"), None]))
            text = json.dumps({draw(st.sampled_from(["add", "remove"])): body}, separators=compact)
            return text.encode()


commits = st.lists(
    st.builds(lambda some, end: b"\n".join(some) + end, st.lists(lines(), max_size=8), st.sampled_from([b"", b"\n"])),
    min_size=1,
    max_size=4,
)


@settings(max_examples=examples(150))
@given(commits, st.sampled_from([1, 300, 1 << 20]), st.sampled_from([ALL, NEEDED, ((), TOMBSTONE_COLUMNS)]))
def test_columns_say_what_actions_say_or_nothing(data: list[bytes], chunk: int, columns: Columns) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_tail, "_CHUNK", chunk)
        expected, found = by_actions(data, columns), by_columns(data, columns)
        if found is not None:
            assert expected is not None, "the log is damaged"
            assert_same(found, expected)


def test_one_odd_line_among_many() -> None:
    """Arrow's parser learns what to expect from a few lines, and must not misread another one."""
    usual = [json.dumps(add(f"f{at}", partitionValues={"p": "1"})).encode() for at in range(9)]
    lines_ = [
        json.dumps({kind: {"path": "g", "partitionValues": {"p": "2"}, **each}}).encode()
        for each in ODD
        for kind in ("add", "remove")
    ]
    for line in [*BROKEN, *lines_]:
        data = [b"\n".join([*usual[:2], line, *usual[2:]])]
        for columns in (ALL, NEEDED):
            expected, found = by_actions(data, columns), by_columns(data, columns)
            if found is not None:
                assert expected is not None, line
                assert_same(found, expected)


# -- logs as writers write them ----------------------------------------------------------------------------------------

plain = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b%20b", "ü"]), st.sampled_from([None, 0, 1])), st.booleans(), max_size=6
)


@settings(max_examples=examples(50))
@given(st.lists(plain, min_size=1, max_size=5), st.sampled_from([1, 300, 1 << 20]), st.booleans())
def test_usual_logs_are_read_by_columns(history: list[Any], chunk: int, spaces: bool) -> None:
    data = [json.dumps(metadata(partitions=("p",))).encode()]
    for version, changes in enumerate(history):
        actions = [{"commitInfo": {"operation": "MERGE"}}]
        for (path, offset), live in changes.items():
            descriptor = None if offset is None else dv(offset=offset)
            more = {"partitionValues": {"p": str(version)}, "tags": None}
            actions.append((add if live else remove)(path, descriptor, size=version, **more))
        data.append(
            b"\n".join(json.dumps(each, separators=None if spaces else (",", ":")).encode() for each in actions)
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_tail, "_CHUNK", chunk)
        patch.setattr(bulk_tail._Read, "_take_slowly", None)
        expected, found = by_actions(data, NEEDED), by_columns(data, NEEDED)
        assert found is not None
        assert expected is not None
        assert_same(found, expected)


def test_partition_values_of_any_spelling_are_kept() -> None:
    """A null value, a missing one and other columns than before: the lines are read one by one, the rest by columns."""
    maps: list[Any] = [{"p": "1", "q": "2"}] * 3 + [{"p": None, "q": "2"}, {"q": "3"}, {"r": "1"}, {}]
    for chosen in (maps, maps[:-2], [{"p": "1"}, {"p": None}, {}, {"p": "2"}]):
        data = [json.dumps(add(f"f{number}", partitionValues=each)).encode() for number, each in enumerate(chosen)]
        found = by_columns(data, NEEDED)
        assert found is not None
        assert [row["partitionValues"] for row in rows(found.adds)] == chosen


def test_a_damaged_commit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "BULK", 0)
    log = RawLog(tmp_path)
    log.start(add("a"))
    log.put(f"{1:020d}.json", b'{"add":{"path":"b"}}\n{"add":')
    with pytest.raises(DamagedTableError, match=r"00001\.json, line 2: not JSON"):
        load_snapshot(log.storage)


def test_large_logs_are_read_by_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of more than ``BULK`` bytes makes no object per action."""
    log = RawLog(tmp_path)
    log.start(*(add(f"part-{number:05d}-{'x' * 200}.parquet") for number in range(4000)))
    monkeypatch.setattr(replay, "read_commits", None)
    assert load_snapshot(log.storage).files.num_rows == 4000


def test_after_a_checkpoint_smaller_commits_are_read_by_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those are parsed while the checkpoint is decoded."""
    log = RawLog(tmp_path)
    log.start(add("a"), add("b"))
    log.commit(1, remove("a"), *(add(f"part-{number:03d}-{'x' * 200}.parquet") for number in range(60)))
    expected = load_snapshot(log.storage).files
    log.parquet(f"{0:020d}.checkpoint.parquet", PROTOCOL, metadata(), add("a"), add("b"))
    log.put("_last_checkpoint", '{"version":0,"size":4}')
    monkeypatch.setattr(replay, "read_commits", None)
    assert load_snapshot(log.storage).files.equals(expected)


def test_a_large_commit_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts end anywhere, even before the first line does."""
    log = RawLog(tmp_path)
    log.start(add("a"), *(add(f"part-{number:05d}-{'x' * number}") for number in range(60)), add("b"))
    log.commit(1, remove("a"))
    log.commit(2, *(add(f"more-{number}") for number in range(30)))
    expected = load_snapshot(log.storage).files
    monkeypatch.setattr(replay, "BULK", 0)
    monkeypatch.setattr(replay, "read_commits", None)
    for size in (100, 1000, 1001, log.storage.head(commit_path(0)).size - 1):
        monkeypatch.setattr(bulk_tail, "_PART", size)
        assert load_snapshot(log.storage).files.equals(expected)

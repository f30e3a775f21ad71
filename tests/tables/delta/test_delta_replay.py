"""Reconciliation against a plain model, and the small vectorised pieces under it."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from support.raw_log import PROTOCOL, Action, RawLog, add, dv, metadata, remove

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.arrays import int64s, strings
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.columns import maps, num_records
from dv_maintenance.tables.delta.log.fingerprints import fingerprints
from dv_maintenance.tables.delta.log.replay import full_state, tombstones
from dv_maintenance.tables.delta.rows.files import duplicate_paths

Key = tuple[str, int | None]

keys: st.SearchStrategy[Key] = st.tuples(st.sampled_from(["a", "b b", "ü%20"]), st.sampled_from([None, 1, 2]))
commit = st.dictionaries(keys, st.booleans(), max_size=5)


def action(key: Key, is_add: bool, stamp: int) -> Action:
    path, cardinality = key
    descriptor = None if cardinality is None else dv(rows=cardinality, offset=cardinality)
    return add(path, descriptor, size=stamp) if is_add else remove(path, descriptor, at=stamp)


@settings(max_examples=examples(25))
@given(st.lists(commit, min_size=1, max_size=6), st.data())
def test_newest_action_about_a_key_wins(history: list[dict[Key, bool]], data: st.DataObject) -> None:
    checkpoint = data.draw(st.none() | st.integers(0, len(history) - 1), "checkpoint after commit")
    with tempfile.TemporaryDirectory() as folder:
        log = RawLog(Path(folder))
        model: dict[Key, tuple[bool, int]] = {}
        for version, changes in enumerate(history):
            stamp = version + 1
            start = [PROTOCOL, metadata()] if version == 0 else []
            log.commit(version, *start, *(action(key, kind, stamp) for key, kind in changes.items()))
            model.update({key: (kind, stamp) for key, kind in changes.items()})
            if checkpoint == version:
                held = [action(key, kind, at) for key, (kind, at) in model.items()]
                log.parquet(f"{version:020d}.checkpoint.parquet", PROTOCOL, *held, metadata())
        snapshot = load_snapshot(log.storage)
        assert snapshot.segment.checkpoint_version == checkpoint
        ids = {None: None, **{n: f"u0123456789abcdefghij@{n}" for n in (1, 2)}}
        live = {(path, ids[n], at) for (path, n), (kind, at) in model.items() if kind}
        dead = {(path, ids[n], at) for (path, n), (kind, at) in model.items() if not kind}
        files = snapshot.files.select(["path", "dv_id", "size"]).to_pylist()
        assert {(row["path"], row["dv_id"], row["size"]) for row in files} == live
        assert len(files) == len(live)
        gone = tombstones(log.storage, snapshot).to_pylist()
        assert {(row["path"], row["dv_id"], row["deletion_timestamp"]) for row in gone} == dead
        assert len(gone) == len(dead)
        often = {path for path, times in Counter(path for path, _, _ in live).items() if times > 1}
        assert set(snapshot.duplicate_paths) == often


@pytest.fixture
def log(tmp_path: Path) -> RawLog:
    return RawLog(tmp_path)


def test_one_commit_that_adds_and_removes_one_key_has_no_meaning(log: RawLog) -> None:
    log.start(add("a"))
    log.commit(1, add("a"), remove("a"))
    with pytest.raises(DamagedTableError, match="both adds and removes a"):
        load_snapshot(log.storage)


def test_an_add_and_a_remove_of_one_path_with_other_dvs(log: RawLog) -> None:
    log.start(add("a"))
    log.commit(1, add("a", dv()), remove("a"))
    log.commit(2, remove("a", dv()), add("a", dv(offset=0)))
    log.commit(3, remove("a", dv(offset=None)))  # offset 0 and no offset are different ids
    assert load_snapshot(log.storage).files["dv_id"].to_pylist() == ["u0123456789abcdefghij@0"]


def test_tombstones_in_full(log: RawLog) -> None:
    log.start(add("a", dv()), add("b"), add("c"))
    log.commit(
        1,
        remove("a", dv(), size=5, dataChange=False),
        {"remove": {"path": "b", "dataChange": True}},
        {"remove": {"path": "deletion_vector_x.bin", "deletionTimestamp": 3, "dataChange": False}},
    )
    log.commit(2, add("b"))
    rows = tombstones(log.storage, load_snapshot(log.storage)).to_pylist()
    assert rows == [
        {
            "path": "a",
            "dv_id": "u0123456789abcdefghij@1",
            "dv": {
                "storage_type": "u",
                "path_or_inline": "0123456789abcdefghij",
                "offset": 1,
                "size": 34,
                "cardinality": 1,
            },
            "deletion_timestamp": 9,
            "size": 5,
            "data_change": False,
        },
        {
            "path": "deletion_vector_x.bin",
            "dv_id": None,
            "dv": None,
            "deletion_timestamp": 3,
            "size": None,
            "data_change": False,
        },
    ]
    before = tombstones(log.storage, load_snapshot(log.storage, 1)).to_pylist()
    assert [row["deletion_timestamp"] for row in before] == [9, 0, 3]


def test_small_actions_keep_their_newest(log: RawLog) -> None:
    def domain(name: str, text: str, removed: bool = False) -> Action:
        return {"domainMetadata": {"domain": name, "configuration": text, "removed": removed}}

    def txn(app: str, version: int) -> Action:
        return {"txn": {"appId": app, "version": version}}

    log.parquet(
        "00000000000000000000.checkpoint.parquet", PROTOCOL, metadata(), domain("a", "1"), domain("b", "1"), txn("x", 1)
    )
    log.commit(1, domain("a", "2"), domain("c", "1"), txn("y", 5))
    log.commit(2, domain("b", "", True), txn("x", 2), metadata(delta__appendOnly="true"), {"unknown": 1})
    state = full_state(log.storage, load_snapshot(log.storage))
    assert state.domains == {"a": "2", "c": "1"}
    assert {app: txn.version for app, txn in state.transactions.items()} == {"x": 2, "y": 5}
    assert state.metadata.configuration == {"delta.appendOnly": "true"}


# -- columns -----------------------------------------------------------------------------------------------------

numbers = st.integers(0, 2**63 - 1) | st.integers(0, 99)
tails = st.sampled_from(["}", ',"minValues":{"a":"é"}}', ',"tightBounds":false}', " }", ".5}", "e3}", "x}", ""])
stats = st.one_of(
    st.none(),
    st.builds(lambda number, tail: f'{{"numRecords":{number}{tail}', numbers, tails),
    st.builds(lambda number: json.dumps({"tightBounds": True, "numRecords": number}), numbers | st.integers()),
    st.text(max_size=30),
    st.sampled_from(["", "{}", "null", "[]", '{"numRecords":}', '{"numRecords":-1}', '{"numRecords":"1"}', "{"]),
)


def parsed(text: str | None) -> int | None:
    try:
        count = json.loads(text or "null")["numRecords"]
    except (ValueError, TypeError, KeyError):
        return None
    return count if type(count) is int and 0 <= count < 2**63 else None


@settings(max_examples=examples(60))
@given(st.lists(stats, max_size=12), st.integers(0, 3), st.integers(0, 12))
def test_num_records_is_what_json_says(texts: list[str | None], start: int, length: int) -> None:
    column = strings(texts).slice(start, length)
    # The fast path reads a number and what ends it, and leaves the rest of the text unread.
    expected = [
        int(text[14:].split(",")[0]) if text and parsed(text) is None and _cut(text) else parsed(text)
        for text in texts[start:][:length]
    ]
    assert num_records(column).to_pylist() == expected


def test_a_number_is_not_ended_by_the_text_after_it() -> None:
    """After truncated statistics, the next string must not begin with a comma or a brace."""
    assert num_records(strings(['{"numRecords":7', "}" + "x" * 20])).to_pylist() == [None, None]


def _cut(text: str) -> bool:
    head = text[14:].split(",", maxsplit=1)[0]
    return text.startswith('{"numRecords":') and "," in text and head.isascii() and head.isdigit() and len(head) < 16


@given(st.lists(st.text(alphabet="ab/é", max_size=12) | st.text("ab", min_size=20, max_size=60), max_size=12))
def test_duplicate_paths_are_all_found(paths: list[str]) -> None:
    chunks = [strings(paths[:5]).slice(1), strings(paths[5:])]
    column = pa.chunked_array(chunks, pa.string())
    expected = {path for path, times in Counter(column.to_pylist()).items() if times > 1}
    found = duplicate_paths(column, fingerprints(column))
    assert bool(found) == bool(expected)
    assert set(found) <= expected


@given(st.lists(st.none() | st.text(max_size=5)), st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_arrays_from_buffers(texts: list[str | None], integers: list[int | None]) -> None:
    assert strings(texts).to_pylist() == texts
    strings(texts).validate(full=True)
    assert int64s(integers).to_pylist() == integers


def test_maps_from_buffers() -> None:
    values = [{"a": "1", "b": None}, None, {}, {"": ""}]
    array = maps(values)
    array.validate(full=True)
    assert [value if value is None else dict(value) for value in array.to_pylist()] == values


@pytest.mark.parametrize(
    ("build", "values"),
    [(strings, [0]), (strings, [b"x"]), (int64s, [True]), (int64s, ["1"]), (maps, [[]]), (maps, [{"a": 1}])],
)
def test_arrays_refuse_other_types(build: object, values: list[object]) -> None:
    with pytest.raises(TypeError):
        build(values)

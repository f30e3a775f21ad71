from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.tables.delta.commit.conflicts import Since, layout_change, lost_replacements
from dv_maintenance.tables.delta.log.actions import Metadata, Protocol
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.table import Replacement

PATHS = ("a", "b c", "d%25e")
DVS = (None, "one", "two")
State = dict[str, str | None]  # live path -> name of its DV


def descriptor(name: str | None) -> dict[str, Any] | None:
    body = {"storageType": "u", "pathOrInlineDv": f"{name:_>20}", "offset": 1, "sizeInBytes": 34, "cardinality": 2}
    return None if name is None else body


def key(path: str, dv: str | None) -> FileKey:
    return FileKey(path, None if dv is None else f"u{dv:_>20}@1")


def action(kind: str, path: str, dv: str | None) -> dict[str, Any]:
    body: dict[str, Any] = {"path": path, "dataChange": True}
    return {kind: body if dv is None else {**body, "deletionVector": descriptor(dv)}}


states = st.dictionaries(st.sampled_from(PATHS), st.sampled_from(DVS))


@st.composite
def commits(draw: st.DrawFn, before: State, after: State) -> list[dict[str, Any]]:
    """A legal commit that leads from one state to the other, its actions in any order."""
    actions = []
    for path in PATHS:
        if path in before and (path not in after or before[path] != after[path]):
            actions.append(action("remove", path, before[path]))
        if path in after and (path not in before or before[path] != after[path] or draw(st.booleans())):
            actions.append(action("add", path, after[path]))  # re-adding the very key is legal, too
    return draw(st.permutations(actions))


def replay(log: list[list[dict[str, Any]]]) -> set[FileKey]:
    """The naive model: the whole log from the start, commit by commit."""
    live: set[FileKey] = set()
    for commit in log:
        for kind in ("remove", "add"):
            for body in (one[kind] for one in commit if kind in one):
                dv = body.get("deletionVector")
                found = FileKey(body["path"], dv and f"u{dv['pathOrInlineDv']}@{dv['offset']}")
                live = live | {found} if kind == "add" else live - {found}
    return live


def since(*log: list[dict[str, Any]]) -> Since:
    found = Since(7, str)
    for commit in log:
        found.absorb(commit, where="commit")
    return found


@settings(max_examples=examples(60))
@given(st.data(), st.lists(states, min_size=1, max_size=6))
def test_a_replacement_stays_exactly_while_all_its_inputs_are_live(data: st.DataObject, history: list[State]) -> None:
    log = [data.draw(commits(before, after)) for before, after in zip([{}, *history], history, strict=False)]
    base = replay(log[:1])
    keys = st.lists(st.sampled_from([key(path, dv) for path in PATHS for dv in DVS]), min_size=1, unique=True)
    replacements = [Replacement(str(n), "", tuple(data.draw(keys))) for n in range(3)]
    lost = lost_replacements(replacements, base, since(*log[1:]))
    now = replay(log)
    for replacement in replacements:
        # An input that was not live at the base is lost even if it is back: nobody has read it there.
        stays = set(replacement.inputs) <= base & now
        assert (replacement.id not in lost) == stays


@settings(max_examples=examples(60))
@given(st.data(), st.lists(states, min_size=2, max_size=5))
def test_what_is_gone_and_added_is_what_a_replay_finds(data: st.DataObject, history: list[State]) -> None:
    log = [data.draw(commits(before, after)) for before, after in zip([{}, *history], history, strict=False)]
    found = since(*log[1:])
    assert found.version == 7 + len(log) - 1
    base, now = replay(log[:1]), replay(log)
    assert base - now <= found.gone
    assert not found.gone & now
    assert {one.path for one in now - base} <= found.added


def test_paths_are_compared_as_files_not_as_spellings() -> None:
    found = Since(0, unquote)
    found.absorb([action("remove", "p=a%20b/x.parquet", None)], where="commit")
    inputs = (FileKey("p=a b/x.parquet"),)
    assert "removed p=a b/x.parquet" in lost_replacements([Replacement("r", "", inputs)], set(inputs), found)["r"]


def test_another_dv_of_the_same_path_is_another_file() -> None:
    found = since([action("remove", "a", "one"), action("add", "a", "two")])
    old, new = Replacement("old", "", (key("a", "one"),)), Replacement("new", "", (key("a", "two"),))
    assert set(lost_replacements([old, new], {key("a", "one"), key("a", "two")}, found)) == {"old"}


def test_an_absent_offset_is_another_dv_than_zero() -> None:
    body = {"storageType": "u", "pathOrInlineDv": "x" * 20, "sizeInBytes": 1, "cardinality": 1}
    absent = since([{"remove": {"path": "a", "deletionVector": body}}])
    zero = since([{"remove": {"path": "a", "deletionVector": {**body, "offset": 0}}}])
    assert absent.gone == {FileKey("a", "u" + "x" * 20)}
    assert zero.gone == {FileKey("a", "u" + "x" * 20 + "@0")}


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        "a",
        {},
        {"path": None},
        {"path": 3},
        {"path": "a", "deletionVector": "x"},
        {"path": "a", "deletionVector": {"storageType": "u", "pathOrInlineDv": "x", "offset": "1"}},
    ],
)
@pytest.mark.parametrize("kind", ["add", "remove"])
def test_malformed_actions_are_damage(kind: str, body: Any) -> None:
    with pytest.raises(DamagedTableError, match="the-commit"):
        Since(0, str).absorb([{kind: body}], where="the-commit")


def test_in_commit_timestamp_is_that_of_the_last_commit() -> None:
    first, second = [{"commitInfo": {"inCommitTimestamp": 10}}], [{"commitInfo": {"timestamp": 11}}]
    assert since(first).in_commit_timestamp == 10
    assert since(first, second).in_commit_timestamp is None


# -- layout ------------------------------------------------------------------------------------------------------

PROTOCOL = Protocol(3, 7, frozenset({"deletionVectors"}), frozenset({"deletionVectors"}))


def field(name: str, type: Any = "long", **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": type, "nullable": True, "metadata": metadata}


def metadata(*fields: dict[str, Any], **changes: Any) -> Metadata:
    schema = json.dumps({"type": "struct", "fields": fields or [field("id")]})
    return Metadata(**{"id": "t", "schema_string": schema, "configuration": {"delta.appendOnly": "false"}, **changes})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (metadata(), metadata(configuration={"delta.appendOnly": "true", "delta.checkpointInterval": "5"})),
        (metadata(), metadata(name="renamed", description="text")),
        (metadata(), metadata(field("id", comment="now with a comment"))),
        (
            metadata(field("id", **{"delta.identity.highWaterMark": 1})),
            metadata(field("id", **{"delta.identity.highWaterMark": 9})),
        ),
        (metadata(), metadata(configuration={"delta.columnMapping.mode": "none"})),
        (
            metadata(field("s", {"type": "struct", "fields": [field("x")]})),
            metadata(field("s", {"type": "struct", "fields": [field("x", comment="inner")]})),
        ),
    ],
)
def test_changes_that_no_data_file_notices(old: Metadata, new: Metadata) -> None:
    found = since([{"metaData": new.to_json()}])
    assert found.metadata == new
    assert layout_change(PROTOCOL, old, found) is None


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (metadata(), metadata(field("id"), field("more")), "schema"),
        (metadata(), metadata(field("id", "string")), "schema"),
        (metadata(), metadata({**field("id"), "nullable": False}), "schema"),
        (metadata(field("metadata")), metadata(field("metadata", "string")), "schema"),
        (metadata(), metadata(field("id", **{"delta.columnMapping.physicalName": "x"})), "schema"),
        (metadata(), metadata(partition_columns=("id",)), "partition columns"),
        (metadata(), metadata(id="other"), "replaced the table"),
        (metadata(), metadata(configuration={"delta.columnMapping.mode": "name"}), "column mapping"),
        (metadata(), metadata(schema_string="{"), "schema"),
    ],
)
def test_changes_that_make_new_files_unfit(old: Metadata, new: Metadata, reason: str) -> None:
    assert reason in (layout_change(PROTOCOL, old, since([{"metaData": new.to_json()}])) or "")


@pytest.mark.parametrize(("feature", "lost"), [("rowTracking", True), ("columnMapping", True), ("appendOnly", False)])
def test_features_that_files_must_have_been_written_for(feature: str, lost: bool) -> None:
    new = Protocol(3, 7, frozenset({"deletionVectors"}), frozenset({"deletionVectors", feature}))
    change = layout_change(PROTOCOL, metadata(), since([{"protocol": new.to_json()}]))
    assert (change is not None) == lost
    assert not lost or feature in str(change)


def test_a_feature_that_was_there_before_is_no_change() -> None:
    mapped = Protocol(2, 5)
    new = Protocol(3, 7, frozenset({"columnMapping"}), frozenset({"columnMapping", "appendOnly", "invariants"}))
    assert layout_change(mapped, metadata(), since([{"protocol": new.to_json()}])) is None

"""Checkpoints of every kind hold the same state."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from support.raw_log import ADD, CHECKPOINT, PROTOCOL, Action, RawLog, add, dv, metadata, remove

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.bulk import ADD_TYPES, REMOVE_TYPES
from dv_maintenance.tables.delta.log.checkpoint import read_checkpoint
from dv_maintenance.tables.delta.log.parsed_stats import to_json
from dv_maintenance.tables.delta.log.replay import full_state, tombstones
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot

V2 = "00000000000000000001.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11"
TXN: Action = {"txn": {"appId": "app", "version": 3, "lastUpdated": 4}}
DOMAIN: Action = {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}}
SMALL = [PROTOCOL, metadata(delta__appendOnly="true"), TXN, DOMAIN]
BULK = [
    add("plain", tags={"k": "v"}),
    add("with-dv", dv(rows=4), rows=20),
    add("inline", dv("wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", None, 6, "i"), rows=9),
    remove("gone", dv("gone5678901234567890", 1)),
    remove("gone too"),
]


def sidecars(log: RawLog) -> list[Action]:
    log.parquet("_sidecars/one.parquet", *BULK[:1])
    log.parquet("_sidecars/two 2.parquet", *BULK[1:])
    names = ("one.parquet", "file:/somewhere/else/_delta_log/_sidecars/two%202.parquet")
    return [{"sidecar": {"path": name, "sizeInBytes": 1, "modificationTime": 1}} for name in names]


def classic(log: RawLog) -> None:
    log.parquet("00000000000000000001.checkpoint.parquet", *SMALL, *BULK)


def multipart(log: RawLog) -> None:
    for part, actions in enumerate([SMALL[:1], BULK[2:], SMALL[1:] + BULK[:2]], 1):
        log.parquet(f"00000000000000000001.checkpoint.{part:010d}.0000000003.parquet", *actions)


def v2_parquet(log: RawLog) -> None:
    log.parquet(f"{V2}.parquet", *SMALL, *sidecars(log))


def v2_json(log: RawLog) -> None:
    log.json(f"{V2}.json", {"checkpointMetadata": {"version": 1}}, *SMALL, *sidecars(log))


def v2_without_sidecars(log: RawLog) -> None:
    log.json(f"{V2}.json", {"checkpointMetadata": {"version": 1}}, *SMALL, *BULK)


def v2_under_a_classic_name(log: RawLog) -> None:
    log.parquet("00000000000000000001.checkpoint.parquet", *SMALL, *sidecars(log))


KINDS = [classic, multipart, v2_parquet, v2_json, v2_without_sidecars, v2_under_a_classic_name]


@pytest.fixture
def log(tmp_path: Path) -> RawLog:
    return RawLog(tmp_path)


def state(snapshot: DeltaSnapshot) -> tuple[object, ...]:
    files = snapshot.files.drop_columns(["partition"]).sort_by("path").to_pylist()
    return files, snapshot.metadata, snapshot.protocol, snapshot.domains, snapshot.transactions


@pytest.fixture
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """The same actions as plain commits."""
    log = RawLog(tmp_path_factory.mktemp("json"))
    log.commit(0, *SMALL)
    log.commit(1, *BULK)
    return state(load_snapshot(log.storage))


@pytest.mark.parametrize("write", KINDS)
def test_every_kind_of_checkpoint_holds_the_state_of_the_commits(
    log: RawLog, expected: tuple[object, ...], write: object
) -> None:
    write(log)
    log.commit(1)
    snapshot = load_snapshot(log.storage)
    assert snapshot.segment.checkpoint_version == 1
    assert state(snapshot) == expected
    gone = tombstones(log.storage, snapshot).sort_by("path").to_pylist()
    assert [(row["path"], row["dv_id"]) for row in gone] == [("gone", "ugone5678901234567890@1"), ("gone too", None)]


@pytest.mark.parametrize("write", KINDS)
def test_full_state_has_every_field(log: RawLog, write: object) -> None:
    write(log)
    whole = full_state(log.storage, load_snapshot(log.storage))
    assert whole.adds.column_names == [name for name in ADD_TYPES if name != "numRecords"]
    assert whole.removes.column_names == list(REMOVE_TYPES)
    rows = {row["path"]: row for row in whole.adds.to_pylist()}
    assert json.loads(rows["with-dv"]["stats"]) == {"numRecords": 20}
    assert rows["plain"]["tags"] == [("k", "v")]
    assert rows["plain"]["deletionVector"] is None
    assert rows["inline"]["deletionVector"]["offset"] is None
    assert rows["plain"]["dataChange"] is True
    assert whole.removes.sort_by("path")["deletionTimestamp"].to_pylist() == [9, 9]


def struct_stats(*fields: tuple[str, pa.DataType]) -> dict[str, pa.DataType]:
    return {"add": pa.struct([*ADD, ("stats_parsed", pa.struct([("numRecords", pa.int64()), *fields]))])}


def test_rows_from_struct_statistics_with_gaps(log: RawLog) -> None:
    log.parquet(
        "00000000000000000001.checkpoint.parquet",
        *SMALL,
        add("struct", rows=None, stats_parsed={"numRecords": 5}),
        add("json", rows=6),
        add("both", rows=7, stats_parsed={"numRecords": 7}),
        add("neither", rows=None),
        types=struct_stats(),
    )
    files = load_snapshot(log.storage).files
    assert dict(zip(files["path"].to_pylist(), files["physical_rows"].to_pylist(), strict=True)) == {
        "struct": 5,
        "json": 6,
        "both": 7,
        "neither": None,
    }
    stats = full_state(log.storage, load_snapshot(log.storage)).adds["stats"].to_pylist()
    assert [text and json.loads(text) for text in stats] == [
        {"numRecords": 5},
        {"numRecords": 6},
        {"numRecords": 7},
        None,
    ]


def test_struct_statistics_alone(log: RawLog) -> None:
    fields = [field for field in ADD if field[0] != "stats"]
    parsed = ("stats_parsed", pa.struct([("numRecords", pa.int64())]))
    rows = [add("a", rows=None, stats_parsed={"numRecords": 5}), add("b", rows=None, stats_parsed={"numRecords": 6})]
    log.parquet("00000000000000000001.checkpoint.parquet", *SMALL, *rows, types={"add": pa.struct([*fields, parsed])})
    assert load_snapshot(log.storage).files["physical_rows"].to_pylist() == [5, 6]


def test_struct_statistics_as_json() -> None:
    kinds = pa.struct(
        [
            ("d", pa.date32()),
            ("t", pa.timestamp("us", "UTC")),
            ("n", pa.timestamp("us")),
            ("x", pa.decimal128(20, 2)),
            ("f", pa.float64()),
            ("b", pa.binary()),
            ("s", pa.struct([("i", pa.int32()), ("none", pa.string())])),
        ]
    )
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    values = {
        "d": date(2026, 1, 2),
        "t": moment,
        "n": moment.replace(tzinfo=None),
        "x": Decimal("123456789012345678.90"),
        "f": float("-inf"),
        "b": b"x",
        "s": {"i": 1, "none": None},
    }
    parsed = pa.array(
        [{"numRecords": 1, "minValues": values}, None], pa.struct([("numRecords", pa.int64()), ("minValues", kinds)])
    )
    text, nothing = to_json(parsed).to_pylist()
    assert nothing is None
    assert '"x":123456789012345678.90' in text
    assert orjson.loads(text)["minValues"] == {
        "d": "2026-01-02",
        "t": "2026-01-02T03:04:05.678901Z",
        "n": "2026-01-02T03:04:05.678901",
        "x": 123456789012345678.90,
        "f": "-Infinity",
        "s": {"i": 1},
    }


def test_bounds_of_old_dates_are_left_out_of_struct_statistics() -> None:
    """What they stand for hangs on the calendar, and Python need not have them: 0001-01-01 as Spark 2 wrote it."""
    kinds = pa.struct([("d", pa.date32()), ("t", pa.timestamp("us", "UTC"))])

    def bounds(days: list[int], micros: list[int]) -> pa.StructArray:
        dates = pa.array(days, pa.int32()).view(pa.date32())
        return pa.StructArray.from_arrays([dates, pa.array(micros).view(kinds.field("t").type)], fields=list(kinds))

    least, most = bounds([-719_164, -141_427], [-(1 << 62), -2_208_988_800_000_000]), bounds([0, 0], [0, 0])
    parsed = pa.StructArray.from_arrays([least, most], ["minValues", "maxValues"])
    old, new = (orjson.loads(text)["minValues"] for text in to_json(parsed).to_pylist())
    assert old == {}
    assert new == {"d": "1582-10-15", "t": "1900-01-01T00:00:00.000000Z"}


def test_only_asked_for_columns_are_read(log: RawLog) -> None:
    classic(log)
    found = read_checkpoint(log.storage, ["_delta_log/00000000000000000001.checkpoint.parquet"], {"add": ("size",)})
    assert found.bulk["add"][0].column_names == ["size"]
    assert not found.bulk["remove"]


def test_narrow_and_large_types_are_converted(log: RawLog) -> None:
    types = {name: kind for name, kind in ADD if name in {"partitionValues", "modificationTime", "dataChange"}}
    odd = pa.struct([("path", pa.large_string()), ("size", pa.int32()), ("stats", pa.large_string()), *types.items()])
    log.parquet("00000000000000000001.checkpoint.parquet", *SMALL, add("a"), types={"add": odd})
    files = load_snapshot(log.storage).files
    assert files.select(["path", "size", "physical_rows"]).to_pylist() == [
        {"path": "a", "size": 100, "physical_rows": 10}
    ]


def damaged(log: RawLog) -> list[Path]:
    classic(log)
    return [log.put("00000000000000000001.checkpoint.parquet", b"PAR1 not really PAR1")]


def cut(log: RawLog) -> list[Path]:
    file = log.parquet("00000000000000000001.checkpoint.parquet", *SMALL, *BULK)
    file.write_bytes(file.read_bytes()[:-9])
    return [file]


def empty(log: RawLog) -> list[Path]:
    return [log.put("00000000000000000001.checkpoint.parquet", b"")]


def lost_sidecar(log: RawLog) -> list[Path]:
    v2_json(log)
    (log.log / "_sidecars" / "one.parquet").unlink()
    return [log.log / "_sidecars" / "one.parquet"]


def nameless(log: RawLog) -> list[Path]:
    return [
        log.parquet(
            "00000000000000000001.checkpoint.parquet",
            *SMALL,
            {"add": {"size": 1}},
            types={"add": CHECKPOINT["add"]},
        )
    ]


@pytest.mark.parametrize("harm", [damaged, cut, empty, lost_sidecar, nameless])
def test_an_unreadable_checkpoint(log: RawLog, harm: object) -> None:
    [file] = harm(log)
    log.hint(1)
    log.commit(1, add("one"))
    with pytest.raises(DamagedTableError, match=file.name):
        load_snapshot(log.storage)
    # With all commits at hand the checkpoint is a convenience.
    log.start(add("zero"))
    snapshot = load_snapshot(log.storage)
    assert snapshot.files["path"].to_pylist() == ["zero", "one"]
    assert any(file.name in warning for warning in snapshot.warnings)
    assert snapshot.segment.checkpoint_version is None


def test_dead_keys_of_a_checkpoint(log: RawLog) -> None:
    """Commits touch the path of a file, and only its exact key dies."""
    classic(log)
    log.commit(1)
    log.commit(2, remove("with-dv"), remove("plain", dv()), remove("inline", dv("other", None, 6, "i")))
    assert sorted(load_snapshot(log.storage).files["path"].to_pylist()) == ["inline", "plain", "with-dv"]
    log.commit(3, remove("with-dv", dv(rows=99)), remove("plain"))
    assert load_snapshot(log.storage).files["path"].to_pylist() == ["inline"]

from __future__ import annotations

import decimal
import json
import os
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.readers import READERS, with_deltalake

from dv_maintenance.errors import UsageError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.segment import read_commit
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("id", pa.int64())])


def build(place: Path, rows: int = 100, files: int = 2, **options: Any) -> DeltaBuilder:
    builder = DeltaBuilder(str(place)).create(SCHEMA, **options)
    builder.append(pa.table({"id": range(rows)}, schema=SCHEMA), files=files)
    return builder


def below(limit: int) -> Any:
    return lambda rows: pc.less(rows["id"], limit)


def actions(builder: DeltaBuilder, version: int, kind: str) -> list[dict[str, Any]]:
    return [action[kind] for action in read_commit(builder.storage, version) if kind in action]


@pytest.mark.parametrize("style", ["file", "inline", "absolute"])
def test_every_style_is_a_dv_to_every_reader(tmp_path: Path, style: Any) -> None:
    builder = build(tmp_path)
    assert builder.delete(below(10), style=style) == 2
    assert builder.delete(lambda rows: pc.equal(rows["id"], 99), style=style) == 3
    assert builder.delete(below(12), style=style) == 4
    for read in READERS.values():
        assert sorted(read(tmp_path)["id"].to_pylist()) == list(range(12, 99))
    files = load_snapshot(builder.storage).files
    assert sorted(files["deleted_rows"].to_pylist()) == [1, 12]
    assert {dv[0] for dv in files["dv_id"].to_pylist()} == {style[0].replace("f", "u").replace("a", "p")}


def test_a_delete_as_the_log_shows_it(tmp_path: Path) -> None:
    builder = build(tmp_path, files=3)
    builder.delete(below(40))  # the first file wholly (34 rows), six rows of the second
    builder.delete(below(41))
    removes, adds = actions(builder, 2, "remove"), actions(builder, 2, "add")
    assert (len(removes), len(adds)) == (2, 1)
    assert all(action["dataChange"] for action in removes + adds)
    assert not any("deletionVector" in remove for remove in removes)
    assert json.loads(adds[0]["stats"])["tightBounds"] is False
    assert json.loads(adds[0]["stats"])["numRecords"] == 34
    metrics = actions(builder, 2, "commitInfo")[0]["operationMetrics"]
    assert (metrics["numDeletedRows"], metrics["numRemovedFiles"], metrics["numDeletionVectorsAdded"]) == (
        "40",
        "1",
        "1",
    )
    assert actions(builder, 3, "remove")[0]["deletionVector"] == adds[0]["deletionVector"]
    metrics = actions(builder, 3, "commitInfo")[0]["operationMetrics"]
    assert (metrics["numDeletionVectorsRemoved"], metrics["numDeletionVectorsUpdated"]) == ("1", "1")


def test_positions_by_path(tmp_path: Path) -> None:
    builder = build(tmp_path)
    first, second = load_snapshot(builder.storage).files["path"].to_pylist()
    builder.delete({second: [0, 1]})
    assert sorted(with_deltalake(tmp_path)["id"].to_pylist()) == [*range(50), *range(52, 100)]
    files = {row["path"]: row["deleted_rows"] for row in load_snapshot(builder.storage).files.to_pylist()}
    assert files == {first: 0, second: 2}


def test_dvs_share_a_file_up_to_the_target_size(tmp_path: Path) -> None:
    shared = build(tmp_path / "shared", files=4)
    shared.delete(lambda rows: pc.equal(pc.bit_wise_and(rows["id"], 1), 0))
    assert len(list((tmp_path / "shared").glob("*.bin"))) == 1
    own = build(tmp_path / "own", files=4)
    own.delete(lambda rows: pc.equal(pc.bit_wise_and(rows["id"], 1), 0), target_size=1, prefix="ab")
    assert len(list((tmp_path / "own" / "ab").glob("*.bin"))) == 4
    for table in ("shared", "own"):
        assert with_deltalake(tmp_path / table).num_rows == 50


def test_partition_values_of_every_type(tmp_path: Path) -> None:
    values: dict[str, tuple[pa.DataType, list[Any]]] = {
        "i": (pa.int32(), [1, -2, None]),
        "s": (pa.string(), ["a/b=c d%é", "x", None]),
        "b": (pa.bool_(), [True, False, None]),
        "d": (pa.date32(), [date(2026, 1, 2), date(1960, 1, 1), None]),
        "ts": (
            pa.timestamp("us", tz="UTC"),
            [datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), datetime(1960, 1, 1, tzinfo=UTC), None],
        ),
        "dec": (pa.decimal128(10, 2), [decimal.Decimal("1.50"), decimal.Decimal("-2.00"), None]),
    }
    schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in values.items())])
    rows = pa.table({"id": [1, 2, 3], **{name: column for name, (_, column) in values.items()}}, schema=schema)
    builder = DeltaBuilder(str(tmp_path)).create(schema, partition_by=list(values))
    builder.append(rows)
    assert load_snapshot(builder.storage).files.num_rows == 3
    found = sorted(with_deltalake(tmp_path).to_pylist(), key=lambda row: row["id"])
    assert found == rows.to_pylist()
    builder.delete(lambda batch: pc.equal(batch["i"], -2))  # a condition on a partition column, null elsewhere
    assert sorted(with_deltalake(tmp_path)["id"].to_pylist()) == [1, 3]


@pytest.mark.parametrize("mode", ["name", "id"])
def test_column_mapping(tmp_path: Path, mode: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("p q", pa.string())])
    builder = DeltaBuilder(str(tmp_path)).create(
        schema, partition_by=["p q"], properties={"delta.columnMapping.mode": mode}
    )
    builder.append(pa.table({"id": range(10), "p q": ["x", "y"] * 5}, schema=schema))
    builder.delete(lambda rows: pc.and_(pc.equal(rows["p q"], "x"), pc.less(rows["id"], 4)))
    assert sorted(with_deltalake(tmp_path)["id"].to_pylist()) == [1, 3, 4, 5, 6, 7, 8, 9]
    (column,) = json.loads(actions(builder, 1, "add")[0]["stats"])["nullCount"]
    assert column.startswith("col-")


def test_nested_columns_are_not_mapped(tmp_path: Path) -> None:
    nested = pa.schema([("s", pa.struct([("a", pa.int32())]))])
    with pytest.raises(UsageError, match="flat"):
        DeltaBuilder(str(tmp_path)).create(nested, properties={"delta.columnMapping.mode": "name"})


def test_nested_rows_come_back(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("st", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])),
            ("m", pa.map_(pa.string(), pa.float64())),
            ("ntz", pa.timestamp("us")),
        ]
    )
    rows = pa.table(
        {
            "st": [{"a": 1, "b": ["x", None]}, None],
            "m": [[("k", 1.5)], None],
            "ntz": [datetime(2026, 1, 1), None],
        },
        schema=schema,
    )
    builder = DeltaBuilder(str(tmp_path)).create(schema)
    builder.append(rows)
    assert "timestampNtz" in load_snapshot(builder.storage).protocol.features("reader")
    assert with_deltalake(tmp_path).to_pylist() == rows.to_pylist()


def test_row_groups_files_and_generators(tmp_path: Path) -> None:
    builder = DeltaBuilder(str(tmp_path)).create(SCHEMA)
    tables = (pa.table({"id": range(n * 10, n * 10 + 10)}, schema=SCHEMA) for n in range(3))
    assert builder.append(tables, rows_per_row_group=4) == 1
    files = sorted(tmp_path.glob("*.parquet"))
    assert [pq.read_metadata(file).num_row_groups for file in files] == [3, 3, 3]
    assert load_snapshot(builder.storage).files["physical_rows"].to_pylist() == [10, 10, 10]


def test_statistics_are_real_or_absent(tmp_path: Path) -> None:
    builder = build(tmp_path, files=1)
    builder.append(pa.table({"id": [5]}, schema=SCHEMA), statistics=False)
    (with_them,), (without,) = actions(builder, 1, "add"), actions(builder, 2, "add")
    assert json.loads(with_them["stats"]) == {
        "numRecords": 100,
        "minValues": {"id": 0},
        "maxValues": {"id": 99},
        "nullCount": {"id": 0},
        "tightBounds": True,
    }
    assert "stats" not in without
    builder.delete(lambda rows: pc.equal(rows["id"], 6))
    assert load_snapshot(builder.storage).files["deleted_rows"].to_pylist().count(1) == 1


def test_the_clock_dates_everything(tmp_path: Path) -> None:
    now = 1_700_000_000_000
    builder = DeltaBuilder(str(tmp_path), clock=lambda: now)
    builder.create(SCHEMA, properties={"delta.enableInCommitTimestamps": "true"})
    builder.append(pa.table({"id": range(10)}, schema=SCHEMA))
    builder.delete(below(5))
    paths = [*tmp_path.glob("*.*"), *(tmp_path / "_delta_log").glob("*.json")]
    assert len(paths) == 5
    assert {round(os.stat(path).st_mtime * 1000) for path in paths} == {now}
    assert actions(builder, 2, "remove")[0]["deletionTimestamp"] == now
    assert [actions(builder, at, "commitInfo")[0]["inCommitTimestamp"] for at in range(3)] == [now, now + 1, now + 2]


def test_checkpoints_and_arbitrary_commits(tmp_path: Path) -> None:
    builder = build(tmp_path)
    assert builder.checkpoint() == 1
    assert builder.commit([{"txn": {"appId": "a", "version": 1}}], operation="STREAMING UPDATE") == 2
    assert load_snapshot(builder.storage).segment.checkpoint_version == 1
    assert actions(builder, 2, "commitInfo")[0]["operation"] == "STREAMING UPDATE"


def test_object_storage(s3: tuple[str, dict[str, str]]) -> None:
    bucket, options = s3
    builder = DeltaBuilder(f"{bucket}/built", storage_options=options).create(SCHEMA)
    builder.append(pa.table({"id": range(100)}, schema=SCHEMA))
    builder.delete(below(10))
    builder.checkpoint()
    snapshot = load_snapshot(Storage(f"{bucket}/built", options))
    assert snapshot.files["deleted_rows"].to_pylist() == [10]
    assert snapshot.segment.checkpoint_version == 2

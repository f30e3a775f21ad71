"""Reading rows out, on real tables, to every kind of file."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.read import read, write_rows
from dv_maintenance.tables import open_table


def test_rows_through_deletion_vectors(golden: Path, canon: ModuleType) -> None:
    path = golden / "delta" / "basic-dv-no-checkpoint"
    schema, batches = read(open_table(str(path)))
    rows = canon.rows(pa.Table.from_batches(list(batches), schema))
    expected = json.loads((golden / "delta" / "expected.json").read_text())["basic-dv-no-checkpoint"]["expected"]
    assert (len(rows), canon.digest(rows)) == (expected["rows"], expected["sha256"])


def test_a_version_some_columns_some_rows(golden: Path) -> None:
    table = open_table(str(golden / "delta" / "basic-dv-no-checkpoint"))
    name = table.snapshot().schema.names[0]
    for limit in (0, 3, 1000):
        schema, batches = read(table, version=0, columns=[name], limit=limit)
        rows = pa.Table.from_batches(list(batches), schema)
        assert rows.column_names == [name]
        assert rows.num_rows == min(limit, 10)


@pytest.mark.parametrize(
    ("columns", "limit", "complaint"),
    [
        (["nope"], None, "no column 'nope'"),
        (["value", "value"], None, "column 'value' twice"),
        ([], None, "no columns are named"),
        (None, -1, "limit is negative: -1"),
    ],
)
def test_what_can_not_be_read(golden: Path, columns: list[str] | None, limit: int | None, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        read(open_table(str(golden / "delta" / "basic-dv-no-checkpoint")), columns=columns, limit=limit)


ROWS = pa.table(
    {
        "when": pa.array([datetime(2026, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "America/New_York")),
        "local": pa.array([253402300800000000, -1], pa.timestamp("us")),  # the year 10000
        "price": pa.array([Decimal("0.0000000001"), Decimal("12345678901234567890.5")], pa.decimal128(38, 10)),
        "raw": pa.array([b"\xff\x00", None]),
        "share": [float("nan"), 0.5],
        "days": pa.array([[("a", date(2026, 1, 1))], None], pa.map_(pa.string(), pa.date32())),
        "deep": pa.array([[{"x": float("inf")}], [None]], pa.list_(pa.struct([("x", pa.float32())]))),
        "id": pa.array([2**63 - 1, None]),
    }
)


def test_json_lines_say_everything(tmp_path: Path) -> None:
    assert write_rows(ROWS.schema, ROWS.to_batches(max_chunksize=1), str(tmp_path / "rows.jsonl")) == 2
    first, second = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert first == {
        "when": "2026-01-01T00:00:00.000000Z",
        "local": "10000-01-01T00:00:00.000000",
        "price": "0.0000000001",
        "raw": "/wA=",
        "share": "NaN",
        "days": [["a", "2026-01-01"]],
        "deep": [{"x": "Infinity"}],
        "id": 2**63 - 1,
    }
    assert second["price"] == "12345678901234567890.5000000000"
    assert (second["when"], second["raw"], second["days"], second["deep"], second["id"]) == (
        None,
        None,
        None,
        [None],
        None,
    )


def test_arrow_and_parquet_hold_the_same_rows(tmp_path: Path) -> None:
    for name in ("rows.arrow", "rows.parquet"):
        assert write_rows(ROWS.schema, ROWS.to_batches(), str(tmp_path / name)) == 2
    with pa.ipc.open_file(str(tmp_path / "rows.arrow")) as reader:
        assert reader.read_all().drop(["share", "deep"]) == ROWS.drop(["share", "deep"])
    assert pq.read_table(tmp_path / "rows.parquet").column("price") == ROWS.column("price")
    assert write_rows(ROWS.schema, [], str(tmp_path / "none.parquet")) == 0
    assert pq.read_schema(tmp_path / "none.parquet").names == ROWS.schema.names


@pytest.mark.parametrize("name", ["rows.arrow", "rows.parquet", "rows.jsonl", "rows.csv"])
def test_null_structs_with_fields_that_are_not_null(tmp_path: Path, name: str) -> None:
    """Where the struct is null, readers give null for its NOT NULL fields, too (lance-format/lance#7826)."""
    fields = [pa.field("x", pa.float64(), nullable=False)]
    spots = pa.StructArray.from_arrays([pa.array([1.5, None])], fields=fields, mask=pa.array([False, True]))
    rows = pa.table({"id": [1, 2], "spot": spots})
    assert write_rows(rows.schema, rows.to_batches(), str(tmp_path / name)) == 2
    if name == "rows.parquet":
        assert pq.read_table(tmp_path / name)["spot"].to_pylist() == [{"x": 1.5}, None]


@pytest.mark.parametrize("name", ["rows.xlsx", "rows", "missing/rows.arrow"])
def test_places_that_can_not_be_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        write_rows(ROWS.schema, [], str(tmp_path / name))


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("old")

    def batches():
        yield ROWS.to_batches()[0]
        raise OSError("the network")

    with pytest.raises(OSError, match="the network"):
        write_rows(ROWS.schema, batches(), str(tmp_path / "rows.jsonl"))
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
    assert (tmp_path / "rows.jsonl").read_text() == "old"

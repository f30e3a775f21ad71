"""UUIDs and variants on their way to Spark and back."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dv_maintenance.cli import main
from dv_maintenance.dml.key_casts import INEXACT, from_json, from_text, from_typed
from dv_maintenance.dml.spark_types import VARIANT, for_spark, retyped, spark_schema, value_type
from dv_maintenance.dml.uuids import KIND, STORED, stored_of, texts_of
from dv_maintenance.tables.model import LOGICAL
from dv_maintenance.testing.iceberg_builder import IcebergBuilder

UUIDS = st.lists(st.none() | st.uuids(), max_size=12)


@given(UUIDS, st.data())
def test_there_and_back(values: list[UUID | None], data: st.DataObject) -> None:
    """Parts of arrays, too, whose buffers begin before them."""
    at = data.draw(st.integers(0, len(values)))
    stored = pa.array([None if each is None else each.bytes for each in values], STORED)[at:]
    texts = texts_of(stored)
    texts.validate(full=True)
    assert texts.to_pylist() == [None if each is None else str(each) for each in values[at:]]
    upper = pa.array([None if each is None else str(each).upper() for each in values], pa.string())[at:]
    for spelled in (texts, upper):
        again = stored_of(spelled)
        again.validate(full=True)
        assert again.equals(stored)


@pytest.mark.parametrize(
    "text", ["x", "", "1-2-3-4-5", "0" * 32, "0" * 36, "{9531985d-5d9d-c9f8-1818-e811892f902b}", "é" * 18]
)
def test_what_is_not_a_uuid(text: str) -> None:
    good = "9531985d-5d9d-c9f8-1818-e811892f902b"
    with pytest.raises(pa.ArrowInvalid, match="is not a UUID"):
        stored_of(pa.array([good, None, text, good])[1:])


def test_nested_columns() -> None:
    def marked(name: str, kind: pa.DataType, logical: str, *, nullable: bool = True) -> pa.Field:
        return pa.field(name, kind, nullable, {LOGICAL: logical.encode()})

    variant = pa.struct([pa.field("metadata", pa.binary(), False), pa.field("value", pa.binary(), False)])
    inner = pa.struct([marked("u", STORED, "uuid", nullable=False), marked("v", variant, "variant")])
    schema = pa.schema(
        [
            marked("v", variant, "variant"),
            pa.field("in", inner),
            pa.field("us", pa.list_(marked("element", STORED, "uuid"))),
            pa.field("m", pa.map_(marked("key", STORED, "uuid", nullable=False), marked("value", STORED, "uuid"))),
            pa.field("f16", STORED),
        ]
    )
    one, other = UUID(int=1).bytes, UUID(int=2).bytes
    v = {"metadata": b"m", "value": b"v"}
    rows = [
        {"v": v, "in": {"u": one, "v": v}, "us": [one, None], "m": [(one, other)], "f16": one},
        {"v": None, "in": {"u": one, "v": None}, "us": [], "m": [(other, None)], "f16": None},
        {"v": v, "in": None, "us": None, "m": None, "f16": other},
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema)
    known = spark_schema(schema)
    assert known.field("v").type == VARIANT
    there = for_spark(batch, known)
    assert there.column("in").to_pylist()[0] == {"u": str(UUID(int=1)), "v": v}
    assert there.column("us").to_pylist()[0] == [str(UUID(int=1)), None]
    assert there.column("f16").to_pylist() == [one, None, other]
    # Spark's own nulls have no parts.
    none = pa.StructArray.from_arrays(
        [pa.array([None, None], pa.binary())] * 2, fields=list(VARIANT), mask=pa.array([True, True])
    )
    assert retyped(none, variant).field("metadata").null_count == 0
    assert value_type(schema.field("v")) == VARIANT
    # A struct with the names of a variant's parts is none.
    other_kind = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
    some = pa.array([{"metadata": None, "value": b"x"}], pa.struct([("value", pa.binary()), ("metadata", pa.binary())]))
    assert retyped(some, other_kind).to_pylist() == [{"metadata": b"x", "value": None}], "by position, nulls stay"
    back = [retyped(column, field.type) for column, field in zip(there.columns, schema, strict=True)]
    assert pa.RecordBatch.from_arrays(back, schema=schema).to_pylist() == batch.to_pylist()


def test_parts_of_nested_columns() -> None:
    """A batch may be a part of a longer one, whose buffers begin before it."""
    short, long = (pa.map_(pa.string(), pa.list_(kind)) for kind in (pa.int32(), pa.int64()))
    values = [[("a", [1, None]), ("b", None)], None, [], [("c", [])], [("d", [7, 8]), ("e", [9])]]
    in_structs = [{"x": each} if at % 3 else None for at, each in enumerate(values)]
    for array, wanted in (
        (pa.array(values, short), long),
        (pa.array(in_structs, pa.struct([("x", short)])), pa.struct([("x", long)])),
        (pa.array([each and [each] for each in values], pa.list_(short)), pa.list_(long)),
    ):
        for first in range(len(array)):
            part = array.slice(first, 2)
            found = retyped(part, wanted)
            found.validate(full=True)
            assert found.to_pylist() == part.to_pylist()


def test_without_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Conditions compare UUIDs as texts, as Spark does; rows have them as texts, too."""
    builder, place = IcebergBuilder(tmp_path / "t"), str(tmp_path / "t")
    builder.create({"id": "int", "u": "uuid", "us": {"type": "list", "element-id": 9, "element": "uuid"}})
    stored = [UUID(int=each).bytes for each in (1, 2, 0xFF << 120)]
    rows = {"id": pa.array(range(4), pa.int32()), "u": pa.array([*stored, None], STORED)}
    builder.append(pa.table({**rows, "us": pa.array([stored[:1], [], [None], None], pa.list_(STORED))}))
    found = {
        f"u = '{UUID(int=2)}'": [1],
        f"u IN ('{UUID(int=1)}', '{UUID(int=7)}')": [0],
        f"u > '{UUID(int=1)}'": [1, 2],
        f"NOT u < '{UUID(int=2)}'": [1, 2],
        "u IS NULL": [3],
    }
    for condition, ids in found.items():
        assert main(["read", place, "--where", condition, "--columns", "id", "--engine", "local"]) == 0
        assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines() if line] == ids, condition
    odd = str(UUID(int=0xAB)).upper()  # equals nothing in Spark, which compares texts
    assert main(["read", place, "--where", f"u = '{odd}'", "--engine", "local"]) == 2
    assert main(["read", place]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {"id": 0, "u": str(UUID(int=1)), "us": [str(UUID(int=1))]}
    assert lines[2]["us"] == [None]
    assert main(["read", place, "-o", str(tmp_path / "rows.parquet")]) == 0
    assert pq.read_table(tmp_path / "rows.parquet")["u"].to_pylist() == [*stored, None]
    assert main(["delete", place, "--where", f"u = '{UUID(int=2)}'", "--engine", "local"]) == 0
    capsys.readouterr()
    assert main(["read", place, "--as", "csv", "--columns", "id"]) == 0
    assert capsys.readouterr().out.split() == ["id", "0", "2", "3"]


def test_keys() -> None:
    text, upper = str(UUID(int=10)), str(UUID(int=10)).upper()
    for convert in (from_text(KIND), from_json(KIND), from_typed(pa.string(), KIND)):
        assert convert is not None
        assert convert(upper) == text
        with pytest.raises(INEXACT):
            convert("1-2-3-4-5")
    from_bytes = from_typed(pa.binary(), KIND)
    assert from_bytes is not None
    assert from_bytes(UUID(int=10).bytes) == text
    assert from_json(VARIANT) is None
    assert from_text(VARIANT) is None

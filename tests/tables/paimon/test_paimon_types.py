"""Data types of schema files, and what they are in Arrow."""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dv_maintenance.errors import DamagedTableError, UnsupportedFeatureError
from dv_maintenance.tables.paimon.rows.types import arrow_field, arrow_type, parse_field, parse_type


@pytest.mark.parametrize(
    ("text", "type"),
    [
        ("BOOLEAN", pa.bool_()),
        ("TINYINT NOT NULL", pa.int8()),
        ("SMALLINT", pa.int16()),
        ("INT", pa.int32()),
        ("INTEGER", pa.int32()),
        ("BIGINT", pa.int64()),
        ("FLOAT", pa.float32()),
        ("DOUBLE", pa.float64()),
        ("DECIMAL", pa.decimal128(10, 0)),
        ("DECIMAL(38, 10)", pa.decimal128(38, 10)),
        ("DATE", pa.date32()),
        ("TIME(0)", pa.time32("ms")),
        ("CHAR(3)", pa.string()),
        ("VARCHAR(2147483647)", pa.string()),
        ("STRING NOT NULL", pa.string()),
        ("BINARY(16)", pa.binary()),
        ("BYTES", pa.binary()),
        ("TIMESTAMP(0)", pa.timestamp("ms")),
        ("TIMESTAMP(3)", pa.timestamp("ms")),
        ("TIMESTAMP", pa.timestamp("us")),
        ("TIMESTAMP(6) WITHOUT TIME ZONE", pa.timestamp("us")),
        ("TIMESTAMP(9)", pa.timestamp("ns")),
        ("TIMESTAMP(6) WITH LOCAL TIME ZONE", pa.timestamp("us", "UTC")),
        ("TIMESTAMP_LTZ(3)", pa.timestamp("ms", "UTC")),
        ("BLOB", pa.large_binary()),
    ],
)
def test_plain_types(text: str, type: pa.DataType) -> None:
    parsed = parse_type(text)
    assert arrow_type(parsed) == type
    assert parsed.nullable == ("NOT NULL" not in text)


@pytest.mark.parametrize(
    ("text", "nullable"),
    [
        ("MAP<STRING NOT NULL, BIGINT>", True),
        ("MAP<STRING NOT NULL, BIGINT> NOT NULL", False),
        ("MAP NOT NULL", False),
        ("MAP", True),
    ],
)
def test_a_nested_type_may_spell_its_parts(text: str, nullable: bool) -> None:
    """As pypaimon 2.0 wrote it (https://github.com/ClickHouse/ClickHouse/issues/115042)."""
    parsed = parse_type({"type": text, "key": "STRING NOT NULL", "value": "BIGINT"})
    assert (parsed.root, parsed.nullable) == ("MAP", nullable)
    assert arrow_type(parsed) == pa.map_(pa.string(), pa.int64())


def test_nested_types() -> None:
    row = {
        "type": "ROW NOT NULL",
        "fields": [
            {"id": 4, "name": "a", "type": "INT NOT NULL"},
            {"id": 5, "name": "b", "type": {"type": "ARRAY", "element": "STRING"}},
        ],
    }
    field = parse_field({"id": 3, "name": "r", "type": row})
    assert arrow_field(field).equals(
        pa.field(
            "r",
            pa.struct([pa.field("a", pa.int32(), False), pa.field("b", pa.list_(pa.field("element", pa.string())))]),
            False,
        )
    )
    assert [each.id for each in field.type.parts] == [4, 5]
    assert arrow_type(parse_type({"type": "MAP", "key": "STRING NOT NULL", "value": "BIGINT"})) == pa.map_(
        pa.string(), pa.int64()
    )
    vector = {"type": "VECTOR", "element": "FLOAT", "length": 4}
    assert arrow_type(parse_type(vector)) == pa.list_(pa.field("element", pa.float32()))
    assert pa.types.is_map(arrow_type(parse_type({"type": "MULTISET", "element": "INT"})))


@pytest.mark.parametrize("text", ["GEOMETRY", "int", "INT(", "", "GRAPH(1)", "DECIMAL(1,2,3)"])
def test_unknown_types(text: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match="does not know"):
        parse_type(text)
    with pytest.raises(UnsupportedFeatureError, match="does not know"):
        parse_type({"type": text or "GRAPH"})


@pytest.mark.parametrize(
    "body",
    [None, 5, {}, {"type": 5}, {"type": "ARRAY"}, {"type": "ROW"}, {"type": "ROW", "fields": [1]}, {"type": "VECTOR"}],
)
def test_invalid_types(body: Any) -> None:
    with pytest.raises(DamagedTableError):
        parse_type(body)


@pytest.mark.parametrize("text", ["DECIMAL(39, 0)", "DECIMAL(0, 0)", "DECIMAL(3, 4)"])
def test_impossible_decimals(text: str) -> None:
    with pytest.raises(DamagedTableError):
        parse_type(text)


def test_the_depth_of_types_is_limited() -> None:
    body: Any = "INT"
    for _ in range(100):
        body = {"type": "ARRAY", "element": body}
    with pytest.raises(DamagedTableError, match="nested"):
        parse_type(body)


PARTS = st.sampled_from(["INT", "ARRAY", "MAP", "ROW", "DECIMAL(1", "TIMESTAMP(3) NOT NULL"])
KEYS = st.sampled_from(["type", "element", "key", "value", "fields", "id", "name"])
BODIES = st.recursive(
    st.none() | st.integers() | st.text(max_size=4) | PARTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=examples(80))
@given(BODIES)
def test_random_types(body: Any) -> None:
    with contextlib.suppress(DamagedTableError, UnsupportedFeatureError):
        arrow_type(parse_type(body))
    with contextlib.suppress(DamagedTableError, UnsupportedFeatureError):
        arrow_field(parse_field(body))

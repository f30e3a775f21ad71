"""Shredded variants: put together, they are what they were before somebody shredded them. The judge is PySpark."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.variant_utils import VariantUtils

from dv_maintenance.files.variants import MalformedVariantError, can_be_put_together, comparable, put_together

WHOLE = [pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False)]


def part(kind: pa.DataType) -> pa.StructType:
    return pa.struct([pa.field("value", pa.binary()), pa.field("typed_value", kind)])


INNER = part(pa.struct([pa.field("é", part(pa.int64())), pa.field("s", part(pa.string()))]))
OBJECT = pa.struct(
    [pa.field("a", part(pa.int64())), pa.field("l", part(pa.list_(part(pa.int64())))), pa.field("o", INNER)]
)
SHREDDED = pa.struct([pa.field("metadata", pa.binary(), False), *part(OBJECT)])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=80),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from("alos") | st.text(max_size=3), inner, max_size=5)
        | st.fixed_dictionaries({}, optional={"a": inner, "l": st.lists(inner, max_size=4), "o": inner, "é": inner})
    ),
    max_leaves=12,
)


def shred(value: Any, kind: pa.StructType, encoded: Any) -> dict[str, Any]:
    """``encoded`` : makes the bytes of a value."""
    typed = kind.field("typed_value").type
    fits = {pa.int64(): int, pa.string(): str}.get(typed, dict if pa.types.is_struct(typed) else list)
    if type(value) is not fits:
        return {"value": encoded(value)}
    if fits is list:
        return {"typed_value": [shred(each, typed.value_type, encoded) for each in value]}
    if fits is not dict:
        return {"typed_value": value}
    known = {each.name: each.type for each in typed}
    fields = {name: shred(value[name], of, encoded) if name in value else {} for name, of in known.items()}
    rest = {name: each for name, each in value.items() if name not in known}
    return {"value": encoded(rest) if rest else None, "typed_value": fields}


def names_of(value: Any) -> set[str]:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {*(value if isinstance(value, dict) else ())}.union(*map(names_of, inside))


def whole(rows: list[Any], kind: pa.StructType) -> pa.StructArray:
    return put_together(pa.array(rows, kind), WHOLE)


@example([[{"l": list(range(300)), **{f"name {n}": n for n in range(300)}}]])
@given(st.lists(st.none() | VALUES.map(lambda value: [value]), max_size=3))
def test_what_was_shredded_is_put_together(rows: list[Any]) -> None:
    names = sorted({"a"}.union(*map(names_of, rows)))
    _, metadata = VariantUtils.parse_json(json.dumps(dict.fromkeys(names)))

    def encoded(value: Any) -> bytes:
        # The names come first, so that each has the id that it has in the metadata of the row.
        first = dict.fromkeys(names)
        both, found = VariantUtils.parse_json(json.dumps([first, value]))
        assert found == metadata
        return element(both)

    shredded = [None if row is None else {"metadata": metadata, **shred(row[0], SHREDDED, encoded)} for row in rows]
    found = whole(shredded, SHREDDED)
    read = [
        None if each is None else [json.loads(VariantUtils.to_json(each["value"], each["metadata"], "UTC"))]
        for each in found.to_pylist()
    ]
    assert read == rows

    plain = [
        None
        if row is None
        else dict(zip(("value", "metadata"), VariantUtils.parse_json(json.dumps(row[0])), strict=True))
        for row in rows
    ]
    assert comparable(found) == comparable(pa.array(plain, pa.struct(WHOLE)))


def element(array: bytes) -> bytes:
    """The second of two elements."""
    width = (array[0] >> 2 & 3) + 1
    offsets = [int.from_bytes(array[at : at + width], "little") for at in range(2, 2 + 3 * width, width)]
    start = 2 + 3 * width
    return array[start + offsets[1] : start + offsets[2]]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.bool_(), False, "false"),
        (pa.int8(), -128, "-128"),
        (pa.int32(), 2**31 - 1, "2147483647"),
        (pa.int64(), -(2**63), "-9223372036854775808"),
        (pa.float32(), 0.5, "0.5"),
        (pa.float64(), -1e300, "-1e+300"),
        (pa.decimal128(9, 2), Decimal("-1.50"), "-1.50"),
        (pa.decimal128(18, 4), Decimal("99999999999999.9999"), "99999999999999.9999"),
        (pa.decimal128(38, 38), Decimal("1E-38"), "1E-38"),
        (pa.date32(), date(1, 1, 1), '"0001-01-01"'),
        (pa.timestamp("us", "UTC"), datetime(1950, 1, 1, 0, 0, 0, 1), '"1950-01-01 00:00:00.000001+00:00"'),
        (pa.timestamp("us"), datetime(2200, 1, 1), '"2200-01-01 00:00:00"'),
        (pa.binary(), b"abc", '"YWJj"'),
        (pa.string(), "ä" * 40, json.dumps("ä" * 40)),
        (pa.large_string(), "x", '"x"'),
        (pa.uuid(), UUID(int=7).bytes, None),  # which Spark lacks
        (pa.time64("us"), 5, None),
        (pa.timestamp("ns"), 5, None),
    ],
)
def test_every_type_of_a_typed_value(kind: pa.DataType, value: Any, text: str | None) -> None:
    stored = pa.struct([pa.field("metadata", pa.binary()), *part(kind)])
    assert can_be_put_together(stored)
    rows = [{"metadata": b"\x01\x00\x00", "typed_value": value}, None, {"metadata": b"\x01\x00\x00", "value": b"\x00"}]
    typed = pa.array([value, None, None], getattr(kind, "storage_type", kind))
    typed = pa.ExtensionArray.from_storage(kind, typed) if isinstance(kind, pa.BaseExtensionType) else typed
    others = [pa.array([row and row.get(name) for row in rows], pa.binary()) for name in ("metadata", "value")]
    array = pa.StructArray.from_arrays([*others, typed], fields=list(stored), mask=pa.array([False, True, False]))
    first, nothing, null = put_together(array, WHOLE).to_pylist()
    assert (nothing, null["value"]) == (None, b"\x00")
    if text is not None:
        assert VariantUtils.to_json(first["value"], first["metadata"], "UTC") == text
    assert put_together(array.slice(2), WHOLE).to_pylist() == [null]


def test_a_missing_value_is_null_where_one_is_required() -> None:
    metadata = b"\x01\x00\x00"
    kind = pa.struct([pa.field("metadata", pa.binary()), *part(pa.list_(part(pa.int64())))])
    found = whole([{"metadata": metadata}, {"metadata": metadata, "typed_value": [{}, {"typed_value": 1}]}], kind)
    texts = [VariantUtils.to_json(row["value"], row["metadata"], "UTC") for row in found.to_pylist()]
    assert texts == ["null", "[null,1]"]


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ({"metadata": b"\x01\x00\x00", "typed_value": {"a": {"typed_value": 1}}}, "does not have the name 'a'"),
        ({"metadata": b"\x02\x00\x00"}, "unknown version 2"),
        ({"metadata": b"\x01\x05"}, "too early"),
        ({"value": VariantUtils.parse_json("[1]")[0], "typed_value": {}}, "not an object"),
        ({"value": VariantUtils.parse_json('{"a": 2}')[0], "typed_value": {"a": {"typed_value": 1}}}, "both in"),
        ({"value": b"\x02\x01\x05\x00\x00", "typed_value": {}}, "not there"),
        ({"value": b"\x02\x09", "typed_value": {}}, "too early"),
    ],
)
def test_parts_that_contradict_each_other(row: dict[str, Any], match: str) -> None:
    metadata = VariantUtils.parse_json('{"a": 2}')[1]
    typed = {"a": {}, "l": {}, "o": {}, **row.get("typed_value", {})}
    with pytest.raises(MalformedVariantError, match=match):
        whole([{"metadata": metadata, **row, **({"typed_value": typed} if "typed_value" in row else {})}], SHREDDED)


def test_types_that_no_variant_has() -> None:
    for kind in (pa.uint32(), pa.duration("us"), pa.decimal256(60, 2), pa.binary(12), pa.list_(pa.int64())):
        assert not can_be_put_together(pa.struct([pa.field("metadata", pa.binary()), *part(kind)]))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("[1.50, 200]", "[1.5, 2E2]", False),  # 2E2 is a double, another type
        ("[1.50, 0.00]", "[1.5, 0]", True),
        ("-20.0", "-20", True),
        ("20", "2", False),
        ("[]", "{}", False),
        ('["a", "b"]', '["ab"]', False),
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', True),
        ('{"a": 1}', '{"b": 1}', False),
        ("true", "false", False),
    ],
)
def test_variants_are_compared_by_value(one: str, other: str, same: bool) -> None:
    rows = [dict(zip(("value", "metadata"), VariantUtils.parse_json(text), strict=True)) for text in (one, other)]
    first, second = comparable(pa.array(rows, pa.struct(WHOLE))).to_pylist()
    assert (first == second) == same

"""What is written into manifests: Avro files, binary rows, statistics."""

from __future__ import annotations

import io
import json
import math
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import binary_rows

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.avro.container import read_records
from dv_maintenance.files.avro.writer import Template, template_of, write_records
from dv_maintenance.tables.paimon.commit.value_stats import file_stats, partition_stats, stats_columns
from dv_maintenance.tables.paimon.log.binary_row import Moment, decode_row, encode_row
from dv_maintenance.tables.paimon.log.schema import Schema
from dv_maintenance.tables.paimon.rows.types import Field, parse_type
from dv_maintenance.tables.work import ColumnStats

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "a", "type": "long"},
            {"name": "b", "type": ["null", {"type": "array", "items": ["null", "string"]}], "default": None},
        ],
    }
)


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "snappy", "zstandard"])
@pytest.mark.parametrize("count", [0, 3, 2500])
def test_avro_files(codec: str, count: int) -> None:
    records = [{"a": at, "b": None if at % 2 else ["x", None]} for at in range(count)]
    data = write_records(Template(SCHEMA, codec), records)
    assert template_of(data) == Template(SCHEMA, codec)
    assert list(read_records(data, None)) == records
    if codec in {"null", "deflate", "bzip2", "xz"}:
        assert list(fastavro.reader(io.BytesIO(data))) == records


def test_no_avro_file() -> None:
    with pytest.raises(DamagedTableError, match="magic"):
        template_of(b"PAR1" * 8)


KINDS: dict[str, st.SearchStrategy[Any]] = {
    "BOOLEAN": st.booleans(),
    "TINYINT": st.integers(-128, 127),
    "INT": st.integers(-(2**31), 2**31 - 1),
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "DOUBLE": st.floats(allow_nan=False),
    "STRING": st.text(st.characters(codec="utf-8"), max_size=20),
    "BYTES": st.binary(max_size=20),
    "DECIMAL(18, 3)": st.integers(-(10**18) + 1, 10**18 - 1).map(lambda value: Decimal(value).scaleb(-3)),
    "DECIMAL(38, 0)": st.integers(-(2**100), 2**100).map(Decimal),
    "TIMESTAMP(3)": st.integers(-(2**40), 2**40).map(Moment),
    "TIMESTAMP(6)": st.builds(Moment, st.integers(-(2**40), 2**40), st.integers(0, 999).map(lambda at: at * 1000)),
}


@given(st.lists(st.sampled_from(sorted(KINDS)).flatmap(lambda kind: st.tuples(st.just(kind), st.none() | KINDS[kind]))))
def test_rows(fields: list[tuple[str, Any]]) -> None:
    types = [parse_type(kind) for kind, _ in fields]
    values = [value for _, value in fields]
    written = encode_row(values, types)
    assert list(decode_row(written, types)) == values
    assert list(decode_row(binary_rows.encode_row(values, types), types)) == values
    for at, value in enumerate(values):
        assert decode_row(written, types, only=[at]) == (value,)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("INT", 2**31), ("INT", "x"), ("DECIMAL(4, 2)", Decimal(100)), ("DECIMAL(4, 2)", Decimal("0.001"))],
)
def test_values_that_do_not_fit(kind: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"not a INT|digits"):
        encode_row([value], [parse_type(kind)])


def schema(options: dict[str, str], **kinds: str) -> Schema:
    fields = tuple(Field(at, name, parse_type(kind)) for at, (name, kind) in enumerate(kinds.items()))
    return Schema(0, fields, (), (), options, 0)


def decoded(found: dict[str, Any], of: Schema) -> tuple[Any, Any, Any]:
    types = [each.type if each.type.root != "ARRAY" else parse_type("BIGINT") for each in of.fields]
    return decode_row(found["_MIN_VALUES"], types), decode_row(found["_MAX_VALUES"], types), found["_NULL_COUNTS"]


def test_statistics_of_a_file() -> None:
    of = schema({}, i="INT", s="STRING", t="TIMESTAMP(6)", m="TIMESTAMP(3)", d="DECIMAL(5, 2)", l="TIME", u="BIGINT")
    stats = [
        ColumnStats(("i",), 1, -5, 5),
        ColumnStats(("s",), 0, "a" * 20, "b" * 20),
        ColumnStats(("t",), 0, -1, 1_001),
        ColumnStats(("m",), 0, 7, 8),
        ColumnStats(("d",), 0, "-1.50", "2.00"),
        ColumnStats(("l",), 3),
    ]
    assert decoded(file_stats(of, stats), of) == (
        (-5, "a" * 16, Moment(-1, 999_000), Moment(7), Decimal("-1.50"), None, None),
        (5, "b" * 15 + "c", Moment(1, 1000), Moment(8), Decimal("2.00"), None, None),
        [1, 0, 0, 0, 0, 3, None],
    )


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("full", (("a" * 20,), ("b" * 20,), [0])),
        ("truncate(2)", (("aa",), ("bc",), [0])),
        ("counts", ((None,), (None,), [0])),
        ("nonsense", ((None,), (None,), [0])),
    ],
)
def test_modes(mode: str, expected: Any) -> None:
    of = schema({"metadata.stats-mode": "none", "fields.s.stats-mode": mode}, s="STRING")
    assert decoded(file_stats(of, [ColumnStats(("s",), 0, "a" * 20, "b" * 20)]), of) == expected
    assert stats_columns(of) == (("s",),)


def test_which_columns_have_statistics() -> None:
    kinds = {"a": "INT", "b": "INT", "c": "INT"}
    assert stats_columns(schema({}, **kinds)) == (("a",), ("b",), ("c",))
    assert stats_columns(schema({"metadata.stats-keep-first-n-columns": "2"}, **kinds)) == (("a",), ("b",))
    assert stats_columns(schema({"metadata.stats-mode": "none", "fields.b.stats-mode": "counts"}, **kinds)) == (("b",),)


@given(st.text(st.characters(codec="utf-8"), min_size=3, max_size=9))
def test_truncated_bounds_are_still_bounds(text: str) -> None:
    of = schema({"metadata.stats-mode": "truncate(2)"}, s="STRING")
    (_,), (above,), _ = decoded(file_stats(of, [ColumnStats(("s",), 0, text, text)]), of)
    assert above is None or (above.encode() >= text.encode() and len(above) <= 2)
    assert above is not None or text[:2] == chr(0x10FFFF) * 2


def test_statistics_of_partitions() -> None:
    fields = [Field(0, "a", parse_type("STRING")), Field(1, "b", parse_type("DOUBLE"))]
    types = [each.type for each in fields]
    rows = [encode_row(row, types) for row in (("x", 1.0), (None, 2.0), ("longer than that", math.nan))]
    found = partition_stats(rows, fields)
    assert decode_row(found["_MIN_VALUES"], types) == ("longer than that", None)
    assert decode_row(found["_MAX_VALUES"], types) == ("x", None)
    assert found["_NULL_COUNTS"] == [1, 0]

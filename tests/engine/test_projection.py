"""Which columns of a file are read, and what becomes of them on the way to the table's schema."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dv_maintenance.engine.parquet.projection import Projection
from dv_maintenance.errors import DamagedTableError, RefusedError

UTC = dt.UTC
NOON = dt.datetime(2024, 5, 6, 12, 0, 0, 123456)


def field(name: str, type: Any, id: int | None = None, source: str | None = None) -> pa.Field:
    metadata = {"PARQUET:field_id": str(id)} if id is not None else {}
    if source is not None:
        metadata["dvm:source"] = source
    return pa.field(name, type, metadata=metadata or None)


def project(
    table: pa.Table,
    schema: pa.Schema,
    folder: Path,
    *,
    match_by: str = "name",
    constants: dict[str, Any] | None = None,
    batch_size: int = 1000,
    **options: Any,
) -> pa.Table:
    path = folder / "a.parquet"
    pq.write_table(table, path, **options)
    file = pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
    projection = Projection.build(
        file.schema_arrow, schema, match_by=match_by, constants=constants or {}, file="a.parquet"
    )
    batches = file.reader.iter_batches(batch_size, row_groups=[0], column_indices=list(projection.leaves))
    # Halves of batches: nested arrays with an offset are where validity gets lost.
    parts = []
    for batch in batches:
        middle = batch.num_rows // 2
        parts += [batch.slice(0, middle), batch.slice(middle)]
    result = pa.Table.from_batches([projection(part, part.num_rows) for part in parts], schema)
    result.validate(full=True)
    return result


# -- leaf types --------------------------------------------------------------------------------------------------

WIDENED = [
    (pa.int8(), pa.int16(), [-128, None, 127], None),
    (pa.int8(), pa.int64(), [-128, None, 127], None),
    (pa.int16(), pa.int32(), [-(2**15), None, 5], None),
    (pa.int32(), pa.int64(), [-(2**31), None, 5], None),
    (pa.int32(), pa.int8(), [-128, None, 127], None),  # a byte column written without its annotation
    (pa.uint8(), pa.int16(), [255, None], None),
    (pa.uint32(), pa.int64(), [2**32 - 1, None], None),
    (pa.int32(), pa.float64(), [-(2**31), None, 7], [-(2.0**31), None, 7.0]),
    (pa.float32(), pa.float64(), [1.5, None, float("inf")], None),
    (pa.int32(), pa.decimal128(12, 2), [5, None, -(2**31)], [Decimal(5), None, Decimal(-(2**31))]),
    (pa.int64(), pa.decimal128(20, 0), [2**63 - 1, None], [Decimal(2**63 - 1), None]),
    (pa.decimal128(5, 2), pa.decimal128(10, 4), [Decimal("1.25"), None], None),
    (pa.decimal128(18, 2), pa.decimal128(38, 2), [Decimal("-1.25"), None], None),
    (pa.date32(), pa.timestamp("us"), [dt.date(1, 1, 1), None], [dt.datetime(1, 1, 1), None]),
    (pa.timestamp("ms"), pa.timestamp("us", tz="UTC"), [dt.datetime(1600, 1, 1), None], None),
    (pa.timestamp("ns"), pa.timestamp("us"), [NOON, None], None),
    (pa.timestamp("us"), pa.timestamp("us", tz="UTC"), [NOON, None], None),
    (pa.timestamp("us", tz="UTC"), pa.timestamp("us"), [NOON, None], [NOON, None]),
    (pa.timestamp("us", tz="Europe/Berlin"), pa.timestamp("us", tz="UTC"), [NOON, None], None),
    (pa.binary(), pa.string(), [b"a", None], ["a", None]),
    (pa.string(), pa.binary(), ["a", None], [b"a", None]),
    (pa.large_string(), pa.string(), ["a", None], None),
    (pa.large_binary(), pa.binary(), [b"\xff", None], None),
    (pa.string_view(), pa.string(), ["a" * 50, None], None),
    (pa.binary(2), pa.binary(), [b"ab", None], None),
    (pa.dictionary(pa.int8(), pa.string()), pa.string(), ["a", None, "a"], None),
    (pa.null(), pa.struct([("a", pa.int32())]), [None, None], None),
    (pa.float64(), pa.null(), [1.0, None], [None, None]),
]


@pytest.mark.parametrize(("stored", "wanted", "values", "expected"), WIDENED, ids=lambda value: str(value)[:30])
def test_types_that_lose_nothing_are_widened(
    stored: Any, wanted: Any, values: list[Any], expected: list[Any] | None, tmp_path: Path
) -> None:
    array = pa.array(values, stored)
    result = project(pa.table({"a": array}), pa.schema([("a", wanted)]), tmp_path)
    got = result["a"].to_pylist()
    if pa.types.is_timestamp(wanted):
        got = [value and value.replace(tzinfo=None) for value in got]
    assert got == (expected or values)


@pytest.mark.parametrize(
    ("stored", "wanted", "value"),
    [
        (pa.int64(), pa.int32(), 1),
        (pa.int64(), pa.float64(), 1),
        (pa.float64(), pa.float32(), 1.0),
        (pa.float64(), pa.int64(), 1.0),
        (pa.int64(), pa.decimal128(19, 0), 1),
        (pa.decimal128(10, 2), pa.decimal128(10, 4), Decimal(1)),
        (pa.decimal128(10, 2), pa.decimal128(10, 1), Decimal(1)),
        (pa.decimal128(10, 2), pa.float64(), Decimal(1)),
        (pa.date32(), pa.timestamp("us", tz="UTC"), dt.date(2020, 1, 1)),
        (pa.string(), pa.int64(), "1"),
        (pa.bool_(), pa.int8(), True),
        (pa.list_(pa.int32()), pa.int32(), [1]),
        (pa.int32(), pa.list_(pa.int32()), 1),
        (pa.struct([("x", pa.int32())]), pa.map_(pa.string(), pa.int32()), {"x": 1}),
    ],
    ids=str,
)
def test_other_types_are_refused_with_file_column_and_both_types(
    stored: Any, wanted: Any, value: Any, tmp_path: Path
) -> None:
    table = pa.table({"s": pa.array([{"a": value}], pa.struct([("a", stored)]))})
    with pytest.raises(DamagedTableError) as caught:
        project(table, pa.schema([("s", pa.struct([("a", wanted)]))]), tmp_path)
    for part in ("a.parquet", "s.a", str(wanted)):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("stored", "wanted", "value"),
    [(pa.int32(), pa.int8(), 300), (pa.timestamp("ns"), pa.timestamp("us"), 1), (pa.uint32(), pa.int32(), 2**31)],
    ids=str,
)
def test_a_value_that_does_not_fit_is_an_error_not_another_value(
    stored: Any, wanted: Any, value: Any, tmp_path: Path
) -> None:
    with pytest.raises(DamagedTableError, match=r"column a of a\.parquet"):
        project(pa.table({"a": pa.array([value], stored)}), pa.schema([("a", wanted)]), tmp_path)


def test_int96_is_read_in_microseconds(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([NOON, None], pa.timestamp("us"))})
    wanted = pa.schema([("a", pa.timestamp("us", tz="UTC"))])
    result = project(table, wanted, tmp_path, use_deprecated_int96_timestamps=True)
    assert pq.ParquetFile(tmp_path / "a.parquet").schema.column(0).physical_type == "INT96"
    assert result["a"].to_pylist() == [NOON.replace(tzinfo=UTC), None]


def test_text_that_is_no_utf8_keeps_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": pa.array([b"\xff\xfe"])}), path, store_schema=False)
    file = pq.ParquetFile(path)
    projection = Projection.build(
        file.schema_arrow, pa.schema([("a", pa.string())]), match_by="name", constants={}, file="f"
    )
    [batch] = file.iter_batches()
    assert projection(batch, 1).column("a").cast(pa.binary()).to_pylist() == [b"\xff\xfe"]


# -- which column is which ---------------------------------------------------------------------------------------


def test_columns_are_found_by_id_at_every_level(tmp_path: Path) -> None:
    inner = pa.struct([field("old_x", pa.int32(), 11), field("gone", pa.string(), 12)])
    stored = pa.schema([field("old", pa.list_(inner), 1), field("x", pa.int64(), 2)])
    table = pa.Table.from_pylist([{"old": [{"old_x": 1, "gone": "g"}, None], "x": 5}, {"old": None, "x": 6}], stored)
    wanted = pa.schema(
        [
            field("x", pa.list_(pa.struct([field("n", pa.string(), 99), field("x", pa.int64(), 11)])), 1),
            field("y", pa.int64(), 2),
            field("new", pa.list_(pa.int32()), 98),
        ]
    )
    assert project(table, wanted, tmp_path, match_by="id").to_pylist() == [
        {"x": [{"n": None, "x": 1}, None], "y": 5, "new": None},
        {"x": None, "y": 6, "new": None},
    ]


def test_columns_are_found_by_physical_name_where_the_schema_has_one(tmp_path: Path) -> None:
    stored = pa.table({"col-1": [{"col-2": 7}]})
    wanted = pa.schema([field("s", pa.struct([field("x", pa.int64(), source="col-2")]), source="col-1")])
    assert project(stored, wanted, tmp_path).to_pylist() == [{"s": {"x": 7}}]


def test_a_name_that_differs_in_case_only_is_the_same_column(tmp_path: Path) -> None:
    wanted = pa.schema([("id", pa.int64()), ("S", pa.struct([("x", pa.int64())]))])
    table = pa.table({"ID": [1], "s": [{"X": 2}]})
    assert project(table, wanted, tmp_path).to_pylist() == [{"id": 1, "S": {"x": 2}}]
    # An exact match goes before one that is only alike.
    both = pa.table({"ID": [1], "id": [2]})
    assert project(both, pa.schema([("id", pa.int64())]), tmp_path).to_pylist() == [{"id": 2}]
    with pytest.raises(DamagedTableError, match="more than one column Id"):
        project(both, pa.schema([("Id", pa.int64())]), tmp_path)


def test_ids_asked_for_must_be_there(tmp_path: Path) -> None:
    plain = pa.table({"a": [1]})
    with pytest.raises(DamagedTableError, match=r"a\.parquet has no Parquet field ids"):
        project(plain, pa.schema([field("a", pa.int64(), 1)]), tmp_path, match_by="id")
    known = plain.cast(pa.schema([field("a", pa.int64(), 1)]))
    with pytest.raises(DamagedTableError, match="column a has no field id"):
        project(known, plain.schema, tmp_path, match_by="id")


def test_dots_in_names_lead_nowhere_else(tmp_path: Path) -> None:
    table = pa.table({"a": [{"b": 1}], "a.b": [2], "c": [3]})
    for wanted in (["a.b"], ["a"], ["c", "a.b"], ["a.b", "a"]):
        schema = pa.schema([table.schema.field(name) for name in wanted])
        assert project(table, schema, tmp_path).to_pylist() == table.select(wanted).to_pylist()


def test_only_needed_leaves_are_read(tmp_path: Path) -> None:
    stored = pa.schema(
        [
            ("a", pa.int64()),
            ("s", pa.struct([("x", pa.int64()), ("deep", pa.struct([("y", pa.int64()), ("z", pa.int64())]))])),
            ("m", pa.map_(pa.string(), pa.struct([("p", pa.int64()), ("q", pa.int64())]))),
            ("l", pa.list_(pa.struct([("u", pa.int64()), ("v", pa.int64())]))),
        ]
    )

    def leaves(*fields: tuple[str, Any]) -> tuple[int, ...]:
        return Projection.build(stored, pa.schema(fields), match_by="name", constants={}, file="f").leaves

    assert leaves(("s", pa.struct([("deep", pa.struct([("z", pa.int64())]))]))) == (3,)
    assert leaves(("l", pa.list_(pa.struct([("v", pa.int64())]))), ("a", pa.int64())) == (0, 8)
    assert leaves(("m", pa.map_(pa.string(), pa.struct([("q", pa.int64())])))) == (4, 6)
    # Nothing of the struct itself is stored, but whether it is null is.
    assert leaves(("s", pa.struct([("new", pa.int64())]))) == (1,)
    assert leaves(("new", pa.int64())) == ()


# -- constants ---------------------------------------------------------------------------------------------------


def test_constants_take_the_place_of_stored_columns(tmp_path: Path) -> None:
    wanted: list[tuple[str, Any, Any, Any]] = [
        ("i", pa.int32(), 5, 5),
        ("s", pa.string(), "é", "é"),
        ("b", pa.bool_(), True, True),
        ("f", pa.float64(), "-Infinity", float("-inf")),
        ("c", pa.decimal128(10, 2), "1.50", Decimal("1.50")),
        ("d", pa.date32(), -1, dt.date(1969, 12, 31)),
        ("t", pa.timestamp("us", tz="UTC"), 1, dt.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        ("n", pa.timestamp("us"), -1, dt.datetime(1969, 12, 31, 23, 59, 59, 999999)),
        ("x", pa.binary(), "/w==", b"\xff"),
        ("z", pa.string(), None, None),
    ]
    schema = pa.schema([*(column[:2] for column in wanted), ("a", pa.int64())])
    constants = {name: value for name, _, value, _ in wanted}
    result = project(pa.table({"i": [9, 9], "a": [1, 2]}), schema, tmp_path, constants=constants)
    expected = {name: value for name, _, _, value in wanted}
    assert result.to_pylist() == [{**expected, "a": 1}, {**expected, "a": 2}]


@pytest.mark.parametrize(
    ("type", "value"),
    [
        (pa.int8(), 300),
        (pa.int32(), "1"),
        (pa.int32(), True),
        (pa.bool_(), 1),
        (pa.date32(), "2020-01-01"),
        (pa.decimal128(4, 2), "1.555"),
        (pa.decimal128(4, 2), "100.00"),
        (pa.decimal128(4, 2), "x"),
        (pa.float64(), "x"),
        (pa.string(), 5),
        (pa.binary(), "%"),
        (pa.list_(pa.int32()), "[]"),
    ],
    ids=str,
)
def test_a_constant_of_the_wrong_kind_is_damage(type: Any, value: Any, tmp_path: Path) -> None:
    schema = pa.schema([("part", type)])
    with pytest.raises(DamagedTableError, match="column part"):
        project(pa.table({"a": [1]}), schema, tmp_path, constants={"part": value})


# -- any nesting -------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c"])
LEAVES = st.sampled_from([pa.int32(), pa.string()])


def types_of(depth: int) -> st.SearchStrategy[Any]:
    if not depth:
        return LEAVES
    inner = types_of(depth - 1)
    structs = st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(lambda fields: pa.struct(list(fields.items())))
    return st.one_of(LEAVES, structs, inner.map(pa.list_), inner.map(lambda item: pa.map_(pa.string(), item)))


def values_of(type: Any) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(type):
        some: Any = st.fixed_dictionaries({field.name: values_of(field.type) for field in type})
    elif pa.types.is_map(type):
        some = st.lists(st.tuples(st.sampled_from(["k", "l"]), values_of(type.item_type)), max_size=2)
    elif pa.types.is_list(type):
        some = st.lists(values_of(type.value_type), max_size=3)
    else:
        some = st.integers(-9, 9) if pa.types.is_integer(type) else st.sampled_from(["", "x", "yy"])
    return st.none() | some


@st.composite
def evolved(draw: st.DrawFn, type: Any) -> Any:
    """Later types of a column: struct fields dropped, added and reordered at every level, integers widened."""
    if pa.types.is_struct(type):
        kept = [(field.name, draw(evolved(field.type))) for field in type if draw(st.booleans())]
        if not kept or draw(st.booleans()):
            kept.append(("new", pa.list_(pa.int32())))
        return pa.struct(draw(st.permutations(kept)))
    if pa.types.is_map(type):
        return pa.map_(pa.string(), draw(evolved(type.item_type)))
    if pa.types.is_list(type):
        return pa.list_(draw(evolved(type.value_type)))
    return draw(st.sampled_from([type, pa.int64()] if pa.types.is_integer(type) else [type]))


def as_seen(value: Any, type: Any) -> Any:
    """The same in plain Python: what a value of an earlier type is to the later one."""
    if value is None:
        return None
    if pa.types.is_struct(type):
        return {field.name: as_seen(value.get(field.name), field.type) for field in type}
    if pa.types.is_map(type):
        return [(key, as_seen(item, type.item_type)) for key, item in value]
    if pa.types.is_list(type):
        return [as_seen(item, type.value_type) for item in value]
    return value


@st.composite
def evolutions(draw: st.DrawFn) -> tuple[Any, Any, list[Any]]:
    stored = draw(types_of(3))
    return stored, draw(evolved(stored)), draw(st.lists(values_of(stored), min_size=1, max_size=8))


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(evolutions(), st.integers(1, 4))
def test_any_evolved_nesting_reads_as_python_would(case: tuple[Any, Any, list[Any]], batch_size: int) -> None:
    stored, wanted, values = case
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"v": pa.array(values, stored)}), sink, store_schema=False)
    file = pq.ParquetFile(sink.getvalue())
    schema = pa.schema([("v", wanted)])
    projection = Projection.build(file.schema_arrow, schema, match_by="name", constants={}, file="f")
    got = []
    for batch in file.reader.iter_batches(batch_size, row_groups=[0], column_indices=list(projection.leaves)):
        for start in range(0, batch.num_rows, 2):
            part = projection(batch.slice(start, 2), len(batch.slice(start, 2)))
            part.validate(full=True)
            got += part.column(0).to_pylist()
    assert got == [as_seen(value, wanted) for value in values]


@pytest.mark.parametrize("layout", [pa.list_(pa.int32(), 2), pa.large_list(pa.int32()), pa.list_view(pa.int32())])
def test_other_list_layouts_are_lists(layout: Any, tmp_path: Path) -> None:
    values = [[1, 2], None, [3, None], [5, 6]]
    table = pa.table({"l": pa.array(values, layout)})
    if pa.__version__.startswith("21.") and layout != pa.large_list(pa.int32()):
        pytest.skip("pyarrow 21 can't write such files, so there are none to read with it")
    result = project(table, pa.schema([("l", pa.list_(pa.int64()))]), tmp_path)
    assert result["l"].to_pylist() == values


# -- columns that belong to rows, not to the table ---------------------------------------------------------------


def test_one_field_may_be_found_by_its_name_where_the_others_go_by_ids(tmp_path: Path) -> None:
    stored = pa.schema([field("a", pa.int64(), id=1), field("row", pa.int64())])
    table = pa.table([[1, 2], [7, None]], schema=stored)
    named = pa.field("row", pa.int64(), metadata={"dvm:source": "row", "dvm:match": "name", "PARQUET:field_id": "9"})
    wanted = pa.schema([named, field("b", pa.int64(), id=1)])
    assert project(table, wanted, tmp_path, match_by="id").to_pydict() == {"row": [7, None], "b": [1, 2]}
    without = project(table.select(["a"]), wanted, tmp_path, match_by="id")
    assert without.to_pydict() == {"row": [None, None], "b": [1, 2]}


def test_a_shredded_variant_is_put_together_at_any_depth(tmp_path: Path) -> None:
    whole = pa.struct([pa.field("value", pa.binary()), pa.field("metadata", pa.binary())])
    for typed, damaged in ((pa.int64(), False), (pa.uint32(), False), (pa.int64(), True)):
        shredded = pa.struct([*whole, pa.field("typed_value", typed)])
        value = {"value": None, "metadata": b"\x02\x00\x00" if damaged else b"\x01\x00\x00", "typed_value": 5}
        for stored, wanted, rows in (
            (shredded, whole, [value]),
            (pa.list_(shredded), pa.list_(whole), [[value]]),
            (pa.struct([pa.field("v", shredded)]), pa.struct([pa.field("v", whole)]), [{"v": value}, None]),
        ):
            table = pa.table({"before": pa.nulls(len(rows), pa.int8()), "v": pa.array(rows, stored)})
            schema = pa.schema([field("v", wanted), field("before", pa.int8())])
            if damaged:
                with pytest.raises(DamagedTableError, match=r"column v.* unknown version 2"):
                    project(table, schema, tmp_path)
            elif typed == pa.uint32():
                with pytest.raises(RefusedError, match=r"column v.* shredded"):
                    project(table, schema, tmp_path)
            else:
                text = str(project(table, schema, tmp_path)["v"].to_pylist())
                assert str({"value": b"\x0c\x05", "metadata": b"\x01\x00\x00"}) in text

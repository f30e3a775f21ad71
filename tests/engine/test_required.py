"""Values that are missing in NOT NULL columns, at any depth."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dv_maintenance.engine.rows.required import Required
from dv_maintenance.engine.writer import as_optional
from dv_maintenance.errors import MissingValueError
from dv_maintenance.tables.model import REQUIRED


def firm(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def free(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind)


INT = pa.int64()
# A type, a value that has a null where it must not, one that has none there, and the name of that place.
CASES: list[tuple[pa.Field, Any, Any, str]] = [
    (firm("a", INT), None, 1, "a"),
    (free("s", pa.struct([firm("x", INT)])), {"x": None}, None, "s.x"),
    (firm("s", pa.struct([free("x", INT)])), None, {"x": None}, "s"),
    (free("s", pa.struct([free("t", pa.struct([firm("x", INT)]))])), {"t": {"x": None}}, {"t": None}, "s.t.x"),
    (free("l", pa.list_(firm("element", INT))), [1, None], [], "l.element"),
    (free("l", pa.list_(firm("element", INT))), [None], None, "l.element"),
    (free("l", pa.large_list(firm("element", INT))), [None], [2], "l.element"),
    (free("l", pa.list_(free("element", pa.struct([firm("x", INT)])))), [None, {"x": None}], [None], "l.element.x"),
    (free("m", pa.map_(pa.string(), firm("value", INT))), [("k", None)], [("k", 1)], "m.value"),
    (free("m", pa.map_(pa.string(), firm("value", INT))), [("k", None)], None, "m.value"),
]


def loose(kind: pa.DataType) -> pa.DataType:
    """The same type, in which everything may be null: pyarrow builds such values."""
    return as_optional(pa.schema([pa.field("c", kind)])).field("c").type


def batch(field: pa.Field, values: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, loose(field.type))], names=[field.name])


@pytest.mark.parametrize("marked", [False, True], ids=["in the schema", "marked"])
@pytest.mark.parametrize(("field", "bad", "good", "place"), CASES)
def test_the_place_is_named(field: pa.Field, bad: Any, good: Any, place: str, marked: bool) -> None:
    schema = pa.schema([pa.field("before", INT), field])
    if marked:
        schema = as_optional(schema)
        assert schema.field(1).nullable
    required = Required.of(schema)
    assert required is not None
    assert required.names == [field.name]
    rows = batch(field, [good, bad, good])
    rows = pa.RecordBatch.from_arrays([pa.nulls(3, INT), rows.column(0)], schema=as_optional(schema))
    with pytest.raises(MissingValueError, match="NOT NULL, but here has rows in which it is null") as caught:
        required.check(rows, "here")
    assert caught.value.column == place
    assert caught.value.exit_code == 5
    # Slices share the buffers of what is beside them.
    for start in (0, 2):
        required.check(rows.slice(start, 1), "here")


def test_what_is_beneath_a_null_does_not_count() -> None:
    parent = pa.StructArray.from_arrays([pa.array([None, 1], INT)], ["x"], mask=pa.array([True, False]))
    required = Required.of(pa.schema([free("s", pa.struct([firm("x", INT)]))]))
    assert required is not None
    required.check(pa.RecordBatch.from_arrays([parent], names=["s"]), "here")


def test_a_file_has_other_names_than_the_table() -> None:
    """Under column mapping, messages name what users know."""
    marked = pa.field("col-7f", INT, metadata={REQUIRED: b"s.old name"})
    required = Required.of(pa.schema([free("col-3a", pa.struct([marked]))]))
    assert required is not None
    with pytest.raises(MissingValueError, match=r"column s\.old name is NOT NULL") as caught:
        required.check(batch(free("col-3a", pa.struct([free("col-7f", INT)])), [{"col-7f": None}]), "here")
    assert "ALTER COLUMN s.`old name` DROP NOT NULL" in str(caught.value)


def test_nothing_is_required() -> None:
    assert Required.of(pa.schema([free("a", INT), free("m", pa.map_(pa.string(), INT))])) is None


_INTS = st.none() | st.integers(0, 3)
_VALUES = st.lists(
    st.fixed_dictionaries(
        {
            "a": _INTS,
            "s": st.none() | st.fixed_dictionaries({"x": _INTS, "y": _INTS}),
            "l": st.none() | st.lists(_INTS, max_size=2),
        }
    ),
    min_size=1,
    max_size=5,
)


@given(_VALUES, st.integers(0, 15))
@settings(max_examples=examples(60))
def test_a_proof_by_the_footer_is_never_wrong(rows: list[dict[str, Any]], which: int) -> None:
    flags = [bool(which >> at & 1) for at in range(4)]
    struct = pa.struct([pa.field("x", INT, nullable=not flags[1]), free("y", INT)])
    schema = pa.schema(
        [
            pa.field("a", INT, nullable=not flags[0]),
            pa.field("s", struct, nullable=not flags[2]),
            free("l", pa.list_(pa.field("element", INT, nullable=not flags[3]))),
        ]
    )
    required = Required.of(schema)
    if required is None:
        return
    table = pa.Table.from_pylist(rows, as_optional(schema))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    footer = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    origins = {footer.schema.column(at).path: at for at in range(footer.num_columns)}
    try:
        required.check(table.combine_chunks().to_batches()[0], "here")
    except MissingValueError:
        assert not required.proven(footer, [0], origins)
    if all(row["a"] is not None and row["s"] and None not in row["s"].values() and row["l"] for row in rows):
        flat = None not in pc.list_flatten(table["l"].combine_chunks()).to_pylist()
        assert not flat or required.proven(footer, [0], origins)

"""Footers that say less: no Arrow schema, no bounds. Everything else as it was."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dv_maintenance.errors import RefusedError
from dv_maintenance.files.parquet_footer import (
    encoded,
    framed,
    open_parquet_file,
    parsed,
    read_footer,
    without_claims,
)
from dv_maintenance.files.thrift_compact import I32, STRUCT, Struct, ThriftError, Value, list_of

TABLE = pa.table({"a": [1.0, 2.0, 3.0], "b": [4.0, None, 6.0], "s": ["x", "y", "z"]})


def stored(table: pa.Table = TABLE, **options: Any) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **{"row_group_size": 2, "write_page_index": True, **options})
    return sink.getvalue()


def chunks(footer: Any) -> list[Any]:
    return [
        footer.row_group(group).column(leaf)
        for group in range(footer.num_row_groups)
        for leaf in range(footer.num_columns)
    ]


def test_bounds_go_and_nothing_else_does() -> None:
    data = stored()
    before = pq.read_metadata(pa.BufferReader(data))
    file = pa.BufferReader(data.to_pybytes() + framed(without_claims(encoded(before), [{1}, {0, 1}], [set(), {2}])))
    after = pq.read_metadata(file)
    assert [each.statistics.has_min_max for each in chunks(after)] == [True, False, True, False, False, True]
    assert [each.has_column_index for each in chunks(after)] == [True, False, True, False, False, True]
    assert all(each.has_offset_index for each in chunks(after))
    assert [each.statistics.null_count for each in chunks(after)] == [0, 1, 0, 0, 0, 0]
    assert (after.metadata, after.created_by, after.schema) == (before.metadata, before.created_by, before.schema)
    for one, other in zip(chunks(before), chunks(after), strict=True):
        for key in ("data_page_offset", "total_compressed_size", "encodings", "path_in_schema", "num_values"):
            assert getattr(one, key) == getattr(other, key)
    assert pq.read_table(file).equals(TABLE)


def test_a_dictionary_of_parquet_java_is_not_complete_either() -> None:
    """It is, without statistics of encodings, if all encodings are those of its first pages."""
    file = Struct.parse(encoded(pq.read_metadata(pa.BufferReader(stored()))))
    groups = [Struct.parse(group) for group in file.list(4, STRUCT)]
    for group in groups:
        columns = []
        for chunk in map(Struct.parse, group.list(1, STRUCT)):
            meta = chunk.struct(3)
            assert meta is not None
            meta.fields[2] = list_of(I32, [b"\x04", b"\x06"])  # PLAIN_DICTIONARY, RLE
            chunk.fields[3] = Value(STRUCT, meta.encode())
            columns.append(chunk.encode())
        group.fields[1] = list_of(STRUCT, columns)
    file.fields[4] = list_of(STRUCT, [group.encode() for group in groups])
    after = parsed(without_claims(file.encode(), [set(), set()], [{0}, set()]))
    assert [chunk.encodings for chunk in chunks(after)] == [
        ("PLAIN_DICTIONARY", "RLE", "PLAIN"),
        *[("PLAIN_DICTIONARY", "RLE")] * 5,
    ]


@pytest.mark.parametrize("leaves", [[set()], [set(), {3}], [set(), set(), {0}]])
def test_bounds_of_what_is_not_there(leaves: Any) -> None:
    footer = encoded(pq.read_metadata(pa.BufferReader(stored())))
    with pytest.raises(ThriftError):
        without_claims(footer, leaves, [set()] * len(leaves))


@pytest.mark.parametrize("kept", [{}, {b"k": b"v", b"l": b""}], ids=["alone", "with others"])
def test_the_arrow_schema_goes_and_other_keys_stay(kept: dict[bytes, bytes]) -> None:
    table = pa.table({"t": pa.array(["a"], pa.string_view()), "ARROW:schema": ["ARROW:schema"]}, metadata=kept)
    with open_parquet_file(pa.BufferReader(stored(table))) as file:
        assert file.schema_arrow.types == [pa.string(), pa.string()]
        assert (file.metadata.metadata or {}) == kept
        # Of the column of that name, too.
        assert file.metadata.row_group(0).column(1).statistics.min == "ARROW:schema"
        assert file.read().column("ARROW:schema").to_pylist() == ["ARROW:schema"]


@pytest.mark.parametrize("value", ["\x18\x0cARROW:schema", "arrow:schema", "ARROW:schema"])
@pytest.mark.parametrize("said", [None, b"garbage"])
def test_bytes_that_look_like_the_key(value: str, said: bytes | None) -> None:
    """Bounds are what they were, whatever is in them."""
    table = pa.table({"s": pa.array([value], pa.large_string())})
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, store_schema=said is None) as writer:
        writer.write_table(table)
        if said is not None:
            writer.add_key_value_metadata({b"ARROW:schema": said})
    with open_parquet_file(pa.BufferReader(sink.getvalue())) as file:
        assert file.schema_arrow.types == [pa.string()]
        assert file.metadata.row_group(0).column(0).statistics.max == value
        assert file.read().column("s").to_pylist() == [value]


def test_footers_of_any_length() -> None:
    """One that is longer than what is read at first, with field ids."""
    fields = [pa.field(f"c{n}", pa.large_string(), metadata={b"PARQUET:field_id": b"%d" % n}) for n in range(1500)]
    table = pa.Table.from_arrays([pa.array(["x"], pa.large_string())] * 1500, schema=pa.schema(fields))
    data = stored(table)
    assert int.from_bytes(data.to_pybytes()[-8:-4], "little") > 1 << 16
    with open_parquet_file(pa.BufferReader(data)) as file:
        assert set(file.schema_arrow.types) == {pa.string()}
        assert file.schema_arrow.field(7).metadata == {b"PARQUET:field_id": b"7"}


@pytest.mark.parametrize(
    "value", [b"", b"garbage", b"\xff\x00", b"AAAA" * 100], ids=["empty", "text", "bytes", "base64"]
)
def test_an_arrow_schema_that_is_none(value: bytes) -> None:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, TABLE.schema, store_schema=False) as writer:
        writer.write_table(TABLE)
        writer.add_key_value_metadata({b"ARROW:schema": value})
    with open_parquet_file(pa.BufferReader(sink.getvalue())) as file:
        assert file.read().equals(TABLE)


@pytest.mark.parametrize(
    "data",
    [b"", b"PAR1", b"PAR1" * 3, b"PAR1" + b"\xff" * 4 + b"PAR1", b"x" * 100, b"PAR1ARROW:schema\x0c\0\0\0PAR1"],
    ids=["nothing", "magic", "magics", "length", "text", "footer"],
)
def test_what_is_no_parquet_file(data: bytes) -> None:
    with pytest.raises((pa.ArrowException, OSError)):
        read_footer(pa.BufferReader(data))


def test_a_variant_is_refused_by_name_where_arrow_can_not_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(_file: Any) -> Any:
        raise OSError("Logical type Variant cannot be applied to group node")  # pyarrow 21

    file = pa.BufferReader(stored())
    monkeypatch.setattr(pq, "ParquetFile", opened)
    with pytest.raises(RefusedError, match="variant") as caught:
        read_footer(file)
    assert "pyarrow 22" in str(caught.value)

"""Text whose dictionaries pass from source to new file: values, statistics and schema as if it were decoded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from support.parquet_lake import Lake
from test_rewrite_task import EVERYTHING, read_duckdb, read_polars, read_pyarrow, rows

from dv_maintenance.engine.parquet import output, row_group_copy, writer
from dv_maintenance.engine.rewrite import rewrite
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.parquet_footer import footer_bytes
from dv_maintenance.files.parquet_groups import Footer
from dv_maintenance.files.thrift_compact import BINARY, I64, STRUCT, Struct, binary, integer
from dv_maintenance.files.thrift_compact import Value as Thrift

SCHEMA = pa.schema(
    [
        pa.field("text", pa.string()),
        pa.field("bytes", pa.binary()),
        pa.field("number", pa.float64()),
        pa.field("inner", pa.struct([("text", pa.string())])),
        pa.field("list", pa.list_(pa.string())),
        pa.field("a.b", pa.string()),
    ]
)
STATS = (("text",), ("number",), ("inner", "text"), ("list",), ("a.b",))
TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "é", "\0", "a" * 40, "ab"]), st.text(max_size=3))


def table_of(texts: list[str | None]) -> pa.Table:
    size = len(texts)
    columns = [
        texts,
        [None if each is None else each.encode() + b"\xff" for each in texts],
        [(0.0, -0.0, float("nan"), None)[row % 4] for row in range(size)],
        [None if row % 5 == 0 else {"text": each} for row, each in enumerate(texts)],
        [None if row % 7 == 0 else [each, None] for row, each in enumerate(texts)],
        texts[::-1],
    ]
    return pa.table([pa.array(each, field.type) for each, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The columns that were written as dictionaries, a set for each writer of Arrow."""
    found: list[set[int]] = []
    options_for = output.ParquetOutput._options_for

    def noted(self: Any, table: pa.Table) -> Any:
        found.append({at for at, field in enumerate(table.schema) if pa.types.is_dictionary(field.type)})
        return options_for(self, table)

    monkeypatch.setattr(output.ParquetOutput, "_options_for", noted)
    return found


@settings(max_examples=examples(25), deadline=None)
@given(
    files=st.lists(st.lists(TEXTS, min_size=1, max_size=60), min_size=1, max_size=3),
    deleted=st.lists(st.sets(st.integers(0, 59)), min_size=3, max_size=3),
    group=st.integers(1, 60),
    plain_from=st.sampled_from([1 << 20, 20, 1]),
    dictionary=st.lists(st.booleans(), min_size=3, max_size=3),
    room=st.sampled_from([1 << 26, 400, 1]),
)
def test_any_text_as_if_it_were_decoded(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[str | None]],
    deleted: list[set[int]],
    group: int,
    plain_from: int,
    dictionary: list[bool],
    room: int,
) -> None:
    lake = Lake(tmp_path_factory.mktemp("lake"))
    sources, left = [], []
    for number, texts in enumerate(files):
        table = table_of(texts)
        options = {"use_dictionary": dictionary[number], "dictionary_pagesize_limit": plain_from, "write_batch_size": 3}
        source = lake.write(table, f"{number}.parquet", row_group_size=group, **options)
        gone = {row for row in deleted[number] if row < len(texts)}
        sources.append(replace(source, dv=lake.dv(gone)) if gone else source)
        left.append(table.filter(pa.array([row not in gone for row in range(len(texts))])))
    wanted = pa.concat_tables(left)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "ROW_GROUP_BYTES", room)
        result = rewrite(lake.task(sources, SCHEMA, stats_columns=STATS))
        patch.setattr(writer, "repetitive_texts", lambda *_: [])
        decoded = rewrite(lake.task(sources, SCHEMA, stats_columns=STATS, output_uri=lake.uri("decoded")))
    assert len(result.outputs) == len(decoded.outputs) == bool(wanted.num_rows)
    for ours, theirs in zip(result.outputs, decoded.outputs, strict=True):
        assert repr(ours.stats) == repr(theirs.stats)
        (path,) = lake.outputs()
        expected = repr(rows(wanted))
        for read in (read_pyarrow, read_duckdb, read_polars):
            assert repr(rows(read(str(path)))) == expected
        footer, other = pq.read_metadata(path), pq.read_metadata(next((lake.root / "decoded").iterdir()))
        assert footer.schema.equals(other.schema)
        assert footer.metadata == other.metadata
        assert pq.read_schema(path).equals(SCHEMA.remove_metadata())
        check_page_index(str(path))


def check_page_index(path: str) -> None:
    """Bounds and null counts of every page of text, and of every row group, are those of its rows."""
    file = pq.ParquetFile(path)
    with pa.memory_map(path) as data:
        footer = Footer(footer_bytes(data) or b"", data.size())
        for number in range(len(footer)):
            values = file.read_row_group(number).column("text")
            part = footer.group(number).parts[0]
            assert part.column_index is not None
            assert part.offset_index is not None
            index = Struct.parse(data.read_at(part.column_index[1], part.column_index[0]))
            places = Struct.parse(data.read_at(part.offset_index[1], part.offset_index[0])).list(1, STRUCT)
            firsts = [Struct.parse(place).integer(3) or 0 for place in places]
            least, greatest = (index.list(id_, BINARY) for id_ in (2, 3))
            nulls = [integer(Thrift(I64, each)) for each in index.list(5, I64)]
            for page, (first, stop) in enumerate(zip(firsts, [*firsts[1:], len(values)], strict=True)):
                texts = [each.encode() for each in values.slice(first, stop - first).to_pylist() if each is not None]
                assert nulls[page] == stop - first - len(texts)
                if texts:
                    bounds = [binary(Thrift(BINARY, each[page])) for each in (least, greatest)]
                    assert bounds == [min(texts), max(texts)]
            stats = file.metadata.row_group(number).column(0).statistics
            assert stats.null_count == values.null_count
            present = [each for each in values.to_pylist() if each is not None]
            if present:
                assert (stats.min_raw, stats.max_raw) == (min(map(str.encode, present)), max(map(str.encode, present)))


def test_only_text_outside_of_other_columns_is_kept(lake: Any, kept: list[set[int]]) -> None:
    table = table_of(["a", "b", None, "a"] * 50)
    source = replace(lake.write(table), dv=lake.dv([3]))
    rewrite(lake.task([source], SCHEMA))
    assert kept == [{0, 1}]


def test_files_of_unknown_writers_are_decoded(lake: Any, kept: list[set[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A value may occur twice in a dictionary of theirs, which Arrow reads as another one."""
    monkeypatch.setattr(row_group_copy.Writer, "of", lambda _: None)
    source = replace(lake.write(table_of(["a", "b", None, "a"])), dv=lake.dv([3]))
    rewrite(lake.task([source], SCHEMA))
    assert kept == [set()]


def test_what_was_deleted_does_not_survive_in_a_dictionary(lake: Any, kept: list[set[int]]) -> None:
    table = pa.table({"text": [f"secret {row}" if row % 3 == 0 else f"public {row % 5}" for row in range(600)]})
    source = lake.write(table, compression="none", row_group_size=200)
    assert b"secret" in (lake.root / "in put.parquet").read_bytes()
    rewrite(lake.task([replace(source, dv=lake.dv(range(0, 600, 3)))], table.schema, compression="none"))
    assert kept == [{0}]
    (path,) = lake.outputs()
    assert b"secret" not in path.read_bytes()
    assert read_pyarrow(str(path)).column("text").to_pylist() == [f"public {row % 5}" for row in range(600) if row % 3]


def test_every_type_beside_kept_dictionaries(lake: Any, kept: list[set[int]]) -> None:
    table = pa.concat_tables([EVERYTHING] * 200).combine_chunks()
    source = replace(lake.write(table, row_group_size=250), dv=lake.dv(range(0, 600, 7)))
    rewrite(lake.task([source], table.schema))
    assert kept == [{table.schema.get_field_index(name) for name in ("text", "bytes")}]
    left = table.take([row for row in range(600) if row % 7])
    for read in (read_pyarrow, read_duckdb, read_polars):
        assert rows(read(str(lake.outputs()[0]))) == rows(left)


def test_row_groups_are_copied_beside_kept_dictionaries(
    lake: Any, kept: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_group_copy, "_LARGE_ROWS", 100)
    table = table_of([f"{row % 9}" for row in range(600)])
    source = lake.write(table, row_group_size=100)
    result = rewrite(lake.task([replace(source, dv=lake.dv([250, 550]))], SCHEMA, stats_columns=STATS))
    assert result.details["row_groups_copied"] == 4
    assert kept == [{0, 1}, {0, 1}]
    left = table.take([row for row in range(600) if row not in (250, 550)])
    for read in (read_pyarrow, read_duckdb, read_polars):
        assert repr(rows(read(str(lake.outputs()[0])))) == repr(rows(left))


def test_values_that_a_dictionary_lacks_are_damage(lake: Any) -> None:
    table = pa.table({"text": [f"{row * row % 5}" for row in range(600)]})
    source = lake.write(table, compression="none")
    path = lake.root / "in put.parquet"
    chunk = pq.read_metadata(path).row_group(0).column(0)
    end = chunk.dictionary_page_offset + chunk.total_compressed_size
    data = bytearray(path.read_bytes())
    data[end - 20 : end] = b"\xff" * 20
    path.write_bytes(bytes(data))
    with pytest.raises(DamagedTableError, match=r"in%20put\.parquet .* dictionary lacks"):
        rewrite(lake.task([replace(source, dv=lake.dv([3]))], table.schema))
    assert not lake.outputs()

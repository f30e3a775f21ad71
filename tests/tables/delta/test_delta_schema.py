"""Delta schema JSON to Arrow: logical and physical."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.tables.delta.log.actions import Metadata
from dv_maintenance.tables.delta.rows.schema import (
    arrow_schema,
    column_mapping_mode,
    delta_kind,
    partition_physical_names,
    physical_name,
    physical_schema,
)
from dv_maintenance.tables.model import REQUIRED

COLUMN_ID = "delta.columnMapping.id"
PHYSICAL_NAME = "delta.columnMapping.physicalName"
NESTED_IDS = "delta.columnMapping.nested.ids"


def column(name: str, type: Any, nullable: Any = True, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": type, "nullable": nullable, "metadata": metadata}


def mapped(name: str, type: Any, id: int, source: str, nullable: Any = True, **metadata: Any) -> dict[str, Any]:
    return column(name, type, nullable, **{COLUMN_ID: id, PHYSICAL_NAME: source}, **metadata)


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def array(element: Any, contains_null: bool = True) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": contains_null}


def mapping(key: Any, value: Any, contains_null: bool = True) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": contains_null}


def metadata(
    *fields: dict[str, Any], mode: str = "none", partitions: tuple[str, ...] = (), **properties: str
) -> Metadata:
    return Metadata(
        id="t",
        schema_string=json.dumps(struct(*fields)),
        partition_columns=partitions,
        configuration={"delta.columnMapping.mode": mode, **properties},
    )


def golden_metadata(table: Path) -> list[Metadata]:
    """Every metaData action in the JSON commits of a golden table, oldest first."""
    found = []
    for log in sorted((table / "_delta_log").glob("*.json")):
        for line in log.read_text().splitlines():
            body = json.loads(line).get("metaData")
            if body:
                found.append(Metadata.from_json(body, where=log.name))
    return found


@pytest.mark.parametrize(
    ("delta", "arrow"),
    [
        ("byte", pa.int8()),
        ("short", pa.int16()),
        ("integer", pa.int32()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("decimal(38,18)", pa.decimal128(38, 18)),
        ("decimal( 5 , 0 )", pa.decimal128(5, 0)),
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("boolean", pa.bool_()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        (array("long", contains_null=False), pa.list_(pa.field("element", pa.int64(), nullable=False))),
        (mapping("string", "date"), pa.map_(pa.string(), pa.date32())),
        (struct(column("x", "long", nullable=False)), pa.struct([pa.field("x", pa.int64(), nullable=False)])),
        ({"type": "udt", "class": "v", "sqlType": array("double")}, pa.list_(pa.field("element", pa.float64()))),
    ],
)
def test_every_type_has_its_arrow_type(delta: Any, arrow: pa.DataType) -> None:
    field = arrow_schema(metadata(column("c", delta, nullable=False))).field("c")
    assert field.type.equals(arrow)
    assert not field.nullable


def test_comments_belong_to_the_logical_schema_only() -> None:
    inner = struct(column("city", "string", comment="Where."))
    table = metadata(
        column("id", "long", comment="Order number."), column("address", inner), column("x", "long", comment=3)
    )
    schema = arrow_schema(table)
    assert schema.field("id").metadata == {b"comment": b"Order number."}
    assert schema.field("address").type.field("city").metadata == {b"comment": b"Where."}
    assert schema.field("x").metadata is None, "no text, no comment"
    assert physical_schema(table).field("id").metadata is None, "data files don't repeat it"


def test_a_void_column_is_all_null_whatever_the_schema_says() -> None:
    assert arrow_schema(metadata(column("v", "void", nullable=False))).field("v") == pa.field("v", pa.null())


def test_a_variant_is_two_required_binaries_and_says_so_at_any_depth() -> None:
    schema = physical_schema(metadata(column("v", "variant"), column("a", array("variant"))))
    for field in (schema.field("v"), schema.field("a").type.value_field):
        assert delta_kind(field) == "variant"
        assert {(part.name, part.type, part.nullable) for part in field.type} == {
            ("metadata", pa.binary(), False),
            ("value", pa.binary(), False),
        }
    assert delta_kind(schema.field("a")) is None


def test_columns_of_kinds_without_binary_order_are_marked() -> None:
    schema = arrow_schema(
        metadata(
            column("plain", "string"),
            column("lcase", "string", __COLLATIONS={"lcase": "spark.UTF8_LCASE"}),
            column("vector", {"type": "udt", "sqlType": struct(column("x", "long"))}),
        )
    )
    assert [delta_kind(field) for field in schema] == [None, "collated", "udt"]


def test_files_hold_physical_names_and_ids_all_nullable_without_partitions_and_void() -> None:
    table = metadata(
        mapped("day", "date", 1, "col-d"),
        mapped("n", "void", 2, "col-n"),
        mapped("s", struct(mapped("a", "long", 4, "col-a"), mapped("z", "void", 5, "col-z")), 3, "col-s"),
        mapped("only_void", struct(mapped("a", array("void"), 7, "col-v")), 6, "col-o"),
        mapped("hollow", mapping("string", struct(mapped("a", "void", 11, "col-y"))), 10, "col-h"),
        mapped("firm", "long", 12, "col-f", nullable=False),
        mapped("xs", array(struct(mapped("a", "long", 9, "col-b")), contains_null=False), 8, "col-xs"),
        mode="name",
        partitions=("day",),
    )
    expected = pa.schema(
        [
            pa.field("col-s", pa.struct([pa.field("col-a", pa.int64())])),
            pa.field("col-f", pa.int64()),
            pa.field("col-xs", pa.list_(pa.field("element", pa.struct([pa.field("col-b", pa.int64())])))),
        ]
    )
    schema = physical_schema(table)
    assert schema.equals(expected)
    assert schema.field("col-s").metadata == {b"PARQUET:field_id": b"3"}
    assert schema.field("col-s").type.field("col-a").metadata == {b"PARQUET:field_id": b"4"}
    assert schema.field("col-xs").type.value_type.field("col-b").metadata == {b"PARQUET:field_id": b"9"}
    assert schema.field("col-f").metadata == {b"PARQUET:field_id": b"12", REQUIRED: b"firm"}
    assert schema.field("col-xs").type.value_field.metadata == {REQUIRED: b"xs.element"}, "the path that users know"
    assert partition_physical_names(table) == {"day": "col-d"}


def test_logical_fields_know_their_source_only_under_column_mapping() -> None:
    body = mapped("s", struct(mapped("a", "long", 2, "col-a")), 1, "col-s")
    for mode, sources in (("name", ("col-s", "col-a")), ("id", ("col-s", "col-a")), ("none", ("s", "a"))):
        field = arrow_schema(metadata(body, mode=mode)).field("s")
        inner = field.type.field("a")
        assert (field.name, inner.name) == ("s", "a")
        assert (physical_name(field), physical_name(inner)) == sources
        assert (field.metadata is None) is (mode == "none")


def test_elements_keys_and_values_carry_their_ids() -> None:
    field = physical_schema(
        metadata(
            mapped(
                "m",
                mapping(
                    "integer",
                    array(struct(mapped("x", array("long"), 2, "col-x", **{NESTED_IDS: {"col-x.element": 9}}))),
                ),
                1,
                "col-m",
                **{NESTED_IDS: {"col-m.key": 5, "col-m.value": 6, "col-m.value.element": 7}},
            ),
            mode="id",
        )
    ).field(0)
    value = field.type.item_field
    element = value.type.value_field
    x = element.type.field("col-x")
    fields = [field, field.type.key_field, value, element, x, x.type.value_field]
    assert [f.metadata[b"PARQUET:field_id"] for f in fields] == [b"1", b"5", b"6", b"7", b"2", b"9"]


def test_names_may_be_swapped_between_logical_and_physical() -> None:
    table = metadata(mapped("b", "long", 1, "a"), mapped("a", "string", 2, "col-1"), mode="name", partitions=("a",))
    assert arrow_schema(table).names == ["b", "a"]
    assert physical_schema(table).names == ["a"]
    assert physical_schema(table).field("a").type == pa.int64()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '"struct"',
        '{"type":"struct"}',
        '{"type":"struct","fields":{}}',
        '{"type":"struct","fields":[1]}',
        '{"type":"struct","fields":[{"type":"long"}]}',
        '{"type":"struct","fields":[{"name":"a"}]}',
        '{"type":"struct","fields":[{"name":"a","type":"long","nullable":"yes"}]}',
        '{"type":"struct","fields":[{"name":"a","type":"long","metadata":[]}]}',
        '{"type":"struct","fields":[{"name":"a","type":"decimal(39,0)"}]}',
        '{"type":"struct","fields":[{"name":"a","type":"decimal(5,6)"}]}',
        '{"type":"struct","fields":[{"name":"a","type":{"type":"array","elementType":"long","containsNull":1}}]}',
        '{"type":"struct","fields":[{"name":"a","type":"long"},{"name":"a","type":"date"}]}',
        '{"type":"array","elementType":"long"}',
    ],
)
def test_what_is_no_schema_is_a_damaged_table(text: str) -> None:
    with pytest.raises(DamagedTableError, match="schema"):
        arrow_schema(Metadata(id="t", schema_string=text))


@pytest.mark.parametrize("depth", [150, 5000])
@pytest.mark.parametrize(
    "nest", [array, lambda inner: struct(column("a", inner)), lambda inner: {"type": "udt", "sqlType": inner}]
)
def test_endless_nesting_is_damage_not_a_crash(nest: Any, depth: int) -> None:
    before, after = json.dumps(nest("@")).split('"@"')
    text = json.dumps(struct(column("a", "@"))).replace('"@"', before * depth + '"long"' + after * depth)
    with pytest.raises(DamagedTableError):
        arrow_schema(Metadata(id="t", schema_string=text))


@pytest.mark.parametrize("type", ["interval day to second", "int", {"type": "set"}, {}])
def test_unknown_types_are_refused_with_their_column(type: Any) -> None:
    with pytest.raises(RefusedError, match=r"s\.a"):
        arrow_schema(metadata(column("s", struct(column("a", type)))))


@pytest.mark.parametrize(
    "field",
    [
        column("a", "long"),
        column("a", "long", **{COLUMN_ID: 1}),
        column("a", "long", **{PHYSICAL_NAME: "p"}),
        column("a", "long", **{PHYSICAL_NAME: "p", COLUMN_ID: "1"}),
        column("a", "long", **{PHYSICAL_NAME: "p", COLUMN_ID: 2**31}),
        mapped("a", array("long"), 1, "p", **{NESTED_IDS: {"p.element": True}}),
        mapped("a", struct(mapped("x", "long", 2, "q"), mapped("y", "long", 3, "q")), 1, "p"),
    ],
)
def test_a_mapped_column_needs_a_name_and_an_id(field: dict[str, Any]) -> None:
    with pytest.raises(DamagedTableError, match="column a"):
        arrow_schema(metadata(field, mode="id"))


def test_mapping_modes() -> None:
    assert column_mapping_mode(Metadata(id="t", schema_string="")) == "none"
    assert column_mapping_mode(metadata(mode="Name")) == "name"
    with pytest.raises(RefusedError, match="uuid"):
        column_mapping_mode(metadata(mode="uuid"))


def test_partition_columns_must_exist() -> None:
    with pytest.raises(DamagedTableError, match="'p'"):
        arrow_schema(metadata(column("a", "long"), partitions=("p",)))


def test_rewritten_timestamps_stay_what_spark_reads(tmp_path: Path) -> None:
    schema = physical_schema(metadata(column("t", "timestamp"), column("n", "timestamp_ntz")))
    pq.write_table(schema.empty_table(), tmp_path / "f.parquet")
    t, n = (pq.read_metadata(tmp_path / "f.parquet").schema.column(i) for i in (0, 1))
    assert (t.physical_type, n.physical_type) == ("INT64", "INT64")
    assert json.loads(t.logical_type.to_json())["isAdjustedToUTC"] is True
    assert json.loads(n.logical_type.to_json())["isAdjustedToUTC"] is False
    assert json.loads(t.logical_type.to_json())["timeUnit"] == "microseconds"


def test_golden_schemas_have_the_columns_of_the_golden_rows(golden: Path) -> None:
    checked = 0
    for name, facts in json.loads((golden / "delta" / "expected.json").read_text()).items():
        rows = golden / "delta" / "_rows" / f"{name}.jsonl"
        if facts["kind"] != "rows" or not (lines := rows.read_text().splitlines()):
            continue
        if versions := golden_metadata(golden / "delta" / name):
            assert sorted(arrow_schema(versions[-1]).names) == sorted(json.loads(lines[0])), name
            checked += 1
    assert checked > 50


def test_golden_files_fit_the_physical_schema(golden: Path) -> None:
    """Names, ids and nesting are those that Spark wrote."""
    for name in ("table-with-icebegCompatV2Enabled", "table-with-columnmapping-mode-id", "dv-with-columnmapping"):
        table = golden / "delta" / name
        ours = physical_schema(golden_metadata(table)[-1])
        theirs = pq.read_schema(next(iter(sorted(table.rglob("part-*.parquet")))))
        assert _ids(ours) == _ids(theirs), name
    variants = golden / "delta" / "spark-variant-checkpoint"
    ours = physical_schema(golden_metadata(variants)[-1])
    assert ours.equals(pq.read_schema(next(iter(sorted(variants.glob("part-*.parquet"))))))


def _ids(fields: Any) -> list[Any]:
    found = []
    for field in fields:
        inner = field.type
        children = (
            [inner.key_field, inner.item_field]
            if pa.types.is_map(inner)
            else [inner.field(i) for i in range(inner.num_fields)]
        )
        found.append((field.name, (field.metadata or {}).get(b"PARQUET:field_id"), _ids(children)))
    return found

"""Statistics of new files: columns, bounds, JSON."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dv_maintenance.errors import RefusedError
from dv_maintenance.tables.delta.log.actions import Metadata
from dv_maintenance.tables.delta.rows.stats import lower_string, stats_columns, stats_json, upper_string
from dv_maintenance.tables.work import ColumnStats, OutputFile

STATS_COLUMNS = "delta.dataSkippingStatsColumns"
INDEXED_COLUMNS = "delta.dataSkippingNumIndexedCols"
PREFIX_LENGTH = "delta.dataSkippingStringPrefixLength"


def column(name: str, type: Any, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": type, "nullable": True, "metadata": metadata}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


LONGS = {"type": "array", "elementType": "long", "containsNull": True}
COUNTS = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}


def metadata(*fields: dict[str, Any], partitions: Any = (), **properties: str) -> Metadata:
    return Metadata(
        id="t", schema_string=json.dumps(struct(*fields)), partition_columns=partitions, configuration=properties
    )


def output(rows: int, *stats: ColumnStats) -> OutputFile:
    return OutputFile("file:///t/f.parquet", 1, rows, 0, stats)


def bounds(type: Any, minimum: Any, maximum: Any, **properties: str) -> tuple[Any, Any]:
    """What is written for one column, parsed without loss; ``None`` for what is left out."""
    text = stats_json(output(3, ColumnStats(("c",), 0, minimum, maximum)), metadata(column("c", type), **properties))
    body = json.loads(text, parse_float=Decimal)
    return body["minValues"].get("c"), body["maxValues"].get("c")


def micros_of(text: str) -> int:
    since = datetime.fromisoformat(text.removesuffix("Z")) - datetime(1970, 1, 1)
    return since // timedelta(microseconds=1)


# -- columns -----------------------------------------------------------------------------------------------------


def test_the_first_32_leaves_in_order_without_partition_columns() -> None:
    table = metadata(
        column("p", "long"),
        column("s", struct(column("a", "long"), column("b", struct(column("c", LONGS), column("d", "long"))))),
        *[column(f"c{i}", "long") for i in range(40)],
        partitions=("p",),
    )
    assert stats_columns(table) == (("s", "a"), ("s", "b", "c"), ("s", "b", "d"), *[(f"c{i}",) for i in range(29)])


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        ("-1", [("s", "a"), ("s", "b"), ("xs",), ("m",), ("v", "metadata"), ("z",)]),
        ("0", []),
        ("1", [("s", "a")]),
        ("3", [("s", "a"), ("s", "b"), ("xs",)]),
        ("6", [("s", "a"), ("s", "b"), ("xs",), ("m",), ("v", "metadata")]),  # the void column takes a place
    ],
)
def test_the_number_of_indexed_columns(count: str, expected: list[tuple[str, ...]]) -> None:
    table = metadata(
        column("s", struct(column("a", "long"), column("b", "string"))),
        column("xs", LONGS),
        column("m", COUNTS),
        column("v", "variant"),
        column("n", "void"),
        column("z", "long"),
        **{INDEXED_COLUMNS: count},
    )
    assert list(stats_columns(table)) == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("", []),
        ("  ", []),
        ("s", [("s", "a"), ("s", "b", "x"), ("s", "b", "y.z")]),
        ("S.B", [("s", "b", "x"), ("s", "b", "y.z")]),
        ("s.b.`y.z`, a", [("s", "b", "y.z"), ("a",)]),
        (" ` q``uote, ` ", [(" q`uote, ",)]),
        ("a,a", [("a",)]),
        ("s, s.a", [("s", "a")]),  # as delta-spark: the narrower name wins
        ("gone, s.gone, a.gone", []),
        ("p", []),  # a partition column
    ],
)
def test_named_columns(names: str, expected: list[tuple[str, ...]]) -> None:
    table = metadata(
        column("p", "long"),
        column("s", struct(column("a", "long"), column("b", struct(column("x", "long"), column("y.z", "long"))))),
        column("a", "long"),
        column(" q`uote, ", "long"),
        partitions=("p",),
        **{STATS_COLUMNS: names, INDEXED_COLUMNS: "1"},
    )
    assert list(stats_columns(table)) == expected


@pytest.mark.parametrize("names", ["a,", ",a", "a..b", "`a", "a b`c`", "a`", " , "])
def test_names_that_make_no_list(names: str) -> None:
    with pytest.raises(RefusedError, match=STATS_COLUMNS):
        stats_columns(metadata(column("a", "long"), **{STATS_COLUMNS: names}))


@pytest.mark.parametrize("count", ["", "x", "-2", "1.5", "9" * 5000])
def test_numbers_that_are_none(count: str) -> None:
    with pytest.raises(RefusedError, match=INDEXED_COLUMNS):
        stats_columns(metadata(column("a", "long"), **{INDEXED_COLUMNS: count}))


def test_columns_and_json_use_physical_names() -> None:
    def mapped(name: str, type: Any, id: int) -> dict[str, Any]:
        ids = {"delta.columnMapping.id": id, "delta.columnMapping.physicalName": f"col-{id}"}
        return column(name, type, **ids)

    table = metadata(
        mapped("a", "long", 1),
        mapped("s", struct(mapped("a", "long", 3), mapped("b", "long", 4)), 2),
        **{"delta.columnMapping.mode": "name", STATS_COLUMNS: "s.b"},
    )
    assert stats_columns(table) == (("col-2", "col-4"),)
    body = json.loads(stats_json(output(7, ColumnStats(("col-2", "col-4"), 1, -(2**63), 2**63 - 1)), table))
    assert body == {
        "numRecords": 7,
        "minValues": {"col-2": {"col-4": -(2**63)}},
        "maxValues": {"col-2": {"col-4": 2**63 - 1}},
        "nullCount": {"col-2": {"col-4": 1}},
        "tightBounds": True,
    }


# -- values ------------------------------------------------------------------------------------------------------


def test_no_bounds_but_null_counts_for_what_spark_does_not_skip_by() -> None:
    names = {
        "flag": "boolean",
        "bytes": "binary",
        "list": LONGS,
        "map": COUNTS,
        "variant": "variant",
        "udt": {"type": "udt", "sqlType": "long"},
    }
    table = metadata(
        *[column(name, delta) for name, delta in names.items()],
        column("lcase", "string", __COLLATIONS={"lcase": "spark.UTF8_LCASE"}),
    )
    stats = [ColumnStats(path, 2, 1, 1) for path in stats_columns(table)]
    body = json.loads(stats_json(output(9, *stats), table))
    assert body["minValues"] == body["maxValues"] == {}
    assert body["nullCount"] == dict.fromkeys([*names, "lcase"], 2)


def test_a_user_defined_struct_is_one_column_without_a_leaf_of_its_own() -> None:
    udt = {"type": "udt", "sqlType": struct(column("x", "long"))}
    table = metadata(column("u", udt), column("c", "long"), column("d", "long"), **{INDEXED_COLUMNS: "2"})
    assert stats_columns(table) == (("c",),)
    assert json.loads(stats_json(output(9, ColumnStats(("c",), 1)), table))["nullCount"] == {"c": 1}


def test_float_bounds_hold_for_readers_of_a_widened_column() -> None:
    exact = 0.10000000149011612  # the float32 next to 0.1
    assert float(bounds("float", exact, exact)[1]) == exact


def test_a_void_column_is_null_in_every_row() -> None:
    voids = {"type": "array", "elementType": "void", "containsNull": True}
    table = metadata(column("v", "void"), column("s", struct(column("vs", voids))), column("c", "long"))
    assert stats_columns(table) == (("c",),)
    body = json.loads(stats_json(output(9, ColumnStats(("c",), 0, 1, 2)), table))
    assert body["nullCount"] == {"v": 9, "s": {"vs": 9}, "c": 0}


def test_a_column_that_the_engine_did_not_report_is_left_out() -> None:
    assert json.loads(stats_json(output(9), metadata(column("c", "long"))))["nullCount"] == {}


def test_decimals_keep_every_digit() -> None:
    minimum, maximum = "-99999999999999999999.999999999999999999", "0.000000000000000010"
    text = stats_json(output(2, ColumnStats(("c",), 0, minimum, maximum)), metadata(column("c", "decimal(38,18)")))
    assert f'"minValues":{{"c":{minimum}}},"maxValues":{{"c":{maximum}}}' in text
    assert bounds("decimal(38,18)", "1E-18", "1E+3") == (Decimal("1E-18"), Decimal(1000))


@pytest.mark.parametrize("type", ["float", "double"])
def test_only_finite_floats_are_written(type: str) -> None:
    assert bounds(type, float("-inf"), float("inf")) == (None, None)
    assert bounds(type, float("nan"), 2.5) == (None, Decimal("2.5"))
    assert bounds(type, 0.1, 1e300) == (Decimal("0.1"), Decimal("1E+300"))


def test_zero_has_no_sign() -> None:
    text = stats_json(output(1, ColumnStats(("c",), 0, -0.0, -0.0)), metadata(column("c", "double")))
    assert '"minValues":{"c":0.0},"maxValues":{"c":0.0}' in text


def test_dates_are_iso_and_inside_the_calendar() -> None:
    assert bounds("date", -1, 18949) == ("1969-12-31", "2021-11-18")
    assert bounds("date", -719162, 2932896) == ("0001-01-01", "9999-12-31")
    assert bounds("date", -719163, 2932897) == (None, None)
    assert bounds("date", -(2**31), 2**31 - 1) == (None, None)


def test_timestamps_are_cut_to_milliseconds_outwards() -> None:
    assert bounds("timestamp", 3000, 3000) == ("1970-01-01T00:00:00.003Z", "1970-01-01T00:00:00.003Z")
    assert bounds("timestamp", 3001, 3001) == ("1970-01-01T00:00:00.003Z", "1970-01-01T00:00:00.004Z")
    assert bounds("timestamp", -1, -1) == ("1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z")
    assert bounds("timestamp_ntz", 0, 999_999) == ("1970-01-01T00:00:00.000", "1970-01-01T00:00:01.000")


@given(st.integers(-(2**63), 2**63 - 1))
@example(-62135596800000000)
@example(-62135596800000001)
@example(253402300799999000)
@example(253402300799999001)
def test_timestamp_bounds_hold(micros: int) -> None:
    for delta, zone in (("timestamp", "Z"), ("timestamp_ntz", "")):
        lower, upper = bounds(delta, micros, micros)
        for text, sign in ((lower, -1), (upper, 1)):
            if text is not None:
                assert text.endswith(zone)
                assert len(text) == 23 + len(zone)
                assert 0 <= sign * (micros_of(text) - micros) < 1000
    if -62135596800000000 <= micros <= 253402300799999000:
        assert bounds("timestamp", micros, micros)[0] is not None


def test_long_strings_are_cut_to_32_characters_outwards() -> None:
    assert bounds("string", "x" * 32, "x" * 32) == ("x" * 32, "x" * 32)
    assert bounds("string", "x" * 33, "x" * 33) == ("x" * 32, "x" * 32 + "\x7f")
    assert bounds("string", "é" * 33, "é" * 33) == ("é" * 32, "é" * 32 + "\U0010ffff")
    assert bounds("string", "", "\U0010ffff" * 65) == ("", None)


def test_the_prefix_length_is_a_property() -> None:
    assert bounds("string", "pineapple", "pineapple", **{PREFIX_LENGTH: "4"}) == ("pine", "pine\x7f")
    assert bounds("string", "", "pineapple", **{PREFIX_LENGTH: "0"}) == ("", None)
    with pytest.raises(RefusedError, match=PREFIX_LENGTH):
        bounds("string", "a", "b", **{PREFIX_LENGTH: "-1"})


# Characters at every border that the tie-breaker knows, and both sides of the surrogate gap.
BORDERS = st.text(st.sampled_from("\x00a~\x7f\x80é\ud7ff\ue000\uffff\U00010000\U0010fffe\U0010ffff"), max_size=12)


@given(value=BORDERS | st.text(max_size=12), prefix=st.integers(0, 5))
@example(value="ab\x7f", prefix=2)
@example(value="ab\U0010ffff\U0010ffff", prefix=2)
def test_string_bounds_hold_in_utf8(value: str, prefix: int) -> None:
    lower, upper = lower_string(value, prefix), upper_string(value, prefix)
    if lower is not None:
        assert lower.encode() <= value.encode()
        assert len(lower) <= prefix
    if upper is not None:
        assert upper.encode() >= value.encode()
        assert len(upper) <= 2 * prefix + 1
    else:
        assert prefix == 0 or value[prefix : 2 * prefix + 1] == "\U0010ffff" * (prefix + 1)


@given(values=st.lists(BORDERS, min_size=1, max_size=8), prefix=st.integers(1, 4))
def test_string_bounds_hold_for_every_value_between(values: list[str], prefix: int) -> None:
    ordered = sorted(values, key=str.encode)
    upper = upper_string(ordered[-1], prefix)
    assume(upper is not None)
    assert upper is not None
    lower = lower_string(ordered[0], prefix)
    assert lower is not None
    assert all(lower.encode() <= value.encode() <= upper.encode() for value in values)


def test_golden_stats_come_out_as_spark_wrote_them(golden: Path) -> None:
    """What a writer that follows the same rules put into the log, rebuilt from the exact values."""
    log = golden / "delta" / "parquet-all-types" / "_delta_log" / "00000000000000000000.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    table = next(Metadata.from_json(a["metaData"], where="log") for a in actions if "metaData" in a)
    written = json.loads(next(a["add"]["stats"] for a in actions if "add" in a), parse_float=Decimal)

    def at(tree: Any, path: tuple[str, ...]) -> Any:
        for name in path:
            tree = tree.get(name) if isinstance(tree, dict) else None
        return tree

    def exact(value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, str) and value[4:5] == "-" and "T" in value:
            return micros_of(value)
        if isinstance(value, str) and value[4:5] == "-":
            return (datetime.fromisoformat(value) - datetime(1970, 1, 1)).days
        if isinstance(value, Decimal):
            return str(value) if path == ("decimal",) else float(value)
        return value

    stats = []
    for path in stats_columns(table):
        minimum, maximum = (exact(at(written[key], path), path) for key in ("minValues", "maxValues"))
        stats.append(ColumnStats(path, at(written["nullCount"], path), minimum, maximum))
    rebuilt = json.loads(stats_json(output(written["numRecords"], *stats), table), parse_float=Decimal)
    assert {**rebuilt, "tightBounds": None} == {**written, "tightBounds": None}

"""Keys as exactly what they are in a column's type, or refused: text, JSON and values of other types."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dv_maintenance.dml.key_casts import INEXACT, Number, as_text, from_json, from_text, from_typed, in_bulk

US, UTC_US = pa.timestamp("us"), pa.timestamp("us", "UTC")
INTS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64()]


def text(value: str, kind: pa.DataType, length: int | None = None) -> Any:
    convert = from_text(kind, length)
    assert convert
    return convert(value)


def refused(convert: Any, value: Any) -> bool:
    try:
        convert(value)
    except INEXACT:
        return True
    return False


@pytest.mark.parametrize(
    ("kind", "exact", "inexact"),
    [
        (pa.int64(), {"7": 7, "-7": -7, "9223372036854775807": 2**63 - 1}, "007 +7 7.0 1e3 -0 9223372036854775808"),
        (pa.int8(), {"-128": -128, "127": 127}, "128 -129 300 ٧ 0x7 1_0"),
        (pa.uint8(), {"255": 255}, "256 -1"),
        (pa.bool_(), {"true": True, "false": False}, "t 1 TRUE yes"),
        (
            pa.decimal128(10, 2),
            {"1.1": Decimal("1.10"), "1.100": Decimal("1.10"), "-3": Decimal(-3), "99999999.9": Decimal("99999999.9")},
            "1.105 100000000 1e3 1.10e0 01.10 .5 5. -0 -0.00 NaN 123456789012345678901234567890123456789012345",
        ),
        (
            pa.float64(),
            {"0.1": 0.1, "1e3": 1000.0, "1.0E10": 1e10, "Infinity": math.inf, "0.10000000000000001": 0.1},
            "007 9007199254740993 0.10000000000000000001 1e400 1e-400 nan inf +1 .5 0x1p3",
        ),
        (pa.float32(), {"16777216": 16777216.0, "3.4028235E38": 3.4028234663852886e38}, "16777217 0.100000002 1e39"),
        (pa.float16(), {"0.5": 0.5, "2048": 2048.0}, "2049 70000"),
        (pa.date32(), {"2026-01-05": date(2026, 1, 5), "0001-01-01": date.min}, "2026-1-5 2026-02-30 0000-01-01"),
        (
            US,
            {
                "2026-01-05 00:00:00": datetime(2026, 1, 5),
                "1500-01-05T01:02:03.120": datetime(1500, 1, 5, 1, 2, 3, 120000),
            },
            "2026-01-05 2026-01-05T00:00 2026-01-05T24:00:00 2026-01-05T00:00:00Z 2026-01-05T00:00:00.1234567",
        ),
        (
            UTC_US,
            {
                "2026-01-05 00:00:00Z": datetime(2026, 1, 5, tzinfo=UTC),
                "2026-01-05T00:00:00.000+05:30": datetime(2026, 1, 4, 18, 30, tzinfo=UTC),
                "2026-01-05T00:00:00": datetime(2026, 1, 5),
            },
            "2026-01-05T00:00:00+25:00 2026-01-05T00:00:00+01 0001-01-01T00:00:00+01:00",
        ),
        (pa.timestamp("ms"), {"2026-01-05T00:00:00": datetime(2026, 1, 5)}, "2026-01-05T00:00:00.1234"),
        (pa.binary(), {"X'00ff'": b"\0\xff", "x''": b""}, "00ff X'0' X'0g' AA=="),
        (pa.string(), {"007": "007", " x ": " x ", "": "", "NaN": "NaN"}, ""),
    ],
)  # fmt: skip
def test_text(kind: pa.DataType, exact: dict[str, Any], inexact: str) -> None:
    for given_, wanted in exact.items():
        assert text(given_, kind) == wanted
    for given_ in inexact.split():
        assert refused(from_text(kind), given_), given_
    if not pa.types.is_string(kind):
        for given_ in ("", " ", " 7", "7 ", "null", "x" * 5000):
            assert refused(from_text(kind), given_), given_


def test_floats_that_are_no_numbers() -> None:
    assert math.isnan(text("NaN", pa.float32()))
    assert math.copysign(1, text("-0.0", pa.float64())) == -1


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.month_day_nano_interval(), pa.duration("us"), pa.null()])
def test_types_without_text(kind: pa.DataType) -> None:
    assert from_text(kind) is None


def test_char_does_not_count_spaces_at_the_end() -> None:
    assert [text(each, pa.string(), 4) for each in ("ab", "ab  ", "abcd   ")] == ["ab", "ab", "abcd"]
    assert refused(from_text(pa.string(), 4), "abcde")


# What Spark, Python and C print of a value names it, and no other.


@given(st.integers(-(2**63), 2**63 - 1))
def test_whole_numbers(value: int) -> None:
    assert text(str(value), pa.int64()) == value
    assert refused(from_text(pa.int64()), f"0{value}" if value >= 0 else f"-0{-value}")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles(value: float) -> None:
    for form in (repr(value), f"{value:.17g}", f"{value:.25e}"):
        assert text(form, pa.float64()) == value
    whole = int(value) + 1
    if abs(value) >= 2**53 and float(whole) != whole:
        assert refused(from_text(pa.float64()), str(whole)), "a neighbour that no double is"


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floats(value: float) -> None:
    import numpy as np

    assert text(str(np.float32(value)), pa.float32()) == value
    assert text(f"{value:.9g}", pa.float32()) == value


@given(st.datetimes(), st.integers(-18 * 60, 18 * 60))
def test_times(value: datetime, minutes: int) -> None:
    assert text(value.isoformat(sep=" ", timespec="microseconds"), US) == value
    zone = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
    try:
        wanted = value.replace(tzinfo=UTC) - timedelta(minutes=minutes)
    except OverflowError:
        return
    assert text(value.isoformat(timespec="microseconds") + zone, UTC_US) == wanted


@given(st.decimals(-(10**8), 10**8, places=2), st.integers(0, 3))
def test_decimals(value: Decimal, more: int) -> None:
    if value or not value.is_signed():
        assert text(f"{value:f}" + "0" * more, pa.decimal128(12, 2)) == value


# -- JSON ----------------------------------------------------------------------------------------------------------


def test_json() -> None:
    def convert(kind: pa.DataType, value: Any) -> Any:
        made = from_json(kind)
        assert made
        return made(value)

    assert convert(pa.int64(), Number("7")) == convert(pa.int64(), "7") == 7
    assert convert(pa.float64(), Number("1e3")) == 1000
    assert convert(pa.bool_(), True) is True
    assert convert(pa.string(), "007") == "007"
    for kind, value in (
        (pa.string(), Number("7")),
        (pa.string(), True),
        (pa.string(), ["x"]),
        (pa.string(), "\ud800"),
        (pa.int64(), Number("7.0")),
        (pa.int64(), True),
        (pa.bool_(), Number("1")),
        (pa.date32(), Number("2026")),
        (pa.int64(), {}),
    ):
        assert refused(from_json(kind), value), (kind, value)
    nested = pa.struct([("a", pa.int32()), ("t", pa.list_(pa.string())), ("m", pa.map_(pa.date32(), pa.float64()))])
    value = {"a": Number("1"), "t": ["x", None], "m": {"2026-01-01": Number("2")}}
    assert convert(nested, value) == {"a": 1, "t": ["x", None], "m": [(date(2026, 1, 1), 2.0)]}
    assert convert(nested, {}) == {"a": None, "t": None, "m": None}
    for wrong in ({"b": Number("1")}, {"a": Number("1.5")}, {"t": [Number("1")]}, [], "x", {"m": {"x": None}}):
        assert refused(from_json(nested), wrong), wrong
    assert refused(from_json(pa.list_(UTC_US)), ["2026-01-01 00:00:00"]), "no zone for nested ones"
    assert from_json(pa.list_(pa.duration("s"))) is None
    assert [as_text(each) for each in ("x", True, [Number("1")])] == ["x", "true", '["1"]']


# -- other types ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "kind", "exact", "inexact"),
    [
        (pa.int64(), pa.int8(), {7: 7}, [300]),
        (pa.int32(), pa.decimal128(4, 2), {99: Decimal(99)}, [100]),
        (pa.int64(), pa.float64(), {2**53: 2.0**53}, [2**53 + 1, 2**60]),
        (pa.int64(), pa.float32(), {2**24: 2.0**24}, [2**24 + 1]),
        (pa.decimal128(10, 2), pa.int64(), {Decimal("7.00"): 7}, [Decimal("7.50")]),
        (pa.decimal128(10, 4), pa.decimal128(4, 2), {Decimal("1.1000"): Decimal("1.1")}, [Decimal("1.1001"), 100]),
        (pa.decimal128(20, 2), pa.float64(), {Decimal("0.10"): 0.1}, [Decimal(2**53 + 1)]),
        (pa.float64(), pa.int64(), {7.0: 7, -0.0: 0}, [7.5, 2.0**53, math.nan, math.inf]),
        (pa.float32(), pa.int64(), {7.0: 7}, [2.0**24]),
        (pa.float64(), pa.decimal128(10, 2), {7.0: Decimal(7)}, [0.5, 0.1, math.nan, 1e9]),
        (pa.float64(), pa.float32(), {0.5: 0.5, math.inf: math.inf}, [0.1, 1e300]),
        (pa.float32(), pa.float64(), {0.5: 0.5}, []),
        (pa.string(), pa.int64(), {"7": 7}, ["007"]),
        (pa.large_string(), pa.date32(), {"2026-01-05": date(2026, 1, 5)}, ["2026-1-5"]),
    ],
)  # fmt: skip
def test_other_types(source: pa.DataType, kind: pa.DataType, exact: dict[Any, Any], inexact: list[Any]) -> None:
    convert = from_typed(source, kind)
    assert convert
    for value, wanted in exact.items():
        assert convert(value) == wanted
    for value in inexact:
        assert refused(convert, value), value
    if pa.types.is_floating(source) and pa.types.is_floating(kind):
        assert math.isnan(convert(math.nan))


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        *((kind, pa.string()) for kind in (*INTS, pa.float64(), pa.decimal128(5, 0), pa.bool_())),
        *((kind, pa.string()) for kind in (pa.date32(), UTC_US, pa.binary())),
        (pa.bool_(), pa.int64()),
        (pa.int64(), pa.bool_()),
        (UTC_US, pa.date32()),
        (pa.date32(), UTC_US),
        (pa.date32(), US),
        (UTC_US, US),
        (US, UTC_US),
        (pa.int64(), pa.date32()),
        (pa.int64(), UTC_US),
        (pa.string(), pa.list_(pa.string())),
        (pa.list_(pa.int32()), pa.list_(pa.int64())),
        (pa.duration("us"), pa.int64()),
    ],
)  # fmt: skip
def test_types_that_never_mean_the_same(source: pa.DataType, kind: pa.DataType) -> None:
    assert from_typed(source, kind) is None


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64(), pa.string()], ids=str)
def test_in_bulk_is_one_by_one(kind: pa.DataType) -> None:
    one = from_json(kind)
    assert one
    odd = ("007", "-0", "+7", "7.0", "1e2", "", " 7", "7\n", "٧", "128", str(1 << 63), "\ud800", Number("7"), True, [7])
    for values in (["7", None, "-128", "0"], [], [None], *(["7", value] for value in odd)):
        try:
            exact = [None if value is None else one(value) for value in values]
        except INEXACT:
            exact = None
        found = in_bulk(kind, values)
        assert (None if found is None else found.to_pylist()) == exact, values
    assert in_bulk(pa.float64(), ["7"]) is None
    assert in_bulk(pa.string(), ["ab "], 4) is None

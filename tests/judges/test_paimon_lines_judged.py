"""Values in CSV and JSON files of append tables: read as Paimon's own parsers read them, or refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from paimon_judging import in_order, judge_rows, opened, our_rows
from support.paimon_engine import DV, EngineError, PaimonEngine
from test_paimon_formats_judged import time_zone
from test_paimon_maintenance import no_dvs

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.file_formats import format_of
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.execution.apply import maintain
from dv_maintenance.maintenance.planning.policy import Policy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAIN = {**DV, "file.compression": "none"}
NOW = datetime(2026, 1, 2, 3, 4, 5, 123456)
VALUES: dict[str, list[Any]] = {
    "BOOLEAN": [True, False],
    "TINYINT": [-128, 127, 0],
    "SMALLINT": [-(2**15), 2**15 - 1],
    "INT": [-(2**31), 2**31 - 1],
    "BIGINT": [-(2**63), 2**63 - 1],
    "FLOAT": [
        1.5,
        float("nan"),
        float("inf"),
        -0.0,
        1.401298464324817e-45,
        3.4028234663852886e38,
        1.1754943508222875e-38,
    ],
    "DOUBLE": [0.1, float("-inf"), -0.0, 5e-324, 1.7976931348623157e308, 1e10, 1e-7, 2.2250738585072014e-308],
    "DECIMAL(9, 2)": [Decimal("-1234567.89"), Decimal("0.00"), Decimal("1.50")],
    "DECIMAL(38, 10)": [Decimal("-9999999999999999999999999999.9999999999"), Decimal("0.0000000001")],
    "DECIMAL(5, 0)": [Decimal(-7), Decimal(99999)],
    "STRING": [
        "",
        "a",
        'quo"te',
        "com,ma",
        "back\\slash",
        " sp ",
        "é\u2028x",
        "tab\t",
        "1,2\\",
        "'",
        "NULL",
        "null",
        '"',
        "\\",
    ],
    "CHAR(5)": ["ab", "abcde", ""],
    "VARCHAR(20)": ["ab  ", "\U0001f600\u2003"],
    "DATE": [date(1, 1, 1), date(1582, 10, 10), date(1969, 12, 31), date(9999, 12, 31)],
    "TIME(0)": [time(0), time(23, 59, 59)],
    "TIME(3)": [time(0), time(1, 2, 3, 45000), time(23, 59, 59, 999000)],
    "TIMESTAMP(0)": [datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59), NOW],
    "TIMESTAMP(2)": [NOW, datetime(1969, 12, 31, 23, 59, 59, 999999)],
    "TIMESTAMP(3)": [NOW, datetime(9999, 12, 31, 23, 59, 59, 999000)],
    "TIMESTAMP(6)": [NOW, datetime(1500, 2, 28, 0, 0, 0, 1)],
    "TIMESTAMP(9)": [1767323045123456789, -1, 0],
    "BYTES": [b"", b"ab\xff", b"abc", b"\n"],
    "BINARY(3)": [b"abc", b"\0\0\0"],
}


def inner(id: int) -> dict[str, Any]:
    """A row, with ids for its fields from this one on."""
    kinds = {"c": "CHAR(5)", "t": "TIMESTAMP(3)"}
    return {
        "type": "ROW",
        "fields": [{"id": id + at, "name": name, "type": kind} for at, (name, kind) in enumerate(kinds.items())],
    }


NESTED: dict[str, tuple[Any, list[Any]]] = {
    "rows": (
        {"type": "ARRAY", "element": inner(90)},
        [[["ab", NOW], None, [None, None]], [], [None]],
    ),
    "row": (inner(92), [["", NOW], [None, None]]),
    "map": ({"type": "MAP", "key": "INT", "value": "DOUBLE"}, [[[1, 1.5], [-2, None]], []]),
    "maps": (
        {
            "type": "MAP",
            "key": "STRING",
            "value": {"type": "MAP", "key": "STRING", "value": {"type": "ARRAY", "element": "DATE"}},
        },
        [[["k\n\u2028", [["", [date(2026, 1, 1), None]], ["x", None]]], ["", None]]],
    ),
}


def columns_of(kind: str) -> tuple[dict[str, Any], list[list[Any]]]:
    """All types, and rows of their values, the last of nulls."""
    columns: dict[str, Any] = {"id": "INT", **{f"c{at}": each for at, each in enumerate(VALUES)}}
    values = [*VALUES.values()]
    if kind == "json":
        columns |= {name: type_ for name, (type_, _) in NESTED.items()}
        values += [each for _, each in NESTED.values()]
    rows = [[at, *(each[at % len(each)] for each in values)] for at in range(17)]
    return columns, [*rows, [17, *(None for _ in values)], [None, *(None for _ in values)]]


@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "csv.include-header": "true",
            "csv.field-delimiter": ";",
            "csv.quote-character": "'",
            "csv.escape-character": "^",
            "csv.null-literal": "NULL",
            "file.compression": "gzip",
        },
    ],
    ids=["plain", "other"],
)
def test_every_type(paimon_engine: PaimonEngine, tmp_path: Path, kind: str, options: dict[str, str]) -> None:
    """Also in partitions, of changed schemas, with deletes of both sides, and after a compaction."""
    engine, path = paimon_engine, tmp_path / "table"
    columns, rows = columns_of(kind)
    columns = {"pt": "STRING", **columns}
    engine.create(path, columns, partition=["pt"], options={**PLAIN, "file.format": kind, **options})
    for part in (rows[:9], rows[9:]):
        engine.append(path, [["ab"[at % 2], *row] for at, row in enumerate(part)])
    assert len(judge_rows(engine, path)) == len(rows)
    engine.alter(
        path,
        *(("rename", "c0", "flag"), ("drop", "c1"), ("add", "later", "DECIMAL(20, 5)")),
        *(("retype", "c3", "BIGINT"), ("retype", "c5", "DOUBLE")),
    )
    engine.append(path, [["a", 20, True, *(None for _ in columns.keys() - {"pt", "id", "c0", "c1"}), "1.12345"]])
    assert len(judge_rows(engine, path)) == len(rows) + 1
    engine.delete(path, lambda row: row["id"] == 6)
    for where, count in (("id IN (4, 5)", 2), ("flag AND id < 7", 2), ("c10 = 'com,ma'", 1), ("later IS NOT NULL", 1)):
        assert delete(opened(path), LocalEngine(), where).rows_deleted == count
        judge_rows(engine, path)
    before = judge_rows(engine, path)
    assert maintain(opened(path), LocalEngine(), Policy(min_input_files=2)).verified
    assert no_dvs(path)
    assert len(opened(path).snapshot().files) == 2
    assert in_order(judge_rows(engine, path)) == in_order(before)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_instants_are_of_a_time_zone(
    paimon_engine: PaimonEngine, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """Paimon spells and reads timestamps with a local time zone in that of its JVM, which the file does not tell."""
    engine, path = paimon_engine, tmp_path / "table"
    columns = {"id": "INT", "t": "TIMESTAMP(3) WITH LOCAL TIME ZONE", "u": "TIMESTAMP(3)"}
    engine.create(path, columns, options={**PLAIN, "file.format": kind})
    engine.append(path, [[1, NOW, NOW]])
    [here] = engine.rows(path)
    with time_zone(spark, "Asia/Kolkata"):
        [there] = engine.rows(path)
    assert here["t"] - there["t"] == 5.5 * 3600 * 1_000_000
    assert here["u"] == there["u"]
    with pytest.raises(RefusedError, match=r"column t of .* which Paimon reads in the time zone of its JVM"):
        our_rows(path)
    assert our_rows(path, columns=["id", "u"]) == [{"id": 1, "u": here["u"]}]


def test_maps_are_not_read_back(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """Paimon writes keys as it holds them in memory."""
    for key, value in (("TIMESTAMP(3)", NOW), ("BYTES", b"a")):
        path = tmp_path / key[:4]
        map_ = {"type": "MAP", "key": key, "value": "INT"}
        paimon_engine.create(path, {"id": "INT", "m": map_}, options={**PLAIN, "file.format": "json"})
        paimon_engine.append(path, [[1, [[value, 1]]]])
        if key == "BYTES":
            assert paimon_engine.rows(path)[0]["m"] != [["YQ==", 1]]
        else:
            with pytest.raises(EngineError, match="could not be parsed"):
                paimon_engine.rows(path)
        with pytest.raises(RefusedError, match=r"column m of .* holds maps with keys of the type"):
            our_rows(path)


# -- lines of others ---------------------------------------------------------------------------------------------------


def replaced(engine: PaimonEngine, path: Path, lines: Sequence[str]) -> None:
    """Let the rows of the table be in these lines."""
    engine.append(path, [[None] * len(opened(path).snapshot().schema)] * len(lines))
    [name] = opened(path).snapshot().files["path"].to_pylist()
    (path / name).write_bytes("".join(f"{line}\n" for line in lines).encode())


def judge(
    engine: PaimonEngine, path: Path, columns: Mapping[str, Any], options: Mapping[str, str], lines: Sequence[str]
) -> list[str]:
    """The lines that are read here, after Paimon has read the same in them."""
    engine.create(path, columns, options=PLAIN | options)
    replaced(engine, path, ["x"])
    source = opened(path).scan_tasks(opened(path).snapshot())[0].sources[0]
    known = format_of(source)

    def are_read(some: Sequence[str]) -> bool:
        data = pa.BufferReader("".join(f"{line}\n" for line in some).encode())
        try:
            stored: Any = known.open_stored()(data, replace(source, rows=len(some)), None)  # type: ignore[arg-type]
            assert sum(len(each) for each in stored.batches(tuple(range(len(columns))))) == len(some)
        except RefusedError:
            return False
        return True

    read = lines if are_read(lines) else [line for line in lines if are_read([line])]
    table = path.with_name(f"{path.name}-read")
    engine.create(table, columns, options=PLAIN | options)
    replaced(engine, table, read)
    for line, ours, theirs in zip(read, our_rows(table), engine.rows(table), strict=True):
        assert repr(ours) == repr(theirs), line
    return [*read]


TEXTS: dict[str, tuple[list[str], list[str]]] = {
    "INT": (
        ["007", "-0", "2147483647", "-2147483648"],
        ["+1", "2147483648", "1.0", " 1", "1 ", "٣", "-", "a", "1e3", "0x1"],
    ),
    "TINYINT": (["127", "-128"], ["128", "-129"]),
    "BIGINT": (["9223372036854775807", "000000000000000000000000001"], ["9223372036854775808", "1L"]),
    "FLOAT": (
        [
            "1",
            "+1.5",
            ".5",
            "5.",
            "1E3",
            "1e-400",
            "1e400",
            "3.4028236E38",
            "-NaN"[1:],
            "16777217.0000000001",
            "1.4E-45",
            "7e-46",
        ],
        ["1f", "0x1p3", " 1.0", "nan", "Inf", "-NaN", "1_0", "."],
    ),
    "DOUBLE": (
        ["1e400", "4.9E-324", "2.4703282292062327e-324", "9007199254740993", "Infinity", "+Infinity"],
        ["1d", "inf", "e5"],
    ),
    "BOOLEAN": (["TRUE", "tRue", "yes", "1", "t", "false", " true", "truе"], []),
    "DECIMAL(9, 2)": (
        ["1", "-1.5", "0001.50", "1.500"],
        ["1.555", "1E2", "+1", ".5", "12345678", "1,5", "1.", f"{2**127}", f"{2**128}.00", f"0.{'0' * 40}1"],
    ),
    "DECIMAL(38, 38)": (["0.5", f"-0.{'9' * 38}"], ["7", f"{2**127}"]),
    "DATE": (
        ["2026-02-28", "0001-01-01", "2024-02-29"],
        ["2026-02-30", "2026-2-1", "0000-01-01", "20000", "10000-01-01", "2026-01-01 00:00:00"],
    ),
    "TIME(3)": (
        ["01:02:03", "01:02:03.5", "23:59:59.999"],
        ["24:00:00", "1:2:3", "01:02", "01:02:03.1235", "3600000", "01:60:00"],
    ),
    "TIMESTAMP(3)": (
        ["2026-01-02 03:04:05", "2026-01-02 03:04:05.1", "1969-12-31 23:59:59.999999999"],
        [
            "2026-02-30 00:00:00",
            "2026-01-01",
            "2026-01-01T00:00:00",
            "2026-01-01 24:00:00",
            "1700000000000",
            "2026-1-1 1:1:1",
            "0000-01-01 00:00:00",
        ],
    ),
    "TIMESTAMP(0)": (["2026-01-02 03:04:05.999", "1969-12-31 23:59:59.5"], ["2026-01-02 03:04:60"]),
    "TIMESTAMP(9)": (["2262-04-11 23:47:16.854775807"], ["9999-01-01 00:00:00", "2026-01-02 03:04:05.1234567891"]),
    "BYTES": (["YQ==", "YWI=", "YWJj", "YR=="], ["YQ", "YW Jj", "YWJj=", "-_-_", "a"]),
    "STRING": (["a", "é\u2028", " b ", "\U0001f600", "\u0001"], []),
}


@pytest.mark.parametrize("kind", ["csv", pytest.param("json", marks=pytest.mark.deep)])
def test_odd_texts(paimon_engine: PaimonEngine, tmp_path: Path, kind: str) -> None:
    """A text that is read here is the same value to Paimon."""
    every = [each for texts in TEXTS.values() for group in texts for each in group]
    for at, (type_, (certain, odd)) in enumerate(TEXTS.items()):
        spell: Callable[[str], str] = str if kind == "csv" else lambda text: json.dumps({"v": text}, ensure_ascii=False)
        lines = [spell(each) for each in dict.fromkeys(certain + odd + every) if "," not in each or kind == "json"]
        read = judge(paimon_engine, tmp_path / f"t{at}", {"v": type_}, {"file.format": kind}, lines)
        assert {spell(each) for each in certain} <= {*read}, type_
        assert not {spell(each) for each in odd} & {*read}, type_


SOUP = [
    *"ab1 ",
    ",",
    ",",
    '"',
    '"',
    "\\",
    ";",
    "'",
    "é",
    "\U0001f600",
    "\u2003",
    "\u00a0",
    "\t",
    "\u0085",
    "NULL",
    "\x1c",
]


def soup(seed: str, count: int) -> Iterator[str]:
    draw = random.Random(seed)
    for _ in range(count):
        yield "".join(draw.choices(SOUP, k=draw.randint(0, 14)))


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 3000),
        pytest.param({}, 60_000, marks=pytest.mark.deep),
        ({"field-delimiter": ";|", "quote": "'", "csv.escape-character": '"', "nullvalue": "NULL"}, 2000),
        ({"csv.quote-character": "\0", "csv.escape-character": "\0", "seq": "\t"}, 1000),
    ],
)
def test_fields_of_csv(paimon_engine: PaimonEngine, tmp_path: Path, options: dict[str, str], count: int) -> None:
    lines = [*soup(f"{options}", count), "\ufeffa,b", "a,b,c,d,e", '"a', '"a,b', ' "a" , "b" ', '\U0001f600"a"']
    options = {"file.format": "csv", **options}
    assert judge(paimon_engine, tmp_path / "t", dict.fromkeys("abc", "STRING"), options, lines) == lines


def test_numbers(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """Java rounds them once, to the nearest."""
    draw = random.Random(1)

    def number() -> str:
        digits = "".join(draw.choices("0123456789", k=draw.randint(1, 25)))
        return f"{draw.choice(['', '-'])}{digits[:-3]}.{digits[-3:]}e{draw.choice([0, draw.randint(-345, 310), -45])}"

    floats = [f"{float(each):.{draw.randint(7, 60)}g}" for each in (draw.uniform(0, 1e9) for _ in range(2000))]
    # Between two floats, and about there.
    ties = [
        f"{(2 * draw.randrange(2**23, 2**24) + 1) * 2**20}{end}" for end in ("", ".0", ".000001") for _ in range(300)
    ]
    lines = [f"{each},{each}" for each in [*floats, *ties, *(number() for _ in range(5000))]]
    assert judge(paimon_engine, tmp_path / "t", {"f": "FLOAT", "d": "DOUBLE"}, {"file.format": "csv"}, lines) == lines


LINES_OF_JSON = {
    True: [
        "{}",
        ' {"v" : "1"} ',
        '{"v":1,"v":"2","x":[1e400]}',
        '{"v":null,"w":null}',
        '{"v":12,"w":12,"d":12,"f":12,"b":true,"m":{"1":2,"1":"3"},"r":{"a":null},"l":[1,"2",null]}',
        '{"v":-0,"w":-0,"d":-0,"f":-0}',
        '{"d":1.5,"b":1,"w":false}',
        '{"d":1e400,"w":"\\ud83d\\ude00\\u0000"}',
        '{"d":0.1000000000000000055511151231257827,"f":"0.1"}',
        '{"w":123456789012345678901234567890}',
        '{"r":{},"m":{},"l":[]}',
    ],
    False: [
        "",
        " ",
        "null",
        "[]",
        "1",
        '{"v":1}{',
        '{"v":1} x',
        "{v:1}",
        "{'v':1}",
        '{"v":NaN}',
        '{"f":1.5}',
        '{"w":1.5}',
        '{"v":1.0}',
        '{"v":{}}',
        '{"w":[]}',
        '{"w":"\\ud800"}',
        '{"w":"\t"}',
        '{"r":"a"}',
        '{"r":[]}',
        '{"l":{}}',
        '{"m":[]}',
        '{"m":{"01":1}}',
        '{"m":{"+1":1}}',
        '{"m":{"a":1}}',
        '{"v":01}',
        "[" * 3000,
    ],
}


def test_lines_of_json(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    columns = {
        "v": "INT",
        "w": "STRING",
        "d": "DOUBLE",
        "f": "FLOAT",
        "b": "BOOLEAN",
        "r": {"type": "ROW", "fields": [{"id": 90, "name": "a", "type": "INT"}]},
        "l": {"type": "ARRAY", "element": "STRING"},
        "m": {"type": "MAP", "key": "INT", "value": "INT"},
    }
    lines = [line for group in LINES_OF_JSON.values() for line in group]
    read = judge(paimon_engine, tmp_path / "t", columns, {"file.format": "json"}, lines)
    assert read == LINES_OF_JSON[True]

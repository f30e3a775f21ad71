"""Append tables of ORC and Avro files maintained by us: new files are of the table's own format, and Paimon's own
engine reads the same rows in them, whatever the time zone of its Java, finds what it looks for, and goes on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from paimon_judging import ALL_DELETED_FILES, in_order, judge_rows, opened
from support.paimon_engine import DV, DV64, EngineError, PaimonEngine
from test_paimon_maintenance import go_on, gone_too, no_dvs, simple
from test_paimon_reading import NESTED, VALUES, WHEN

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError
from dv_maintenance.files.avro.container import header_of, read_records
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.testing.history import InterferingEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAR = [datetime(2026, 3, 8, 2, 30), datetime(2026, 11, 1, 1, 30)]
OLD = [
    datetime(1969, 12, 31, 23, 59, 59),
    datetime(1900, 1, 1),
    datetime(1700, 1, 1),
    datetime(1970, 1, 1, 0, 0, 0, 1000),
]
MOMENTS = [
    datetime(1000, 1, 1),
    datetime(1500, 2, 28, 1, 2, 3, 4),
    datetime(1582, 10, 10),
    datetime(1677, 1, 1, 0, 0, 0, 500_000),
    datetime(1900, 1, 1, 0, 0, 0, 250_000),
    datetime(1969, 12, 30, 23, 59, 58, 999_999),
    datetime(1969, 12, 31, 23, 59, 59),
    datetime(1970, 1, 1),
    datetime(2262, 12, 31, 23, 59, 59, 999_999),
    datetime(9999, 12, 29, 23, 59, 59, 999_999),
]
EVERY = {name: kind for name, (kind, _) in NESTED.items()}


def kinds(path: Path) -> set[str]:
    """Of the live files."""
    return {name.rsplit(".", 1)[1] for name in opened(path).snapshot().files["file_name"].to_pylist()}


@contextmanager
def time_zone(spark: SparkSession, name: str) -> Iterator[None]:
    """Of the JVM."""
    jvm: Any = spark._jvm
    zones = jvm.java.util.TimeZone
    before = zones.getDefault()
    zones.setDefault(zones.getTimeZone(name))
    try:
        yield
    finally:
        zones.setDefault(before)


@pytest.mark.parametrize(
    ("kind", "options", "parted"),
    [
        pytest.param("orc", DV, True, id="orc-32-partitioned"),
        pytest.param("orc", DV64, False, id="orc-64"),
        pytest.param("avro", DV64, True, id="avro-64-partitioned"),
        pytest.param("avro", DV, False, id="avro-32", marks=pytest.mark.deep),
    ],
)
def test_a_purge(paimon_engine: PaimonEngine, tmp_path: Path, kind: str, options: dict[str, str], parted: bool) -> None:
    engine, path = paimon_engine, tmp_path / "table"
    simple(engine, path, options={**options, "file.format": kind}, partition=["pt"][:parted])
    expected = in_order([row for row in engine.rows(path) if not gone_too(row)])
    # Paimon's own delete comes between our plan and our commit.
    report = purge(opened(path), InterferingEngine(LocalEngine(), lambda: engine.delete(path, gone_too)))
    assert report.verified, report.problems
    assert sum(step.rows_carried for step in report.steps) > 0
    assert kinds(path) == {kind}
    assert in_order(judge_rows(engine, path)) == expected
    assert purge(opened(path), LocalEngine()).verified
    assert no_dvs(path)
    assert in_order(judge_rows(engine, path)) == expected
    go_on(engine, path, [1000, "a", "new"])


@pytest.mark.parametrize("kind", ["orc", "avro"])
def test_every_type_and_changed_schemas(
    paimon_engine: PaimonEngine, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    engine, path = paimon_engine, tmp_path / "table"
    columns = {"id": "INT", **{f"c{number}": kind for number, kind in enumerate(VALUES)}, **EVERY, "n": "INT NOT NULL"}
    values = [*VALUES.values(), *(examples for _, examples in NESTED.values())]
    if kind == "orc":  # no part of a second before 1970
        for at, name in enumerate(VALUES):
            if name.startswith("TIMESTAMP"):
                values[at] = [WHEN.replace(microsecond=WHEN.microsecond // 1000 * 1000), *OLD, *FAR]
    rows = [[number, *(each[number % len(each)] for each in values), number] for number in range(12)]
    rows += [[number, *(None for _ in values), number] for number in (12, 13)]
    engine.create(path, columns, options={**DV, "file.format": kind})
    engine.append(path, rows)
    engine.delete(path, lambda row: row["id"] in {0, 5, 13})
    engine.alter(
        path,
        *(("rename", "c0", "flag"), ("drop", "c1"), ("add", "later", "DECIMAL(20, 5)")),
        *(("retype", "c2", "INT"), ("retype", "c3", "BIGINT"), ("retype", "c5", "DOUBLE")),
    )
    engine.append(path, [[20, True, *(None for _ in values[2:]), 20, "123456789012345.12345"]])

    def everywhere() -> list[list[str]]:
        found = [in_order(judge_rows(engine, path))]
        for zone in ("America/New_York", "Asia/Kolkata"):
            with time_zone(spark, zone):
                found.append(in_order(engine.rows(path)))
        return found

    before = everywhere()
    assert purge(opened(path), LocalEngine()).verified
    assert everywhere() == before
    assert maintain(opened(path), LocalEngine(), Policy(min_input_files=2)).verified
    assert everywhere() == before
    assert kinds(path) == {kind}
    go_on(engine, path, [30, *(None for _ in values[1:]), 30, None])


@pytest.mark.parametrize(
    "codec", ["lz4", pytest.param("zstd", marks=pytest.mark.deep), pytest.param("snappy", marks=pytest.mark.deep)]
)
def test_what_arrow_does_not_write(
    paimon_engine: PaimonEngine, spark: SparkSession, tmp_path: Path, codec: str
) -> None:
    """Timestamps of every age, and rows in rows in arrays."""
    engine, path = paimon_engine, tmp_path / "table"
    times = {"t": "TIMESTAMP(6)", "u": "TIMESTAMP(3)", "v": "TIMESTAMP(6) WITH LOCAL TIME ZONE"}
    fields = [{"id": 90 + at, "name": name, "type": kind} for at, (name, kind) in enumerate(times.items())]
    inner = {"id": 95, "name": "b", "type": {"type": "ROW", "fields": fields}}
    deep = {"type": "ARRAY", "element": {"type": "ROW", "fields": [inner]}}
    options = {**DV, "file.format": "orc", "file.compression": codec}
    engine.create(path, {"id": "INT", **times, "deep": deep, "e": {"type": "ROW", "fields": []}}, options=options)
    rows: list[list[Any]] = []
    for at, when in enumerate(MOMENTS):
        values = [when, when.replace(microsecond=when.microsecond // 1000 * 1000), when]
        rows += [[at, *values, [[values], None, [None]][at % 2 :], []], [100 + at, *values, None, None]]
    engine.append(path, rows)
    engine.delete(path, lambda row: row["id"] >= 100)

    def everywhere() -> list[list[str]]:
        found = [in_order(judge_rows(engine, path))]
        for zone in ("America/New_York", "Asia/Kolkata"):
            with time_zone(spark, zone):
                found.append(in_order(engine.rows(path)))
        return found

    before = everywhere()
    sought = [(name, row[name]) for row in engine.rows(path) for name in times]
    assert purge(opened(path), LocalEngine()).verified
    assert everywhere() == before
    assert kinds(path) == {"orc"}
    for name, value in sought:
        assert value in [row[name] for row in engine.rows(path, where=(name, value))], (name, value)
    go_on(engine, path, [30, None, None, None, None, None])


def test_what_paimon_does_not_write_either(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    engine = paimon_engine
    engine.create(tmp_path / "t", {"id": "INT", "t": "TIMESTAMP(6)"}, options={**DV, "file.format": "orc"})
    engine.append(tmp_path / "t", [[1, datetime(1969, 12, 31, 23, 59, 59, 500_000)]])
    assert engine.rows(tmp_path / "t") == [{"id": 1, "t": 500_000}], "it is negative"
    for codec, why in (("gzip", "No enum constant .*CompressionKind.GZIP"), ("brotli", "Unknown compression codec")):
        path = tmp_path / codec
        engine.create(path, {"id": "INT"}, options={**DV, "file.format": "orc", "file.compression": codec})
        with pytest.raises(EngineError, match=why):
            engine.append(path, [[1]])


def test_timestamps_of_a_writer_in_another_time_zone(
    paimon_engine: PaimonEngine, spark: SparkSession, tmp_path: Path
) -> None:
    """They are times of the clock, wherever Paimon wrote them, and where it reads them."""
    engine, path = paimon_engine, tmp_path / "table"
    engine.create(path, {"id": "INT", "t": "TIMESTAMP(6)"}, options={**DV, "file.format": "orc"})
    with time_zone(spark, "America/New_York"):
        times = [*FAR, *OLD[1:3], WHEN, datetime(2026, 3, 8, 3, 30), datetime(1883, 11, 18, 12, 1)]
        # Java takes them for instants of before 1970 or after, by the time zone.
        times += [
            datetime(1970, 1, 1, hour, 59, 59, micros) for hour in (0, 4, 18, 19) for micros in (0, 1000, 500_000)
        ] + [datetime(1969, 12, 31, hour, 59, 58, micros) for hour in (4, 5, 18, 19, 23) for micros in (999, 999_999)]
        engine.append(path, [[number, when] for number, when in enumerate([*times, None, datetime(2000, 1, 1)])])
        engine.delete(path, lambda row: row["id"] == 0)

    def everywhere() -> list[list[str]]:
        found = []
        for zone in ("America/New_York", "UTC", "Europe/Berlin"):
            with time_zone(spark, zone):
                found.append(in_order(engine.rows(path)))
        return found

    before = everywhere()
    assert purge(opened(path), LocalEngine()).verified
    assert everywhere() == before
    judge_rows(engine, path)


# Of which some zones have another past in Java: Kolkata and Moscow until 1900, Shanghai in 1900, Amsterdam until 1946.
PAST = [datetime(year, month, 15, 12, 30) for year in (1583, 1700, 1899, 1900, 1936, 1946, 1969) for month in (1, 7)]


@pytest.mark.parametrize(
    ("zone", "refused"),
    [
        ("America/New_York", 0),
        ("Asia/Kolkata", 0),
        ("Asia/Shanghai", 0),
        pytest.param("Asia/Manila", 0, marks=pytest.mark.deep),
        pytest.param("Europe/Moscow", 0, marks=pytest.mark.deep),
        pytest.param("Europe/Dublin", 6, marks=pytest.mark.deep),
        pytest.param("Europe/Amsterdam", 14, marks=pytest.mark.deep),
    ],
)
def test_the_past_of_time_zones(
    paimon_engine: PaimonEngine, spark: SparkSession, tmp_path: Path, zone: str, refused: int
) -> None:
    """Java and ORC's library for C++ add different offsets: what is not refused is what Paimon reads, and a purge keeps
    it.
    """
    engine, count = paimon_engine, 0
    for at, when in enumerate(PAST):
        path = tmp_path / str(at)
        engine.create(path, {"id": "INT", "t": "TIMESTAMP(6)"}, options={**DV, "file.format": "orc"})
        with time_zone(spark, zone):
            engine.append(path, [[1, when], [2, datetime(2026, 1, 1)]])
        engine.delete(path, lambda row: row["id"] == 2)
        before = engine.rows(path)
        try:
            judge_rows(engine, path)
        except RefusedError:
            count += 1
            with pytest.raises(RefusedError, match=f"in the time zone {zone}: in Java its offset may be another one"):
                purge(opened(path), LocalEngine())
        else:
            assert purge(opened(path), LocalEngine()).verified
        assert engine.rows(path) == before
    assert count == refused


SOUGHT: dict[str, tuple[str, list[Any]]] = {
    "n": ("TINYINT", [-128, 0, 127]),
    "b": ("BIGINT", [-(2**63), 2**63 - 1]),
    "f": ("FLOAT", [0.0, -0.0, 0.5]),
    "d": ("DOUBLE", [-0.0, 0.0, float("inf"), float("-inf"), 5e-324]),
    "x": ("DOUBLE", [float("nan"), -1.5, 2.5]),
    "z": ("DOUBLE", [-0.0]),
    "s": ("STRING", ["", "a" * 16, "a" * 16 + "b", "a" * 17, "\uffff" * 20, "\U0010ffff" * 17, "\U0001f600", "zz"]),
    "l": ("STRING", ["long" * 2000, "short"]),
    "c": ("CHAR(4)", ["ab", "a", "abcd"]),
    "p": ("DECIMAL(9, 2)", [Decimal("-1234567.89"), Decimal("0.00"), Decimal("9999999.99")]),
    "q": ("DECIMAL(38, 10)", [Decimal("-9999999999999999999999999999.9999999999"), Decimal("0.0000000001")]),
    "t": (
        "TIMESTAMP(3)",
        [datetime(1969, 12, 31, 23, 59, 59), datetime(1700, 1, 1), datetime(2026, 1, 1, 0, 0, 0, 999000)],
    ),
    "u": (
        "TIMESTAMP(6)",
        [datetime(1969, 12, 31), datetime(2200, 1, 1, 0, 0, 0, 999999), datetime(2026, 1, 1, 0, 0, 0, 1)],
    ),
    "v": ("TIMESTAMP(6) WITH LOCAL TIME ZONE", [datetime(1931, 5, 7), datetime(2026, 1, 1, 0, 0, 0, 1)]),
    "y": ("DATE", [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]),
    "o": ("BOOLEAN", [False]),
    "e": ("INT", [None]),
}


@pytest.mark.parametrize("kind", ["orc", pytest.param("avro", marks=pytest.mark.deep)])
def test_what_is_sought_is_found(paimon_engine: PaimonEngine, tmp_path: Path, kind: str) -> None:
    """Paimon skips files by the statistics in our manifests, and parts of files by those in ORC's own footers."""
    engine, path = paimon_engine, tmp_path / "table"
    columns = {"id": "INT", "pt": "INT", **{name: type_ for name, (type_, _) in SOUGHT.items()}}
    engine.create(path, columns, partition=["pt"], options={**DV, "file.format": kind})
    rows = [[number, 0, *(values[number % len(values)] for _, values in SOUGHT.values())] for number in range(24)]
    rows += [
        [100 + number, 1, *(values[number] if number < len(values) else None for _, values in SOUGHT.values())]
        for number in range(9)
    ]
    # Files of one value each.
    rows += [
        [200 + number, 2 + number, *(values[number % len(values)] for _, values in SOUGHT.values())]
        for number in range(3)
    ]
    rows += [[number, row[1], *(None for _ in SOUGHT)] for number, row in zip(range(300, 302), rows, strict=False)]
    engine.append(path, rows)
    engine.append(path, [[400 + number, number, *(None for _ in SOUGHT)] for number in range(5)])
    engine.delete(path, lambda row: row["id"] in {5, 103} or row["id"] >= 400)
    left = engine.rows(path)
    assert len(left) == 36
    sought = [(name, value) for name in SOUGHT for value in {repr(row[name]): row[name] for row in left}.values()]
    # Bounds in ORC files are of one of the two zeros, and of texts and dates not quite what Java takes them for. Of
    # these Paimon overlooks rows in its own files, as before, and none in ours, padded text aside.
    doubtful = {"c", "d", "f", "s", "y"} if kind == "orc" else set()
    ours = {row["id"] for row in left if row["pt"] < 2}

    def found(name: str, value: Any) -> set[int]:
        return {row["id"] for row in engine.rows(path, where=(name, value)) if row[name] == value}

    wanted = {
        (name, repr(value)): {
            row["id"]
            for row in left
            if row[name] == value and (name not in doubtful or (name != "c" and row["id"] in ours))
        }
        | (found(name, value) if name in doubtful else set())
        for name, value in sought
    }
    assert purge(opened(path), LocalEngine()).verified
    assert kinds(path) == {kind}
    for name, value in sought:
        assert found(name, value) >= wanted[name, repr(value)], (name, value)
    assert engine.rows(path, where=("id", 1000)) == []


@pytest.mark.deep
@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "bzip2", "xz", "zstandard"])
def test_codecs_of_avro_files(paimon_engine: PaimonEngine, tmp_path: Path, codec: str) -> None:
    """Names that Paimon takes, and no others: `lz4` and `gzip` are refused here, too."""
    engine, path = paimon_engine, tmp_path / "table"
    simple(engine, path, options={**DV, "file.format": "avro", "file.compression": codec})
    before = in_order(engine.rows(path))
    assert purge(opened(path), LocalEngine()).verified
    assert in_order(judge_rows(engine, path)) == before
    [*files] = (path / each for each in opened(path).snapshot().files["path"].to_pylist())
    assert {header_of(each.read_bytes())["avro.codec"].decode() for each in files} == {codec}
    go_on(engine, path, [1000, "a", "new"])


@pytest.mark.deep
def test_row_ids_in_avro_files(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """They are stored, as in other files, but Paimon 1.4.2 reads row ids from no Avro file, not from its own either. So
    its compaction fails, and only ours is left.
    """
    engine, path = paimon_engine, tmp_path / "table"
    engine.create(path, {"id": "INT"}, options={**DV, "file.format": "avro", "row-tracking.enabled": "true"})
    engine.append(path, [[number] for number in range(10)])
    engine.append(path, [[number] for number in range(10, 20)])
    engine.delete(path, lambda row: row["id"] in {3, 4, 13})
    before = in_order(judge_rows(engine, path))
    for fails in (lambda: engine.rows(path, lineage=True), lambda: engine.compact(path, options=ALL_DELETED_FILES)):
        with pytest.raises(EngineError, match="ArrayIndexOutOfBoundsException: Index 1"):
            fails()
    assert maintain(opened(path), LocalEngine(), Policy(min_input_files=2)).verified
    assert in_order(judge_rows(engine, path)) == before
    (name,) = opened(path).snapshot().files["path"].to_pylist()
    stored = [*read_records((path / name).read_bytes(), None)]
    assert {row["id"]: row["_ROW_ID"] for row in stored} == {at: at for at in range(20) if at not in {3, 4, 13}}
    assert {row["_SEQUENCE_NUMBER"] for row in stored} == {1, 2}
    engine.append(path, [[1000]])
    engine.delete(path, lambda row: row["id"] == 5)
    assert len(judge_rows(engine, path)) == len(before)


@pytest.mark.parametrize(
    ("kind", "codec"),
    [
        ("csv", "none"),
        *(
            pytest.param(*each, marks=pytest.mark.deep)
            for each in [
                *(("csv", codec) for codec in ("gzip", "bzip2", "snappy", "deflate")),
                *(("json", codec) for codec in ("none", "gzip", "lz4")),
                ("text", "none"),
            ]
        ),
    ],
)
def test_files_of_lines(paimon_engine: PaimonEngine, tmp_path: Path, kind: str, codec: str) -> None:
    """A line is a row to Paimon. It reads the same rows after lines were copied, and goes on."""
    engine, path = paimon_engine, tmp_path / "table"
    options = {**DV, "file.format": kind, "file.compression": codec, "snapshot.num-retained.min": "1"}
    odd = ["plain", 'quo"te', "com,ma", None, "", "back\\slash", " sp ", "é\u2028x", "tab\t", "1,2\\", "'"]
    if kind == "csv":
        options |= {"csv.include-header": "true"}
    columns = (
        {"v": "STRING"} if kind == "text" else {"id": "INT", "v": "STRING", "d": "DECIMAL(9, 2)", "t": "TIMESTAMP(3)"}
    )
    engine.create(path, columns, options=options)

    def rows(ids: range) -> list[list[Any]]:
        found = [[n, odd[n % len(odd)], "1.50", WHEN.replace(microsecond=123000)] for n in ids]
        return [[f"{n} {v}"] for n, v, *_ in found] if kind == "text" else found

    def some(row: dict[str, Any]) -> bool:
        return sum(str(row).encode()) % 3 == 0

    engine.append(path, rows(range(40)))
    if kind != "text":
        engine.alter(path, ("rename", "v", "w"), ("drop", "d"), ("add", "later", "INT"))
        engine.append(path, [[n, v, t, n] for n, v, _, t in rows(range(40, 60))])
    engine.delete(path, some)
    left = engine.rows(path)
    assert 10 < len(left) < 50
    # Paimon's own delete comes between our plan and our commit.
    again = [repr(row) for row in left][::7]
    report = purge(
        opened(path), InterferingEngine(LocalEngine(), lambda: engine.delete(path, lambda r: repr(r) in again))
    )
    assert report.verified, report.problems
    assert sum(step.rows_carried for step in report.steps) == len(again)
    left = [row for row in left if repr(row) not in again]
    assert in_order(engine.rows(path)) == in_order(left)
    assert purge(opened(path), LocalEngine()).verified
    assert no_dvs(path)
    assert in_order(engine.rows(path)) == in_order(left)
    filters = [("=", "v" if kind == "text" else "w", 'quo"te'), *([] if kind == "text" else [(">", "id", 30)])]
    assert engine.ask(path, filters) == engine.ask(path, filters, all_rows=True)

    engine.append(path, [list(row.values()) for row in left[:3]])
    engine.delete(path, lambda row: repr(row) == repr(left[5]))
    left = engine.rows(path)
    assert engine.compact(path, options=ALL_DELETED_FILES)
    assert in_order(engine.rows(path)) == in_order(left)
    engine.delete(path, lambda row: repr(row) == repr(left[6]))
    left = engine.rows(path)
    assert purge(opened(path), LocalEngine()).verified
    engine.expire(path)
    assert in_order(engine.rows(path)) == in_order(left)
    assert engine.orphans(path, time.time_ns() // 1_000_000 + 3_600_000) == []


@pytest.mark.parametrize("codec", ["snappy", "lz4"])
def test_blocks_of_lines(paimon_engine: PaimonEngine, tmp_path: Path, codec: str) -> None:
    """Hadoop's blocks, of which a file has several. A line may be longer than one."""
    engine, path = paimon_engine, tmp_path / "table"
    options = {**DV, "file.format": "csv", "file.compression": codec}
    engine.create(path, {"id": "INT", "v": "STRING"}, options=options)
    noise = "".join(map(chr, random.Random(1).choices(range(48, 91), k=1 << 20)))
    engine.append(path, [[n, noise[n * 300 : n * 300 + 300]] for n in range(3000)] + [[3000, noise[:700_000]]])
    engine.delete(path, lambda row: row["id"] % 7 == 3)
    left = in_order(engine.rows(path))
    assert purge(opened(path), LocalEngine()).verified
    assert in_order(engine.rows(path)) == left


def test_text_is_read_and_deleted_from(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """A null is an empty text to Paimon, too."""
    engine, path = paimon_engine, tmp_path / "table"
    engine.create(path, {"v": "STRING"}, options={**DV, "file.format": "text", "file.compression": "none"})
    odd = ["\ufeffa", None, "", "é\u2028\x85", "tab\t", " b ", "\ufeff", "null", "\0", "\U0001f600"]
    engine.append(path, [[each] for each in odd])
    engine.append(path, [[f"{n}"] for n in range(1000)])
    assert len(judge_rows(engine, path)) == 1010
    engine.alter(path, ("rename", "v", "w"), ("add", "z", "INT"))
    judge_rows(engine, path)
    assert delete(opened(path), LocalEngine(), "w IN ('', 'null', '7') OR w BETWEEN '990' AND '999'").rows_deleted == 14
    assert len(judge_rows(engine, path)) == 996
    engine.delete(path, lambda row: row["w"] == "8")
    before = judge_rows(engine, path)
    assert purge(opened(path), LocalEngine()).verified
    assert no_dvs(path)
    assert in_order(judge_rows(engine, path)) == in_order(before)


@pytest.mark.parametrize("kind", ["text", "csv"])
def test_a_mark_is_of_its_line(paimon_engine: PaimonEngine, tmp_path: Path, kind: str) -> None:
    """A byte order mark is a part of the first row only if it is not at the begin of the file."""
    engine, path = paimon_engine, tmp_path / "table"
    engine.create(path, {"v": "STRING"}, options={**DV, "file.format": kind, "file.compression": "none"})
    engine.append(path, [["a"], ["\ufeffb"], ["c"], ["\ufeffd"]])
    engine.append(path, [["\ufeffe"], ["f"]])
    engine.delete(path, lambda row: row["v"] in {"a", "f"})
    left = engine.rows(path)
    assert [row["v"] for row in left] == ["\ufeffb", "c", "\ufeffd", "e"]
    assert purge(opened(path), LocalEngine()).verified
    assert no_dvs(path)
    assert in_order(engine.rows(path)) == in_order(left)


def test_lines_in_zstd_need_a_library_of_hadoop(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """And zstd is the default: without ``libhadoop``, Paimon writes and reads no such file."""
    for kind in ("csv", "json"):
        paimon_engine.create(tmp_path / kind, {"v": "STRING"}, options={**DV, "file.format": kind})
        with pytest.raises(EngineError, match="native zStandard library not available"):
            paimon_engine.append(tmp_path / kind, [["a"]])


def test_files_of_lines_that_paimon_misreads(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    """Values with line breaks become several rows, row ids can't be kept, and with a key it reads other columns."""
    engine = paimon_engine
    csv = {**DV, "file.format": "csv", "file.compression": "none"}
    engine.create(tmp_path / "breaks", {"id": "INT", "v": "STRING"}, options=csv)
    engine.append(tmp_path / "breaks", [[1, "a\nb"], [2, "c"]])
    assert [row["id"] for row in engine.rows(tmp_path / "breaks")] == [1, None, 2]
    engine.create(tmp_path / "ids", {"id": "INT"}, options={**csv, "row-tracking.enabled": "true"})
    engine.append(tmp_path / "ids", [[1], [2]])
    engine.delete(tmp_path / "ids", lambda row: row["id"] == 1)
    with pytest.raises(EngineError, match="Failed to read batch"):
        engine.compact(tmp_path / "ids", options=ALL_DELETED_FILES)
    engine.create(tmp_path / "key", {"id": "INT NOT NULL", "v": "STRING"}, key=["id"], options={**csv, "bucket": "1"})
    engine.append(tmp_path / "key", [[1, "a"]])
    assert engine.rows(tmp_path / "key") == [{"id": 1, "v": "0"}]
    packed = tmp_path / "packed"
    engine.create(packed, {"v": "STRING"}, options={**csv, "file.format": "text", "file.compression": "gzip"})
    engine.append(packed, [["a"]])
    assert {"v": "a"} not in engine.rows(packed)
    for codec in ("brotli", "xz"):
        engine.create(tmp_path / codec, {"v": "STRING"}, options={**csv, "file.compression": codec})
        with pytest.raises(EngineError):
            engine.append(tmp_path / codec, [["a"]])

"""Files of lines: CSV, JSON and text. A purge copies lines, and decodes no value."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import zlib
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from support.paimon_writer import DataFile, PaimonWriter

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.files.lines import CODECS, MARK, _lines, lines_of, packer_of, unpacked_lines
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table

OPTIONS = {"bucket": "-1", "deletion-vectors.enabled": "true"}
CSV = {**OPTIONS, "file.format": "csv"}
PACK: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "": (bytes, bytes),
    ".gz": (gzip.compress, gzip.decompress),
    ".bz2": (bz2.compress, bz2.decompress),
    ".deflate": (zlib.compress, zlib.decompress),
    ".zst": (zstandard.compress, lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)),
}


def add(table: PaimonWriter, data: bytes, rows: int, suffix: str = ".csv", **entry: Any) -> DataFile:
    return table.append(
        [dict.fromkeys(table.columns)] * rows, suffix=suffix, write=lambda _, to: to.write_bytes(data), **entry
    )


def live(table: PaimonWriter) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = open_table(str(table.path)).snapshot().files.to_pylist()
    return found


def purged(table: PaimonWriter) -> list[dict[str, Any]]:
    opened = open_table(str(table.path))
    report = purge(opened, LocalEngine())
    assert report.verified, report.problems
    assert not health(opened.snapshot()).counts.files_with_dv
    return live(table)


@pytest.mark.parametrize("packed", list(PACK))
def test_a_file_can_be_read_again(packed: str) -> None:
    """As for each of the files that it is cut into."""
    file = pa.PythonFile(io.BytesIO(PACK[packed][0](b"a\nb\n")), mode="r")
    for _ in range(2):
        file.seek(0)
        assert list(unpacked_lines(file, packed)) == [[b"a", b"b"]]


@pytest.mark.parametrize("packed", list(PACK))
@pytest.mark.parametrize("kind", ["csv", "json", "text"])
def test_lines_of_deleted_rows_go(tmp_path: Path, kind: str, packed: str) -> None:
    """All others stay as they are, with the schema that the file was written with, and empty ones too."""
    pack, unpack = PACK[packed]
    table = PaimonWriter(tmp_path / "t", options={**OPTIONS, "file.format": kind})
    file = add(table, pack('1,"é"\n\n3,\\,\n  4\n5,\u2028\n'.encode()), 5, f".{kind}{packed}")
    table.alter({"id": "BIGINT", "w": "STRING"}, {"w": "v"})
    table.delete({file: [0, 3]})
    [new] = purged(table)
    assert new["file_name"].startswith("data-")
    assert new["file_name"].endswith(f"-0.{kind}{packed}")
    assert unpack((table.path / new["path"]).read_bytes()) == "\n3,\\,\n5,\u2028\n".encode()
    assert (new["physical_rows"], new["schema_id"], new["source"]) == (3, 0, "compact")


@pytest.mark.parametrize("option", ["csv.include-header", "header"])
def test_a_header_is_no_row(tmp_path: Path, option: str) -> None:
    table = PaimonWriter(tmp_path / "t", options={**CSV, option: "true"})
    first, other = add(table, b"id,v\r\n1,a\r\n2,b\r\n", 2), add(table, b"x;y\n3,c\n4,d", 2)
    table.delete({first: [0], other: [1]})
    [new] = purged(table)
    assert (table.path / new["path"]).read_bytes() in {b"id,v\n2,b\n3,c\n", b"x;y\n3,c\n2,b\n"}
    other = PaimonWriter(tmp_path / "json", options={**OPTIONS, "file.format": "json", option: "true"})
    other.delete({add(other, b"{}\n[]\n", 2, ".json"): [0]})
    assert (other.path / purged(other)[0]["path"]).read_bytes() == b"[]\n"


@pytest.mark.parametrize("options", [{}, {"header": "true"}])
def test_a_mark_at_the_begin_of_a_file_is_of_no_line(tmp_path: Path, options: dict[str, str]) -> None:
    """Another one, which a purge moves there, is of its line."""
    first, other = (PaimonWriter(tmp_path / name, options=CSV | options) for name in "ab")
    head, mark = (b"id,v\n" if options else b""), MARK.decode()
    first.delete({add(first, f"{mark}{head.decode()}{mark}1,a\n2,b\n{mark}3,c\n".encode(), 3): [1]})
    other.delete({add(other, head + f"4,a\n{mark}5,b\n".encode(), 2): [0]})
    more = b"" if options else MARK
    found = [(table.path / purged(table)[0]["path"]).read_bytes() for table in (first, other)]
    kept = MARK + head if options else MARK
    assert found == [kept + MARK + f"1,a\n{mark}3,c\n".encode(), head + more + MARK + b"5,b\n"]


@pytest.mark.parametrize("kind", ["csv", "json", "text"])
def test_small_files_are_merged(tmp_path: Path, kind: str) -> None:
    """With files of the same schema and compression: only in these a line means the same. A mark is of its line."""
    table = PaimonWriter(tmp_path / "t", options={**OPTIONS, "file.format": kind})
    mark = MARK.decode()

    def put(at: int, suffix: str = "", data: str = "", **entry: Any) -> DataFile:
        data = data or f"{mark * (at % 2)}{at}\n{mark}{at} again"
        pack = PACK[suffix][0]
        return add(table, pack(data.encode()), 2, f".{kind}{suffix}", **entry)

    old = [put(9, _LEVEL=1), put(1), put(2), put(3, ".gz"), put(4, ".gz"), put(5, ".bz2")]
    table.alter({"id": "BIGINT", "w": "STRING"}, {"w": "v"})
    new = [put(6), put(7), put(8, _LEVEL=1)]
    table.delete({old[1]: [0], new[1]: [1]})
    opened = open_table(str(table.path))
    assert maintain(opened, LocalEngine(), Policy(min_input_files=2)).verified
    found = {}
    for each in live(table):
        suffix = each["file_name"].partition(".")[2].partition(".")[2]
        data = PACK[f".{suffix}" if suffix else ""][1]((table.path / each["path"]).read_bytes()).decode()
        found[suffix, each["schema_id"], each["level"]] = sorted(data.removeprefix(mark).splitlines())
        assert each["physical_rows"] == len(data.splitlines())
    assert found == {
        ("", 0, 0): ["2", f"{mark}1 again", f"{mark}2 again"],
        ("gz", 0, 0): ["3", "4", f"{mark}3 again", f"{mark}4 again"],
        ("bz2", 0, 0): ["5", f"{mark}5 again"],
        ("", 0, 1): ["9", f"{mark}9 again"],
        ("", 1, 0): ["6", "7", f"{mark}6 again"],
        ("", 1, 1): ["8", f"{mark}8 again"],
    }


def test_lines_end_as_in_java(tmp_path: Path) -> None:
    class Slow:
        """A byte at a time."""

        def __init__(self, data: bytes) -> None:
            self.left = [bytes([each]) for each in data]

        def read(self, size: int) -> bytes:
            del size
            return self.left.pop(0) if self.left else b""

    for data in (b"", b"\r", b"\n", b"a\r\nb\rc\n\r\n\n\rd", b"a\r\r\n", "\u2028\x0b\x0c\x1c\x85\n".encode()):
        expected = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if not expected[-1]:
            expected.pop()
        assert [line for lines in lines_of(Slow(data)) for line in lines] == expected


@given(st.lists(st.text("a\r\n", max_size=4)))
def test_lines_end_anywhere(chunks: list[str]) -> None:
    """Also between two reads of a file."""
    parts = [each.encode() for each in chunks]
    assert [line for some in _lines(iter(parts)) for line in some] == b"".join(parts).splitlines()


def test_a_small_file_that_unpacks_to_a_large_one() -> None:
    packed = zlib.compress(b"\n" * (32 << 20), 9)
    sizes = [len(lines) for lines in unpacked_lines(pa.BufferReader(packed), ".deflate")]
    assert sum(sizes) == 32 << 20
    assert max(sizes) <= 1 << 20


@pytest.mark.parametrize("data", [b'1,"a\nb"\n2,c\n', b"1,a\r2,b\n3,c\n", b"1,a\n"])
def test_line_breaks_in_values(tmp_path: Path, data: bytes) -> None:
    """Paimon's readers end a row there, and so more rows are read than its manifest says."""
    table = PaimonWriter(tmp_path / "t", options=CSV)
    table.delete({add(table, data, 2): [0]})
    before = set(table.path.rglob("*"))
    with pytest.raises(RefusedError, match=r"lines of 2 rows: with line breaks in values"):
        purge(open_table(str(table.path)), LocalEngine())
    assert set(table.path.rglob("*")) == before


@pytest.mark.parametrize(
    ("suffix", "options", "why"),
    [
        (".csv.br", {}, r"compression is not written here \(.br\)"),
        (".csv", {"csv.line-delimiter": "|"}, r"others than its rows \(csv.line-delimiter\)"),
        (".csv", {"lineSep": "\r\n"}, r"others than its rows \(lineSep\)"),
        (".csv", {"csv.mode": "DROPMALFORMED"}, r"others than its rows \(csv.mode\)"),
        (".json", {"json.ignore-parse-errors": "true"}, r"others than its rows \(json.ignore-parse-errors\)"),
        (".csv", {"row-tracking.enabled": "true"}, "rows keep no ids in files of lines"),
        (".parquet", {}, "new files of the table must be csv"),
    ],
)
def test_files_that_are_left_alone(tmp_path: Path, suffix: str, options: dict[str, str], why: str) -> None:
    table = PaimonWriter(tmp_path / "t", options={**CSV, **options})
    table.delete({add(table, b"a\nb\n", 2, suffix, _FIRST_ROW_ID=0): [0]})
    with pytest.raises(RefusedError, match=why) as caught:
        purge(open_table(str(table.path)), LocalEngine())
    assert "engine-sql" in str(caught.value)


@pytest.mark.parametrize("packed", sorted(CODECS - {""}))
def test_streams_of_hadoop(packed: str) -> None:
    """Blocks of several parts, too, which Hadoop writes for long lines; and damage, which is never taken for an end."""
    lines = [b"x" * (each * 7 % 5000) + b"%d" % each for each in range(400)]
    packer = packer_of(packed)
    data = b"".join(packer.compress(b"".join(line + b"\n" for line in lines[at : at + 90])) for at in range(0, 400, 90))
    data += packer.flush()
    assert [line for found in unpacked_lines(io.BytesIO(data), packed) for line in found] == lines
    for stop in (2, 6, 1000, len(data) - 1):
        with pytest.raises(DamagedTableError):
            [*unpacked_lines(io.BytesIO(data[:stop]), packed)]
    name = {".snappy": "snappy", ".lz4": "lz4_raw"}.get(packed)
    if name:
        parts = [pa.Codec(name).compress(each, asbytes=True) for each in (b"abc\n" * 99, b"d\n")]
        block = (398).to_bytes(4, "big") + b"".join(len(each).to_bytes(4, "big") + each for each in parts)
        if packed == ".lz4":
            with pytest.raises(RefusedError, match="a block of LZ4 has several parts"):
                [*unpacked_lines(io.BytesIO(block), packed)]
        else:
            assert [*unpacked_lines(io.BytesIO(block), packed)] == [[b"abc"] * 99, [b"d"]]
            with pytest.raises(DamagedTableError, match="has 2 bytes, not 1 to 1"):
                [*unpacked_lines(io.BytesIO(b"\0\0\1\x8d" + block[4:]), packed)]


def test_a_file_keeps_its_format(tmp_path: Path) -> None:
    """Whatever that of new files is. A small one joins only others of its format."""
    table = PaimonWriter(tmp_path / "t", options=OPTIONS)
    values = [{"id": each, "v": "v"} for each in range(4)]
    files = [table.append(values), add(table, b"1,a\n2,b\n", 2), table.append(values), add(table, b"3,c\n4,d\n", 2)]
    table.delete({each: [0] for each in files[:2]})
    opened = open_table(str(table.path))
    assert maintain(opened, LocalEngine(), Policy(min_input_files=2)).verified
    found = sorted((each["file_name"].rpartition(".")[2], each["physical_rows"]) for each in live(table))
    assert found == [("csv", 3), ("parquet", 7)]
    assert len(rows(table)) == 10


TEXT = {**OPTIONS, "file.format": "text"}


def rows(table: PaimonWriter, columns: list[str] | None = None) -> list[dict[str, Any]]:
    return [row for batch in read(open_table(str(table.path)), None, columns)[1] for row in batch.to_pylist()]


def test_text_is_read(tmp_path: Path) -> None:
    """And deleted from."""
    table = PaimonWriter(tmp_path / "t", {"v": "STRING"}, options=TEXT)
    add(table, "\ufeffa\n\né\u2028\r\n b \nnull".encode(), 5, ".text")
    table.alter({"w": "STRING", "z": "INT"}, {"w": "v"})
    assert [row["w"] for row in rows(table)] == ["a", "", "é\u2028", " b ", "null"]
    assert rows(table, ["z"]) == [{"z": None}] * 5
    assert delete(open_table(str(table.path)), LocalEngine(), "w IN ('', ' b ')").rows_deleted == 2
    assert [row["w"] for row in rows(table)] == ["a", "é\u2028", "null"]


@pytest.mark.parametrize(
    ("columns", "options", "data", "why"),
    [
        ({"v": "STRING"}, {"text.line-delimiter": "|"}, b"a\nb\n", "may be others than its rows"),
        ({"v": "STRING"}, {"row-tracking.enabled": "true"}, b"a\nb\n", "rows keep no ids"),
        ({"v": "STRING", "w": "STRING"}, {}, b"a\nb\n", "other columns than one of text"),
        ({"v": "INT"}, {}, b"1\n2\n", "other columns than one of text"),
        ({"v": "STRING"}, {}, b"a\nb\nc\n", "at least 3 lines of 2 rows"),
        ({"v": "STRING"}, {}, b"a\n", "has 1 lines of 2 rows"),
        ({"v": "STRING"}, {}, b"a\n\xff\n", "cannot be read as text"),
    ],
)
def test_text_that_is_not_read(
    tmp_path: Path, columns: dict[str, str], options: dict[str, str], data: bytes, why: str
) -> None:
    table = PaimonWriter(tmp_path / "t", columns, options=TEXT | options)
    add(table, data, 2, ".text", _FIRST_ROW_ID=0)
    with pytest.raises((RefusedError, DamagedTableError), match=why):
        rows(table)


def test_packed_text_is_not_read(tmp_path: Path) -> None:
    table = PaimonWriter(tmp_path / "t", {"v": "STRING"}, options=TEXT)
    add(table, gzip.compress(b"a\n"), 1, ".text.gz")
    with pytest.raises(RefusedError, match="Paimon reads no compressed text"):
        rows(table)


# -- CSV and JSON: what these values are to Paimon is judged by tests/judges/test_paimon_lines_judged.py ---------------

KNOWN = {"id": "INT", "v": "STRING", "d": "DECIMAL(9, 2)", "t": "TIMESTAMP(3)", "b": "BYTES"}
COLUMNS = {**KNOWN, "z": "TIMESTAMP(6) WITH LOCAL TIME ZONE"}
FIRST = {"id": 1, "v": "a;'", "d": Decimal("1.50"), "t": datetime(2026, 1, 2, 3, 4, 5, 120000), "b": b"ab"}


@pytest.mark.parametrize(
    ("options", "data"),
    [
        ({}, b'1,"a;\'",1.5,2026-01-02 03:04:05.1201,YWI=,x\n\n2\n'),
        (
            {"seq": ";|", "csv.quote-character": "'", "escape": "^", "header": "true"},
            b"some header\n1;'a;^'';1.5;2026-01-02 03:04:05.12;YWI=\n;;;;\n2\n",
        ),
        (
            {"csv.include-header": "false", "header": "true", "csv.null-literal": "NULL"},
            b"1,a;',1.50,2026-01-02 03:04:05.12,YWI=\nNULL,NULL,NULL,NULL,NULL\n2,NULL\n",
        ),
    ],
)
def test_csv_is_read(tmp_path: Path, options: dict[str, str], data: bytes) -> None:
    """And deleted from."""
    table = PaimonWriter(tmp_path / "t", COLUMNS, options={**CSV, **options})
    add(table, data, 3)
    nothing: dict[str, Any] = dict.fromkeys(KNOWN)
    assert rows(table, list(KNOWN)) == [FIRST, nothing, {**nothing, "id": 2}]
    table.alter({"id": "BIGINT", "w": "STRING", "y": "INT", "z": COLUMNS["z"]}, {"w": "v"})
    assert rows(table, ["w", "y"]) == [{"w": each, "y": None} for each in ("a;'", None, None)]
    assert delete(open_table(str(table.path)), LocalEngine(), "w > 'a' AND id = 1").rows_deleted == 1
    assert rows(table, ["id"]) == [{"id": None}, {"id": 2}]


def test_json_is_read(tmp_path: Path) -> None:
    """And deleted from."""
    fields = [{"id": 90, "name": "a", "type": "INT"}, {"id": 91, "name": "t", "type": "TIMESTAMP(0)"}]
    columns = {
        **COLUMNS,
        "r": {"type": "ARRAY", "element": {"type": "ROW", "fields": fields}},
        "m": {"type": "MAP", "key": "INT", "value": "BOOLEAN"},
        "n": {"type": "MAP", "key": "DATE", "value": "INT"},
    }
    table = PaimonWriter(tmp_path / "t", columns, options={**OPTIONS, "file.format": "json"})
    first = {"id": 1, "v": "a;'", "d": "1.5", "t": "2026-01-02 03:04:05.12", "b": "YWI=", "z": 5}
    more = {"r": [{"a": "1", "t": "2026-01-02 03:04:05.9"}, None, {}], "m": {"-1": True, "2": None}, "n": 7}
    add(table, f'{json.dumps(first | more)}\n{{}}\n {{"id":2,"r":[],"m":{{}}}}\n'.encode(), 3, ".json")
    known = [*KNOWN, "r", "m"]
    nothing: dict[str, Any] = dict.fromkeys(known)
    when = datetime(2026, 1, 2, 3, 4, 5)
    deep = {"r": [{"a": 1, "t": when}, None, {"a": None, "t": None}], "m": [(-1, True), (2, None)]}
    assert rows(table, known) == [FIRST | deep, nothing, {**nothing, "id": 2, "r": [], "m": []}]
    for name in ("z", "n"):
        with pytest.raises(
            RefusedError, match=f"column {name} of .* holds (timestamps with a local|maps with keys)"
        ) as it:
            rows(table, [name])
        assert "leave it out" in str(it.value)
    assert delete(open_table(str(table.path)), LocalEngine(), "v > 'a'").rows_deleted == 1
    assert rows(table, ["id"]) == [{"id": None}, {"id": 2}]


@pytest.mark.parametrize(
    ("options", "data", "why"),
    [
        ({}, b"1,a\n2147483648,b\n", r"line 2 of .*csv has '2147483648' for id: what Paimon reads there is not known"),
        ({"header": "true"}, b"h\n1\n,,1.555\n", r"line 3 of .* has '1.555' for d:"),
        ({}, b"1\n\xff\n", "cannot be read as CSV"),
        ({}, "1\n\u180e\n".encode(), r"line 2 of .* is '\\u180e':"),
        ({}, b"1\n2\n3\n", "at least 3 lines of 2 rows"),
        ({"delimiter": ";"}, b"1\n2\n", "not all releases of Paimon know the option delimiter"),
        ({"quote": ""}, b"1\n2\n", "csv.quote-character is no character to Paimon"),
        ({"seq": "\U0001f600"}, b"1\n2\n", "csv.field-delimiter is no character to Paimon"),
        ({"escape": ","}, b"1\n2\n", "Paimon takes no two of its characters for the same"),
        ({"csv.mode": "failfast"}, b"1\n2\n", r"its lines may be others than its rows \(csv.mode\)"),
    ],
)
def test_csv_that_is_not_read(tmp_path: Path, options: dict[str, str], data: bytes, why: str) -> None:
    table = PaimonWriter(tmp_path / "t", COLUMNS, options={**CSV, **options})
    add(table, data, 2)
    with pytest.raises((RefusedError, DamagedTableError), match=why):
        rows(table, ["id", "v", "d"])


@pytest.mark.parametrize(
    ("type", "read", "odd"),
    [
        ("DECIMAL(9, 2)", ["0007.50", "-0.5000"], [f"{2**127}", f"{2**128}.00", "1." + "0" * 60, f"0.{'0' * 40}1"]),
        ("DECIMAL(38, 0)", ["9" * 38, "-0"], [f"{2**127}", f"{2**128}", f"0.{7 * 10**36}12"]),
        ("DECIMAL(38, 38)", ["0." + "9" * 38, "-0.5"], ["7", "-1.5", f"{10**30}"]),
    ],
)
def test_decimals_of_which_arrow_makes_others(tmp_path: Path, type: str, read: list[str], odd: list[str]) -> None:
    table = PaimonWriter(tmp_path / "t", {"d": type}, options=CSV)
    add(table, "\n".join(read).encode(), 2)
    assert [row["d"] for row in rows(table)] == [*map(Decimal, read)]
    for at, each in enumerate(odd):
        table = PaimonWriter(tmp_path / f"{at}", {"d": type}, options=CSV)
        add(table, each.encode(), 1)
        with pytest.raises(RefusedError, match=f"line 1 of .* has '{each}' for d"):
            rows(table)


def test_a_line_is_counted_from_the_begin_of_the_file(tmp_path: Path) -> None:
    table = PaimonWriter(tmp_path / "t", COLUMNS, options=CSV)
    lines = [f"{each},{'v' * 1000}" for each in range(3000)]
    lines[2500] = "a"
    file = add(table, "\n".join(lines).encode(), 3000)
    with pytest.raises(RefusedError, match=r"line 2501 of .* delete the row with .*, and purge"):
        rows(table, ["id"])
    assert len(rows(table, ["v"])) == 3000
    table.delete({file: [2500]})
    assert purged(table)
    assert [row["id"] for row in rows(table, ["id"])] == [each for each in range(3000) if each != 2500]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "line 2 of .*json is '': "),
        ("null", "line 2 of .*json is 'null': "),
        ('{"id":1.0}', "has '1.0' for id"),
        ('{"id":{}}', "has '{}' for id"),
        ('{"v":1.5}', "has '1.5' for v"),
        ('{"v":"\\ud800"}', r"has '\\ud800' for v"),
        ('{"v":' + "[" * 500_000, r"is '{\"v\":\[{95}\.\.\.'"),
    ],
    ids=["empty", "null", "double", "object", "spelling", "surrogate", "deep"],
)
def test_json_that_is_not_read(tmp_path: Path, line: str, why: str) -> None:
    table = PaimonWriter(tmp_path / "t", COLUMNS, options={**OPTIONS, "file.format": "json"})
    add(table, f"{{}}\n{line}\n".encode(), 2, ".json")
    with pytest.raises(RefusedError, match=why) as caught:
        rows(table, ["id", "v"])
    assert ("leave it out" if " for " in why else "correct the line") in str(caught.value)

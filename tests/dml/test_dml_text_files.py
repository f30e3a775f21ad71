"""CSV and JSON lines as records of text, and what is wrong with those that are none."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dv_maintenance.dml.key_casts import Number
from dv_maintenance.dml.text_files import FaultError, columns_of, records, text_files
from dv_maintenance.errors import UsageError
from dv_maintenance.storage import Storage


def read(path: Path, data: bytes | str, *wanted: str) -> list[tuple[int, list[Any]]]:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    (file,) = text_files(str(path), None)
    return list(records(file, Storage(file.uri), wanted))


def fault(path: Path, data: bytes | str, *wanted: str) -> tuple[int, str]:
    with pytest.raises(FaultError) as caught:
        read(path, data, *wanted)
    return caught.value.line, caught.value.reason


def test_csv_is_taken_as_it_is(tmp_path: Path) -> None:
    csv = tmp_path / "k.csv"
    data = '\ufeffk,l\n007,\n"","""x"""\n\n 7 ,x\n"a\nb","d,e"\n#z,a"b\n\\n,NULL\n'
    assert read(csv, data, "k", "l") == [
        (2, ["007", None]),
        (3, ["", '"x"']),
        (5, [" 7 ", "x"]),
        (6, ["a\nb", "d,e"]),
        (8, ["#z", 'a"b']),
        (9, ["\\n", "NULL"]),
    ]
    assert read(csv, 'l,k\r\n,\r\n"",1\r\nx,""', "K") == [(2, [None]), (3, ["1"]), (4, [""])]
    assert read(csv, "k,K\n1,2\n", "K") == [(2, ["2"])]
    assert read(csv, 'a,"x""y",k\n1,2,3\n', 'x"y') == [(2, ["2"])]
    assert read(csv, "k\n", "k") == []


@pytest.mark.parametrize(
    ("data", "line", "says"),
    [
        (b"k,l\n1,2\n1\n", 3, "1 fields"),
        (b"k\n1,2\n", 2, "2 fields"),
        (b'k\n"a', 2, "quotes"),
        (b'k\n"00"7\n', 2, "quotes"),
        (b"k\r1\r2", 1, "line ends"),
        (b"", 1, "empty"),
        (b"\n\n", 1, "empty"),
        (b"k\nx\n\xff\n", 3, "UTF-8"),
        ("k\n1\n".encode("utf-16"), 1, "UTF-8"),
        (b"k,k\n1,2\n", 1, "more than one"),
        (b"kk,K,K\n1,2,3\n", 1, "more than one"),
        (b"secret;b\n1;2\n", 1, "none of them is 'k'"),
    ],
)
def test_csv_that_is_none(tmp_path: Path, data: bytes, line: int, says: str) -> None:
    found, reason = fault(tmp_path / "k.csv", data, "k")
    assert (found, says in reason) == (line, True), reason
    assert "secret" not in reason


def test_json_keeps_the_text_of_numbers(tmp_path: Path) -> None:
    lines = '{"k":7}\n{"k":"007"}\n\n{"j":1}\n{"K":1.0e3,"x":[1]}\n{"k":null}\n{"k":true}\n{"k":12345678901234567890}'
    found = read(tmp_path / "k.json", lines, "k")
    assert found == [
        (1, ["7"]),
        (2, ["007"]),
        (4, [None]),
        (5, ["1.0e3"]),
        (6, [None]),
        (7, [True]),
        (8, ["12345678901234567890"]),
    ]
    assert [type(values[0]) is Number for _, values in found] == [True, False, False, True, False, False, True]
    path = tmp_path / "k.json"
    assert fault(path, '{"k":1}\n{"k":7,"k":8}\n', "k") == (2, "a name appears twice")
    assert fault(path, '{"j":7}\n', "k") == (0, "no line has a column 'k'")
    assert fault(path, '[{"k":7}]\n', "k")[1] == "it is not a JSON object"
    assert fault(path, '{\n"k":7}\n', "k")[0] == 1
    assert fault(path, '{"K":7,"kk":1}\n{"k":1}{"k":2}', "k")[0] == 2
    (file,) = text_files(str(path), None)
    path.write_text('{"a":true,"b":1}\n{"a":null,"c":{"x":true}}\n')
    assert columns_of(file, Storage(file.uri)) == {"a": True, "b": False, "c": False}
    assert next(records(file, Storage(file.uri), ["c", "d"], optional=True)) == (1, [None, None])


def test_compressed(tmp_path: Path) -> None:
    body = b"".join(b"%d\n" % number for number in range(50_000))
    packed = gzip.compress(b"k\n" + body)
    assert len(read(tmp_path / "k.csv.gz", packed, "k")) == 50_000
    assert len(read(tmp_path / "k.csv.gz", packed + gzip.compress(body), "k")) == 100_000
    assert len(read(tmp_path / "k.csv.bz2", bz2.compress(b"k\n" + body), "k")) == 50_000
    for damaged in (packed[:-2000], packed[:-4], b"k\n1\n"):
        assert "decompressed" in fault(tmp_path / "k.csv.gz", damaged, "k")[1]


def test_folders(tmp_path: Path) -> None:
    folder = tmp_path / "erase"
    (folder / "_temporary").mkdir(parents=True)
    for name in ("b.csv", "a.CSV.gz", ".a.csv.crc", "_SUCCESS", "_temporary/c.csv"):
        (folder / name).write_text("k\n1\n")
    assert [(file.name, file.form, file.codec) for file in text_files(str(folder), None)] == [
        ("a.CSV.gz", "csv", "gzip"),
        ("b.csv", "csv", None),
    ]
    (folder / "x.parquet").write_text("")
    with pytest.raises(UsageError, match="several kinds"):
        text_files(str(folder), None)
    with pytest.raises(UsageError, match="no files"):
        text_files(str(tmp_path / "nothing.csv"), None)
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "x.parquet").write_text("")
    assert text_files(str(tmp_path / "p"), None) == []


def test_on_s3(s3: tuple[str, dict[str, str]]) -> None:
    uri, options = s3
    storage = Storage(f"{uri}/erase", options)
    for name in ("a b.csv", "c.csv"):
        storage.put(name, b"k\n007\n")
    files = text_files(f"{uri}/erase", options)
    assert [list(records(file, Storage(file.uri, options), ["k"])) for file in files] == [[(2, ["007"])]] * 2
    (file,) = text_files(f"{uri}/erase/c.csv", options)
    assert file.name == "c.csv"


CELLS = st.one_of(st.none(), st.text(st.sampled_from('a,"\n\r \\#é'), max_size=5))


@given(st.lists(st.lists(CELLS, min_size=2, max_size=2), max_size=6), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_whatever_is_written_is_read(
    tmp_path_factory: Any, rows: list[list[str | None]], end: str, quote: bool
) -> None:
    def cell(value: str | None) -> str:
        if value is None:
            return ""
        must = quote or not value or any(char in value for char in '",\n\r')
        return '"' + value.replace('"', '""') + '"' if must else value

    lines = ["k,l", *(",".join(map(cell, row)) for row in rows)]
    path = tmp_path_factory.mktemp("csv") / "k.csv"
    assert [values for _, values in read(path, end.join(lines) + end, "k", "l")] == rows

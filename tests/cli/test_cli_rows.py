"""``dvm read`` on a screen and in a pipe: a table, CSV, JSON lines."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest

from dv_maintenance import cli
from dv_maintenance.cli.output import Output
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.string()))])
NAMES = ["Zürich", None, "", 'say "hi", twice', "two\nlines", " space", "\x1b[31mred", "x" * 60]


@pytest.fixture
def table(tmp_path: Path) -> str:
    builder = DeltaBuilder(str(tmp_path / "t")).create(SCHEMA)
    builder.append(pa.table({"id": range(8), "name": NAMES, "tags": [["a", None]] * 8}, SCHEMA))
    return str(tmp_path / "t")


def read(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    assert cli.main(["read", *words]) == 0
    shown = capsys.readouterr()
    return shown.out, shown.err


def test_csv_reads_back(table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = read(capsys, table, "--as", "csv")
    path = tmp_path / "rows.csv"
    read(capsys, table, "-o", str(path))
    assert path.read_text() == out
    assert out.startswith('id,name,tags\n0,Zürich,"[""a"",null]"\n1,,"[""a"",null]"\n2,"","[""a"",null]"\n')
    options = pyarrow.csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
    parsed = pyarrow.csv.read_csv(path, None, pyarrow.csv.ParseOptions(newlines_in_values=True), options)
    assert parsed["name"].to_pylist() == NAMES


def test_a_terminal_shows_a_table(
    table: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(capsys, table)[0].startswith('{"id":0,')
    monkeypatch.setattr(Output, "on_terminal", property(lambda _: True))
    monkeypatch.setenv("COLUMNS", "100")
    out, _ = read(capsys, table)
    lines = out.splitlines()
    assert lines[0].split() == ["id", "name", "tags"]
    assert lines[2] == ' 0  Zürich                                    ["a",null]'
    assert lines[3].split() == ["1", "NULL", '["a",null]']
    assert "two\\nlines" in out
    assert "\x1b" not in out
    assert f"{'x' * 39}…" in out
    assert read(capsys, table, "--as", "jsonl")[0].startswith('{"id":0,')


def test_columns_that_do_not_fit_are_named_as_hidden(
    table: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Output, "on_terminal", property(lambda _: True))
    monkeypatch.setenv("COLUMNS", "50")
    out, err = read(capsys, table)
    assert out.splitlines()[0].split() == ["id", "name"]
    assert "and 1 more columns; --columns A,B chooses, --as jsonl shows all" in err


def test_a_table_without_rows(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert read(capsys, table, "--limit", "0", "--as", "table")[0] == "no rows\n"
    assert read(capsys, table, "--limit", "0", "--as", "csv")[0] == "id,name,tags\n"

"""Places that no table can have: each is said in one line, with the exit code of a wrong command."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from dv_maintenance.cli import main

LONG = "x" * 5000
NOT_TEXT = "\udcff"  # how Python passes on a byte of the command line that is not UTF-8


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    deltalake.write_deltalake("t", pa.table({"id": [1, 2]}))
    return "t"


def test_a_character_that_the_storage_library_does_not_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It said ValueError, and to check the network."""
    (tmp_path / "a\nb").mkdir()
    deltalake.write_deltalake(tmp_path / "t", pa.table({"id": [1]}))
    (tmp_path / "t").rename(tmp_path / "a\nb" / "t")
    assert main(["checkpoint", str(tmp_path / "a\nb" / "t")]) == 1
    assert r"the path has '\n', which the storage library does not take. Next: rename" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["health", NOT_TEXT], 2, "is not UTF-8"),
        (["health", LONG], 2, "nothing exists at this path"),
        (["convert", LONG, "--dry-run"], 3, "the path is too long"),
        (["scan", ""], 2, "the table's path is empty"),
        (["scan", ".", "--format", "excel"], 2, "unknown table format 'excel'"),
        (["vacuum", "t", "--protect-stream", LONG], 1, "choose a shorter path"),
        (["vacuum", "t", "--protect", NOT_TEXT], 2, "is not UTF-8"),
        (["plan", "t", "-o", NOT_TEXT], 2, "is not UTF-8"),
    ],
)
def test_a_place_that_cannot_be(
    words: list[str], code: int, said: str, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert NOT_TEXT not in error
    assert main([*words, "--json"]) == code
    assert said in json.loads(capsys.readouterr().out)["message"] + error

"""``dvm fsck``: text, JSON and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dv_maintenance import cli
from dv_maintenance.testing.backends import DeltaBackend, PaimonBackend
from dv_maintenance.testing.contract import TableContract
from dv_maintenance.testing.history import TableHistory


@pytest.fixture
def table(tmp_path: Path) -> Path:
    place = tmp_path / "orders"
    TableContract.begun(DeltaBackend(str(place)))
    return place


def test_a_clean_table(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fsck", str(table)]) == 0
    said = capsys.readouterr().out
    assert "Clean: 3 data files and 2 deletion vector files exist, with the sizes in the log" in said
    assert "--deep reads it" in said
    assert cli.main(["fsck", str(table), "--deep", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["clean"], body["deep"], body["footers"], body["dvs"]) == (True, True, 3, 2)
    assert (body["damage"], body["remedies"]) == ([], [])


def test_a_damaged_table(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in table.glob("deletion_vector_*.bin"):
        path.unlink()
    assert cli.main(["fsck", str(table)]) == 5
    said = capsys.readouterr().out
    assert "Damaged: 2 faults. Readers of 2 of 3 data files fail: 13 live rows." in said
    assert "(p=b): it does not exist. It marks 2 rows of a data file as deleted" in said
    assert f"dvm restore {table.as_uri()} --version 3" in said
    assert cli.main(["fsck", str(table), "--json"]) == 5
    body = json.loads(capsys.readouterr().out)
    assert body["live_rows_damaged"] == 13
    assert {damage["fault"] for damage in body["damage"]} == {"missing"}
    # The proposal is right.
    assert cli.main(["restore", str(table), "--version", "3"]) == 0
    assert cli.main(["fsck", str(table), "--deep"]) == 0
    capsys.readouterr()
    assert cli.main(["fsck", str(table), "--version", "6"]) == 5
    assert "This is an older version" in capsys.readouterr().out


def test_no_table_is_not_a_damaged_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fsck", str(tmp_path / "nothing")]) == 2
    assert cli.main(["fsck", str(tmp_path / "nothing"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == "TableNotFoundError"


def test_health_and_doctor_look_at_files(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["health", str(table), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["storage"] == {"looked": True, "damage": []}
    cli.main(["doctor", str(table), "--json"])
    # Java may be missing here.
    assert next(each for each in json.loads(capsys.readouterr().out)["checks"] if each["name"] == "table")["ok"]
    (gone,) = sorted(table.rglob("p=b/*.parquet"))
    gone.unlink()
    assert cli.main(["health", str(table)]) == 5
    said = capsys.readouterr().out
    assert f"p=b/{gone.name} (p=b): it does not exist. 8 live rows can't be read." in said
    assert "1 file that readers need is missing or damaged: 'dvm fsck' shows how to repair the table" in said
    assert cli.main(["health", str(table), "--json"]) == 5
    body = json.loads(capsys.readouterr().out)
    assert [each["fault"] for each in body["storage"]["damage"]] == ["missing"]
    assert body["warnings"]
    # An older version may have been vacuumed.
    assert cli.main(["health", str(table), "--version", "6"]) == 0
    capsys.readouterr()
    assert cli.main(["doctor", str(table)]) == 5
    said = capsys.readouterr().out
    assert f"p=b/{gone.name} (p=b): it does not exist" in said
    assert f"dvm fsck {table.as_uri()} shows how to repair it" in said
    assert "Delta table at version 6, with missing or damaged files" in said


def test_health_says_what_it_did_not_look_at(
    table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dv_maintenance.maintenance.fsck.FEW", 2)
    assert cli.main(["health", str(table)]) == 0
    assert "its 3 files were not checked: 'dvm fsck' checks them" in capsys.readouterr().out

    def denied(_: object, path: str) -> object:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.undo()
    monkeypatch.setattr("dv_maintenance.access.Access.stat", denied)
    assert cli.main(["health", str(table)]) == 0
    assert "whether all files exist is unknown" in capsys.readouterr().out
    assert cli.main(["fsck", str(table)]) == 1


@pytest.mark.parametrize("backend", [DeltaBackend, PaimonBackend])
def test_a_look_at_files_imports_nothing_heavy(backend: type[DeltaBackend | PaimonBackend], tmp_path: Path) -> None:
    """Arrow imports pandas where it is given objects of Python, or a column without chunks: a second for each verb."""
    table = TableHistory(backend(str(tmp_path / "t")))
    table.append("a", 3)
    table.delete([1])
    script = (
        "import sys; from dv_maintenance.cli import main\n"
        f"assert main(['health', {str(tmp_path / 't')!r}, '--json']) == 0\n"
        "assert not {'pandas', 'pyspark', 'pydantic', 'dagster'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)

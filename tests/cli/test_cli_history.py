"""Verbs that go through history: changes, restore, downgrade, checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dv_maintenance import cli
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("id", pa.int64())])

Dvm = Callable[..., tuple[int, Any]]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """1: thirty rows. 2: without the first ten. 3: and one more."""
    builder = DeltaBuilder(str(tmp_path / "t")).create(SCHEMA)
    builder.append(pa.table({"id": range(30)}, schema=SCHEMA))
    builder.delete(lambda rows: pc.less(rows["id"], 10))
    builder.append(pa.table({"id": [99]}, schema=SCHEMA))
    return tmp_path / "t"


def version(table: Path) -> int:
    return open_table(str(table)).version()


def test_changes_are_counted(dvm: Dvm, table: Path) -> None:
    assert dvm("changes", table, "--from", 1, "--to", 2) == (
        0,
        {"from": 1, "to": 2, "rows": 40, "changes": {"insert": 30, "delete": 10}, "inferred": [], "output": None},
    )


def test_changes_into_a_file(dvm: Dvm, table: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    code, body = dvm("changes", table, "--from", 2, "-o", output)
    assert (code, body["rows"], body["output"]) == (0, 11, str(output))
    written = pq.read_table(output)
    assert written.column_names == ["id", "_change_type", "_commit_version", "_commit_timestamp"]
    assert sorted(set(written["_commit_version"].to_pylist())) == [2, 3]


def test_changes_on_a_screen(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["changes", str(table), "--from", "1"]) == 0
    shown = capsys.readouterr()
    lines = [json.loads(line) for line in shown.out.splitlines()]
    assert [line["id"] for line in lines] == list(range(20))
    assert lines[0]["_change_type"] == "insert"
    assert "-o FILE writes all" in shown.err
    assert cli.main(["changes", str(table), "--from", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == 99


def test_changes_from_nowhere(dvm: Dvm, table: Path) -> None:
    assert dvm("changes", table, "--from", 7)[0] == 2


def test_restore(dvm: Dvm, table: Path) -> None:
    code, body = dvm("restore", table, "--version", 1, "--dry-run")
    assert (code, body["files_restored"], body["files_removed"], version(table)) == (0, 1, 2, 3)
    code, body = dvm("restore", table, "--version", 1)
    assert (code, body["restored"], body["version_after"], body["verified"]) == (0, 1, 4, True)
    assert dvm("changes", table, "--from", 4)[1]["changes"] == {"insert": 10, "delete": 1}


def test_restore_to_a_time(dvm: Dvm, table: Path) -> None:
    millis = open_table(str(table)).snapshot(2).timestamp
    moment = datetime.fromtimestamp(millis / 1000, UTC).isoformat()
    assert dvm("restore", table, "--timestamp", moment, "--dry-run")[1]["restored"] == 2


@pytest.mark.parametrize(
    "argv", [[], ["--version", "1", "--timestamp", "2026-01-01T00:00:00Z"], ["--timestamp", "2026-01-01"]]
)
def test_restore_to_what(dvm: Dvm, table: Path, argv: list[str]) -> None:
    assert dvm("restore", table, *argv)[0] == 2


def test_restore_as_text(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["restore", str(table), "--version", "2", "--dry-run"])
    assert "Version 2 would be restored" in capsys.readouterr().out
    cli.main(["restore", str(table), "--version", "2"])
    assert "version 3 -> 4" in capsys.readouterr().out
    cli.main(["restore", str(table), "--version", "2"])
    assert "nothing to do" in capsys.readouterr().out


def test_restore_without_the_files(dvm: Dvm, table: Path) -> None:
    for path in table.glob("deletion_vector_*.bin"):
        path.unlink()
    dvm("restore", table, "--version", 1)
    code, body = dvm("restore", table, "--version", 2)
    assert code == 3
    assert body["error"] == "RefusedError"
    assert "deletion_vector_" in body["message"]


def test_downgrade(dvm: Dvm, table: Path) -> None:
    code, body = dvm("downgrade", table, "--dry-run")
    assert (code, body["finished"], body["taken"], version(table)) == (0, False, [], 3)
    code, body = dvm("downgrade", table)
    assert (code, body["finished"], body["rows_purged"]) == (0, True, 10)
    assert dvm("health", table)[1]["files_with_dv"] == 0


def test_downgrade_that_has_to_wait(dvm: Dvm, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, body = dvm("downgrade", table, "--truncate-history")
    assert (code, body["finished"]) == (0, False)
    assert body["waits_until"] > 0
    assert [step["state"] for step in body["steps"]] == ["done"] * 4 + ["waiting", "later", "later"]
    cli.main(["downgrade", str(table), "--truncate-history", "--engine", "local"])
    assert "run it again after 20" in capsys.readouterr().out


def test_checkpoint_says_what_it_would_do(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def dry(*options: str) -> str:
        assert cli.main(["checkpoint", str(table), "--dry-run", *options]) == 0
        return capsys.readouterr().out

    shown = dry()
    assert "A checkpoint of version" in shown
    assert "there is none yet" in shown
    assert "No log file would be deleted without --clean-log" in shown
    assert "later versions need all those from before" in dry("--clean-log")
    cli.main(["checkpoint", str(table)])
    capsys.readouterr()
    assert "already has a checkpoint: none would be written" in dry()
    assert not list((table / "_delta_log").glob("*.tmp"))


def test_checkpoint(dvm: Dvm, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, body = dvm("checkpoint", table)
    assert (code, body["version"], body["written"]) == (0, 3, True)
    code, body = dvm("checkpoint", table, "--clean-log")
    assert (body["log_files_deleted"], body["first_version"], body["written"]) == (0, 0, False)
    cli.main(["checkpoint", str(table), "--clean-log"])
    assert "the oldest version is 0" in capsys.readouterr().out

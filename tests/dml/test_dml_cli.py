"""``dvm delete``, ``dvm update`` and ``dvm merge``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dv_maintenance.cli import main
from dv_maintenance.testing.delta_builder import DeltaBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("state", pa.string())])


@pytest.fixture
def place(tmp_path: Path) -> str:
    builder = DeltaBuilder(str(tmp_path / "orders")).create(SCHEMA)
    builder.append(pa.table({"id": range(20), "state": ["open"] * 20}, schema=SCHEMA), files=2)
    return str(tmp_path / "orders")


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, Any]:
    code = main([*argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_delete_and_update(spark: SparkSession, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, planned = run(capsys, "delete", place, "--where", "id < 3", "--dry-run")
    assert (code, planned["rows_deleted"], planned["version_after"], planned["dry_run"]) == (0, 3, 1, True)
    code, done = run(capsys, "delete", place, "--where", "id < 3")
    counts = {"rows_deleted": 3, "rows_updated": 0, "rows_inserted": 0, "files_removed": 0, "files_added": 0}
    counts |= {"dvs_added": 1, "dvs_removed": 0, "version_before": 1, "version_after": 2, "attempts": 1}
    assert (code, {name: done[name] for name in counts}) == (0, counts)
    code, done = run(capsys, "update", place, "--set", "state=concat(state, '=')", "--where", "id = 19")
    assert (code, done["rows_updated"], done["rows_deleted"], done["files_added"]) == (0, 1, 0, 1)
    code, done = run(capsys, "delete", place, "--where", "id < 3")
    assert (code, done["version_before"], done["version_after"], done["rows_deleted"]) == (0, 3, 3, 0)
    assert main(["delete", place, "--where", "true"]) == 0
    text = capsys.readouterr().out
    assert "17 rows deleted" in text
    assert "version 3 -> 4" in text


def test_merge(spark: SparkSession, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "source.csv"
    source.write_text("id,state,gone\n1,paid,false\n2,paid,true\n30,open,false\n")
    clauses = ["MATCHED AND source.gone = 'true' THEN DELETE", "MATCHED THEN UPDATE SET *", "NOT MATCHED THEN INSERT *"]
    words = [word for clause in clauses for word in ("--when", clause)]
    code, done = run(capsys, "merge", place, "--using", str(source), "--on", "target.id = source.id", *words)
    counts = {"rows_deleted": 1, "rows_updated": 1, "rows_inserted": 1, "files_removed": 0, "operation": "MERGE"}
    assert (code, {name: done[name] for name in counts}) == (0, counts)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["delete", "{}"], "exactly one of 'where' and 'keys'"),
        (["delete", "{}", "--where", "id = 1", "--keys", "k", "--on", "id"], "exactly one of 'where' and 'keys'"),
        (["delete", "{}", "--where", "id = 1", "--on", "id"], "keys"),
        (["delete", "{}", "--keys", "k"], "keys"),
        (
            ["delete", "{}", "--where", "id + 1 = 2", "--engine", "local"],
            "the local engine can't evaluate this condition",
        ),
        (["update", "{}", "--set", "id=1", "--engine", "local"], "'local' can't evaluate Spark SQL"),
        (["update", "{}", "--set", "state=1", "--set", "state=2"], "set twice"),
        (["update", "{}"], "--set"),
        (["merge", "{}", "--using", "x", "--on", "a", "--when", "NEVER"], "not a MERGE clause"),
    ],
)
def test_what_makes_no_sense(place: str, argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, error = run(capsys, *[word.format(place) for word in argv])
    assert (code, error["error"]) == (2, "UsageError")
    assert says in error["message"]

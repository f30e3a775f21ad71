"""Wrong commands: what is said, what to do, and the exit code; never a traceback."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dv_maintenance import cli
from dv_maintenance.dml.rows import _not_understood
from dv_maintenance.testing.delta_builder import DeltaBuilder

# The command, with T for a table of versions 0 and 1, and what is said.
WRONG = [
    ("helth T", "unknown verb 'helth'. Next: did you mean dvm health?"),
    ("frobnicate T", "unknown verb 'frobnicate'. Next: use one of health, fsck, read"),
    ("", "the following arguments are required: VERB"),
    ("health", "the following arguments are required: TABLE"),
    ("health T --verison 1", "unknown option --verison. Next: did you mean --version?"),
    ("health T --key=SECRET", "unknown option --key."),
    ("health T extra", "1 unexpected argument"),
    ("health T --version -1", "argument --version: '-1' is not a whole number of at least 0"),
    (
        "health T --version 99",
        "version 99 does not exist or can no longer be read. Next: choose one of the versions",
    ),
    ("health T --format excel", "unknown table format 'excel'. Next: use one of delta, lance, paimon"),
    ("health T --storage-option SECRET", "argument --storage-option: expected KEY=VALUE"),
    ("purge T --partition day", "not a partition: 'day'; write column=value"),
    ("purge T --partition region=x", "'region' is not a partition column. Next: use day"),
    ("purge T --partition day=2026-13-45", "'2026-13-45' is not a value of partition column 'day', of type DATE"),
    ("purge T --partition day=2027-01-01", "no live file is in day=2027-01-01"),
    ("vacuum T --retention soon", "not a duration: 'soon'; write for example 168h or 7d"),
    ("plan T --set max_deletd_ratio=1", "max_deletd_ratio: unknown key: did you mean max_deleted_ratio?"),
    ("plan T --set max_bytes", "argument --set: expected KEY=VALUE"),
    ("plan T --set max_deleted_ratio=7", "max_deleted_ratio: Input should be less than or equal to 1 (command line)"),
    ("plan T --policy /nowhere.yaml", "cannot read /nowhere.yaml: No such file or directory"),
    ("apply T --plan /etc/hostname", "not a valid plan: /etc/hostname is not JSON"),
    ("watch /nowhere.yaml --once", "cannot read /nowhere.yaml"),
    ("watch /nowhere.yaml", "only an orchestrator's sensor watches continuously. Next: add --once"),
    ("read T --columns nope", "no column 'nope'. Next: choose from id, day"),
    ("read T -o out.xls", "out.xls has an unknown extension. Next: use one of .arrow, .parquet, .csv, .jsonl"),
    ("restore T --timestamp yesterday", "'yesterday' is not a time with a zone"),
    ("zorder T --columns nope", "no column 'nope'. Next: choose from id"),
    ("zorder T --columns ,", "name 1 to 16 different columns to order by. Next: choose from id"),
    ("changes T", "the following arguments are required: --from"),
]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("wrong") / "t")
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    builder = DeltaBuilder(path).create(schema, partition_by=["day"])
    builder.append(pa.table({"id": [1], "day": pa.array([20_000], pa.int32()).cast(pa.date32())}, schema))
    return path


@pytest.mark.parametrize(("command", "said"), WRONG)
def test_what_is_wrong_is_said(
    command: str,
    said: str,
    table: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([table if word == "T" else word for word in command.split()]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1, "one line"
    assert "SECRET" not in error
    assert list(tmp_path.iterdir()) == []


def test_a_column_that_a_condition_mistypes() -> None:
    """Spark said UNRESOLVED_COLUMN, and what led there on a page."""
    text = (
        "[UNRESOLVED_COLUMN.WITHOUT_SUGGESTION] A column, variable, or function parameter with name `amont` cannot be "
        "resolved.  SQLSTATE: 42703; line 1 pos 0;\n'Filter ('amont > 1)"
    )
    assert str(_not_understood(text, ["id", "amount"])) == (
        "no column 'amont' to compare. Next: did you mean amount? choose from id, amount"
    )
    assert "SQLSTATE" in str(_not_understood("[PARSE_SYNTAX_ERROR] Syntax error. SQLSTATE: 42601", ["id"]))

"""Wrong tables files: what ``dvm check`` says of each, with the key and the line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest

from dv_maintenance import cli
from dv_maintenance.config import load_yaml
from dv_maintenance.errors import UsageError
from dv_maintenance.service.cron import checked
from dv_maintenance.service.tables_file import WatchConfig
from dv_maintenance.testing.delta_builder import DeltaBuilder

# The file, what is said of it, and the line that is named.
WRONG = [
    ("tables:\n  - path: a\n    job: [vacuum]", "tables.0.job: unknown key: did you mean jobs?", 3),
    ("tables:\n  - pth: a", "tables.0.pth: unknown key: did you mean path?", 2),
    (
        "tables:\n  - path: a\n    jobs: [compact]",
        "tables.0.jobs.0: Input should be 'optimize', 'vacuum' or 'manifest'",
        3,
    ),
    ("tables:\n  - path: a\n    policy: {retention: soon}", "tables.0.policy.retention: not a duration: 'soon'", 3),
    ("tables:\n  - path: a\n    policy:\n      max_bytes: 10 parsecs", "tables.0.policy.max_bytes: not a size", 4),
    ("tables:\n  - path: a\n    policy: {max_deletd_ratio: 0.1}", "did you mean max_deleted_ratio?", 3),
    ("tables:\n  - path: a\n    policy: {max_deleted_ratio: 5}", "less than or equal to 1", 3),
    (
        "tables:\n  - path: a\n    policy: {retention: 60d, erase_within: 30d}",
        "tables.0.policy.erase_within: ",
        3,
    ),
    ("tables:\n  - path: a\n    policy:\n      erase_within: 3d", "even if rows are purged at once", 4),
    ("tables:\n  - path: a\n    partitions: [{column: day, every: fortnight}]", "tables.0.partitions", 3),
    ("tables:\n  - path: a\n    format: lance\n    partitions: day", "Lance tables have no partitions", 2),
    ("tables:\n  - path: a\n    format: parquet", "tables.0.format: unknown table format 'parquet'", 3),
    ("tables:\n  - path: a/t\n  - path: b/t", "two tables are called 't'", 3),
    ("tables:\n  - path: a/t\n  - {path: a//t/, name: u}", "two tables have the path", 3),
    ("tables:\n  - path: a\n  - path: ''", "tables.1.path: String should have at least 1 character", 3),
    ("tables: []", "no tables: name some under 'tables'", 1),
    ("tables:\n  - path: a\nschedule: {cron: '61 * * * *'}", "schedule.cron: '61' is not a minute: 0 to 59", 3),
    ("tables:\n  - path: a\nschedule: {cron: '0 3 * *'}", "schedule.cron: a cron expression has five fields", 3),
    ("tables:\n  - path: a\nschedule:\n  cron: '@dayly'", "schedule.cron: '@dayly' is not one of @hourly, @daily", 4),
    (
        "tables:\n  - path: a\nschedule: {cron: '0 3 * * *', timezone: Mars/Base}",
        "schedule.timezone: not a time zone",
        3,
    ),
    ("tables:\n  - path: a\nwindow: {start: '25:00', length: 1h}", "window.start: ", 3),
    ("tables:\n  - path: a\nwindow: {start: '01:00', length: 2d}", "window.length: ", 3),
    ("tables:\n  - path: a\nbudget: ten minutes", "budget: not a duration: 'ten minutes'", 3),
    ("tables:\n  - path: a\n    path: b", "key 'path' is given twice", 3),
    ("tables:\n  - path: a\n  schedule: daily", "is not plain YAML", 3),
    ("tables:\n  - path: *nowhere", "is not plain YAML", 2),
    ("tables:\n  - path: a\n    storage_options: {key: '{{ env.DVM_NOT_SET }}'}", "DVM_NOT_SET is not set", 3),
    ("type: dv_maintenance.DvMaintainedTablesComponent\nattributes:\n  tables:\n    - pth: a", "did you mean path?", 4),
    ("- path: a", "must hold keys and values, not list", 1),
]


@pytest.mark.parametrize(("text", "said", "line"), WRONG)
def test_the_key_and_its_line_are_named(
    text: str, said: str, line: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tables.yaml"
    file.write_text(text)
    assert cli.main(["check", str(file)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert f"{file} line {line}" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "text", ["0 3 * * *", "*/15 0-6,22 1,15 jan-mar mon-fri", "@daily", "0 0 L * *", "0 0 * * fri#2"]
)
def test_cron(text: str) -> None:
    assert checked(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "* * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "a * * * *",
        "@reboot",
    ],
)
def test_no_cron(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not|five fields"):
        checked(text)


def test_every_wrong_key_at_once(tmp_path: Path) -> None:
    file = tmp_path / "tables.yaml"
    file.write_text("tables:\n  - pth: a\n  - path: b\n    job: x\n")
    with pytest.raises(UsageError) as found:
        WatchConfig.of(load_yaml(str(file)))
    assert all(f"line {line}" in str(found.value) for line in (2, 4))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tables:\n  - path: a\n    policy: {retention: 7d}", []),
        ("tables:\n  - path: a\n    format: delta\n    policy: {retention: 7d}", []),
        ("tables:\n  - path: a\n    format: paimon\n    policy: {retention: 1h}", []),
        ("defaults:\n  policy: {retention: 1h}\ntables:\n  - path: a\n  - path: b", ["Delta's default of 7d.* line 2"]),
        (
            "tables:\n  - path: a\n    format: delta\n    policy:\n      retention: 2d",
            ["Delta's default of 7d.* line 5"],
        ),
        (
            "folders:\n  - path: a\n    format: delta\n    policy:\n      retention: 30m",
            ["vacuums are refused.* line 5", r"shorter than 1h \(checks.retention.error\).* line 5"],
        ),
        (
            "tables:\n  - path: a\n    policy: {retention: 8d, checks: {retention: {warn: 9d}}}",
            [r"Lance's default of 14d", r"shorter than 9d \(checks.retention.warn\): the check retention never passes"],
        ),
    ],
)
def test_what_is_probably_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: list[str]
) -> None:
    """`retention: 1h` passed every check of the configuration, and each vacuum was refused."""
    file = tmp_path / "tables.yaml"
    file.write_text(text)
    assert cli.main(["check", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["warnings"]
    assert len(found) == len(said), found
    assert all(re.search(each, line) for each, line in zip(said, found, strict=True)), found


def test_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    for name in ("lake/a", "lake/b", "one"):
        builder = DeltaBuilder(str(tmp_path / name)).create(schema, partition_by=["day"])
        builder.append(pa.table({"id": [1], "day": ["x"]}, schema))
    file = tmp_path / "defs.yaml"
    file.write_text(
        "type: dv_maintenance.DvMaintainedTablesComponent\nattributes:\n  folders:\n    - path: lake\n  tables:\n"
        "    - {path: one, partitions: region}\n    - path: gone\n    - {path: lake/a, policy: {erase_within: 5d}}\n"
    )
    assert cli.main(["check", str(file)]) == 0
    assert "3 tables and 1 folder, no mistakes found. No table was opened." in capsys.readouterr().out
    assert cli.main(["check", str(file), "--open", "--json"]) == 1
    opened = {row["name"]: row for row in json.loads(capsys.readouterr().out)["opened"]}
    assert opened.keys() == {"one", "gone", "a", "b"}
    assert (opened["b"]["format"], opened["b"]["version"], opened["b"]["error"]) == ("delta", 1, None)
    assert "'region' is not a partition column" in opened["one"]["error"]
    assert f"{file} line 6" in opened["one"]["error"]
    assert "no table" in opened["gone"]["error"]
    assert "erase_within" in opened["a"]["error"]
    assert cli.main(["check", str(file), "--open"]) == 1
    assert "4 tables opened, 3 with a problem" in capsys.readouterr().out

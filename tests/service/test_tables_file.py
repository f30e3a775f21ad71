"""One file for every face: plain, or the file of Dagster's component."""

from __future__ import annotations

from pathlib import Path

import pytest

from dv_maintenance.config import Document
from dv_maintenance.errors import UsageError
from dv_maintenance.service.settings import JOBS, Schedule, Spark, scheduled_jobs
from dv_maintenance.service.tables_file import WatchConfig

KEYS = """\
name: lake
defaults:
  policy: {max_deleted_ratio: 0.2, checks: {deleted_ratio: {warn: 0.6}}}
  storage_options: {key: "{{ env.DVM_TEST_KEY }}", other: "${DVM_TEST_KEY}"}
  owners: ["team:platform"]
  group_name: lake
  tags: {tier: gold, domain: sales}
tables:
  - {path: orders, policy: {max_deleted_ratio: 0.1}, owners: null, tags: {tier: silver}}
  - {path: s3://lake/docs, group_name: own, owners: [a@example.com]}
schedule: {cron: "0 3 * * *", vacuum_cron: "0 5 * * *", timezone: Europe/Vienna}
sensor: null
spark: {engine: local}
"""


@pytest.fixture(params=["plain", "component"])
def file(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DVM_TEST_KEY", "hunter2hunter2")
    text = KEYS
    if request.param == "component":
        body = "".join(f"  {line}\n" for line in KEYS.splitlines())
        text = f"type: dv_maintenance.DvMaintainedTablesComponent\nattributes:\n{body}"
        text += "requirements: {env: [DVM_TEST_KEY]}\n"
    (tmp_path / "defs.yaml").write_text(text)
    return tmp_path / "defs.yaml"


def test_the_same_settings_from_either_form(file: Path) -> None:
    config = WatchConfig.load(str(file))
    orders, docs = config.tables
    assert (config.name, config.sensor, config.spark) == ("lake", None, Spark(engine="local"))
    assert (orders.path, orders.name) == (str(file.parent / "orders"), "orders")
    assert (orders.policy.max_deleted_ratio, orders.policy.checks.deleted_ratio.warn) == (0.1, 0.6)
    assert orders.storage_options == {"key": "hunter2hunter2", "other": "hunter2hunter2"}
    assert "hunter2" not in repr(config)
    assert (orders.owners, orders.group_name, orders.tags) == (
        (),
        "lake",
        {"tier": "silver", "domain": "sales"},
    )
    assert (docs.owners, docs.group_name, docs.tags["tier"]) == (("a@example.com",), "own", "gold")
    assert [(each.name, each.jobs, each.cron) for each in scheduled_jobs(config.name, config.schedule)] == [
        ("lake", ("optimize", "manifest"), "0 3 * * *"),
        ("lake_vacuum", ("vacuum",), "0 5 * * *"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "said", "line"),
    [
        ("max_deleted_ratio: 0.1", "max_deleted_ratio: 7", "less than or equal to 1", 9),
        ("owners: [a@example.com]", "owner: x", "unknown key", 10),
        ("timezone: Europe/Vienna", "zone: x", "unknown key", 11),
        ("path: orders", "path: '{{ project_root }}'", "a template that only Dagster can resolve", 9),
        ("DVM_TEST_KEY }}", "DVM_NOT_SET }}", "environment variable DVM_NOT_SET is not set", 4),
    ],
)
def test_mistakes_name_file_and_line(file: Path, old: str, new: str, said: str, line: int) -> None:
    text = file.read_text()
    component = text.startswith("type")
    file.write_text(text.replace(old, new))
    with pytest.raises(UsageError, match=said) as caught:
        WatchConfig.load(str(file))
    assert f"defs.yaml line {line + 2 * component}" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_file_of_several_components(tmp_path: Path) -> None:
    file = tmp_path / "defs.yaml"
    one = "type: dv_maintenance.DvMaintainedTablesComponent\nattributes: {name: %s, tables: [{path: %s}]}\n"
    file.write_text(one % ("a", "x") + "---\n" + one % ("b", "y"))
    assert [config.name for config in WatchConfig.load_all(str(file))] == ["a", "b"]
    with pytest.raises(UsageError, match="has 2 documents"):
        WatchConfig.load(str(file))


def test_null_takes_a_setting_back_to_its_built_in_default() -> None:
    document = Document(
        {
            "defaults": {"policy": {"max_files": 3}, "format": "delta"},
            "folders": None,
            "tables": [{"path": "x", "format": None, "policy": {"max_files": None}}],
        },
        "here",
    )
    (table,) = WatchConfig.of(document).tables
    assert (table.format, table.policy.max_files) == (None, None)


def test_one_job_unless_vacuums_are_apart() -> None:
    (job,) = scheduled_jobs("lake", None)
    assert (job.name, job.jobs, job.cron) == ("lake", JOBS, None)
    (job,) = scheduled_jobs("lake", Schedule(cron="0 3 * * *"))
    assert (job.jobs, job.cron, job.timezone) == (JOBS, "0 3 * * *", "UTC")

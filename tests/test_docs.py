"""What the documentation shows must work: commands parse, YAML loads, Python runs, links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from places import ROOT

from dv_maintenance.cli.parser import parse
from dv_maintenance.maintenance.policy import Policy
from dv_maintenance.maintenance.tables_file import WatchConfig

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def blocks(language: str) -> list[object]:
    return [
        pytest.param(match.group(1), id=f"{page.name}-{number}")
        for page in PAGES
        for number, match in enumerate(re.finditer(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL))
    ]


def commands() -> list[str]:
    lines = [line for page in PAGES for line in page.read_text().splitlines()]
    return [line[2:] for line in lines if line.startswith("$ dvm ")]


@pytest.mark.parametrize("command", commands())
def test_commands_parse(command: str) -> None:
    words = shlex.split(command, comments=True)
    assert parse(words[1:]).verb_name == words[1]


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_loads(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = text.splitlines()[0].removeprefix("# ").split(";")[0]
    file = tmp_path / name
    file.write_text(text)
    if name == "policy.yaml":
        assert Policy.load(str(file)) == Policy(), "the page shows the defaults"
    elif name == "tables.yaml":
        assert len(WatchConfig.load(str(file)).tables) == len(yaml.safe_load(text)["tables"])
    elif name == "defs.yaml":
        from dv_maintenance import DvMaintainedTables

        monkeypatch.setenv("LAKE_SECRET", "secret")
        for document in yaml.safe_load_all(text):
            assert document["type"] == "dv_maintenance.DvMaintainedTables"
            component = DvMaintainedTables.from_attributes_dict(attributes=document["attributes"])
            assert len(component.tables or ()) == len(document["attributes"]["tables"])
    else:
        assert name == "dagster.yaml"
        from dagster._core.instance.config import dagster_instance_config

        dagster_instance_config(str(tmp_path))


@pytest.mark.parametrize("text", blocks("python"))
def test_python_runs(text: str) -> None:
    exec(compile(text, "docs", "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target

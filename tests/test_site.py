"""The documentation as a site: `make docs` builds it strictly, and it is whole without the network."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from support.first_day import UV, clean_environment
from support.places import ROOT

from dv_maintenance.maintenance.planning.policy import Policy

pytestmark = [pytest.mark.deep, pytest.mark.processes]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [UV, "run", "--isolated", "--frozen", "--group", "docs", "mkdocs", "build", "--strict", "-d", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**clean_environment(), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there_and_fetches_nothing(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).exists(), page
    for file in site.rglob("*.html"):
        fetched = re.findall(r"<(?:script|img|iframe|link)[^>]+(?:src|href)=\"?([^\" >]+)", file.read_text())
        assert [each for each in fetched if re.match(r"(https?:)?//", each)] == [], file


def test_the_reference_has_every_key_verb_and_name(site: Path) -> None:
    policy = (site / "reference" / "policy.html").read_text()
    assert [key for key in Policy.model_fields if f"<code>{key}</code>" not in policy] == []
    commands = (site / "reference" / "commands.html").read_text()
    assert {"purge", "vacuum", "fsck", "restore"} <= {*re.findall(r'<h2 id="([a-z-]+)"', commands)}
    names = (site / "reference" / "python.html").read_text()
    public = re.findall(
        r"^\| `(dv_maintenance[\w.]*)` \| (.+) \|$", (ROOT / "docs" / "reference" / "api.md").read_text(), re.MULTILINE
    )
    assert len(public) > 5
    for module, listed in public:
        for name in re.findall(r"`(\w+)`", listed):
            assert f'id="{module}.{name}"' in names, name


def test_the_search_finds_sections(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = [entry["location"] for entry in index["docs"] if "quarantine" in entry["text"].lower()]
    assert "guides/policy.html#quarantine" in found

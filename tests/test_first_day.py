"""A stranger's first day: docs/start/first-table.md to the letter, in a new ``create-dagster`` project, against what
our source distribution installs. Needs the package registry.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.first_day import Walk
from support.places import ROOT

pytestmark = [pytest.mark.deep, pytest.mark.jvm, pytest.mark.processes]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    """The page's steps until Dagster runs."""
    walk = Walk(ROOT / "docs" / "start" / "first-table.md", tmp_path_factory.mktemp("first-day"))
    serve = walk.until("dg dev")
    assert serve is not None
    assert "All definitions loaded successfully" in walk.said
    with walk.serving(serve):
        yield walk


def files_with_dv(walk: Walk) -> int:
    return int(json.loads(walk.run("uv run dvm health orders --json"))["files_with_dv"])


@pytest.fixture
def page(walk: Walk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Dagster's page in Chromium; pictures go to ``DVM_PICTURES``, where it is set."""
    pytest.importorskip("playwright", reason="uv sync --group screenshots")
    monkeypatch.syspath_prepend(ROOT / "scripts" / "screenshots")
    driver = importlib.import_module("browser")
    if driver.chromium() is None:
        pytest.skip("Chromium is missing: scripts/chromium")
    with driver.browser(walk.url, Path(os.environ.get("DVM_PICTURES", tmp_path))) as opened:
        yield opened


def test_from_an_empty_project_to_a_cured_check_by_clicks(walk: Walk, page: Any) -> None:
    """Part 4 of the page: observe, see the failed check, back-fill the two partitions, see the check pass."""
    walk.run("rm -rf orders && uv run python make_table.py")
    page.open("/assets")
    page.follow("/assets/orders")
    page.click("Observe")
    page.click("Checks", role="tab")
    page.see("deleted_ratio", "Failed", "25.00% of the rows are deleted", seconds=180)
    page.shoot("first-day-1-failed")

    page.open("/assets")
    page.follow("/assets/orders/dv/orders_optimize")
    page.click("Materialize")
    dialog = page.page.get_by_role("dialog")
    dialog.get_by_text("Select a partition").click()
    for country in ("AT", "DE"):
        page.page.get_by_role("menuitem", name=country).first.click()
    page.page.keyboard.press("Escape")
    page.see("2 partitions", inside=dialog)
    page.shoot("first-day-2-backfill")
    page.click("Launch backfill", inside=dialog)
    page.see("Created backfill")
    page.open("/runs")
    page.see("2 partitions")
    # That of the observation, and that of the backfill.
    page.count("Success", 2, seconds=400)
    page.shoot("first-day-3-done")
    assert files_with_dv(walk) == 0

    page.open("/assets")
    page.follow("/assets/orders")
    page.click("Checks", role="tab")
    page.see("deleted_ratio", "Passed", "0.00% of the rows are deleted", seconds=60)
    page.shoot("first-day-4-cured")


def test_every_command_works_to_the_letter(walk: Walk) -> None:
    walk.run("rm -r orders && uv run python make_table.py")
    assert files_with_dv(walk) == 2
    assert walk.until() is None
    assert "'deleted_ratio' on 'orders' did not pass" in walk.said
    assert files_with_dv(walk) == 0
    assert list((walk.cwd / "dagster_home" / "history").iterdir()), "the runs are where the page finds them"

"""A stranger's first day: docs/first-table.md to the letter, in a new ``create-dagster`` project, against what our
source distribution installs. Needs the package registry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.first_day import Walk
from support.places import ROOT

pytestmark = [pytest.mark.deep, pytest.mark.jvm, pytest.mark.processes]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    """The page's steps until Dagster runs."""
    walk = Walk(ROOT / "docs" / "first-table.md", tmp_path_factory.mktemp("first-day"))
    serve = walk.until("dg dev")
    assert serve is not None
    assert "All definitions loaded successfully" in walk.said
    with walk.serving(serve):
        yield walk


def files_with_dv(walk: Walk) -> int:
    return int(json.loads(walk.run("uv run dvm health orders --json"))["files_with_dv"])


def test_every_command_works_to_the_letter(walk: Walk) -> None:
    walk.run("rm -r orders && uv run python make_table.py")
    assert files_with_dv(walk) == 2
    assert walk.until() is None
    assert "'deleted_ratio' on 'orders' did not pass" in walk.said
    assert files_with_dv(walk) == 0
    assert list((walk.cwd / "dagster_home" / "history").iterdir()), "the runs are where the page finds them"

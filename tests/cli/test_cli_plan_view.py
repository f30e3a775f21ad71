"""A plan on a terminal: steps by reason, cut after a screen; Markdown in files and pipes."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dv_maintenance import cli
from dv_maintenance.cli.output import Output
from dv_maintenance.cli.plan_view import show_plan
from dv_maintenance.maintenance.planning.groups import grouped_steps
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.steps import MaintenancePlan
from dv_maintenance.service.plan_view import plan_view
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.int32())])


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty days: a quarter of the rows is deleted on 55 of them, and the others have two small files each."""
    place = tmp_path_factory.mktemp("lake") / "orders"
    builder = DeltaBuilder(str(place)).create(SCHEMA, partition_by=["day"])
    rows = pa.table({"id": range(600), "day": pa.array([at // 10 for at in range(600)], pa.int32())}, SCHEMA)
    builder.append(rows)
    builder.append(rows.slice(550))
    builder.delete(lambda rows: pc.and_(pc.equal(pc.bit_wise_and(rows["id"], 3), 0), pc.less(rows["day"], 55)))
    return place


@pytest.fixture
def plan(table: Path) -> MaintenancePlan:
    return build_plan(open_table(str(table)).snapshot())


def drawn(plan: MaintenancePlan, monkeypatch: pytest.MonkeyPatch, *, every_step: bool = False, lines: int = 30) -> str:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", str(lines))
    stream = io.StringIO()
    show_plan(plan_view(plan.to_json()), stream, every_step=every_step)
    return stream.getvalue()


def test_steps_have_the_reasons_of_their_files(plan: MaintenancePlan) -> None:
    groups = grouped_steps(plan)
    assert {group.title: len(group.steps) for group in groups} == {
        "files with more than 5 % of the rows deleted": 55,
        "files too small to keep": 5,
    }
    assert groups[0].steps[0] == plan.steps[0]
    assert {step.id for group in groups for step in group.steps} == {step.id for step in plan.steps}
    assert not any(group.own_facts for group in groups)


def test_a_screen_shows_totals_and_the_first_steps_of_each_reason(
    plan: MaintenancePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = drawn(plan, monkeypatch)
    assert len(shown.splitlines()) <= 30
    assert "Files: 65 become about 60\n" in shown
    assert "5 steps: files too small to keep\n" in shown
    assert "55 steps: files with more than 5 % of the rows deleted\n" in shown
    assert re.search(r"\.\.\. and 5\d more, reading .*: --all shows them\n", shown)
    assert re.search(r"step-\d+ +day=\d+ +1 -> 1 +1 +\d ", shown)
    assert len(drawn(plan, monkeypatch, lines=50).splitlines()) > len(shown.splitlines())


def test_all_shows_every_step(plan: MaintenancePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = drawn(plan, monkeypatch, every_step=True)
    assert all(re.search(rf"^{step.id} +{step.partition} ", shown, re.MULTILINE) for step in plan.steps)
    assert "--all" not in shown


def test_a_pipe_gets_markdown_and_a_terminal_on_request(
    table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(*options: str) -> str:
        assert cli.main(["plan", str(table), *options]) == 0
        return capsys.readouterr().out

    piped = shown()
    assert piped.startswith(f"# Maintenance of file://{table}\n")
    assert "- ... and 10 more, reading" in piped
    assert piped == shown("--markdown")
    assert "step-60" in shown("--all")
    monkeypatch.setattr(Output, "on_terminal", property(lambda _: True))
    assert shown("--markdown") == piped
    assert shown().startswith("Maintenance of ")
    assert "step-60" in shown("--all", "--markdown")
    assert cli.main(["apply", str(table), "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("Maintenance of ")


def test_rich_is_imported_for_a_plan_on_a_terminal_only(table: Path) -> None:
    script = (
        "import sys; from dv_maintenance.cli import main\n"
        f"for words in (['health', {str(table)!r}], ['plan', {str(table)!r}], ['read', {str(table)!r}]):\n"
        "    assert main(words) == 0\n"
        "    assert not any(name.split('.')[0] == 'rich' for name in sys.modules), words\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)

"""The demo, small and without Spark: tables, Dagster runs in a process and an instance of their own, comparison."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from effort import sampled
from support.places import ROOT

from dv_maintenance import cli
from dv_maintenance.cli.demo.location import Location
from dv_maintenance.cli.demo.state import measure
from dv_maintenance.cli.demo.tables import DEMO_TABLES
from dv_maintenance.errors import DvMaintenanceError, RefusedError, UsageError
from dv_maintenance.service.tables_file import WatchConfig
from dv_maintenance.tables import open_table

NAMES = ["demo/orders", "demo/customers", "demo/events", "demo/passages", "demo/visits", "demo/parcels"]


def play(folder: Path, rows: int, names: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The demo's report, once everything is checked that holds for any tables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dv_maintenance.cli.demo._SILENT_SECONDS", 0.1)
        assert cli.main(["demo", "--rows", str(rows), "--dir", str(folder), "--engine", "local", "--json"]) == 0
    out, err = capsys.readouterr()
    said = [line for line in err.splitlines() if line[:7] != "without"]
    assert [line[:3] for line in said if line[:1] != " "] == ["1/4", "2/4", "3/4", "4/4"]
    assert any(line.startswith("     Dagster: run 1 of ") for line in said), "what takes long is said meanwhile"
    assert (folder / "report.json").read_text() == out
    body: dict[str, Any] = json.loads(out)
    assert [table["name"] for table in body["tables"]] == names
    for table in body["tables"]:
        assert (table["before"]["rows"], table["before"]["content"]) == (
            table["after"]["rows"],
            table["after"]["content"],
        )
        assert table["before"]["deleted_rows"] > table["after"]["deleted_rows"]
        assert "optimize" in table["due"] or table["next_due_at"], "there is something left to do in Dagster's page"
    assert list(Path(body["manifests"]).rglob("manifest"))
    check_instance(folder, body["runs"], names)
    return body


@pytest.mark.parametrize(("words", "engine"), [([], "spark"), (["--engine", "local"], "local")])
def test_the_engine_of_the_demo(
    words: list[str], engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run's configuration takes no engine that is not named."""

    class StoppedError(Exception):
        """Nothing is built."""

    def start(*_: Any, **given: Any) -> None:
        assert given["engine"] == engine
        raise StoppedError

    monkeypatch.setattr("dv_maintenance.cli.demo.location.Location", start)
    assert cli.main(["demo", "--dir", str(tmp_path / "demo"), *words]) == 1
    assert "StoppedError" in capsys.readouterr().err


@pytest.mark.processes
def test_demo_of_two_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table by day of one format, one without days of another: all that Dagster does, in few runs."""

    def refuse() -> None:
        raise RefusedError("left out by the test")

    for name in ("demo/customers", "demo/events", "demo/passages", "demo/parcels"):
        monkeypatch.setitem(DEMO_TABLES, name, replace(DEMO_TABLES[name], needs=refuse))
    orders, visits = play(tmp_path / "demo", 3000, ["demo/orders", "demo/visits"], capsys)["tables"]
    assert (orders["before"]["files_with_dv"], orders["after"]["files_with_dv"]) == (42, 0)
    assert (visits["before"]["files_with_dv"], visits["after"]["files_with_dv"]) == (12, 0)
    assert visits["after"]["disk_bytes"] < visits["before"]["disk_bytes"], "vacuumed"


@pytest.mark.deep
def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    orders, customers, events, passages, visits, parcels = play(tmp_path / "a demo", 30000, NAMES, capsys)["tables"]
    assert (orders["before"]["files_with_dv"], orders["after"]["files_with_dv"]) == (42, 0)
    assert orders["after"]["disk_bytes"] < orders["before"]["disk_bytes"], "vacuumed"
    assert (customers["before"]["files"], customers["after"]["files"]) == (60, 1)
    assert customers["after"]["disk_bytes"] > customers["before"]["disk_bytes"], "kept for two weeks"
    # Regions: the policy left those of the one alone, in all its seven days.
    assert (events["before"]["files_with_dv"], events["after"]["files_with_dv"]) == (10, 7)
    assert [(kept["files"], kept["deleted_rows"] > 0) for kept in events["left_alone"]] == [(7, True)]
    assert (passages["before"]["files_with_dv"], passages["before"]["files"]) == (6, 6)
    assert (passages["after"]["files_with_dv"], passages["after"]["files"]) == (0, 1)
    assert (passages["before"]["versions"], passages["after"]["versions"]) == (10, 1)
    assert passages["after"]["disk_bytes"] < passages["before"]["disk_bytes"]
    assert (visits["before"]["files_with_dv"], visits["before"]["files"]) == (12, 12)
    assert (visits["after"]["files_with_dv"], visits["after"]["files"]) == (0, 3)
    assert (visits["before"]["versions"], visits["after"]["versions"]) == (15, 1)
    assert visits["after"]["disk_bytes"] < visits["before"]["disk_bytes"]
    assert (parcels["before"]["files_with_dv"], parcels["before"]["files"]) == (10, 10)
    assert (parcels["after"]["files_with_dv"], parcels["after"]["files"]) == (0, 2)
    assert (parcels["before"]["versions"], parcels["after"]["versions"]) == (13, 1)
    assert parcels["after"]["disk_bytes"] < parcels["before"]["disk_bytes"]


def test_demo_without_what_is_optional(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lance", None)
    monkeypatch.setitem(sys.modules, "fastavro", None)
    played: list[tuple[list[str], str]] = []

    def play(config: WatchConfig, *_: object, ui: str) -> None:
        played.append(([table.name for table in config.tables], ui))
        raise UsageError("seen enough")

    monkeypatch.setattr("dv_maintenance.cli.demo._play", play)
    monkeypatch.setattr("dv_maintenance.cli.demo.location.Location", lambda *_, **__: nullcontext())
    assert cli.main(["demo", "--rows", "3000", "--dir", str(tmp_path / "demo"), "--engine", "local"]) == 2
    first, second, third, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith("without demo/passages: Lance's own library is needed for this: pylance")
    assert second.startswith("without demo/visits: the table's manifests are Avro files, and fastavro, which reads")
    assert third.startswith("without demo/parcels: the table's manifests are Avro files")
    ((names, ui),) = played
    assert names == NAMES[:-3]
    assert "DVM_TABLES" in ui


def check_instance(folder: Path, runs: list[dict[str, Any]], names: list[str]) -> None:
    """What Dagster's page will show."""
    assert (folder / "dagster" / "dagster.yaml").read_text() == (ROOT / "sensors" / "dagster.yaml").read_text()
    with dg.DagsterInstance.from_config(str(folder / "dagster")) as instance:
        assert all(run.is_success for run in instance.get_runs())
        asked = [instance.get_run_by_id(run["run_id"]) for run in runs]
        assert [run.tags.get("dv/table") for run in asked if run] == [*names, None]
        assert asked[-1] is not None
        assert asked[-1].job_name == "dv_maintenance"
        for name in names:
            records = instance.fetch_observations(dg.AssetKey(name.split("/")), limit=20).records
            entries = [record.asset_observation.metadata for record in records if record.asset_observation]
            plotted = [(each["version"].value, each["deleted_rows"].value) for each in entries if "version" in each]
            # Newest first. Sensor, job and each run look, so a state may be there twice.
            *later, dirty = [deleted for (_, deleted), _ in groupby(plotted)]
            assert len(later) >= 2
            assert min(later) < dirty
        assert len(optimized(instance, "orders")) == 14
        if "demo/events" in names:
            assert {key.split("|")[1] for key in optimized(instance, "events")} == {"eu"}


def optimized(instance: dg.DagsterInstance, table: str) -> set[str]:
    """Partitions that a run worked on; what the sensor records of those without work has no run."""
    key = dg.AssetKey(["demo", table, "dv", f"{table}_optimize"])
    records = instance.fetch_materializations(key, limit=100).records
    return {record.partition_key for record in records if record.run_id and record.partition_key is not None}


def test_demo_replaces_nothing_but_a_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious").write_text("data")
    assert cli.main(["demo", "--dir", str(tmp_path), "--json"]) == 3
    assert "not empty" in json.loads(capsys.readouterr().out)["message"]
    assert (tmp_path / "precious").read_text() == "data"
    assert cli.main(["demo", "--rows", "1", "--dir", str(tmp_path)]) == 2


@pytest.mark.parametrize("name", sampled(NAMES, 5))
def test_tables_are_the_same_each_time(name: str, tmp_path: Path) -> None:
    states = []
    for number in range(2):
        place = str(tmp_path / str(number))
        DEMO_TABLES[name].build(place, 1000)
        states.append(measure(open_table(place), place))
    assert states[0].content == states[1].content
    DEMO_TABLES[name].use(place)
    assert measure(open_table(place), place).content != states[1].content


MakeLocation = Callable[[str], Location]


@pytest.fixture
def make_location(tmp_path: Path) -> Iterator[MakeLocation]:
    """A location on the tables of this YAML."""
    made: list[Location] = []

    def make(text: str) -> Location:
        home, listed = tmp_path / "dagster", tmp_path / "tables.yaml"
        home.mkdir()
        listed.write_text(text)
        log = str(tmp_path / "dagster.log")
        made.append(Location(str(ROOT), home=str(home), tables=str(listed), engine="local", log=log))
        return made[-1]

    yield make
    for location in made:
        location.__exit__(None, None, None)


@pytest.mark.deep
def test_a_run_that_fails_says_where_to_look(make_location: MakeLocation, tmp_path: Path) -> None:
    location = make_location("tables: [{path: nothing}]")
    with pytest.raises(DvMaintenanceError, match=r"the Dagster run of nothing failed.*dagster\.log"):
        location.tick(["nothing"])
    assert "RUN_FAILURE" in (tmp_path / "dagster.log").read_text()


@pytest.mark.processes
def test_a_location_that_does_not_load_says_why(make_location: MakeLocation) -> None:
    with pytest.raises(UsageError, match="no tables"):
        make_location("tables: []").maintain()

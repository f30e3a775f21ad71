"""The repository's own code location: what workspace.yaml names loads, with and without tables."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def location(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that workspace.yaml names, freshly imported."""
    (entry,) = yaml.safe_load((ROOT / "workspace.yaml").read_text())["load_from"]
    monkeypatch.syspath_prepend(str(ROOT / entry["python_module"]["working_directory"]))
    return importlib.import_module(entry["python_module"]["module_name"])


def test_it_loads_though_the_demo_was_never_built(location: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location, "TABLES", str(ROOT / "sensors" / "tables.yaml"))
    defs = location.defs()
    dg.Definitions.validate_loadable(defs)
    assert {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()} == {
        f"demo/{table}{work}"
        for table in ("orders", "customers", "events", "passages", "visits", "parcels")
        for work in ("", f"/dv/{table}_optimize", f"/dv/{table}_vacuum")
    } | {"demo/orders/dv/orders_manifest"}
    assert [sensor.name for sensor in defs.sensors] == ["dv_accumulation", "vacuum_due", "manifest_due"]
    assert [schedule.name for schedule in defs.schedules] == ["dv_daily"]


def test_it_takes_the_tables_of_a_file(location: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    listed = tmp_path / "tables.yaml"
    listed.write_text("tables:\n- path: s3://lake/sales\n- {name: a/b, path: c}\n")
    monkeypatch.setattr(location, "TABLES", str(listed))
    defs = location.defs()
    dg.Definitions.validate_loadable(defs)
    keys = {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}
    assert {"sales", "sales/dv/sales_vacuum", "a/b", "a/b/dv/b_optimize"} <= keys

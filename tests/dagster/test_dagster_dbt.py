"""The recipe of docs/guides/many-tables.md for dbt: the tables of a manifest get maintenance below dbt's own assets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from support.places import ROOT

from dv_maintenance.dagster import SparkResource, build_dv_assets, build_dv_checks, build_dv_sensor


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    page = (ROOT / "docs" / "guides" / "many-tables.md").read_text()
    (text,) = re.findall(r"```python\n(# dbt_maintenance.py\n.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"__name__": "dbt_maintenance"}
    exec(compile(text, "dbt_maintenance.py", "exec"), names)
    return names


def node(name: str, kind: str = "model", **config: Any) -> dict[str, Any]:
    return {"resource_type": kind, "unique_id": f"{kind}.shop.{name}", "name": name, "alias": name, "config": config}


def manifest(root: Path) -> dict[str, Any]:
    delta = {"file_format": "delta", "location_root": str(root)}
    nodes = [
        node("orders", materialized="incremental", schema="sales", **delta),
        node("customers", materialized="table", **delta, meta={"dv_maintenance": {"jobs": ["vacuum"]}}),
        node("recent", materialized="view", **delta),
        node("plain", materialized="table", file_format="parquet", location_root=str(root)),
        node("unique_orders", "test", **delta),
    ]
    return {"nodes": {each["unique_id"]: each for each in nodes}}


def key_of(props: Mapping[str, Any]) -> dg.AssetKey:
    """What DagsterDbtTranslator.get_asset_key does by default."""
    schema = props["config"].get("schema")
    return dg.AssetKey([schema, props["name"]] if schema else [props["name"]])


def test_delta_models_are_maintained_below_their_own_assets(recipe: dict[str, Any], tmp_path: Path) -> None:
    tables = list(recipe["dbt_tables"](manifest(tmp_path), key_of))
    assert [(each.name, each.path) for each in tables] == [
        ("sales/orders", f"{tmp_path}/orders"),
        ("customers", f"{tmp_path}/customers"),
    ]
    models = [dg.AssetSpec(key_of(each)) for each in manifest(tmp_path)["nodes"].values() if "config" in each]
    defs = dg.Definitions(
        [*models, *build_dv_assets(tables)],
        asset_checks=build_dv_checks(tables),
        sensors=[build_dv_sensor(tables)],
        resources={"spark": SparkResource(engine="local")},
    )
    dg.Definitions.validate_loadable(defs)
    graph = defs.resolve_asset_graph()
    optimize = dg.AssetKey(["sales", "orders", "dv", "orders_optimize"])
    assert graph.get(optimize).parent_keys == {dg.AssetKey(["sales", "orders"])}
    assert dg.AssetKey(["customers", "dv", "customers_optimize"]) not in graph.get_all_asset_keys()


def test_a_model_without_a_place_is_named(recipe: dict[str, Any]) -> None:
    body = {"nodes": {"a": node("orders", materialized="table", file_format="delta")}}
    with pytest.raises(ValueError, match=r"model\.shop\.orders: set location_root"):
        list(recipe["dbt_tables"](body, key_of))

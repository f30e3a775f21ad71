"""The asset that says what a table's past would have cost."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.dagster import build_dv_simulations
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.testing.delta_builder import DeltaBuilder


def test_a_simulation_is_an_asset_downstream_of_its_table(tmp_path: Path) -> None:
    builder = DeltaBuilder(str(tmp_path / "t")).create(pa.schema([("id", pa.int64())]))
    builder.append(pa.table({"id": np.arange(1000)}))
    builder.delete(lambda rows: pc.less(rows["id"], 500))
    table = TableSettings.model_validate({"name": "shop/orders", "path": str(tmp_path / "t")})
    assets = build_dv_simulations([table], {"lazy": Policy(max_deleted_ratio=0.9)}, since="2d")
    assert [spec.key.to_user_string() for spec in assets[0].specs] == ["shop/orders/dv/orders_simulation"]
    result = dg.materialize(assets, instance=dg.DagsterInstance.ephemeral())
    [made] = result.get_asset_materialization_events()
    metadata = made.materialization.metadata
    rows = metadata["policies"].value.records
    assert [row.data["policy"] for row in rows] == ["configured", "lazy", "never", "nightly REORG PURGE"]
    assert [row.data["runs"] for row in rows][:3] == [1, 0, 0]

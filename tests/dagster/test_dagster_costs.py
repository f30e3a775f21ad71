"""What rewrites cost, per table and month, from events alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.dagster import (
    SparkResource,
    build_dv_assets,
    build_dv_lake_report,
    costs_by_month,
)
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("id", pa.int64())])


def test_the_last_run_is_a_metric(tmp_path: Path) -> None:
    table = TableSettings.model_validate({"name": "orders", "path": str(tmp_path / "missing")})
    instance = dg.DagsterInstance.ephemeral()
    optimize = [each for each in build_dv_assets([table]) if each.key.path[-1].endswith("optimize")]
    dg.materialize(
        optimize,
        instance=instance,
        resources={"spark": SparkResource(engine="local")},
        tags={"dv/table": "orders", "dv/jobs": "optimize"},
        raise_on_error=False,
    )
    file = tmp_path / "dvm.prom"
    dg.materialize([build_dv_lake_report([table], metrics=str(file))], instance=instance)
    found = dict(line.rsplit(" ", 1) for line in file.read_text().splitlines() if not line.startswith("#"))
    assert found['dvm_run_succeeded{table="orders",job="optimize"}'] == "0"
    assert float(found['dvm_run_duration_seconds{table="orders",job="optimize"}']) > 0
    assert found['dvm_table_readable{table="orders",format="unknown"}'] == "0"


def test_costs_add_up_from_runs(tmp_path: Path) -> None:
    builder = DeltaBuilder(str(tmp_path / "orders")).create(SCHEMA)
    builder.append(pa.table({"id": range(100)}, schema=SCHEMA))
    tables = [TableSettings.model_validate({"name": "orders", "path": str(tmp_path / "orders")})]
    instance = dg.DagsterInstance.ephemeral()
    since = datetime.now(UTC) - timedelta(hours=1)
    assert costs_by_month(instance, tables, since) == []
    optimize = [each for each in build_dv_assets(tables) if each.key.path[-1].endswith("optimize")]
    spent: list[dict[str, Any]] = []
    for limit in (40, 60):
        builder.delete(lambda rows, limit=limit: pc.less(rows["id"], limit))
        done = dg.materialize(optimize, instance=instance, resources={"spark": SparkResource(engine="local")})
        (made,) = done.get_asset_materialization_events()
        spent.append({name: entry.value for name, entry in made.materialization.metadata.items()})
    # Nothing to do costs nothing.
    dg.materialize(optimize, instance=instance, resources={"spark": SparkResource(engine="local")})
    assert "read, " in spent[0]["cost"]
    assert spent[0]["priced_seconds"] >= 0
    (row,) = costs_by_month(instance, tables, since)
    assert (row.table, row.runs, row.month) == ("orders", 2, datetime.now(UTC).strftime("%Y-%m"))
    assert row.bytes_in == sum(each["bytes_in"] for each in spent) > 0
    assert row.bytes_out == sum(each["bytes_out"] for each in spent) > 0
    assert costs_by_month(instance, tables, datetime.now(UTC) + timedelta(hours=1)) == []
    report = dg.materialize([build_dv_lake_report(tables)], instance=instance)
    (made,) = report.get_asset_materialization_events()
    (record,) = made.materialization.metadata["costs_by_month"].value.records
    assert record.data["runs"] == 2

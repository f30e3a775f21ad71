"""A real Dagster run on Paimon partitions whose folders are escaped ends successful and verified."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import dagster as dg
from support.paimon_engine import PaimonEngine

from dv_maintenance.dagster import SparkResource, build_dv_assets, delete_rows_op
from dv_maintenance.service.tables_file import WatchConfig

TEXTS = ["a:b", "a/b", "100%", "a=b", "#", "?", '"', "*"]
DV = {"deletion-vectors.enabled": "true", "snapshot.num-retained.min": "1", "snapshot.time-retained": "0 s"}


def test_escaped_partitions(paimon_engine: PaimonEngine, tmp_path: Path) -> None:
    engine, path = paimon_engine, tmp_path / "table"
    engine.create(path, {"id": "INT", "at": "TIMESTAMP(3)", "s": "STRING"}, partition=["at", "s"], options=DV)
    for number, text in enumerate(TEXTS):
        moment = datetime(2026, 1, 1, number, 30, 5)
        engine.append(path, [(10 * number + each, moment, text) for each in range(4)])
    engine.delete(path, lambda row: row["id"] % 10 == 1)
    settings = {"name": "t", "path": str(path), "jobs": ["optimize", "vacuum"], "policy": {"max_deleted_ratio": 0}}
    table = WatchConfig.model_validate({"tables": [settings]}).tables[0]
    rows = sorted(map(repr, engine.rows(path)))
    resources = {"spark": SparkResource(engine="local")}
    with dg.DagsterInstance.ephemeral() as instance:
        assets = [asset for asset in build_dv_assets([table]) if asset.is_executable]
        result = dg.materialize(assets, instance=instance, resources=resources)
        assert result.success
        event = instance.get_latest_materialization_event(dg.AssetKey(["t", "dv", "t_optimize"]))
        assert event is not None
        assert event.asset_materialization is not None
        numbers = {name: value.value for name, value in event.asset_materialization.metadata.items()}
        assert (numbers["verified"], numbers["rows_purged"]) == (True, len(TEXTS))
        assert sorted(map(repr, engine.rows(path))) == rows

        delete = delete_rows_op(table)

        @dg.job(resource_defs={"spark": SparkResource()}, executor_def=dg.in_process_executor)
        def erase() -> None:
            delete()

        config = {"ops": {delete.name: {"config": {"where": "s IN ('a:b', '100%', '*') AND id % 10 = 2"}}}}
        assert erase.execute_in_process(run_config=config, instance=instance).success
    left = sorted(row["id"] if isinstance(row, dict) else row[0] for row in engine.rows(path))
    wanted = [10 * n + each for n, text in enumerate(TEXTS) for each in (0, 2, 3)]
    assert left == sorted(set(wanted) - {10 * TEXTS.index(text) + 2 for text in ("a:b", "100%", "*")})

"""A run that somebody cancels on the page while Spark starts, in a real deployment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.dagster_deployment import Deployment, eventually
from support.process_marks import java_with, slow_java

from dv_maintenance.testing.delta_builder import DeltaBuilder


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    monkeypatch.setenv("JAVA_HOME", slow_java(tmp_path / "java", 8))
    builder = DeltaBuilder(str(tmp_path / "orders")).create(pa.schema([("id", pa.int64())]))
    builder.append(pa.table({"id": range(100)}), files=2)
    builder.delete(lambda rows: pc.equal(pc.bit_wise_and(rows["id"], 1), 0))
    tables = tmp_path / "tables.yaml"
    tables.write_text("defaults: {policy: {min_file_size: 0}}\ntables:\n- {path: orders}\n")
    made = Deployment(tmp_path / "deployment", tables, sensors={}, engine="spark")
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.mark.deep
@pytest.mark.jvm
@pytest.mark.processes
def test_a_run_cancelled_while_spark_starts_leaves_no_java(deployment: Deployment) -> None:
    mark = f"DAGSTER_HOME={deployment.home}"
    run = deployment.launch("orders/dv/orders_optimize")
    eventually("Java is about to start", lambda: java_with(mark) or deployment.run(run).is_finished, every=0.05)
    assert java_with(mark)
    deployment.cancel(run)
    assert deployment.finished(run).status == dg.DagsterRunStatus.CANCELED
    eventually("Java is gone", lambda: not java_with(mark), seconds=30)

"""Spark Connect: the session is a client, its server and workers run elsewhere.

Server and client are processes of their own: a process has either a classic session or a Connect one.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.connect_server import connect_server
from support.pythons import bare_python

from dv_maintenance import __version__
from dv_maintenance.engine.spark import connect as spark_connect
from dv_maintenance.engine.spark.session import start_session
from dv_maintenance.errors import EngineUnavailableError, RefusedError, UsageError
from dv_maintenance.maintenance.health import health
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

# Purges three tables: by the engine, in a Dagster run, and on a Python without this package. Changes rows of a fourth.
CLIENT = """
import json, sys
import dagster as dg
from dv_maintenance.dagster import SparkResource, build_dv_assets
from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.merge import merge
from dv_maintenance.engine.spark import SparkEngine
from dv_maintenance.engine.spark.session import start_session
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.execution.apply import apply
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.service.tables_file import WatchConfig
from dv_maintenance.tables import open_table

url, bare, by_engine, by_dagster, without_package, changed, keys = sys.argv[1:]
said = {}

def purge(path, **options):
    with SparkEngine(master=url, **options) as engine:
        table = open_table(path)
        report = apply(table, engine, build_plan(table.snapshot(), Policy(max_deleted_ratio=0)))
        return type(engine.session).__module__, report.verified

said["engine"] = purge(by_engine)

[table] = WatchConfig.model_validate({"tables": [{"name": "orders", "path": by_dagster}]}).tables
said["run"] = dg.materialize(
    [asset for asset in build_dv_assets([table]) if asset.key.path[-1].endswith("_optimize")],
    resources={"spark": SparkResource(master=url)},
).success

try:
    purge(without_package, conf={"spark.sql.execution.pyspark.python": bare})
except RefusedError as error:
    said["refused"] = str(error)

with SparkEngine(master=url) as engine:
    table, source = open_table(changed), "SELECT id + 998 AS id FROM range(6)"
    begun = merge(table, engine, source, "target.id = source.id")
    done = begun.when_matched_delete("source.id < 1001").when_not_matched_insert_all().execute()
    said["merge"] = done.rows_deleted, done.rows_inserted
    said["keys"] = delete(table, engine, keys=keys, on=["id"]).rows_deleted
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def server(connect_packages: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Connect server of our own."""
    with connect_server(tmp_path_factory.mktemp("connect"), sys.executable) as port:
        yield f"sc://127.0.0.1:{port}"


def dirty_table(path: Path) -> str:
    """Two files of 1000 rows, every other pair of them deleted."""
    schema = pa.schema([("id", pa.int64())])
    DeltaBuilder(str(path)).create(schema).append(pa.table({"id": range(2000)}), files=2)
    DeltaBuilder(str(path)).delete(lambda rows: pc.not_equal(pc.bit_wise_and(rows["id"], 2), 0))
    return str(path)


def with_dvs(path: str) -> int:
    return health(open_table(path).snapshot()).counts.files_with_dv


@pytest.mark.jvm
def test_purges_through_a_connect_server(server: str, tmp_path: Path) -> None:
    names = ("by_engine", "by_dagster", "without_package", "changed")
    tables = [dirty_table(tmp_path / name) for name in names]
    (tmp_path / "keys.csv").write_text("id\n0\n1\n2\n")
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, server, bare_python(tmp_path / "bare"), *tables, str(tmp_path / "keys.csv")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert said["engine"] == ["pyspark.sql.connect.session", True]
    assert said["run"]
    # An editable install may leave folders of data there, which are a package without modules.
    assert "No module named 'dv_maintenance" in said["refused"]
    assert f"install dv-maintenance {__version__} there" in said["refused"]
    assert list(map(with_dvs, tables)) == [0, 0, 2, 2]
    assert (said["merge"], said["keys"]) == ([1, 4], 2)


# -- without a server --------------------------------------------------------------------------------------------


def refused(url: str, error: type[Exception] = RefusedError) -> str:
    # Not through an engine: that would take a session that is active in this process.
    with pytest.raises(error) as caught:
        start_session(url, {})
    return str(caught.value)


def test_nobody_there(connect_packages: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_connect, "_PATIENCE_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        said = refused(f"sc://127.0.0.1:{port}/;token=hunter2", EngineUnavailableError)
    assert f"no Spark Connect server answered at 127.0.0.1:{port} within 1 seconds" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("url", ["sc://host/path", "sc://host:1/;hunter2", "sc://host:port"])
def test_no_address(connect_packages: None, url: str) -> None:
    said = refused(url, UsageError)
    assert "write sc://HOST:PORT" in said
    assert "hunter2" not in said


def test_packages_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    assert "pip install 'dv-maintenance[connect]'" in refused("sc://127.0.0.1:1")

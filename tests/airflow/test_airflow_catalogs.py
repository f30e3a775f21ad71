"""Tables that a catalog names: in DAGs, tasks and watchers. A connection has the token."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from support.unity import TOKEN, Unity, unity

from dv_maintenance.testing.delta_builder import DeltaBuilder

SCRIPT = """
import json
from airflow.sdk import Connection
from dv_maintenance.airflow import dv_maintenance_dags, folders, hook
from dv_maintenance.airflow.assets import job_asset, table_asset
from dv_maintenance.airflow.lineage import dataset_of
from dv_maintenance.airflow.operators import DvOptimizeOperator
from dv_maintenance.airflow.tables import watch_config, watched
from dv_maintenance.airflow.trigger import DvTrigger, _Memory
from dv_maintenance.errors import UsageError

TOKEN, URI = %r, %r
CATALOG = {"type": "unity", "uri": URI, "token": TOKEN}
EXTRAS = {
    "lake": {"aws_region": "eu", "catalogs": {"uc": {"token": TOKEN}}},
    "whole": {"catalogs": {"uc": CATALOG}},
    "expired": {"catalogs": {"uc": {**CATALOG, "token": "ended"}}},
    "wrong": {"catalogs": {"uc": {"tokn": TOKEN}}},
    "odd": {"catalogs": [TOKEN]},
}
hook.DvHook.get_connection = classmethod(
    lambda cls, name: Connection(conn_id=name, conn_type="dvstorage", extra=json.dumps(EXTRAS[name]))
)

class Variables:
    kept = {}
    @classmethod
    def get(cls, key, default): return cls.kept.get(key, default)
    @classmethod
    def set(cls, key, value, description): cls.kept[key] = value
folders.Variable = Variables

def problem(conn_id):
    try:
        return watched("orders", "tables.yaml", conn_id).name
    except UsageError as error:
        return str(error)

orders = watched("orders", "tables.yaml", "lake")
named = watched("uc.main.sales.orders", None, "whole")
of_mapping = DvOptimizeOperator(task_id="p", table={"table": "uc.main.sales.orders"}, storage_conn_id="whole")
trigger = DvTrigger("orders", "tables.yaml", "lake")
trigger._ask_for_runs = lambda table: None
events = [[run.jobs for run in trigger._look(_Memory(), False)[0].requests] for _ in range(2)]
print(json.dumps({
    "version": orders.open().version(),
    "options": dict(orders.storage_options),
    "tables": [each.name for each in watch_config("tables.yaml", None, "lake").tables],
    "named": [named.name, named.table, named.open().version()],
    "path": watched("uc.main.sales.orders").path.endswith("uc.main.sales.orders"),
    "mapping": of_mapping.watched().name,
    "assets": [table_asset(orders).uri, job_asset(orders, "optimize").uri],
    "dataset": dataset_of("uc.main.sales.orders", named=True),
    "events": events,
    "dags": sorted(dag.dag_id for dag in dv_maintenance_dags("tables.yaml", storage_conn_id="lake")),
    "tested": [hook.DvHook(each).test_connection() for each in ("lake", "whole", "expired", "wrong")],
    "wrong": problem("wrong"),
    "odd": problem("odd"),
    "secret": TOKEN in repr(orders) + str(Variables.kept) + problem("wrong") + problem("odd"),
}))
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Unity]:
    with unity() as made:
        for name in ("orders", "returns"):
            builder = DeltaBuilder(str(tmp_path / name)).create(pa.schema([("id", pa.int64())]))
            builder.append(pa.table({"id": range(10)}))
            builder.delete(lambda found: pa.array([row < 4 for row in found["id"].to_pylist()]))
            made.add(f"main.sales.{name}", f"file://{tmp_path / name}", table_type="EXTERNAL")
        made.infos["main.sales.recent"] = {"table_type": "VIEW"}
        yield made


def test_a_connection_has_the_token(in_airflow: Callable[[str], str], tmp_path: Path, server: Unity) -> None:
    (tmp_path / "tables.yaml").write_text(
        f"name: lake\ncatalogs: {{uc: {{type: unity, uri: '{server.url}'}}}}\n"
        "tables: [{table: uc.main.sales.orders, name: orders}]\nfolders: [{schema: uc.main.sales, name: sales}]\n"
    )
    found = json.loads(in_airflow(SCRIPT % (TOKEN, server.url)).splitlines()[-1])
    assert found == {
        "version": 2,
        "options": {"aws_region": "eu"},
        "tables": ["orders", "sales/returns"],
        "named": ["main/sales/orders", "uc.main.sales.orders", 2],
        "path": True,
        "mapping": "main/sales/orders",
        "assets": ["uc.main.sales.orders", "uc.main.sales.orders?dv=optimize"],
        "dataset": ["uc", "main.sales.orders"],
        "events": [[["optimize"]], [["optimize"]]],
        "dags": found["dags"],
        "tested": found["tested"],
        "wrong": found["wrong"],
        "odd": found["odd"],
        "secret": False,
    }
    assert {"lake.orders", "lake.sales__returns"} <= set(found["dags"])
    assert "catalogs.uc.tokn: unknown key" in found["wrong"]
    assert "connection wrong" in found["wrong"]
    assert "not an object of objects" in found["odd"]
    good, whole, expired, wrong = found["tested"]
    assert (good[0], whole[0]) == (True, True)
    assert expired[0] is False
    assert "catalog uc" in expired[1]
    assert "issue a token" in expired[1]
    assert "ended" not in expired[1]
    assert wrong[0] is True, "it may complete a catalog of a file"

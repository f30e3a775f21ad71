"""A table in a catalog of the type ``spark``: watchers start no session, operators the one that commits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from support.places import ICEBERG, SQLITE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The environment's own PySpark is newer than Iceberg's runtime.
SCRIPT = """
import sys
sys.path.insert(0, %r)
from contextlib import nullcontext
from types import SimpleNamespace
from dv_maintenance.airflow import operators
from dv_maintenance.airflow.operators import DvOptimizeOperator, DvVacuumOperator
from dv_maintenance.airflow.trigger import DvTrigger, _Memory

trigger = DvTrigger("s/t", "tables.yaml")
trigger._ask_for_runs = lambda table: None
(requested,) = trigger._look(_Memory(), False)[0].requests
assert requested.jobs == ("optimize",)
assert not any(name.startswith("pyspark") for name in sys.modules), "a look"

operators.recorded = lambda *_: nullcontext()
task = SimpleNamespace(try_number=1, xcom_push=lambda **_: None)
events = SimpleNamespace(add=lambda *_, **__: None)
class Events:
    def __getitem__(self, key): return events  # Airflow 3.1 can't hash an alias
context = {"ti": task, "outlet_events": Events()}
conf = {"spark.ui.enabled": "false", "spark.master": "local[1]"}
operator = DvOptimizeOperator(task_id="p", table="s/t", tables_file="tables.yaml", config_kwargs=conf, purge=True)
assert operator.execute(context)["verified"] is True
vacuum = DvVacuumOperator(task_id="v", table="s/t", tables_file="tables.yaml")
vacuum.execute(context)
print("done")
"""


@pytest.mark.deep
@pytest.mark.jvm
def test_an_operator_commits_by_its_session(
    iceberg_spark: SparkSession, in_airflow: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "pyspark").symlink_to(Path(pyspark.__file__).parent)
    own = {
        "spark.sql.catalog.prod": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.prod.type": "jdbc",
        "spark.sql.catalog.prod.uri": f"jdbc:sqlite:{tmp_path}/pointers.db",
        "spark.sql.catalog.prod.warehouse": str(tmp_path),
    }
    session = iceberg_spark.newSession()
    for key, value in own.items():
        session.conf.set(key, value)
    session.sql("CREATE NAMESPACE prod.s")
    session.sql(
        "CREATE TABLE prod.s.t (id INT) USING iceberg "
        "TBLPROPERTIES ('format-version' = '3', 'write.delete.mode' = 'merge-on-read')"
    )
    session.sql("INSERT INTO prod.s.t SELECT /*+ COALESCE(1) */ CAST(id AS INT) FROM range(40)")
    session.sql("DELETE FROM prod.s.t WHERE id % 3 = 0")
    rows = session.sql("SELECT *, _row_id FROM prod.s.t ORDER BY id").collect()
    catalogs = {"prod": {"type": "spark", "conf": {"spark.jars": f"{ICEBERG},{SQLITE}", **own}}}
    (tmp_path / "tables.yaml").write_text(json.dumps({"catalogs": catalogs, "folders": [{"schema": "prod.s"}]}))
    assert in_airflow(SCRIPT % str(tmp_path / "site")).splitlines()[-1] == "done"
    session.sql("REFRESH TABLE prod.s.t")
    assert session.sql("SELECT *, _row_id FROM prod.s.t ORDER BY id").collect() == rows
    assert session.sql("SELECT * FROM prod.s.t.delete_files").count() == 0

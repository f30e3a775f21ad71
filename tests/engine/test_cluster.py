"""Every verb that needs Spark, on a cluster that is configured as docs/guides/remote-spark.md says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from support.places import ROOT
from support.pythons import bare_python, empty_python, other_python
from support.spark_cluster import SETTINGS, Cluster

from dv_maintenance import __version__
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("day", pa.int32()), ("id", pa.int64()), ("v", pa.string())])
PYTHON = "spark.sql.execution.pyspark.python"

# Runs the verbs in one session, as the ops of one job do. Then again with each of the other Pythons.
DRIVER = """
import json, sys
from dv_maintenance.dagster.resources import spark_resource
from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.service import verbs
from dv_maintenance.service.tables_file import WatchConfig

file, source, keys, *pythons = sys.argv[1:]
config = WatchConfig.load(file)
table = verbs.opened(config.tables[0])
clauses = ["matched then update set v = source.v", "not matched then insert *"]
resource = spark_resource(config.spark)
engine = resource.get_engine
steps = {
    "delete": lambda: verbs.delete_rows(table, engine, where="id % 10 = 0"),
    "delete by keys": lambda: verbs.delete_rows(table, engine, keys=keys, on=["id"]),
    "update": lambda: verbs.update_rows(table, engine, [("v", "concat(v, '!')")], "id % 10 = 3"),
    "merge": lambda: verbs.merge_rows(table, engine, source, "target.id = source.id", clauses),
    "purge": lambda: verbs.rewrite(table, engine, verbs.PURGE),
    "optimize": lambda: verbs.rewrite(table, engine, verbs.RewriteRequest(policy=Policy(max_deleted_ratio=0))),
    "manifest": lambda: verbs.manifest(table, engine),
    "zorder": lambda: verbs.rewrite(table, engine, verbs.RewriteRequest(order_by=("id", "v",))),
    "downgrade": lambda: verbs.downgrade(table, engine),
}
gone = iter(range(399, 0, -10))

def done(name):
    if name in ("purge", "optimize", "manifest"):  # something to do
        verbs.delete_rows(table, engine, where=f"id = {next(gone)}")
    return steps[name]().reason

said = {"first": {name: done(name) for name in steps if name != "downgrade"}}
# Something to do for those that have just done it.
verbs.delete_rows(table, engine, where=f"id = {next(gone)}")
steps["zorder"] = lambda: verbs.rewrite(table, engine, verbs.RewriteRequest(order_by=("v",)))
session = engine().session
for python in pythons:
    session.conf.set("spark.sql.execution.pyspark.python", python)
    said[python] = {}
    for name, step in steps.items():
        try:
            said[python][name] = step().reason
        except DvMaintenanceError as error:
            said[python][name] = f"{type(error).__name__}: {error}"
session.conf.set("spark.sql.execution.pyspark.python", sys.executable)
said["first"]["downgrade"] = done("downgrade")
said["gone"] = next(gone)
said["master"] = session.sparkContext.master
engine().close()
print(json.dumps(said))
"""


def page_config(cluster: Cluster, home: Path, **conf: str) -> Path:
    """The page's own YAML, for this cluster, this interpreter and a table of ours."""
    page = (ROOT / "docs" / "guides" / "remote-spark.md").read_text()
    text = re.search(r"^## A cluster\n.*?^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert text is not None
    body = yaml.safe_load(text[1].replace("/opt/lake/bin/python", sys.executable))
    [table] = body["attributes"]["tables"]
    table["path"] = str(home / "orders")
    spark = body["attributes"]["spark"]
    assert str(spark["master"]).startswith("spark://")
    assert sys.executable in spark["conf"].values()
    spark["master"] = cluster.url
    spark["conf"] |= SETTINGS | conf
    file = home / "defs.yaml"
    file.write_text(yaml.safe_dump(body))
    return file


def drive(cluster: Cluster, program: str, *arguments: str | Path) -> Any:
    """The document that a driver prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=cluster.environment(),
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


def orders(home: Path) -> DeltaBuilder:
    """Eight files in four partitions."""
    builder = DeltaBuilder(str(home / "orders")).create(SCHEMA, partition_by=["day"])
    rows = [{"day": number % 4, "id": number, "v": f"v{number}"} for number in range(400)]
    builder.append(pa.Table.from_pylist(rows, SCHEMA), files=2)
    return builder


def pythons_of(home: Path) -> dict[Path, str]:
    """Interpreters that can't run a worker of ours, and what they are told."""
    return {
        bare_python(home / "bare"): "No module named 'dv_maintenance",
        other_python(home / "other", "0.0.1"): f"dv-maintenance 0.0.1 is installed there, {__version__} here",
        empty_python(home / "empty"): "ModuleNotFoundError: No module named",
    }


@pytest.mark.deep
@pytest.mark.jvm
def test_every_verb_by_the_page(cluster: Cluster, tmp_path: Path) -> None:
    orders(tmp_path)
    (tmp_path / "keys.csv").write_text("id\n5\n15\n25\n")
    source = pa.table({"day": pa.array([1, 9], pa.int32()), "id": [1, 1000], "v": ["one", "new"]})
    pq.write_table(source, tmp_path / "source.parquet")
    pythons = pythons_of(tmp_path)
    # One attempt: nothing gets better with more of them.
    config = page_config(cluster, tmp_path, **{"spark.task.maxFailures": "1"})
    said = drive(cluster, DRIVER, config, tmp_path / "source.parquet", tmp_path / "keys.csv", *pythons)

    assert said["master"] == cluster.url
    kept = {number: f"v{number}" for number in range(400) if number % 10}
    kept |= {number: f"v{number}!" for number in range(3, 399, 10)} | {1: "one", 1000: "new"}
    gone = {5, 15, 25, *range(399, said["gone"], -10)}
    kept = {number: text for number, text in kept.items() if number not in gone}
    table = open_table(str(tmp_path / "orders"))
    schema, batches = read(table)
    rows = pa.Table.from_batches(batches, schema).to_pylist()
    assert sorted((row["id"], row["v"]) for row in rows) == sorted(kept.items())
    assert health(table.snapshot()).counts.files_with_dv == 0
    for python, why in pythons.items():
        errors = said[str(python)]
        assert errors.keys() == said["first"].keys()
        for verb, error in errors.items():
            assert error.startswith("MissingSoftwareError: "), (verb, error)
            assert why in error, (verb, error)
            assert PYTHON in error, (verb, error)

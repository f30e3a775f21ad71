"""The file of tables in a DAG bundle, which Airflow does not fetch for the triggerer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from dv_maintenance.testing.delta_builder import DeltaBuilder

SCRIPT = """
import json, os, sys
here = os.getcwd()
os.environ["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH"] = here + "/bundles"
bundle = {"name": "lake", "classpath": "fetched.Fetched", "kwargs": {}}
os.environ["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"] = json.dumps([bundle])
sys.path.insert(0, here)
open("fetched.py", "w").write('''
import os, shutil
from airflow.dag_processing.bundles.base import BaseDagBundle
class Fetched(BaseDagBundle):
    path = property(lambda self: self.base_dir / "tracking_repo")
    def get_current_version(self): return None
    def initialize(self):
        os.makedirs(self.path)
        self.refresh()
        super().initialize()
    def refresh(self):
        shutil.copy("tables.yaml", self.path)
''')
from dv_maintenance.airflow import DvTrigger, bundles
from dv_maintenance.airflow.trigger import _Memory

def looked(file):
    trigger = DvTrigger("orders", file)
    try:
        return trigger._look(_Memory(), False)[0].cursor.tables["orders"].inspection.version
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def file_of(policy):
    with open("tables.yaml", "w") as file:
        file.write(f"tables: [{{path: {here}/orders, policy: {policy}}}]")

file = here + "/bundles/lake/tracking_repo/tables.yaml"
file_of("{max_deleted_ratio: 0.1}")
elsewhere = "/there/lake/tracking_repo/tables.yaml"
found = [looked(file), looked(elsewhere), looked(here + "/tables.yaml"), looked(here + "/other.yaml")]
file_of("{max_deleted_ratoi: 0.1}")
found.append(looked(file))
bundles._SECONDS_BETWEEN = 0
found.append(looked(file))
print(json.dumps(found))
"""


def test_a_watcher_fetches_the_bundle_of_its_file(in_airflow: Callable[[str], str], tmp_path: Path) -> None:
    DeltaBuilder(str(tmp_path / "orders")).create(pa.schema([("id", pa.int64())]))
    fetched, elsewhere, local, missing, kept, refreshed = json.loads(in_airflow(SCRIPT).splitlines()[-1])
    assert (fetched, elsewhere, local) == (0, 0, 0)
    assert missing.startswith("UsageError: the triggerer has no file ")
    assert "put it there, or into the DAG bundle" in missing
    assert kept == 0, "fetched a moment ago"
    assert "max_deleted_ratoi" in refreshed

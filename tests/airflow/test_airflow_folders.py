"""Folders are searched by watchers, and kept for whoever reads the file of tables in between."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from dv_maintenance.testing.delta_builder import DeltaBuilder

SCRIPT = """
import json, os
from types import SimpleNamespace
from dv_maintenance.airflow import folders as module, dv_maintenance_dags
from dv_maintenance.airflow.folders import configs
from dv_maintenance.airflow.tables import watched
from dv_maintenance.airflow.trigger import DvTrigger, DvVacuumsTrigger
from dv_maintenance.errors import UsageError
from dv_maintenance.service import entries
from dv_maintenance.service.tables_file import WatchConfig
from dv_maintenance.testing.delta_builder import DeltaBuilder
import pyarrow as pa

class Variables:
    kept = {}
    @classmethod
    def get(cls, key, default): return cls.kept.get(key, default)
    @classmethod
    def set(cls, key, value, description): cls.kept[key] = value
module.Variable = Variables

searches = []
real = entries.find_tables
def find_tables(path, options, on_error):
    searches.append(options)
    return real(path, options, on_error)
entries.find_tables = find_tables
def tables(file, **search): return [table.name for config in configs(file, **search) for table in config.tables]

found = {"first": tables("tables.yaml"), "again": tables("tables.yaml"), "searches": len(searches)}
DeltaBuilder("lake/new").create(pa.schema([("id", pa.int64())]))
found["kept"] = tables("tables.yaml", max_age=3600)
found["searched"] = tables("tables.yaml", max_age=0)
found["of a task"] = watched("raw/new", "tables.yaml").path
def fails(path, options, on_error): raise PermissionError("denied")
entries.find_tables = fails
found["denied"] = tables("tables.yaml", max_age=0)
found["beside"] = tables("beside.yaml")
found["error"] = [each["error"] for each in json.loads(list(Variables.kept.values())[-1]).values()]
found["dags"] = [dag.dag_id for dag in dv_maintenance_dags("beside.yaml")]

reads, read = [], WatchConfig.read
module.WatchConfig = SimpleNamespace(read=lambda path: reads.append(path) or read(path))
watching = [DvTrigger(each, "tables.yaml") for each in ("raw/new", "raw/orders")] + [DvVacuumsTrigger("tables.yaml")]
found["watched"] = [[table.name for table in each._tables()] for each in watching]
found["reads"] = [len(reads)]
os.utime("tables.yaml", (1, 1))
for each in watching:
    each._tables()
found["reads"].append(len(reads))
try:
    watched("raw/ordres", "tables.yaml")
except UsageError as error:
    found["misspelled"] = str(error)
found["secret"] = "hush" in str(Variables.kept)
print(json.dumps(found))
"""


def test_folders_are_searched_now_and_then_and_stop_nothing_else(
    in_airflow: Callable[[str], str], tmp_path: Path
) -> None:
    DeltaBuilder(str(tmp_path / "lake" / "orders")).create(pa.schema([("id", pa.int64())]))
    folder = "- {path: lake, name: raw, storage_options: {aws_secret_access_key: hush-hush}}"
    (tmp_path / "tables.yaml").write_text(f"name: lake\nfolders:\n{folder}\n")
    (tmp_path / "beside.yaml").write_text("name: lake\ntables: [{path: events}]\nfolders: [{path: elsewhere}]\n")
    found = json.loads(in_airflow(SCRIPT).splitlines()[-1])
    assert found == {
        "first": ["raw/orders"],
        "again": ["raw/orders"],
        "searches": 1,
        "kept": ["raw/orders"],
        "searched": ["raw/new", "raw/orders"],
        "of a task": str(tmp_path / "lake/new"),
        "denied": ["raw/new", "raw/orders"],
        "beside": ["events"],
        "error": ["PermissionError: denied"],
        "watched": [["raw/new"], ["raw/orders"], ["raw/new", "raw/orders"]],
        "reads": [1, 2],
        "misspelled": "tables.yaml has no table 'raw/ordres'. Next: choose one of its tables: raw/orders, raw/new",
        "dags": found["dags"],
        "secret": False,
    }
    assert "lake.events" in found["dags"]

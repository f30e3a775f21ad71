"""Tables of a catalog of the type ``spark``, as users name them: in processes that have no session of their own. Spark
reads the same rows with the same lineage afterwards, and goes on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.places import ICEBERG, SQLITE

from dv_maintenance.catalogs import from_plain, located
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.spark import SparkEngine, shared
from dv_maintenance.errors import RefusedError, StorageUnavailableError, UsageError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.service.inspection import inspect_tables
from dv_maintenance.service.tables_file import WatchConfig
from dv_maintenance.tables import open_table
from dv_maintenance.tables.registry import format_called
from dv_maintenance.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}


@dataclass
class Lake:
    """A JDBC catalog, with its tables ``s.a`` to ``s.d`` as Spark made them."""

    spark: SparkSession
    folder: Path
    name: str = "prod"

    @property
    def own(self) -> dict[str, str]:
        before = f"spark.sql.catalog.{self.name}"
        return {
            before: "org.apache.iceberg.spark.SparkCatalog",
            f"{before}.type": "jdbc",
            f"{before}.uri": f"jdbc:sqlite:{self.folder}/pointers.db",
            f"{before}.warehouse": str(self.folder),
            f"{before}.cache-enabled": "false",
        }

    @property
    def settings(self) -> dict[str, Any]:
        """Of the catalog, for a process without a session."""
        return {"type": "spark", "conf": {**LOCAL, "spark.jars": f"{ICEBERG},{SQLITE}", **self.own}}

    def sql(self, text: str) -> list[Any]:
        return self.spark.sql(text).collect()

    def make(self, table: str) -> None:
        self.sql(
            f"CREATE TABLE prod.s.{table} (id INT, v STRING) USING iceberg "
            "TBLPROPERTIES ('format-version' = '3', 'write.delete.mode' = 'merge-on-read')"
        )
        self.sql(f"INSERT INTO prod.s.{table} SELECT /*+ COALESCE(1) */ CAST(id AS INT), 'x' FROM range(40)")
        self.sql(f"DELETE FROM prod.s.{table} WHERE id % 3 = 0")

    def rows(self, table: str) -> list[str]:
        return sorted(map(repr, self.sql(f"SELECT *, _row_id, _last_updated_sequence_number FROM prod.s.{table}")))

    def deletes(self, table: str) -> int:
        return len(self.sql(f"SELECT * FROM prod.s.{table}.delete_files"))


@pytest.fixture
def lake(iceberg_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    made = Lake(iceberg_spark.newSession(), tmp_path)
    for key, value in made.own.items():
        made.spark.conf.set(key, value)
    made.sql("CREATE NAMESPACE prod.s")
    (tmp_path / "catalogs.yaml").write_text(json.dumps({"catalogs": {"prod": made.settings}}))
    monkeypatch.setenv("DVM_CATALOGS", str(tmp_path / "catalogs.yaml"))
    yield made
    shared._needs.clear()
    shared._made.clear()


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """In other processes."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")


def dvm(*words: str, code: int = 0) -> str:
    done = subprocess.run([Path(sys.executable).with_name("dvm"), *words], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_looks_need_no_java(lake: Lake, no_java: None) -> None:
    lake.make("a")
    shown = json.loads(dvm("health", "prod.s.a", "--json"))
    assert (shown["physical_rows"], shown["deleted_rows"]) == (40, 14)
    assert len(dvm("read", "prod.s.a", "--as", "jsonl", "--limit", "99").splitlines()) == 26
    file = lake.folder / "tables.yaml"
    file.write_text(
        json.dumps({"catalogs": {"prod": lake.settings}, "folders": [{"schema": "prod.s"}, {"schema": "prod.*"}]})
    )
    (found,) = json.loads(dvm("watch", str(file), "--once", "--json"))["tables"]
    assert (found["name"], found["due"], found["error"]) == ("s/a", ["optimize"], None)
    said = dvm("purge", "prod.s.a", "--engine", "local", code=3)
    assert "Spark needs Java" in said
    assert lake.deletes("a") == 1


@pytest.mark.jvm
def test_a_command_commits_by_the_one_session_that_it_starts(lake: Lake) -> None:
    lake.make("a")
    rows = lake.rows("a")
    dvm("purge", "prod.s.a")
    assert (lake.rows("a"), lake.deletes("a")) == (rows, 0)
    assert lake.sql("SELECT operation FROM prod.s.a.snapshots ORDER BY committed_at")[-1].operation == "replace"
    lake.sql("DELETE FROM prod.s.a WHERE id = 7")
    assert len(lake.rows("a")) == len(rows) - 1


DAGSTER = """
import sys
from pathlib import Path
import dagster as dg
from dagster.components.testing.utils import create_defs_folder_sandbox
from pyspark import SparkContext
from dv_maintenance import DvMaintainedTablesComponent

with create_defs_folder_sandbox() as sandbox:
    path = sandbox.scaffold_component(component_cls=DvMaintainedTablesComponent, defs_path="lake")
    (path / "defs.yaml").write_text(Path(sys.argv[1]).read_text())
    with sandbox.load_component_and_build_defs(path) as (_, defs), dg.DagsterInstance.ephemeral() as instance:
        sensor = defs.resolve_sensor_def("dv_maintenance_sensor")
        with dg.build_sensor_context(instance=instance, definitions=defs) as context:
            requested = sensor.evaluate_tick(context).run_requests
        assert requested, "due"
        assert SparkContext._gateway is None, "a look"
        job = defs.resolve_job_def("dv_maintenance")
        assert job.execute_in_process(instance=instance).success
        assert SparkContext._active_spark_context is None, "what the resource started ended with it"
print("done")
"""


@pytest.mark.deep
@pytest.mark.jvm
def test_dagster_materializes_by_its_resource(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DVM_CATALOGS")
    for each in ("a", "b"):
        lake.make(each)
    rows = {each: lake.rows(each) for each in ("a", "b")}
    attributes = {
        "catalogs": {"prod": lake.settings},
        "tables": [{"table": f"prod.s.{each}"} for each in ("a", "b")],
        "spark": {"master": "local[1]", "conf": {"spark.ui.enabled": "false"}},
    }
    file = lake.folder / "defs.yaml"
    file.write_text(json.dumps({"type": "dv_maintenance.DvMaintainedTablesComponent", "attributes": attributes}))
    done = subprocess.run([sys.executable, "-c", DAGSTER, str(file)], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["done"], done.stdout[-3000:] + done.stderr[-5000:]
    for each in ("a", "b"):
        assert (lake.rows(each), lake.deletes(each)) == (rows[each], 0)


# -- in a process that has a session -----------------------------------------------------------------------------------


def opened(lake: Lake, **conf: str) -> Table:
    """``prod.s.a`` by other settings of the catalog."""
    before = "spark.sql.catalog.prod"
    changed = {f"{before}.{key}" if key else before: value for key, value in conf.items()}
    settings = {"type": "spark", "conf": {key: each for key, each in {**lake.own, **changed}.items() if each}}
    found = located("prod.s.a", {}, from_plain({"prod": settings}, "test"))
    assert found is not None
    return format_called(found[0]).open(found[1])


def test_a_session_without_the_catalog_lends_its_jvm(lake: Lake) -> None:
    lake.make("a")
    rows = lake.rows("a")
    assert purge(open_table("prod.s.a"), LocalEngine()).verified
    assert (lake.rows("a"), lake.deletes("a")) == (rows, 0)
    running = shared.running_session()
    assert running is not None
    assert running.conf.get("spark.sql.catalog.prod", None) is None, "it stays as it was"


def test_a_catalog_that_only_a_session_can_ask(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.make("a")
    rows = lake.rows("a")
    monkeypatch.setattr("dv_maintenance.catalogs.spark._found_by", lambda *_: None)
    assert purge(open_table("prod.s.a"), LocalEngine()).verified
    assert (lake.rows("a"), lake.deletes("a")) == (rows, 0)
    monkeypatch.setattr(shared, "running_session", lambda: None)
    file = lake.folder / "tables.yaml"
    file.write_text(json.dumps({"catalogs": {"prod": lake.settings}, "tables": [{"table": "prod.s.a"}]}))
    ((found,), _) = inspect_tables(WatchConfig.load(str(file)))
    assert "only a Spark session can ask the catalog prod, and watching starts none" in str(found.error)


def test_another_catalog_of_the_same_name_is_refused(
    lake: Lake, iceberg_spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings lead to one database, the session to another."""
    lake.make("a")
    # Other tests may have made another session of this JVM the active one.
    monkeypatch.setattr(shared, "running_session", lambda: iceberg_spark)
    others = {**lake.own, "spark.sql.catalog.prod.uri": f"jdbc:sqlite:{lake.folder}/others.db"} | {
        "spark.sql.catalog.prod.warehouse": f"{lake.folder}/others"
    }
    for key, value in others.items():
        iceberg_spark.conf.set(key, value)
    try:
        iceberg_spark.sql("CREATE NAMESPACE prod.s")
        iceberg_spark.sql("CREATE TABLE prod.s.a (id INT) USING iceberg")
        with pytest.raises(RefusedError, match="the settings of the catalog lead to one that names"):
            purge(open_table("prod.s.a"), LocalEngine())
    finally:
        for key in others:
            iceberg_spark.conf.unset(key)
    assert lake.deletes("a") == 1


def test_what_a_session_lacks_is_one_sentence(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.make("a")
    monkeypatch.setattr("dv_maintenance.catalogs.spark._found_by", lambda *_: None)
    for conf, said in (
        ({"": "org.example.NoCatalog"}, r"lacks the class org\.example\.NoCatalog, which catalog prod needs"),
        ({"type": "", "catalog-impl": "org.example.NoImpl"}, r"lacks the class org\.example\.NoImpl"),
        ({"uri": "jdbc:oracle:thin:@h?password=secret"}, "lacks the JDBC driver of the catalog's database"),
    ):
        shared._made.clear()
        with pytest.raises(UsageError, match=said) as caught:
            opened(lake, **conf)
        assert "spark.jars" in str(caught.value.next_step)
        assert "secret" not in str(caught.value)
    shared._made.clear()
    hive = {"type": "hive", "uri": "thrift://127.0.0.1:9", "hadoop.hive.metastore.connect.retries": "0"}
    with pytest.raises(StorageUnavailableError, match=r"prod of the Spark session can't be reached") as unreachable:
        opened(lake, **hive)
    assert "spark.sql.catalog.prod.uri" in str(unreachable.value.next_step)


def test_spark_connect_is_refused_before_any_work(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.make("a")
    monkeypatch.setattr(shared, "running_session", lambda: None)
    table = open_table("prod.s.a")
    with (
        shared.offered(lambda: SparkEngine(master="sc://host")),
        pytest.raises(RefusedError, match="Spark Connect has none"),
    ):
        purge(table, LocalEngine())

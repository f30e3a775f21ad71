"""Tables of a catalog that are watched: requests for each look, names that get other tables, and Dagster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext
from dagster.components.testing import create_defs_folder_sandbox
from packaging.version import Version
from support.managed import ManagedBackend
from support.unity import TOKEN, Unity

from dv_maintenance import DvMaintainedTablesComponent
from dv_maintenance.catalogs import from_plain
from dv_maintenance.errors import TableNotFoundError
from dv_maintenance.service import reads
from dv_maintenance.service.cursor import TableState
from dv_maintenance.service.observe import Observation, Observer
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("id", pa.int64())])


def put(server: Unity, place: Path, name: str, identity: str = "one", **table: Any) -> None:
    """An external table at version 2, which has a deletion vector."""
    builder = DeltaBuilder(str(place)).create(SCHEMA)
    builder.append(pa.table({"id": range(10)}))
    builder.delete(lambda found: pa.array([row < 4 for row in found["id"].to_pylist()]))
    server.add(name, f"file://{place}", table_id=identity, table_type="EXTERNAL", **table)


class Looks:
    """Looks at one table as a sensor does."""

    def __init__(self, server: Unity, name: str) -> None:
        self.server = server
        self.watched = TableSettings(table=name, jobs=("optimize",))
        self.observer = Observer(data_versions=True, checks=True)
        self.state: TableState | None = None

    def __call__(self) -> tuple[Observation, int]:
        """What a look found, and how many requests it took."""
        before = len(self.server.asked)
        newest = self.observer.probe(self.watched, self.state)
        found = self.observer.observe(self.watched, self.state, newest, busy=False)
        self.state = TableState(found.inspection, data_version=found.data_version)
        return found, len(self.server.asked) - before


@pytest.fixture(params=["external", "managed"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def create(server: Unity, place: Path, kind: str, identity: str) -> None:
    if kind == "external":
        put(server, place, "main.s.t", identity)
        return
    backend = ManagedBackend(place, server)
    backend.table = "main.s.t"
    backend.create()
    server.tables["main.s.t"]["metadata"]["table-uuid"] = identity


def test_a_look_is_one_request(server: Unity, tmp_path: Path, kind: str) -> None:
    create(server, tmp_path / "t", kind, "one")
    look = Looks(server, "uc.main.s.t")
    first = 1 if kind == "external" else 2
    assert [look()[1] for _ in range(3)] == [first, 1, 1], "a managed one may have an optimizer"


def test_a_name_with_another_table_is_another_table(server: Unity, tmp_path: Path, kind: str) -> None:
    """Dropped and created again elsewhere, at the same version."""
    create(server, tmp_path / "t", kind, "one")
    look = Looks(server, "uc.main.s.t")
    first, _ = look()
    assert not look()[0].inspection.another
    create(server, tmp_path / "again" / "t", kind, "two")
    second, _ = look()
    assert (second.inspection.version, second.inspection.another) == (first.inspection.version, True)
    assert not look()[0].inspection.another


def test_a_dropped_table_is_an_error_until_there_is_one(server: Unity, tmp_path: Path, kind: str) -> None:
    create(server, tmp_path / "t", kind, "one")
    look = Looks(server, "uc.main.s.t")
    look()
    kept = server.tables.pop("main.s.t")
    for _ in range(2):
        with pytest.raises(TableNotFoundError):
            look()
    server.tables["main.s.t"] = kept
    assert not look()[0].inspection.another


def test_reads_are_those_of_its_place(server: Unity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Event logs name paths."""
    put(server, tmp_path / "t", "main.s.t")
    asked: list[str] = []

    class Logs:
        problems: tuple[str, ...] = ()
        until = None

        def of(self, place: str) -> None:
            asked.append(place)

        def unlocated(self) -> dict[str, int]:
            return {}

    monkeypatch.setattr(reads, "spark_reads", lambda *_, **__: Logs())
    reads.EventLogs().of(TableSettings(table="uc.main.s.t", reads={"spark_events": "logs"}), 0)
    reads.EventLogs().of(TableSettings(path="t", reads={"spark_events": "logs"}), 0)
    assert asked == [(tmp_path / "t").as_uri(), "t"]


# -- Dagster -----------------------------------------------------------------------------------------------------


@pytest.fixture
def component(server: Unity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any, Path]]:
    """The sandbox, a function that loads component and definitions, and the folder of the tables."""
    monkeypatch.delenv("DVM_CATALOGS")
    monkeypatch.setattr(DefinitionsLoadContext, "_instance", None)
    put(server, tmp_path / "orders", "main.sales.orders")
    put(server, tmp_path / "returns", "main.sales.returns", "two")
    server.infos["main.sales.recent"] = {"table_type": "VIEW"}
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(component_cls=DvMaintainedTablesComponent, defs_path="lake")
        (path / "defs.yaml").write_text(
            "type: dv_maintenance.DvMaintainedTablesComponent\nattributes:\n  name: lake\n"
            f"  catalogs:\n    uc: {{type: unity, uri: '{server.url}', token: '{{{{ env.UC_TOKEN }}}}'}}\n"
            "  tables: [{table: uc.main.sales.orders, name: orders}]\n"
            "  folders: [{schema: uc.main.sales, name: sales}]\n"
            "  spark: {engine: local}\n"
        )

        def load() -> Any:
            with sandbox.load_component_and_build_defs(path) as loaded:
                return loaded

        yield sandbox, load, tmp_path


def tables(defs: dg.Definitions) -> set[str]:
    keys = (key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys())
    return {key for key in keys if "/dv/" not in key}


@pytest.mark.skipif(Version(dg.__version__) < Version("1.12"), reason="no defs state before Dagster 1.12")
def test_a_new_table_of_a_schema_appears(server: Unity, component: Any) -> None:
    sandbox, load, folder = component
    loaded, defs = load()
    assert tables(defs) == {"orders", "sales/returns"}
    asyncio.run(loaded.refresh_state(sandbox.project_root))
    (state,) = sandbox.project_root.rglob("DvMaintainedTables__lake__/state")
    assert TOKEN not in state.read_text()
    put(server, folder / "new", "main.sales.new", "three")
    server.asked.clear()
    _, defs = load()
    assert (tables(defs), server.asked) == ({"orders", "sales/returns"}, []), "loads ask no catalog"
    with dg.instance_for_test() as instance:
        sensor = defs.resolve_sensor_def("lake_folders_sensor")
        said = sensor.evaluate_tick(dg.build_sensor_context(instance=instance)).skip_message
    assert "1 new: sales/new" in str(said)
    asyncio.run(loaded.refresh_state(sandbox.project_root))
    assert tables(load()[1]) == {"orders", "sales/new", "sales/returns"}
    assert TOKEN not in repr(loaded)


def test_a_tick_asks_once_for_each_table_and_the_run_purges(server: Unity, component: Any) -> None:
    _, load, _ = component
    _, defs = load()
    with dg.instance_for_test() as instance:
        sensor, repository = defs.resolve_sensor_def("lake_sensor"), defs.get_repository_def()
        cursor: str | None = None
        counts = []
        for _ in range(3):
            server.asked.clear()
            context = dg.build_sensor_context(instance=instance, repository_def=repository, cursor=cursor)
            found = sensor.evaluate_tick(context)
            cursor = found.cursor
            counts.append(len(server.asked))
        assert counts == [2, 2, 2]
        result = defs.resolve_implicit_global_asset_job_def().execute_in_process(
            asset_selection=[dg.AssetKey(["orders", "dv", "orders_optimize"])], instance=instance
        )
    assert result.success
    assert TableSettings(table="uc.main.sales.orders").known_by(_catalogs(server)).open().version() == 3


def _catalogs(server: Unity) -> Any:
    return from_plain({"uc": {"type": "unity", "uri": server.url, "token": TOKEN}}, "test")

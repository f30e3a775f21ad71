"""Folders whose listing is kept: loads search only what was never searched, and a failing store takes nothing down."""

from __future__ import annotations

import asyncio
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext
from dagster.components.testing.utils import DefsFolderSandbox, create_defs_folder_sandbox
from packaging.version import Version

from dv_maintenance import DvMaintainedTablesComponent
from dv_maintenance.errors import StorageError, UsageError
from dv_maintenance.service import entries
from dv_maintenance.testing.delta_builder import DeltaBuilder

pytestmark = pytest.mark.skipif(Version(dg.__version__) < Version("1.12"), reason="no defs state before Dagster 1.12")

Load = Callable[[], tuple[Any, dg.Definitions]]


@pytest.fixture(autouse=True)
def first_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster keeps in the process how it loads: another test may have left it as in a run."""
    monkeypatch.setattr(DefinitionsLoadContext, "_instance", None)


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    with create_defs_folder_sandbox() as made:
        yield made


@pytest.fixture
def load(sandbox: DefsFolderSandbox) -> Load:
    """A component with one folder of tables, its options secret; and its definitions."""
    path = sandbox.scaffold_component(component_cls=DvMaintainedTablesComponent, defs_path="lake")
    body = """
        name: lake
        defaults: {storage_options: {key: hunter2}}
        folders: [{path: tables, exclude: [old*]}]
        spark: {engine: local}
    """
    text = textwrap.indent(textwrap.dedent(body).strip(), "  ")
    (path / "defs.yaml").write_text(f"type: dv_maintenance.DvMaintainedTablesComponent\nattributes:\n{text}\n")

    def build() -> Any:
        with sandbox.load_component_and_build_defs(path) as loaded:
            return loaded

    return build


@pytest.fixture
def make(sandbox: DefsFolderSandbox) -> Callable[[str], None]:
    def empty(name: str) -> None:
        place = sandbox.defs_folder_path / "lake" / "tables" / name
        DeltaBuilder(str(place)).create(pa.schema([("id", pa.int64())]))

    return empty


def tables(defs: dg.Definitions) -> set[str]:
    keys = (key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys())
    return {key for key in keys if "/dv/" not in key}


def refresh(component: Any, sandbox: DefsFolderSandbox) -> Path:
    """What ``dg utils refresh-defs-state`` does for one component."""
    asyncio.run(component.refresh_state(sandbox.project_root))
    (state,) = sandbox.project_root.rglob("DvMaintainedTables__lake__/state")
    return state


def break_store(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked = []

    def fails(place: str, *_: Any) -> Any:
        asked.append(place)
        raise StorageError("503 Slow Down", table=place)

    monkeypatch.setattr(entries, "find_tables", fails)
    return asked


def test_what_is_kept_loads_without_a_search(
    load: Load, make: Any, sandbox: DefsFolderSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("orders")
    make("old_orders")
    component, _ = load()
    state = refresh(component, sandbox)
    assert "hunter2" not in state.read_text()
    assert str(sandbox.project_root) not in state.read_text()
    make("returns")
    asked = break_store(monkeypatch)
    _, defs = load()
    assert (tables(defs), asked) == ({"orders"}, [])
    with pytest.raises(StorageError, match="Slow Down"):
        refresh(component, sandbox)
    assert tables(load()[1]) == {"orders"}
    monkeypatch.undo()
    refresh(component, sandbox)
    assert tables(load()[1]) == {"orders", "returns"}


def test_without_state_a_load_searches(load: Load, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make("orders")
    assert tables(load()[1]) == {"orders"}
    break_store(monkeypatch)
    with pytest.raises(Exception, match="Error while building definitions") as caught:
        load()
    assert re.search(r"Slow Down \(.*defs.yaml line 5\)", str(caught.value.__cause__))


def test_dg_dev_keeps_the_last_search(
    load: Load, make: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DAGSTER_IS_DEV_CLI", "1")
    make("orders")
    load()
    make("returns")
    assert tables(load()[1]) == {"orders", "returns"}
    break_store(monkeypatch)
    assert tables(load()[1]) == {"orders", "returns"}
    assert "lake: using the tables of the last search, if any:" in caplog.text


def test_a_refresh_that_would_not_load_keeps_nothing(load: Load, make: Any, sandbox: DefsFolderSandbox) -> None:
    make("orders")
    component, _ = load()
    before = refresh(component, sandbox).read_text()
    (sandbox.defs_folder_path / "lake" / "tables" / "orders").rename(sandbox.defs_folder_path / "elsewhere")
    with pytest.raises(UsageError, match="the folder contains no table"):
        refresh(component, sandbox)
    assert next(sandbox.project_root.rglob("state")).read_text() == before


def test_the_sensor_says_which_tables_are_new(
    load: Load, make: Any, sandbox: DefsFolderSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("orders")
    component, _ = load()
    refresh(component, sandbox)
    _, defs = load()

    def said() -> str:
        sensor = defs.resolve_sensor_def("lake_folders_sensor")
        return str(sensor.evaluate_tick(dg.build_sensor_context()).skip_message)

    assert said() == "No new tables: the folders and the location have the same 1."
    make("returns")
    make("old_orders")
    assert said() == (
        "Tables in the folders: 1 new: returns. Run `dg utils refresh-defs-state`, then reload the location."
    )
    monkeypatch.setattr("dv_maintenance.service.entries.find_tables", lambda *_: _raise(StorageError("503")))
    assert "can't be searched; the location keeps its tables. 503" in said()


def _raise(error: Exception) -> Any:
    raise error

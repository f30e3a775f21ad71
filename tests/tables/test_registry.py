"""A format that another package registers appears in every face, without a line changed in this one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dv_maintenance import cli
from dv_maintenance.dagster import SparkResource, build_dv_assets, build_dv_checks, build_dv_sensor
from dv_maintenance.dv import DeletionVector, Fetch
from dv_maintenance.errors import RefusedError, TableNotFoundError, UsageError
from dv_maintenance.service.checks import check_names
from dv_maintenance.service.tables_file import WatchConfig
from dv_maintenance.storage import Storage
from dv_maintenance.tables import dv_codecs, open_adopting_table, open_table, registry
from dv_maintenance.tables.find import find_tables
from dv_maintenance.tables.work import DvRef
from dv_maintenance.testing.memory import MemoryTable


def every_second(ref: DvRef, fetch: Fetch) -> DeletionVector:
    return DeletionVector.from_positions(range(0, 2 * ref.cardinality, 2))


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[MemoryTable]:
    """A table of a format that only this test knows, at ``tmp_path / "lake" / "orders"``: 100 rows, 50 deleted."""
    table = MemoryTable(tmp_path / "lake" / "orders")
    path = table.append("p=a", list(range(100)))
    table.delete(path, range(50))
    (table.folder / "_memory").mkdir()
    (table.folder / "_memory" / "log").touch()
    known = {each.name: each for each in registry.formats()}
    registry.register(
        registry.TableFormat(
            name="memory",
            title="Memory",
            marker="_memory",
            open=lambda location: {table.uri: table}[location.storage.uri],
            dv_codecs={"memory": f"{__name__}:every_second"},
            partitions=False,
            dv_checksums=False,
            kind="ram",
        )
    )
    yield table
    registry._known.clear()
    registry._known.update(known)


def test_it_is_detected_and_found(memory: MemoryTable, tmp_path: Path) -> None:
    assert open_table(memory.uri) is memory
    assert open_table(memory.uri, "memory") is memory
    (found,) = find_tables(str(tmp_path / "lake"))
    assert (found.path, found.format) == ("orders", "memory")


def test_its_codec_reads_deletion_vectors(memory: MemoryTable) -> None:
    def fetch(uri: str, start: int, length: int) -> bytes:
        raise AssertionError((uri, start, length))

    assert dv_codecs.load(DvRef("memory", 3, 0), fetch).positions().tolist() == [0, 2, 4]
    with pytest.raises(UsageError, match="unknown deletion vector codec 'morse'") as caught:
        dv_codecs.load(DvRef("morse", 3, 0), fetch)
    assert "paimon, iceberg, memory" in str(caught.value)


def test_the_command_line_knows_it(memory: MemoryTable, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["health", memory.uri, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["format"], body["physical_rows"], body["deleted_rows"]) == ("memory", 100, 50)
    assert cli.main(["plan", memory.uri, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["steps"]) == 1
    cli.main(["doctor", memory.uri, "--json"])  # whatever it says of Java
    (check,) = [each for each in json.loads(capsys.readouterr().out)["checks"] if each["name"] == "table"]
    assert (check["ok"], check["found"]) == (True, "Memory table at version 2")


def test_the_tables_file_keeps_to_what_it_can_do(memory: MemoryTable, tmp_path: Path) -> None:
    listing = {"folders": [{"path": str(tmp_path / "lake"), "jobs": ["optimize", "manifest"]}]}
    (table,) = WatchConfig.model_validate(listing).with_found(str).tables
    assert (table.format, table.jobs) == ("memory", ("optimize",))
    parted = {"tables": [{"path": memory.uri, "format": "memory", "partitions": {"name": "p", "values": ["a"]}}]}
    with pytest.raises(ValueError, match="Memory tables have no partitions"):
        WatchConfig.model_validate(parted)


def test_dagster_watches_it(memory: MemoryTable, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"name": "orders", "path": memory.uri, "format": "memory", "jobs": ["optimize"]}
    (table,) = WatchConfig.model_validate({"tables": [settings]}).tables
    assert "deletion_files" in check_names(table)
    definitions = dg.Definitions(
        assets=build_dv_assets([table]),
        asset_checks=build_dv_checks([table]),
        sensors=[build_dv_sensor([table])],
        resources={"spark": SparkResource(engine="local")},
    )
    observed = definitions.resolve_asset_graph().get(dg.AssetKey("orders"))
    assert observed.kinds >= {"ram"}
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance=instance, repository_def=definitions.get_repository_def())
        data = definitions.resolve_sensor_def("dv_accumulation").evaluate_tick(context)
    (request,) = data.run_requests or ()
    assert list(request.asset_selection or ()) == [dg.AssetKey(["orders", "dv", "orders_optimize"])]


def test_what_is_not_registered_is_named() -> None:
    with pytest.raises(UsageError, match="unknown table format 'memory'") as refusal:
        registry.format_called("memory")
    assert refusal.value.next_step == "use one of delta, lance, paimon, iceberg"
    assert registry.known_format("memory") is None
    assert registry.known_format(None) is None


def test_an_entry_point_adds_a_format(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        def load(self) -> registry.TableFormat:
            opener = registry.at_root("dv_maintenance.tables.delta.table:DeltaTable")
            return registry.TableFormat(name="outside", title="Outside", marker="_outside", open=opener)

    known = {each.name: each for each in registry.formats()}
    monkeypatch.setattr(registry, "_complete", False)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Entry()] if "table_formats" in group else [])
    try:
        assert [each.name for each in registry.formats()] == ["delta", "lance", "paimon", "iceberg", "outside"]
    finally:
        registry._known.clear()
        registry._known.update(known)


def test_a_folder_without_a_table_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(TableNotFoundError, match="looked for _delta_log, _versions, schema and metadata"):
        open_table(str(tmp_path))


def test_files_become_a_table_of_the_first_format_that_adopts_them(memory: MemoryTable, tmp_path: Path) -> None:
    assert open_adopting_table(str(tmp_path)).format == "delta"
    for name in ("delta", "lance", "paimon"):
        del registry._known[name]
    with pytest.raises(RefusedError, match="no known table format adopts"):
        open_adopting_table(memory.uri)


def test_the_doctor_tests_a_store_where_the_format_commits(
    memory: MemoryTable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tested: list[str] = []
    monkeypatch.setattr(memory.storage, "is_local", False)
    monkeypatch.setattr(Storage, "prove_put_if_absent", lambda storage, folder, anyhow: tested.append(folder))
    registry.register(replace(registry.format_called("memory"), commits="_memory"))
    cli.main(["doctor", memory.uri, "--try-writing", "--json"])
    assert tested == ["_memory"]
    assert "put-if-absent" in capsys.readouterr().out

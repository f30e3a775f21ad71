"""Names of a catalog in a file of tables: single tables, and schemas whose tables are found by a listing."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from support.unity import TOKEN, Unity

from dv_maintenance.cli import main
from dv_maintenance.errors import StorageUnavailableError, UsageError
from dv_maintenance.service.listing import Listing
from dv_maintenance.service.tables_file import TableSettings, WatchConfig
from dv_maintenance.testing.delta_builder import DeltaBuilder


def put(server: Unity, tmp_path: Path, name: str, rows: int = 10) -> Path:
    """An external table, which has a deletion vector."""
    place = tmp_path / "lake" / name
    builder = DeltaBuilder(str(place)).create(pa.schema([("id", pa.int64())]))
    builder.append(pa.table({"id": range(rows)}))
    builder.delete(lambda found: pa.array([row < 4 for row in found["id"].to_pylist()]))
    server.add(name, f"file://{place}", table_type="EXTERNAL")
    return place


@pytest.fixture
def lake(server: Unity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a file of tables, the only place where the catalog is described."""
    monkeypatch.delenv("DVM_CATALOGS")
    for name in ("main.sales.orders", "main.sales.returns", "main.shop.orders"):
        put(server, tmp_path, name)
    server.infos["main.sales.recent"] = {"table_type": "VIEW"}
    server.infos["main.sales.feed"] = {"table_type": "STREAMING_TABLE"}
    server.infos["main.sales.raw"] = {"table_type": "EXTERNAL", "data_source_format": "CSV"}
    server.infos["main.sales.secret"] = {"table_type": "MANAGED", "row_filter": {"function_name": "f"}}
    server.infos["main.sales.masked"] = {"table_type": "MANAGED", "columns": [{"name": "a", "mask": {"f": 1}}]}
    server.infos["main.sales.shared"] = {"table_type": "FOREIGN"}
    return tmp_path


def write(folder: Path, server: Unity, text: str, token: str = "${UC_TOKEN}") -> str:
    path = folder / "tables.yaml"
    path.write_text(f"catalogs:\n  uc: {{type: unity, uri: '{server.url}', token: '{token}'}}\n{text}\n")
    return str(path)


def test_a_table_is_opened_by_its_name(server: Unity, lake: Path) -> None:
    file = write(lake, server, "tables: [{table: uc.main.sales.orders}, {table: 'uc.main.`shop`.orders', name: shop}]")
    first, second = WatchConfig.load(file).tables
    assert (first.name, first.uri, first.path) == ("main/sales/orders", "uc.main.sales.orders", "")
    assert (second.name, second.uri) == ("shop", "uc.main.shop.orders")
    assert first.open().version() == 2
    assert TOKEN not in repr(first) + repr(WatchConfig.load(file))


def test_every_verb_that_takes_the_file(server: Unity, lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(lake, server, "tables: [{table: uc.main.sales.orders, name: orders}]")
    for verb in ("scan", "check", "check --open", "plan {} orders", "simulate", "watch --once"):
        name, _, more = verb.partition(" ")
        rest = more.format(file).split() if "{}" in more else [file, *more.split()]
        assert main([name, *rest, "--json"]) == 0, (verb, capsys.readouterr())
        shown = capsys.readouterr()
        json.loads(shown.out)
        assert TOKEN not in shown.out + shown.err
    assert main(["scan", file, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["tables"]
    assert (row["table"], row["files_with_dv"]) == ("uc.main.sales.orders", 1)


def test_the_tables_of_a_schema(server: Unity, lake: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = """
tables: [{table: uc.main.sales.orders, name: mine}]
folders:
- {schema: uc.main.sales, exclude: [sha*]}
- {schema: uc.main.shop, name: other}
"""
    found = WatchConfig.load(write(lake, server, text)).tables
    assert [(each.name, each.table, each.format) for each in found] == [
        ("mine", "uc.main.sales.orders", None),
        ("main/sales/returns", "uc.main.sales.returns", "delta"),
        ("other/orders", "uc.main.shop.orders", "delta"),
    ], "a table that is listed by name is not found again"
    assert "shared" not in caplog.text, "who excludes it need not hear of it"
    for said in (
        "recent (a view)",
        "feed (a streaming table)",
        "raw (a table of the format CSV)",
        "secret (a table with a row filter)",
        "masked (a table with column masks)",
    ):
        assert said in caplog.text
    assert found[1].open().version() == 2


def test_every_schema_of_a_catalog(server: Unity, lake: Path) -> None:
    server.page = 2
    file = write(lake, server, "folders: [{schema: 'uc.main.*', include: ['s*.orders']}]")
    found = WatchConfig.load(file).tables
    assert [each.name for each in found] == ["main/sales/orders", "main/shop/orders"]


def test_pages_are_followed_and_throttling_is_obeyed(server: Unity, lake: Path) -> None:
    for number in range(7):
        server.add(f"main.many.t{number}", f"file:///lake/{number}", table_type="EXTERNAL")
    server.page, server.faults = 3, ["throttle", "", "busy"]
    server.asked.clear()
    found = WatchConfig.load(write(lake, server, "folders: [{schema: uc.main.many}]")).tables
    assert [each.name for each in found] == [f"main/many/t{number}" for number in range(7)]
    assert len(server.asked) == 3 + 2, "three pages, two of which were asked for twice"


def test_pages_that_repeat_do_not_go_on_forever(server: Unity, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(server), "generic", lambda *_: {"tables": [{"name": "t"}], "next_page_token": "again"})
    with pytest.raises(StorageUnavailableError, match=r"pages repeat .*line 3"):
        WatchConfig.load(write(lake, server, "folders: [{schema: uc.main.many}]"))


def test_odd_names(server: Unity, lake: Path) -> None:
    put(server, lake, "main.odd schema.a b")
    (found,) = WatchConfig.load(write(lake, server, "folders: [{schema: uc.main.`odd schema`}]")).tables
    assert (found.name, found.table) == ("main/odd schema/a b", "uc.main.`odd schema`.`a b`")
    assert found.open().version() == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tables: [{table: other.main.sales.orders}]", "'other.main.sales.orders' begins with the name of no catalog"),
        ("tables: [{table: orders}]", "tables.0.table: write CATALOG"),
        ("tables: [{table: 'uc.main..orders'}]", "tables.0.table: write CATALOG"),
        ("tables: [{table: uc.main.s.t, path: here}]", "either a path or a table of a catalog, not both"),
        ("tables: [{name: t}]", "give either a path or a table"),
        ("folders: [{schema: other.main.sales}]", "begins with the name of no catalog"),
        ("folders: [{name: t}]", "give either a path or a schema"),
        ("folders: [{shema: uc.main.sales}]", "did you mean schema?"),
        ("tables: [{table: uc.main.s.t}, {table: uc.main.`s`.t, name: u}]", "two tables have the name 'uc.main.s.t'"),
    ],
)
def test_mistakes(server: Unity, lake: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        WatchConfig.load(write(lake, server, text))
    assert said in str(caught.value)
    assert "tables.yaml line 3" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("{type: unty, uri: 'https://h'}", "catalogs.uc.type"),
        ("{type: unity, uri: 'https://h', tokn: hush}", "catalogs.uc.tokn: unknown key"),
        ("{type: unity, uri: 'ftp://h', token: hush}", "catalogs.uc.uri"),
        ("{type: unity, token: hush}", "catalogs.uc.uri: Field required"),
        ("{type: unity, uri: 'https://h', token: '${NOT_SET_HERE}'}", "NOT_SET_HERE is not set"),
    ],
)
def test_mistakes_in_catalogs(tmp_path: Path, settings: str, said: str) -> None:
    (tmp_path / "tables.yaml").write_text(f"tables: [{{table: uc.main.s.t}}]\ncatalogs:\n  uc: {settings}\n")
    with pytest.raises(UsageError) as caught:
        WatchConfig.load(str(tmp_path / "tables.yaml"))
    assert said in str(caught.value)
    assert "line 3" in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_name_of_a_format_is_not_a_path(tmp_path: Path) -> None:
    (tmp_path / "tables.yaml").write_text(
        "tables: [{path: 'iceberg:prod.shop.orders'}, {table: 'iceberg:prod.shop.returns'}]\n"
    )
    found = WatchConfig.load(str(tmp_path / "tables.yaml")).tables
    assert [(each.name, each.uri) for each in found] == [
        ("shop/orders", "iceberg:prod.shop.orders"),
        ("shop/returns", "iceberg:prod.shop.returns"),
    ]


def test_a_name_that_no_catalog_has_is_never_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put_here = DeltaBuilder(str(tmp_path / "uc.main.s.t")).create(pa.schema([("id", pa.int64())]))
    del put_here
    with pytest.raises(UsageError, match="begins with the name of no catalog"):
        TableSettings(table="uc.main.s.t").open()


def test_a_listing_is_kept(server: Unity, lake: Path) -> None:
    file = write(lake, server, "folders: [{schema: uc.main.sales}]")
    ((config, document),) = WatchConfig.read(file)
    listing = Listing({})
    first = config.located(document.where, listing.finder(config, config))
    assert TOKEN not in listing.to_json()
    server.asked.clear()
    again = Listing.from_json(listing.to_json())
    assert config.located(document.where, again.finder(config, config)) == first
    assert not server.asked


def test_a_schema_is_scanned(
    server: Unity, lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DVM_CATALOGS", write(lake, server, "tables: []"))
    assert main(["scan", "uc.main.sales", "--json"]) == 0, capsys.readouterr()
    shown = capsys.readouterr()
    assert {each["name"] for each in json.loads(shown.out)["tables"]} == {"main/sales/orders", "main/sales/returns"}
    assert "recent (a view)" in shown.err

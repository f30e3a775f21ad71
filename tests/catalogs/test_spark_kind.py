"""The type ``spark`` without a session: how its tables are looked at, and what its settings mean. The judges of what it
commits are ``judges/test_iceberg_spark_kind.py``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.iceberg_pointers import iceberg_table, named_in_sqlite, newest_of
from support.iceberg_rest import RestCatalog, serving

from dv_maintenance.catalogs import from_plain, listed, located, secrets_of
from dv_maintenance.catalogs.spark import Settings
from dv_maintenance.cli import main
from dv_maintenance.config import Document
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.spark import SparkEngine, shared
from dv_maintenance.errors import RefusedError, UnsupportedFeatureError, UsageError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.health import health
from dv_maintenance.service.observe import Observer
from dv_maintenance.service.tables_file import WatchConfig
from dv_maintenance.tables import open_table
from dv_maintenance.tables.find import FoundTable
from dv_maintenance.testing.catalogs import CatalogCase, CatalogContract

SECRET = "hush-hush"


@pytest.fixture(autouse=True)
def no_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_needs", {})
    monkeypatch.setattr(shared, "running_session", lambda: None)


def conf_of(name: str, **properties: str) -> dict[str, str]:
    before = f"spark.sql.catalog.{name}"
    return {before: "org.apache.iceberg.spark.SparkCatalog", **{f"{before}.{k}": v for k, v in properties.items()}}


def in_database(folder: Path, name: str = "mine") -> dict[str, str]:
    """The settings of a JDBC catalog with a table, a table deeper down, and a view."""
    metadata = newest_of(iceberg_table(folder / "orders"))
    for namespace, table, kind in (("shop", "orders", "TABLE"), ("shop.north", "b", None), ("shop", "v", "VIEW")):
        named_in_sqlite(folder / "p.db", name, namespace, table, metadata, kind)
    named_in_sqlite(folder / "p.db", "others", "shop", "theirs", metadata, "TABLE")
    return conf_of(name, type="jdbc", uri=f"jdbc:sqlite:{folder}/p.db", **{"jdbc.password": SECRET})


class TestContract(CatalogContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> CatalogCase:
        nowhere = {"conf": conf_of("mine", type="jdbc", uri=f"jdbc:sqlite:{tmp_path}/none.db")}
        return CatalogCase("spark", {"conf": in_database(tmp_path)}, "shop", "orders", (SECRET,), nowhere)


def test_a_look_starts_nothing(tmp_path: Path, catalogs: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "session_for", lambda needs: pytest.fail(f"a session for {needs}"))
    catalogs(prod={"type": "spark", "conf": in_database(tmp_path, "prod")})
    table = open_table("prod.shop.orders")
    snapshot = table.snapshot()
    assert (table.uri, health(snapshot).counts.deleted_rows) == ((tmp_path / "orders").as_uri(), 3)
    table.check_writable(snapshot, "rewrite")
    assert [each.path for each in listed("prod.shop")] == ["orders"]
    assert [each.path for each in listed("prod.*")] == ["shop.north.b", "shop.orders"]
    assert open_table("prod.shop.north.b").version() == table.version()


def test_a_view_is_left_alone(tmp_path: Path, catalogs: Callable[..., None]) -> None:
    """Old catalogs do not tell one from a table."""
    (tmp_path / "v.json").write_text('{"view-uuid": "1", "location": "file:///v"}')
    named_in_sqlite(tmp_path / "p.db", "prod", "shop", "v", str(tmp_path / "v.json"), None)
    catalogs(prod={"type": "spark", "conf": conf_of("prod", type="jdbc", uri=f"jdbc:sqlite:{tmp_path}/p.db")})
    with pytest.raises(UnsupportedFeatureError, match=r"prod\.shop\.v is a view"):
        open_table("prod.shop.v")


@pytest.mark.parametrize("way", [{"type": "hadoop"}, {"catalog-impl": "org.apache.iceberg.hadoop.HadoopCatalog"}])
def test_a_folder_needs_no_session(tmp_path: Path, catalogs: Callable[..., None], way: Mapping[str, str]) -> None:
    iceberg_table(tmp_path / "shop" / "orders")
    catalogs(prod={"type": "spark", "conf": conf_of("prod", warehouse=f"file:{tmp_path}", **way)})
    assert purge(open_table("prod.shop.orders"), LocalEngine()).verified
    assert listed("prod.shop") == [FoundTable("orders", "iceberg")]
    assert listed("prod.*") == [FoundTable("shop.orders", "iceberg")]


def test_a_rest_server_needs_no_session(tmp_path: Path, catalogs: Callable[..., None]) -> None:
    iceberg_table(tmp_path / "t")
    server = RestCatalog(tmp_path / "t")
    with serving(server) as uri:
        catalogs(prod={"type": "spark", "conf": conf_of("prod", type="rest", uri=uri)})
        assert purge(open_table("prod.ns.t"), LocalEngine()).verified
    assert server.commits == 1


def test_a_hive_metastore_is_asked_itself(tmp_path: Path, catalogs: Callable[..., None]) -> None:
    from support.metastore import metastore

    place = newest_of(iceberg_table(tmp_path / "orders"))
    with metastore() as server:
        server.add("orders", {"table_type": "ICEBERG", "metadata_location": place}, str(tmp_path))
        server.add("plain", {}, "s3://b/plain")
        for conf in (
            conf_of("prod", type="hive", uri=server.url),
            {**conf_of("prod", type="hive"), "spark.hadoop.hive.metastore.uris": server.url},
        ):
            catalogs(prod={"type": "spark", "conf": conf})
            table = open_table("prod.shop.orders")
            table.check_writable(table.snapshot(), "rewrite")
            assert listed("prod.shop") == [FoundTable("orders", "iceberg")]


def test_without_a_way_to_ask_watching_says_so(catalogs: Callable[..., None]) -> None:
    catalogs(prod={"type": "spark", "conf": conf_of("prod", **{"catalog-impl": "org.projectnessie.Nessie"})})
    with shared.only_looking(), pytest.raises(RefusedError, match="watching starts none"):
        open_table("prod.shop.orders")
    with pytest.raises(UsageError, match=r"prod\.shop: only a Spark session could list it"):
        listed("prod.shop")


def test_without_a_package_a_verb_goes_to_the_session(
    tmp_path: Path, catalogs: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(shared, "session_for", lambda needs: asked.append(needs.catalog))
    monkeypatch.setitem(sys.modules, "psycopg", None)
    catalogs(prod={"type": "spark", "conf": conf_of("prod", type="jdbc", uri="jdbc:postgresql://h/d")})
    with pytest.raises(RefusedError, match="Spark Connect"):
        open_table("prod.shop.orders")
    assert asked == ["prod"]
    with shared.only_looking(), pytest.raises(RefusedError, match="driver of the catalog's database is not installed"):
        open_table("prod.shop.orders")


def test_a_schema_without_tables_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may appear later. What is no schema at all is an error of the catalog."""
    conf = in_database(tmp_path, "prod")
    (tmp_path / "tables.yaml").write_text(
        json.dumps({"catalogs": {"prod": {"type": "spark", "conf": conf}}, "folders": [{"schema": "prod.empty"}]})
    )
    assert main(["watch", str(tmp_path / "tables.yaml"), "--once", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tables"] == []
    assert "prod.empty: no table yet, or none that matches the patterns" in caplog.text
    named_in_sqlite(tmp_path / "p.db", "prod", "empty", "orders", newest_of(iceberg_table(tmp_path / "new")), None)
    assert main(["watch", str(tmp_path / "tables.yaml"), "--once", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["tables"]] == ["empty/orders"]


def test_one_table_by_path_and_by_name_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once it is open: the file alone does not show it."""
    iceberg_table(tmp_path / "shop" / "orders")
    iceberg_table(tmp_path / "shop" / "returns")
    conf = conf_of("prod", type="hadoop", warehouse=str(tmp_path))
    entries = [{"path": "shop/orders"}, {"path": "shop/returns"}, {"table": "prod.shop.orders"}]
    file = tmp_path / "tables.yaml"
    file.write_text(json.dumps({"catalogs": {"prod": {"type": "spark", "conf": conf}}, "tables": entries}))
    assert main(["check", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []
    assert main(["check", str(file), "--open", "--json"]) == 0
    place = (tmp_path / "shop" / "orders").as_uri()
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert warning == f"orders and shop/orders are the same table, at {place}: keep one of them"
    observer, config = Observer(data_versions=False), WatchConfig.load(str(file))
    for _ in range(2):
        for each in config.tables:
            observer.probe(each, None)
    said = [each.getMessage() for each in caplog.records if "the same table" in each.getMessage()]
    assert said == [f"orders and shop/orders are the same table, at {place}: work may be done twice, keep one of them"]
    assert {observer.place(config.tables[at]) for at in (0, 2)} == {place}


def test_what_a_commit_needs_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a session."""
    settings: dict[str, Any] = {
        "type": "spark",
        "conf": {**in_database(tmp_path, "prod"), "spark.jars": "/no/such.jar"},
    }
    file = tmp_path / "tables.yaml"
    file.write_text(json.dumps({"catalogs": {"prod": settings}, "tables": [{"table": "prod.shop.orders"}]}))
    assert main(["doctor", str(file), "shop/orders", "--json"]) == 1
    shown = {each["name"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    assert shown["commits"]["found"] == "by a Spark session"
    assert (shown["session"]["ok"], shown["table"]["ok"]) == (False, True)
    assert "the jar /no/such.jar of the catalog's spark.jars is not there" in shown["session"]["found"]
    assert main(["purge", str(file), "shop/orders", "--engine", "local"]) == 3, "before it rewrites anything"
    assert "the jar /no/such.jar" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"the jar /no/such\.jar"):
        shared.session_for(shared.Needs("prod", None, settings["conf"]))


def test_settings(catalogs: Callable[..., None]) -> None:
    settings = Settings.model_validate(
        {"type": "spark", "conf": {"spark.ui.enabled": False, "spark.task.cpus": 2, "x.password": SECRET}}
    )
    assert settings.conf == {"spark.ui.enabled": "false", "spark.task.cpus": "2", "x.password": SECRET}
    assert secrets_of(settings) == [SECRET]
    with pytest.raises(UsageError, match=r"catalogs\.p\.master: must not be Spark Connect"):
        from_plain({"p": {"type": "spark", "master": "sc://h"}}, "test")
    with pytest.raises(UsageError, match=r"write mine\.NAMESPACE\.TABLE"):
        located("mine.orders", {}, from_plain({"mine": {"type": "spark"}}, "test"))


def test_a_session_has_what_its_catalogs_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine starts it with its own settings, which go first; of jars it has both."""
    shared.needed(shared.Needs("a", "local[7]", {"spark.jars.packages": "p:a:1, p:b:1", "spark.x": "a"}))
    shared.needed(shared.Needs("b", None, {"spark.jars.packages": "p:b:1", "spark.y": "b"}))
    assert shared.completed({"spark.jars.packages": "p:c:1", "spark.x": "mine"}) == {
        "spark.jars.packages": "p:a:1,p:b:1,p:c:1",
        "spark.x": "mine",
        "spark.y": "b",
    }
    assert SparkEngine().slots == 7
    assert SparkEngine(master="local[2]").slots == 2
    engine, started = SparkEngine(master="local[2]"), object()
    monkeypatch.setattr(SparkEngine, "session", started)
    monkeypatch.setattr(shared, "_has", lambda *_: True)
    with shared.offered(lambda: engine), shared.offered(LocalEngine):
        assert shared.session_for(shared.Needs("a")) is started


def test_a_session_for_another_table_of_the_file_has_the_catalog(tmp_path: Path) -> None:
    """In a run over many tables the first one may start it."""
    catalogs = {
        "prod": {"type": "spark", "conf": {**in_database(tmp_path, "prod"), "spark.x": "1"}},
        "served": {"type": "spark", "conf": {"spark.sql.catalog.served.type": "rest", "spark.y": "1"}},
        "broken": {"type": "spark", "conf": {"spark.jars": "/no/such.jar", "spark.z": "1"}},
    }
    document = Document({"catalogs": catalogs, "tables": [{"path": "/lake/delta"}]}, "test")
    WatchConfig.of(document)
    assert {key for key in shared.completed({}) if "catalog" not in key} == {"spark.x"}


def test_a_session_that_does_not_start_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(master: str, conf: Mapping[str, str]) -> None:
        raise RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited\nmore")

    monkeypatch.setattr("dv_maintenance.engine.spark.session.start_session", start)
    with pytest.raises(RefusedError, match=r"no Spark session started for the catalog a \(RuntimeError: \[JAVA_GATEW"):
        shared.session_for(shared.Needs("a"))

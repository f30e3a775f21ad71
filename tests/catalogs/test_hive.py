"""Tables of a Hive metastore."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.answers import answering
from support.iceberg_pointers import iceberg_table, newest_of, of_version_2

from dv_maintenance.catalogs import configured
from dv_maintenance.catalogs.examination import examined
from dv_maintenance.catalogs.hive import Settings, listed, located
from dv_maintenance.cli import main
from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import (
    RefusedError,
    StorageDeniedError,
    StorageUnavailableError,
    TableNotFoundError,
    UnsupportedFeatureError,
    UsageError,
)
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.fsck.check import fsck
from dv_maintenance.maintenance.health import health
from dv_maintenance.tables import open_table
from dv_maintenance.tables.find import FoundTable
from dv_maintenance.testing.catalogs import CatalogCase, CatalogContract

if TYPE_CHECKING:
    from support.metastore import Metastore

DELTA = {"spark.sql.sources.provider": "delta"}


@pytest.fixture
def server(catalogs: Callable[..., None]) -> Iterator[Metastore]:
    from support.metastore import metastore  # two seconds of generated code

    with metastore() as made:
        catalogs(hive={"type": "hive", "uri": f"thrift://127.0.0.1:9, {made.url}", "user": "me"})
        yield made


@pytest.mark.parametrize("modern", [False, True])
def test_a_delta_table_is_maintained_by_name(
    server: Metastore, delta_table: str, modern: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first of two metastores is down."""
    server.modern = modern
    server.add("orders", DELTA, "file:/w/orders-__PLACEHOLDER__", path=f"file:{delta_table}")
    assert main(["purge", "hive.shop.orders", "--engine", "local"]) == 0, capsys.readouterr()
    table = open_table("hive.shop.orders")
    assert (table.uri, table.version()) == (Path(delta_table).as_uri(), 3)
    assert ("me", []) in server.asked


@pytest.mark.parametrize("modern", [False, True])
def test_a_database_is_listed(server: Metastore, modern: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dv_maintenance.catalogs.hive._AT_ONCE", 2)
    server.modern = modern
    server.add("orders", DELTA, "s3://b/orders")
    server.add("a.b", {"storage_handler": "org.apache.paimon.hive.PaimonStorageHandler"}, "s3://b/ab")
    server.add("ice", {"table_type": "ICEBERG", "metadata_location": "s3://b/ice/m.json"}, "s3://b/ice")
    server.add("in_folder", {"table_type": "ICEBERG"}, "s3://b/ice")
    server.add("plain", {}, "s3://b/plain")
    server.add("v", {}, tableType="VIRTUAL_VIEW")
    settings: Any = configured()["hive"]
    known = [
        FoundTable("`a.b`", "paimon"),
        FoundTable("ice", "iceberg"),
        FoundTable("in_folder", "", "an Iceberg table whose metadata the catalog does not name"),
        FoundTable("orders", "delta"),
        FoundTable("plain", "", "a Hive table"),
        FoundTable("v", "", "a view"),
    ]
    assert sorted(listed("hive.shop", settings)) == known
    assert [each for each in server.asked if isinstance(each, int)] == [2, 2, 2]
    assert {each.path for each in listed("hive.*", settings)} == {f"shop.{each.path}" for each in known}
    with pytest.raises(UnsupportedFeatureError, match=r"hive.shop.v is a view"):
        open_table("hive.shop.v")
    handle: Any = located("hive.shop.orders", settings, {})[1].catalog
    server.add("orders", DELTA, "s3://b/orders", createTime=2000)
    assert located("hive.shop.orders", settings, {})[1].catalog != handle


def test_an_iceberg_table_is_read_and_left_to_java(server: Metastore, tmp_path: Path) -> None:
    """Which takes the metastore's locks."""
    backend = iceberg_table(tmp_path / "orders")
    server.add("orders", {"table_type": "ICEBERG", "metadata_location": newest_of(backend)}, str(tmp_path))
    before = health(open_table("hive.shop.orders").snapshot()).counts
    assert (before.physical_rows, before.deleted_rows) == (20, 3)
    table = open_table("hive.shop.orders")
    backend.delete([5])
    assert health(table.snapshot()).counts == before, "the metastore knows of no later version"
    server.add("orders", {"table_type": "ICEBERG", "metadata_location": newest_of(backend)}, str(tmp_path))
    assert health(table.snapshot()).counts.deleted_rows == 4
    assert not fsck(table).files_damaged
    for verb in (lambda: purge(table, LocalEngine()), lambda: delete(table, LocalEngine(), "id = 7")):
        with pytest.raises(RefusedError, match=r"only Iceberg's Java classes take the locks .* one of the type spark"):
            verb()
    server.add("orders", {"table_type": "ICEBERG"}, str(tmp_path))
    with pytest.raises(UnsupportedFeatureError, match="whose metadata the catalog does not name") as caught:
        open_table("hive.shop.orders")
    assert caught.value.next_step == "give the table's folder"


def test_pyiceberg_commits_over_what_others_committed(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where locks are off (``engine.hive.lock-enabled``), Iceberg's Java classes let the metastore compare. pyiceberg
    names nothing to compare. Of version 3 it writes no metadata at all.
    """
    from hive_metastore.ttypes import LockResponse, LockState
    from pyiceberg.catalog.hive import HiveCatalog

    def name(metadata: str) -> None:
        server.add("orders", {"table_type": "ICEBERG", "metadata_location": metadata}, str(tmp_path))

    asked = []

    def alter(database: str, table: str, changed: Any, context: Any) -> None:
        asked.append((database, set(context.properties)))
        server.tables[table] = changed

    server.alter_table_with_environment_context = alter
    server.lock = lambda _: LockResponse(lockid=1, state=LockState.ACQUIRED)
    server.unlock = lambda _: None
    write = HiveCatalog._write_metadata

    def another_writer_meanwhile(*arguments: Any, **more: Any) -> None:
        write(*arguments, **more)
        name(of_version_2(tmp_path, {"theirs": "yes"}))

    monkeypatch.setattr(HiveCatalog, "_write_metadata", staticmethod(another_writer_meanwhile))
    name(of_version_2(tmp_path, {}))
    catalog = HiveCatalog("hive", uri=server.url)
    with catalog.load_table(("shop", "orders")).transaction() as transaction:
        transaction.set_properties(ours="yes")
    assert asked == [("shop", {"DO_NOT_UPDATE_STATS"})]
    assert catalog.load_table(("shop", "orders")).properties == {"ours": "yes"}, "theirs is lost"
    name(newest_of(iceberg_table(tmp_path / "three")))
    with (
        pytest.raises(NotImplementedError, match="Writing V3 is not yet supported"),
        catalog.load_table(("shop", "orders")).transaction() as transaction,
    ):
        transaction.set_properties(ours="yes")


def test_what_the_metastore_refuses_is_one_sentence(server: Metastore) -> None:
    settings: Any = configured()["hive"]
    with pytest.raises(TableNotFoundError, match=r"hive.shop.none: the metastore does not have it \(shop.none table"):
        open_table("hive.shop.none")
    with pytest.raises(TableNotFoundError, match=r"hive.none: the metastore does not have it \(database none\)"):
        list(listed("hive.none", settings))
    server.refusal = "Permission denied: user=me, access=READ\nat org.apache"
    with pytest.raises(StorageDeniedError, match=r"the metastore refused \(Permission denied: user=me, access=READ\)"):
        open_table("hive.shop.orders")
    server.refusal = "Unable to access the database"
    with pytest.raises(StorageUnavailableError, match="the metastore failed"):
        open_table("hive.shop.orders")


def test_what_is_no_metastore_is_said(catalogs: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dv_maintenance.catalogs.hive._SECONDS", 0.2)
    catalogs(hive={"type": "hive", "uri": "thrift://127.0.0.1:9"})
    with pytest.raises(StorageUnavailableError, match=r"hive.shop.orders: the metastore at thrift.* can't be reached"):
        open_table("hive.shop.orders")
    with answering(lambda _: (400, "no")) as page:
        catalogs(hive={"type": "hive", "uri": page.url.replace("http:", "thrift:")})
        with pytest.raises(StorageUnavailableError, match=r"hive.shop.orders: "):
            open_table("hive.shop.orders")
    catalogs(hive={"type": "hive", "uri": "http://h"})
    with pytest.raises(UsageError, match=r"catalogs.hive.uri: must be thrift://HOST:PORT"):
        open_table("hive.shop.orders")


def test_without_thrift_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hive_metastore.ThriftHiveMetastore", None)
    with pytest.raises(RefusedError) as caught:
        located("hive.shop.orders", Settings(type="hive", uri="thrift://h:1"), {})
    assert caught.value.next_step == "install dv-maintenance[hive]"


def test_what_the_user_may_do(server: Metastore, delta_table: str) -> None:
    server.add("orders", DELTA, f"file:{delta_table}", owner="you")
    assert [(each.check, each.ok, each.found) for each in examined("hive")] == [("catalog", True, "it answers")]
    shown = {each.check: each for each in examined("hive.shop.orders")}
    assert shown["table in the catalog"].found == f"delta at file://{delta_table}"
    assert (shown["right to read"].ok, shown["right to read"].found) == (True, "the metastore tells none as me")
    for privileges, ok in ((["INSERT"], False), (["INSERT", "SELECT"], True)):
        server.privileges = privileges
        right = {each.check: each for each in examined("hive.shop.orders")}["right to read"]
        assert (right.ok, right.found) == (ok, f"{', '.join(privileges)} as me")
        assert "GRANT SELECT ON TABLE shop.orders" in right.how
    server.add("orders", DELTA, f"file:{delta_table}", owner="me")
    server.privileges = None
    assert {each.check: each for each in examined("hive.shop.orders")}["right to read"].found == "ALL as me"
    server.refusal = "Permission denied"
    assert [each.ok for each in examined("hive")] == [False]


class TestContract(CatalogContract):
    @pytest.fixture
    def case(self, server: Metastore, delta_table: str) -> CatalogCase:
        server.add("orders", DELTA, f"file:{delta_table}")
        server.add("v", {}, tableType="VIRTUAL_VIEW")
        nowhere = {"uri": "thrift://127.0.0.1:9"}
        return CatalogCase("hive", {"uri": server.url}, "shop", "orders", unreachable=nowhere)

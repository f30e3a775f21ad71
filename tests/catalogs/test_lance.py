"""Tables of Lance namespaces: directories, and a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from support.answers import Answers, Request, answering

from dv_maintenance.catalogs import configured
from dv_maintenance.catalogs.lance import listed, located
from dv_maintenance.cli import main
from dv_maintenance.credentials import Keys, as_options
from dv_maintenance.errors import (
    DvMaintenanceError,
    RefusedError,
    StorageDeniedError,
    StorageUnavailableError,
    TableNotFoundError,
    UnsupportedFeatureError,
    UsageError,
)
from dv_maintenance.tables import open_table
from dv_maintenance.tables.find import FoundTable
from dv_maintenance.testing.catalogs import CatalogCase, CatalogContract

TOKEN = "token-of-the-test"


@pytest.fixture
def table(pylance: ModuleType, tmp_path: Path) -> str:
    place = str(tmp_path / "root" / "orders.lance")
    made = pylance.write_dataset(pa.table({"id": range(100)}), place)
    made.delete("id < 60")
    return place


def test_a_directory_is_a_namespace(
    table: str, tmp_path: Path, catalogs: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    catalogs(lance={"type": "lance", "root": str(tmp_path / "root")})
    assert main(["health", "lance.orders", "--json"]) == 0, capsys.readouterr()
    settings: Any = configured()["lance"]
    assert list(listed("lance.*", settings)) == [FoundTable("orders", "lance")]
    assert main(["purge", "lance.orders", "--engine", "local"]) == 0, capsys.readouterr()
    assert open_table("lance.orders").version() > 2
    assert open_table("lance.orders").uri == Path(table).as_uri()
    with pytest.raises(TableNotFoundError, match=r"lance\.none: the namespace has no such table"):
        open_table("lance.none")
    with pytest.raises(UsageError, match="is not the name of a namespace"):
        list(listed("lance", settings))


class Double:
    """The server of a namespace with the table ``shop.orders``."""

    def __init__(self, place: str) -> None:
        self.described: dict[str, Any] = {"location": place}
        self.newest = 2
        self.others: list[str] = []

    def __call__(self, request: Request) -> tuple[int, Any]:
        assert request.headers.get("authorization") == f"Bearer {TOKEN}"
        match request.path:
            case "/v1/table/shop$orders/describe":
                return 200, self.described
            case "/v1/table/shop$orders/version/list":
                return 200, {"versions": [{"version": self.newest, "manifest_path": "m"}]}
            case "/v1/namespace/$/list":
                return 200, {"namespaces": ["shop"]}
            case "/v1/namespace/shop/table/list":
                more = "page_token" in request.query
                return 200, {"tables": ["orders"]} if more else {"tables": self.others, "page_token": "two"}
            case "/v1/namespace/$/table/list" | "/v1/namespace/shop/list":
                return 200, {"tables": [], "namespaces": []}
        return 404, {"error": "not there", "code": 4}


@pytest.fixture
def double(table: str) -> Double:
    return Double(table)


@pytest.fixture
def server(double: Double, catalogs: Callable[..., None]) -> Iterator[Answers]:
    with answering(double) as made:
        catalogs(ns={"type": "lance", "uri": made.url, "token": TOKEN})
        yield made


def test_a_server_names_tables(server: Answers, double: Double) -> None:
    double.others = ["a.b"]
    assert open_table("ns.shop.orders").version() == 2
    settings: Any = configured()["ns"]
    assert list(listed("ns.shop", settings)) == [FoundTable("`a.b`", "lance"), FoundTable("orders", "lance")]
    assert [each.path for each in listed("ns.*", settings)] == ["shop.`a.b`", "shop.orders"]
    with pytest.raises(TableNotFoundError):
        open_table("ns.shop.none")
    assert TOKEN not in repr(settings)


def test_a_namespace_that_makes_the_versions_is_not_written_past(
    server: Answers, double: Double, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    double.described["managed_versioning"] = True
    assert main(["health", "ns.shop.orders", "--json"]) == 0, capsys.readouterr()
    before = sorted(Path(table).rglob("*"))
    for verb in (
        ["plan"],
        ["purge", "--engine", "local"],
        ["vacuum"],
        ["delete", "--where", "id=61", "--engine=local"],
    ):
        assert main([verb[0], "ns.shop.orders", *verb[1:]]) == 3, verb
        assert "ns makes the versions of this table itself" in capsys.readouterr().err
    assert sorted(Path(table).rglob("*")) == before
    double.newest = 3
    with pytest.raises(UnsupportedFeatureError, match="version 3 is the newest, and the files say otherwise"):
        open_table("ns.shop.orders")


def test_a_declared_table_is_left_alone(server: Answers, double: Double) -> None:
    double.described["is_only_declared"] = True
    with pytest.raises(UnsupportedFeatureError, match="only declared"):
        open_table("ns.shop.orders")


def test_keys_of_the_namespace_reach_lances_library(
    server: Answers,
    double: Double,
    pylance: ModuleType,
    s3: tuple[str, dict[str, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = f"{s3[0]}/{tmp_path.name}/orders.lance"
    pylance.write_dataset(pa.table({"id": range(100)}), place, storage_options=s3[1]).delete("id < 60")
    keys = {key: value for key, value in s3[1].items() if "key" in key}
    double.described = {"location": place, "storage_options": {**keys, "expires_at_millis": "4102444800000"}}
    reach = [f"--storage-option={key}={value}" for key, value in s3[1].items() if key not in keys]
    assert main(["purge", "ns.shop.orders", "--engine", "local", *reach]) == 0, capsys.readouterr()
    assert pylance.dataset(place, storage_options=s3[1]).version > 2
    shown = capsys.readouterr()
    assert keys["aws_secret_access_key"] not in shown.out + shown.err


def test_keys_of_the_namespace_are_renewed(server: Answers, double: Double) -> None:
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "hush-hush", "aws_session_token": "t"}
    double.described = {
        "location": "s3://lake/orders",
        "storage_options": {**keys, "aws_region": "here", "expires_at_millis": "4102444800000"},
    }
    settings: Any = configured()["ns"]
    storage = located("ns.shop.orders", settings, {"aws_endpoint": "http://e"})[1].storage
    assert {"aws_region", "aws_endpoint"} <= storage.options.keys()
    assert "hush-hush" not in f"{storage!r}{storage.options}", "asked for when they are needed"
    vended = Keys(storage.options)()
    assert (vended["access_key_id"], vended["token"], vended["expires_at"].year) == ("k", "t", 2100)
    assert as_options(storage.options) == {"aws_region": "here", "aws_endpoint": "http://e", **keys}
    own = located("ns.shop.orders", settings, {"aws_access_key_id": "mine"})[1].storage
    assert Keys(storage.options).name == "ns.shop.orders"
    assert own.options == {"aws_region": "here", "aws_access_key_id": "mine"}


@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        ((404, {"error": "no table", "code": 4}), TableNotFoundError, "no such table"),
        (403, StorageDeniedError, "refused .HTTP status 403"),
        ((401, {"error": "who", "code": 16}), StorageDeniedError, "refused .Unauthenticated"),
        (503, StorageUnavailableError, "HTTP status 503"),
        ((200, "<html>"), StorageUnavailableError, "did not answer as expected"),
        ((200, {}), StorageUnavailableError, "no location"),
    ],
)
def test_what_the_server_refuses_is_one_sentence(
    server: Answers, fault: Any, error: type[DvMaintenanceError], said: str
) -> None:
    server.faults = [fault] * 5
    with pytest.raises(error, match=said) as caught:
        open_table("ns.shop.orders")
    assert str(caught.value).startswith("ns.shop.orders: ")
    assert caught.value.next_step
    assert TOKEN not in f"{caught.value}{caught.value.next_step}"


def test_settings_that_are_wrong(catalogs: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    catalogs(ns={"type": "lance"})
    with pytest.raises(UsageError, match="give either 'root', for a directory, or 'uri', for a server"):
        open_table("ns.t")
    catalogs(ns={"type": "lance", "uri": "http://elsewhere.example", "token": TOKEN})
    with pytest.raises(UsageError, match="unencrypted"):
        open_table("ns.t")
    catalogs(ns={"type": "lance", "uri": "http://127.0.0.1:9"})
    with pytest.raises(StorageUnavailableError, match="ServiceUnavailable"):
        open_table("ns.t")
    monkeypatch.setitem(__import__("sys").modules, "lance_namespace", None)
    with pytest.raises(RefusedError) as caught:
        open_table("ns.t")
    assert caught.value.next_step == "install dv-maintenance[lance]"


class TestDirectory(CatalogContract):
    @pytest.fixture
    def case(self, table: str) -> CatalogCase:
        return CatalogCase("lance", {"root": str(Path(table).parent)}, "", "orders")


class TestServer(CatalogContract):
    @pytest.fixture
    def case(self, server: Answers) -> CatalogCase:
        nowhere = {"uri": "http://127.0.0.1:9", "token": TOKEN}
        return CatalogCase("lance", {"uri": server.url, "token": TOKEN}, "shop", "orders", (TOKEN,), nowhere)

"""Generic tables of Polaris, by a server after its OpenAPI."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from support.answers import Answers, Request, answering

from dv_maintenance.catalogs import configured
from dv_maintenance.catalogs.polaris import listed, located, vend
from dv_maintenance.cli import main
from dv_maintenance.credentials import Keys
from dv_maintenance.errors import (
    DamagedTableError,
    DvMaintenanceError,
    StorageDeniedError,
    StorageUnavailableError,
    TableNotFoundError,
    UnsupportedFeatureError,
    UsageError,
)
from dv_maintenance.tables import open_table
from dv_maintenance.tables.find import FoundTable
from dv_maintenance.testing.catalogs import CatalogCase, CatalogContract

SECRET = "hush-hush"
START = "/api/catalog/polaris/v1/lake/namespaces/"


class Double:
    """Its namespace ``shop`` has tables, and its namespace ``shop.north`` one more."""

    def __init__(self, place: str) -> None:
        self.tables: dict[str, dict[str, Any]] = {
            "orders": {"format": "delta", "base-location": Path(place).as_uri()},
            "a.b": {"format": "csv", "base-location": "s3://lake/csv"},
        }
        self.credentials: dict[str, Any] = {}
        self.tokens = ["first"]
        self.given = 0

    def __call__(self, request: Request) -> tuple[int, Any]:
        if request.path == "/api/catalog/v1/oauth/tokens":
            form = parse_qs(request.body.decode())
            if form["client_secret"] != [SECRET]:
                return 401, {"error": "unauthorized_client", "error_description": "who"}
            assert form["scope"] == ["PRINCIPAL_ROLE:ALL"]
            self.given += 1
            return 200, {"access_token": self.tokens[-1], "token_type": "bearer", "expires_in": 3600}
        if request.headers.get("authorization") != f"Bearer {self.tokens[-1]}":
            return 401, {"error": {"message": "not this one", "type": "NotAuthorizedException", "code": 401}}
        assert request.headers.get("polaris-realm") == "R"
        return self._asked(request)

    def _asked(self, request: Request) -> tuple[int, Any]:
        if request.path == "/api/catalog/v1/lake/namespaces":
            below = {"": [["shop"]], "shop": [["shop", "north"]]}
            return 200, {"namespaces": below.get(request.query.get("parent", ""), [])}
        if request.path == f"{START}shop/generic-tables":
            page = [["orders"], ["a.b"]][int(request.query.get("pageToken", "0"))]
            more = None if "pageToken" in request.query else "1"
            identifiers = [{"namespace": ["shop"], "name": each} for each in page]
            return 200, {"identifiers": identifiers, "next-page-token": more}
        if request.path == f"{START}shop\x1fnorth/generic-tables":
            return 200, {"identifiers": [{"namespace": ["shop", "north"], "name": "orders"}]}
        namespace, _, table = request.path.removeprefix(START).partition("/generic-tables/")
        if namespace in {"shop", "shop\x1fnorth"} and table in self.tables:
            asked = request.headers.get("polaris-generic-table-access-delegation") == "vended-credentials"
            return 200, {"table": {"name": table, **self.tables[table]}, **(self.credentials if asked else {})}
        return 404, {"error": {"message": "Table does not exist", "type": "NoSuchTableException", "code": 404}}


@pytest.fixture
def double(delta_table: str) -> Double:
    return Double(delta_table)


@pytest.fixture
def server(double: Double, catalogs: Callable[..., None]) -> Iterator[Answers]:
    with answering(double) as made:
        given = {"type": "polaris", "uri": f"{made.url}/api/catalog/", "warehouse": "lake", "realm": "R"}
        catalogs(pol={**given, "client_id": "c", "client_secret": SECRET})
        yield made


def test_a_delta_table_is_maintained_by_name(
    server: Answers, double: Double, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["purge", "pol.shop.orders", "--engine", "local"]) == 0, capsys.readouterr()
    assert main(["health", "pol.shop.north.orders", "--json"]) == 0
    shown = capsys.readouterr()
    assert SECRET not in shown.out + shown.err
    assert open_table("pol.shop.orders").version() == 3
    assert double.given == 1, "a token is kept"
    double.tokens.append("second")
    assert open_table("pol.shop.orders").version() == 3, "one that the server no longer takes is replaced"
    assert double.given == 2


def test_namespaces_are_listed_with_pages(server: Answers) -> None:
    settings: Any = configured()["pol"]
    csv = FoundTable("`a.b`", "", "a table of the format csv")
    assert list(listed("pol.shop", settings)) == [FoundTable("orders", "delta"), csv]
    assert sorted(each.path for each in listed("pol.*", settings)) == ["shop.`a.b`", "shop.north.orders", "shop.orders"]
    assert [each.path for each in listed("pol.shop.*", settings)] == ["orders", "`a.b`", "north.orders"]
    with pytest.raises(TableNotFoundError, match="no such namespace"):
        list(listed("pol.none", settings))
    with pytest.raises(UsageError, match="is not the name of a namespace"):
        list(listed("pol", settings))
    with pytest.raises(UsageError, match="not the name of a table in Polaris"):
        located("pol.t", settings, {})


def test_what_is_not_maintained(server: Answers, double: Double) -> None:
    with pytest.raises(UnsupportedFeatureError, match="a table of the format csv, which is left alone"):
        open_table("pol.shop.`a.b`")
    with pytest.raises(TableNotFoundError, match=r"no such table \(Table does not exist\)") as caught:
        open_table("pol.shop.none")
    assert "iceberg:CATALOG.NAMESPACE.TABLE" in str(caught.value.next_step)
    del double.tables["orders"]["base-location"]
    with pytest.raises(DamagedTableError, match="no location"):
        open_table("pol.shop.orders")


@pytest.mark.parametrize("key", ["storage-credentials", "storage-access-configs"])
def test_keys_are_vended(server: Answers, double: Double, key: str) -> None:
    double.tables["orders"]["base-location"] = "s3a://lake/sales/orders"
    keys = {"s3.access-key-id": "near", "s3.secret-access-key": "x", "s3.session-token": "t", "client.region": "here"}
    double.credentials = {
        key: [
            {"prefix": "s3://lake", "config": {"s3.access-key-id": "far"}},
            {"prefix": "s3://lake/sales/", "config": {**keys, "s3.session-token-expires-at-ms": "4102444800000"}},
        ]
    }
    settings: Any = configured()["pol"]
    storage = located("pol.shop.orders", settings, {})[1].storage
    assert (storage.uri, storage.options["aws_region"]) == ("s3://lake/sales/orders", "here")
    found = Keys(storage.options)()
    assert (found["access_key_id"], found["token"], found["expires_at"].year) == ("near", "t", 2100)
    own = located("pol.shop.orders", settings, {"aws_access_key_id": "mine"})[1].storage.options
    assert own == {"aws_region": "here", "aws_access_key_id": "mine"}
    double.credentials = {}
    assert located("pol.shop.orders", settings, {})[1].storage.options == {}, "the server vends none"
    with pytest.raises(StorageDeniedError, match="vends no keys for s3://lake/sales/orders"):
        vend(storage.options)
    azure = {"adls.sas-token.acc.dfs.core.windows.net": "s", "adls.sas-token-expires-at-ms.acc": "4102444800000"}
    double.credentials = {key: [{"prefix": "s3://lake", "config": azure}]}
    assert vend(storage.options)["sas_token"] == "s"


@pytest.mark.parametrize(
    ("faults", "error", "said"),
    [
        ([401], StorageDeniedError, "gives no token to the client"),
        ([(200, {"access_token": "first"}), 403], StorageDeniedError, "refused .HTTP status 403"),
        ([503] * 3, StorageUnavailableError, "HTTP status 503"),
        ([(200, "<html>")] * 3, StorageUnavailableError, "not JSON"),
        ([(200, {"access_token": "first"}), (200, {})], StorageUnavailableError, "not one of Polaris"),
    ],
)
def test_what_the_server_refuses_is_one_sentence(
    server: Answers, faults: list[Any], error: type[DvMaintenanceError], said: str
) -> None:
    server.faults = list(faults)
    with pytest.raises(error, match=said) as caught:
        open_table("pol.shop.orders")
    assert str(caught.value).startswith("pol.shop.orders: ")
    assert caught.value.next_step
    assert SECRET not in f"{caught.value}{caught.value.next_step}"


def test_settings_that_are_wrong(catalogs: Callable[..., None]) -> None:
    given = {"type": "polaris", "uri": "http://elsewhere.example", "warehouse": "lake"}
    catalogs(pol={**given, "client_id": "c"})
    with pytest.raises(UsageError, match="give a 'token', or a 'client_id' and a 'client_secret'"):
        open_table("pol.shop.orders")
    catalogs(pol={**given, "client_id": "c", "client_secret": SECRET})
    with pytest.raises(UsageError, match=r"a secret would go to elsewhere\.example unencrypted"):
        open_table("pol.shop.orders")


class TestContract(CatalogContract):
    @pytest.fixture
    def case(self, server: Answers) -> CatalogCase:
        given = {"warehouse": "lake", "realm": "R", "client_id": "c", "client_secret": SECRET}
        nowhere = {**given, "uri": "http://127.0.0.1:9"}
        return CatalogCase(
            "polaris", {**given, "uri": f"{server.url}/api/catalog"}, "shop", "orders", (SECRET,), nowhere
        )

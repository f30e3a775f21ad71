"""Tables of Gravitino, as its server answers."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.answers import Answers, Request, answering

from dv_maintenance.catalogs import configured, listed
from dv_maintenance.cli import main
from dv_maintenance.errors import (
    DamagedTableError,
    StorageDeniedError,
    StorageUnavailableError,
    TableNotFoundError,
    UnsupportedFeatureError,
    UsageError,
)
from dv_maintenance.tables import open_table
from dv_maintenance.tables.find import FoundTable
from dv_maintenance.testing.catalogs import CatalogCase, CatalogContract

START = "/api/metalakes/lake/catalogs/files/schemas"
SECRET = "hush-hush"


class Double:
    """Its catalog ``files`` has the schemas ``shop``, with tables, and ``none`` without one."""

    def __init__(self, place: str) -> None:
        self.tables: dict[str, dict[str, str]] = {
            "orders": {"format": "DELTA", "location": Path(place).as_uri(), "external": "true"},
            "a.b/c": {"format": "hudi", "location": "s3://lake/hudi"},
        }
        self.who = f"Basic {b64encode(b'ops:none').decode()}"

    def __call__(self, request: Request) -> tuple[int, Any]:
        if request.path == "/oauth":
            return 200, {"access_token": "t1", "expires_in": 3600}
        if request.headers.get("authorization") != self.who:
            return 401, {"code": 1000, "type": "UnauthorizedException", "message": "who"}
        assert request.headers["accept"] == "application/vnd.gravitino.v1+json"
        above = ["lake", "files"]
        if request.path == START.removesuffix("/files/schemas"):
            assert request.query == {"details": "true"}
            kinds = {"files": "RELATIONAL", "models": "MODEL"}
            return 200, {"code": 0, "catalogs": [{"name": name, "type": kind} for name, kind in kinds.items()]}
        if request.path == START:
            return 200, {"code": 0, "identifiers": [{"namespace": above, "name": each} for each in ("shop", "none")]}
        if request.path in (f"{START}/shop/tables", f"{START}/none/tables"):
            names = self.tables if "/shop/" in request.path else ()
            return 200, {"code": 0, "identifiers": [{"namespace": [*above, "shop"], "name": each} for each in names]}
        table = request.path.removeprefix(f"{START}/shop/tables/")
        if table in self.tables:
            return 200, {"code": 0, "table": {"name": table, "columns": [], "properties": self.tables[table]}}
        return 404, {"code": 1003, "type": "NoSuchTableException", "message": "it does not exist"}


@pytest.fixture
def double(delta_table: str) -> Double:
    return Double(delta_table)


@pytest.fixture
def server(double: Double, catalogs: Callable[..., None]) -> Iterator[Answers]:
    with answering(double) as made:
        catalogs(grav={"type": "gravitino", "uri": f"{made.url}/", "metalake": "lake", "user": "ops"})
        yield made


def test_a_delta_table_is_maintained_by_name(server: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["purge", "grav.files.shop.orders", "--engine", "local"]) == 0, capsys.readouterr()
    assert open_table("grav.files.shop.orders").version() == 3


def test_schemas_are_listed(server: Answers) -> None:
    settings = configured()
    hudi = FoundTable("`a.b/c`", "", "a table of the format hudi")
    assert list(listed("grav.files.shop", settings)) == [hudi, FoundTable("orders", "delta")]
    assert [each.path for each in listed("grav.files.*", settings)] == ["shop.`a.b/c`", "shop.orders"]
    assert list(listed("grav.files.none", settings)) == []
    with pytest.raises(TableNotFoundError, match="no such schema") as caught:
        list(listed("grav.files.other", settings))
    assert "metalake lake" in str(caught.value.next_step)
    with pytest.raises(UsageError, match="not the name of a table in Gravitino"):
        open_table("grav.shop.orders")


def test_what_is_not_maintained(server: Answers, double: Double) -> None:
    with pytest.raises(UnsupportedFeatureError, match="a table of the format hudi, which is left alone"):
        open_table("grav.files.shop.`a.b/c`")
    del double.tables["orders"]["location"]
    with pytest.raises(DamagedTableError, match="no location"):
        open_table("grav.files.shop.orders")
    del double.tables["orders"]["format"]
    with pytest.raises(UnsupportedFeatureError, match="a table of the format none"):
        open_table("grav.files.shop.orders")
    server.faults.append((200, {"code": 0}))
    with pytest.raises(StorageUnavailableError, match="not one of Gravitino"):
        open_table("grav.files.shop.orders")


def test_a_client_gets_its_token_elsewhere(
    server: Answers, double: Double, catalogs: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StorageDeniedError, match="who"):
        double.who = "Bearer t1"
        open_table("grav.files.shop.orders")
    given = {"type": "gravitino", "uri": server.url, "metalake": "lake", "client_id": "c", "client_secret": SECRET}
    catalogs(grav={**given, "oauth2_server_uri": f"{server.url}/oauth"})
    assert main(["health", "grav.files.shop.orders", "--json"]) == 0
    shown = capsys.readouterr()
    assert SECRET not in shown.out + shown.err
    two = {"oauth2_server_uri": "http://h", "user": "u"}
    for wrong, why in (({}, "needs 'oauth2_server_uri'"), (two, "give a 'user'")):
        catalogs(grav={**given, **wrong})
        with pytest.raises(UsageError, match=why):
            open_table("grav.files.shop.orders")


class TestContract(CatalogContract):
    @pytest.fixture
    def case(self, server: Answers) -> CatalogCase:
        given = {"metalake": "lake", "user": "ops"}
        nowhere = {**given, "uri": "http://127.0.0.1:9"}
        return CatalogCase("gravitino", {**given, "uri": server.url}, "files.shop", "orders", (), nowhere)

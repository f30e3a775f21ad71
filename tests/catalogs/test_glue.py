"""Tables of Glue: the emulator moto, and a server with faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.answers import Answers, Request, answering
from support.object_stores import KEYS

from dv_maintenance.catalogs import glue
from dv_maintenance.catalogs.glue import Settings, listed, located, vend
from dv_maintenance.cli import main
from dv_maintenance.errors import (
    DvMaintenanceError,
    RefusedError,
    StorageDeniedError,
    StorageUnavailableError,
    TableNotFoundError,
    UnsupportedFeatureError,
    UsageError,
)
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.find import FoundTable
from dv_maintenance.testing.catalogs import CatalogCase, CatalogContract

SECRET = KEYS["aws_secret_access_key"]
DELTA = {"spark.sql.sources.provider": "delta"}


def add(client: Any, name: str, place: str, parameters: dict[str, str], path: str = "", **more: Any) -> None:
    serde = {"SerdeInfo": {"Parameters": {"path": path}}} if path else {}
    table = {"Name": name, "TableType": "EXTERNAL_TABLE", "Parameters": parameters, **more}
    client.create_table(DatabaseName="shop", TableInput={**table, "StorageDescriptor": {"Location": place, **serde}})


def test_a_table_in_s3_is_maintained_by_name(
    shop: Any, s3: tuple[str, dict[str, str]], delta_table: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With the keys that boto3 finds."""
    place = f"{s3[0]}/{tmp_path.name}/orders"
    for each in (path for path in Path(delta_table).rglob("*") if path.is_file()):
        Storage(place, s3[1]).put(str(each.relative_to(delta_table)), each.read_bytes())
    add(shop, "orders", "s3://w/shop.db/orders-__PLACEHOLDER__", DELTA, path=place.replace("s3:", "s3a:"))
    reach = [f"--storage-option={key}={s3[1][key]}" for key in ("aws_endpoint", "allow_http")]
    assert main(["purge", "glue.shop.orders", "--engine", "local", *reach]) == 0, capsys.readouterr()
    assert main(["health", "glue.shop.orders", "--json", *reach]) == 0
    shown = capsys.readouterr()
    assert SECRET not in shown.out + shown.err
    table = open_table("glue.shop.orders", storage_options={key: s3[1][key] for key in ("aws_endpoint", "allow_http")})
    assert table.version() == 3, "purged"


def test_keys_of_a_profile_reach_the_files(
    shop: Any,
    s3: tuple[str, dict[str, str]],
    catalogs: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Which the store does not find by itself."""
    place = f"{s3[0]}/{tmp_path.name}/orders"
    Storage(place, s3[1]).put("_delta_log/kept", b"1")
    add(shop, "orders", place, DELTA)
    (tmp_path / "credentials").write_text(f"[work]\naws_access_key_id = test\naws_secret_access_key = {SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for each in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(each)
    settings = Settings(type="glue", profile="work", region="us-east-1", endpoint=shop.meta.endpoint_url)
    reach = {key: s3[1][key] for key in ("aws_endpoint", "allow_http")}
    storage = located("glue.shop.orders", settings, reach)[1].storage
    assert storage.get("_delta_log/kept") == b"1"
    assert SECRET not in str(storage.options), "each process asks for itself"
    assert vend(storage.options)["secret_access_key"] == SECRET


def test_a_local_table_needs_no_keys(shop: Any, delta_table: str) -> None:
    add(shop, "orders", f"file://{delta_table}", DELTA)
    table = open_table("glue.shop.orders")
    assert (table.version(), table.storage.options) == (2, {"aws_region": "us-east-1"})


def test_a_database_is_listed(shop: Any) -> None:
    add(shop, "orders", "s3://b/orders", DELTA)
    add(shop, "a.b", "s3://b/ab", {"table_type": "PAIMON"})
    add(shop, "ice", "s3://b/ice", {"table_type": "ICEBERG", "metadata_location": "s3://b/m"})
    add(shop, "plain", "s3://b/plain", {"classification": "csv"})
    shop.create_table(DatabaseName="shop", TableInput={"Name": "v", "TableType": "VIRTUAL_VIEW"})
    link = {"CatalogId": "123456789012", "DatabaseName": "shop", "Name": "orders"}
    shop.create_table(DatabaseName="shop", TableInput={"Name": "link", "TargetTable": link})
    settings = Settings(type="glue", region="us-east-1", endpoint=shop.meta.endpoint_url)
    known = sorted(listed("glue.shop", settings))
    assert known == [
        FoundTable("`a.b`", "paimon"),
        FoundTable("ice", "iceberg"),
        FoundTable("link", "", "a link to a table elsewhere"),
        FoundTable("orders", "delta"),
        FoundTable("plain", "", "a Hive table"),
        FoundTable("v", "", "a view"),
    ]
    assert FoundTable("shop.orders", "delta") in list(listed("glue.*", settings))
    with pytest.raises(UnsupportedFeatureError, match=r"glue.shop.v is a view, which is left alone"):
        open_table("glue.shop.v")
    assert located("glue.shop.link", settings, {})[1].storage.uri == "s3://b/orders"


def test_a_table_created_again_has_another_identity(shop: Any) -> None:
    settings = Settings(type="glue", region="us-east-1", endpoint=shop.meta.endpoint_url)
    made = []
    for _ in range(2):
        add(shop, "orders", "s3://b/orders", DELTA)
        handle: Any = located("glue.shop.orders", settings, {})[1].catalog
        made.append((handle.name, handle.identity))
        shop.delete_table(DatabaseName="shop", Name="orders")
    assert made[0] != made[1]
    assert made[0][0] == "glue.shop.orders"


@pytest.fixture
def server(own_keys: None) -> Iterator[Answers]:
    def answer(request: Request) -> tuple[int, Any]:
        assert request.headers["x-amz-target"] == "AWSGlue.GetTables"
        at = int(request.object.get("NextToken", "0"))
        more = {"NextToken": str(at + 1)} if at < 2 else {}
        return 200, {"TableList": [{"Name": f"t{at}", "Parameters": DELTA}], **more}

    with answering(answer) as made:
        yield made


def test_pages_are_followed(server: Answers) -> None:
    settings = Settings(type="glue", region="r", endpoint=server.url, catalog_id="123456789012")
    assert [each.path for each in listed("glue.shop", settings)] == ["t0", "t1", "t2"]
    assert {each.object["CatalogId"] for each in server.asked} == {"123456789012"}


@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        ((400, {"__type": "EntityNotFoundException", "Message": "no shop"}), TableNotFoundError, "does not have it"),
        ((400, {"__type": "AccessDeniedException", "Message": "not you"}), StorageDeniedError, "not you"),
        (403, StorageDeniedError, "Glue refused .HTTP status 403"),
        ((400, {"__type": "ThrottlingException", "Message": "slow"}), StorageUnavailableError, "Throttling"),
        (503, StorageUnavailableError, "did not answer .503"),
        ((200, "<html>"), StorageUnavailableError, "the answer is not Glue's"),
    ],
)
def test_what_the_server_refuses_is_one_sentence(
    server: Answers, fault: Any, error: type[DvMaintenanceError], said: str
) -> None:
    server.faults = [fault] * 3
    with pytest.raises(error, match=said) as caught:
        list(listed("glue.shop", Settings(type="glue", region="r", endpoint=server.url)))
    assert str(caught.value).startswith("glue.shop: ")
    assert caught.value.next_step
    assert SECRET not in f"{caught.value}{caught.value.next_step}"


def test_what_boto3_lacks_is_said(own_keys: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="boto3 finds no region"):
        list(listed("glue.shop", Settings(type="glue")))
    with pytest.raises(UsageError, match="nobody"):
        list(listed("glue.shop", Settings(type="glue", region="r", profile="nobody")))
    with pytest.raises(StorageUnavailableError, match="can't be reached"):
        list(listed("glue.shop", Settings(type="glue", region="r", endpoint="http://127.0.0.1:9")))
    with pytest.raises(UsageError, match=r"write glue\.DATABASE\.TABLE"):
        located("glue.shop", Settings(type="glue"), {})
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    glue._session.cache_clear()
    glue._client.cache_clear()
    with pytest.raises(StorageDeniedError, match="boto3 finds no credentials"):
        list(listed("glue.shop", Settings(type="glue", region="r", endpoint="http://127.0.0.1:9")))
    with pytest.raises(StorageDeniedError, match="boto3 finds no credentials"):
        vend({"catalog.type": "glue", "catalog.settings": '{"type": "glue"}', "catalog.table": "glue.shop.t"})


def test_without_boto3_the_extra_is_named(own_keys: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "boto3", None)
    monkeypatch.setitem(__import__("sys").modules, "boto3.session", None)
    with pytest.raises(RefusedError) as caught:
        list(listed("glue.shop", Settings(type="glue", region="r")))
    assert caught.value.next_step == "install dv-maintenance[glue]"


class TestContract(CatalogContract):
    @pytest.fixture
    def case(self, shop: Any, delta_table: str) -> CatalogCase:
        add(shop, "orders", f"file://{delta_table}", DELTA)
        add(shop, "plain", "s3://b/plain", {"classification": "csv"})
        given = {"region": "us-east-1", "endpoint": shop.meta.endpoint_url}
        nowhere = {**given, "endpoint": "http://127.0.0.1:9"}
        return CatalogCase("glue", given, "shop", "orders", (SECRET,), nowhere)

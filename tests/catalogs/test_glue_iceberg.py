"""Iceberg tables of Glue by name: what is read, and that the pointer in Glue moves only from where it was read."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from time import sleep
from typing import Any

import pyarrow as pa
import pytest
from support.iceberg_pointers import iceberg_table, newest_of, of_version_2

from dv_maintenance.catalogs.glue import Settings, listed
from dv_maintenance.cli import main
from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import ConflictError, DamagedTableError, StorageDeniedError, StorageUnavailableError
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.fsck.check import fsck
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.read import read
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.find import FoundTable
from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest
from dv_maintenance.testing.catalogs import CatalogCase, CatalogContract

FAR = 4_102_444_800_000  # 2100


class Lake:
    """The database ``shop`` of an emulator that checks versions, as Glue does and moto does not.

    before : is called before the next update is looked at.
    lost : answers of the next updates that get lost, after they are done.
    updates : the requests, in order.
    """

    def __init__(self, client: Any, endpoint: str) -> None:
        self.client, self.endpoint = client, endpoint
        self.before: list[Callable[[], object]] = []
        self.refuse: list[str] = []
        self.lost = 0
        self.updates: list[dict[str, Any]] = []
        self.lock = Lock()

    def entry(self, name: str = "orders") -> dict[str, Any]:
        found: dict[str, Any] = self.client.get_table(DatabaseName="shop", Name=name)["Table"]
        return found

    def name(self, metadata: str, name: str = "orders") -> None:
        columns = [{"Name": "id", "Type": "bigint", "Parameters": {"iceberg.field.id": "1"}}]
        self.client.create_table(
            DatabaseName="shop",
            TableInput={
                "Name": name,
                "TableType": "EXTERNAL_TABLE",
                "Description": "kept",
                "Owner": "me",
                "Retention": 3,
                "Parameters": {"table_type": "ICEBERG", "metadata_location": metadata, "mine": "kept"},
                "StorageDescriptor": {"Location": "s3://w/orders", "Columns": columns},
            },
        )


@pytest.fixture
def lake(s3: tuple[str, dict[str, str]], shop: Any, monkeypatch: pytest.MonkeyPatch) -> Lake:
    from moto.core.exceptions import JsonRESTError
    from moto.glue.responses import GlueResponse

    made, real = Lake(shop, s3[1]["aws_endpoint"]), GlueResponse.update_table

    class LostError(JsonRESTError):
        code = 500

    def update_table(self: GlueResponse) -> Any:
        if made.before:
            made.before.pop()()
        with made.lock:
            made.updates.append(json.loads(self.body))
            if made.refuse:
                raise JsonRESTError(made.refuse.pop(), "refused")
            entry = self.glue_backend.get_table(self.parameters["DatabaseName"], self.parameters["TableInput"]["Name"])
            wanted = self.parameters.get("VersionId")
            if wanted is not None and wanted != entry.as_dict()["VersionId"]:
                raise JsonRESTError("ConcurrentModificationException", "Update table failed due to concurrent")
            answer = real(self)
        if made.lost:
            made.lost -= 1
            raise LostError("InternalServiceException", "lost")
        return answer

    monkeypatch.setattr(GlueResponse, "update_table", update_table)
    return made


@pytest.fixture
def named(lake: Lake, tmp_path: Path) -> Lake:
    """With the table ``orders``."""
    lake.name(newest_of(iceberg_table(tmp_path / "orders")))
    return lake


def rows() -> dict[int, Any]:
    _, batches = read(open_table("glue.shop.orders"), None, columns=["id", "v", "_row_id"])
    return {row["id"]: tuple(row.values()) for batch in batches for row in batch.to_pylist()}


def metadata_files(tmp_path: Path) -> set[str]:
    return {str(each) for each in (tmp_path / "orders" / "metadata").glob("*.metadata.json")}


def test_every_verb(named: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, entry = rows(), named.entry()
    assert main(["health", "glue.shop.orders", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deleted_rows"] == 3
    assert main(["plan", "glue.shop.orders"]) == 0
    assert main(["purge", "glue.shop.orders", "--engine", "local", "--dry-run"]) == 0
    assert named.updates == []
    assert main(["purge", "glue.shop.orders", "--engine", "local"]) == 0, capsys.readouterr()
    after = named.entry()
    own = {"metadata_location", "previous_metadata_location"}
    assert after["Parameters"]["previous_metadata_location"] == entry["Parameters"]["metadata_location"]
    assert {k: v for k, v in after["Parameters"].items() if k not in own} == {"table_type": "ICEBERG", "mine": "kept"}
    for key in ("Name", "TableType", "Description", "Owner", "Retention", "StorageDescriptor"):
        assert after[key] == entry[key]
    assert named.updates[-1]["SkipArchive"] is True
    assert rows() == before
    assert delete(open_table("glue.shop.orders"), LocalEngine(), "id = 5").rows_deleted == 1
    guard = VacuumGuard(max_deleted_share=1.0)
    request = VacuumRequest(now=FAR, retention=0, allow_short_retention=True, guard=guard)
    assert open_table("glue.shop.orders").vacuum(request).deleted
    assert rows() == {number: row for number, row in before.items() if number != 5}
    assert not fsck(open_table("glue.shop.orders")).files_damaged
    settings = Settings(type="glue", region="us-east-1", endpoint=named.endpoint)
    assert list(listed("glue.shop", settings)) == [FoundTable("orders", "iceberg")]


def test_what_another_commits_at_the_last_moment_is_not_lost(named: Lake, tmp_path: Path) -> None:
    """Between our look at the entry and its update."""
    known = metadata_files(tmp_path)
    named.before.append(lambda: delete(open_table("glue.shop.orders"), LocalEngine(), "id = 7"))
    assert purge(open_table("glue.shop.orders"), LocalEngine()).verified
    assert set(rows()) == set(range(20)) - {0, 1, 10, 7}
    assert len(named.updates) == 3, "theirs, ours in vain, ours"
    made = metadata_files(tmp_path) - known
    assert len(made) == 2, "what was in vain is gone"
    assert named.entry()["Parameters"]["metadata_location"] in made


def test_an_answer_that_is_lost_is_looked_up(named: Lake) -> None:
    """boto3 would ask again, be refused by the version that it made itself, and we would delete live files."""
    before, named.lost = rows(), 1
    assert purge(open_table("glue.shop.orders"), LocalEngine()).verified
    assert len(named.updates) == 1
    assert rows() == before
    assert not fsck(open_table("glue.shop.orders")).files_damaged


def test_without_the_right_nothing_is_left(named: Lake, tmp_path: Path) -> None:
    known, files = metadata_files(tmp_path), {str(each) for each in (tmp_path / "orders").rglob("*")}
    named.refuse = ["AccessDeniedException"]
    with pytest.raises(StorageDeniedError, match="Glue refused") as caught:
        purge(open_table("glue.shop.orders"), LocalEngine())
    assert "glue:UpdateTable" in str(caught.value.next_step)
    assert metadata_files(tmp_path) == known
    assert {str(each) for each in (tmp_path / "orders").rglob("*")} == files


def test_an_update_that_may_have_happened_is_said(named: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = open_table("glue.shop.orders")
    monkeypatch.setattr("dv_maintenance.tables.publish.time.sleep", lambda _: None)
    named.refuse = ["InternalServiceException"] * 20
    with pytest.raises(StorageUnavailableError):
        purge(table, LocalEngine())


def test_a_table_in_s3_gets_the_keys_that_boto3_finds(
    lake: Lake, s3: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    backend = iceberg_table(f"{s3[0]}/{tmp_path.name}/orders", s3[1])
    lake.name(newest_of(backend))
    reach = {key: s3[1][key] for key in ("aws_endpoint", "allow_http")}
    table = open_table("glue.shop.orders", storage_options=reach)
    assert purge(table, LocalEngine()).verified
    assert "secret-of-the-test" not in str(table.storage.options)


def test_a_pointer_to_nothing_is_damage(lake: Lake, tmp_path: Path) -> None:
    lake.name(f"{tmp_path}/none.metadata.json")
    with pytest.raises(DamagedTableError, match=r"glue\.shop\.orders: its catalog names .*which does not exist"):
        open_table("glue.shop.orders")
    Storage(str(tmp_path)).put("odd.metadata.json", b"[]")
    lake.name(f"{tmp_path}/odd.metadata.json", "odd")
    with pytest.raises(DamagedTableError, match="it is not a JSON object"):
        open_table("glue.shop.odd")


class Other:
    """pyiceberg, which appends to ``shop.orders`` through Glue. ``added``: what it was told is there."""

    def __init__(self, lake: Lake, place: Path) -> None:
        from pyiceberg.catalog import load_catalog

        keys = {"glue.access-key-id": "test", "glue.secret-access-key": "secret-of-the-test"}
        where = {"glue.endpoint": lake.endpoint, "glue.region": "us-east-1", "warehouse": f"file://{place}"}
        self.catalog = load_catalog("other", type="glue", **keys, **where)
        self.catalog.create_table("shop.orders", pa.schema([("id", pa.int64())]))
        self.added: list[int] = []

    def append(self, number: int) -> None:
        from pyiceberg.exceptions import CommitFailedException

        with suppress(CommitFailedException):
            self.catalog.load_table("shop.orders").append(pa.table({"id": [number]}))
            self.added.append(number)

    def agrees(self) -> bool:
        """Whether all that it added is there once, for it and for us."""
        theirs = self.catalog.load_table("shop.orders").scan().to_arrow()["id"].to_pylist()
        _, batches = read(open_table("glue.shop.orders"))
        ours = [number for batch in batches for number in batch["id"].to_pylist()]
        return sorted(theirs) == sorted(ours) == sorted(self.added)


def compact() -> bool:
    """Whether files were merged."""
    report = maintain(open_table("glue.shop.orders"), LocalEngine(), Policy())
    return report.version_after != report.version_before


def test_another_writer_comes_first(lake: Lake, tmp_path: Path) -> None:
    """Each side's update meets an entry that the other one has changed since it was read."""
    other = Other(lake, tmp_path)
    for number in range(2):
        other.append(number)
    for number in range(2, 4):
        lake.before.append(partial(other.append, number))
        assert compact()
        other.append(100 + number)
        lake.before.append(compact)
        other.append(200 + number)
    assert {0, 1, 2, 3, 102, 103} <= set(other.added)
    assert other.agrees()
    assert not fsck(open_table("glue.shop.orders")).files_damaged


@pytest.mark.deep
def test_a_race_with_another_writer(lake: Lake, tmp_path: Path) -> None:
    other = Other(lake, tmp_path)

    def append() -> None:
        for number in range(50):
            other.append(number)
            sleep(0.3)

    thread = Thread(target=append)
    thread.start()
    ours = 0
    while thread.is_alive():
        # Whoever is slow loses every attempt, and says so.
        with suppress(ConflictError):
            ours += compact()
    assert ours
    assert other.agrees()
    assert not fsck(open_table("glue.shop.orders")).files_damaged


def test_what_a_commit_needs_is_said(named: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "glue", "--json"])
    shown = {each["name"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    assert (shown["catalog"]["ok"], "table" in shown) == (True, False)
    main(["doctor", "glue.shop.orders", "--json"])
    shown = {each["name"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    assert shown["right to commit"]["needed"] == "glue:UpdateTable"
    assert shown["table"]["ok"]


class TestContract(CatalogContract):
    @pytest.fixture
    def case(self, named: Lake) -> CatalogCase:
        given = {"region": "us-east-1", "endpoint": named.endpoint}
        return CatalogCase("glue", given, "shop", "orders", unreachable={**given, "endpoint": "http://127.0.0.1:9"})


def test_pyiceberg_takes_a_commit_whose_answer_was_lost_for_a_lost_race(lake: Lake, tmp_path: Path) -> None:
    """Its second attempt is refused because of the first. The files of such a commit must not be deleted."""
    from pyiceberg.catalog.glue import GlueCatalog
    from pyiceberg.exceptions import CommitFailedException

    lake.name(of_version_2(tmp_path / "orders", {}))
    keys = {"glue.region": "us-east-1", "glue.access-key-id": "x", "glue.secret-access-key": "x"}
    catalog = GlueCatalog("g", **{"glue.endpoint": lake.endpoint, **keys})
    table = catalog.load_table(("shop", "orders"))
    lake.lost = 1
    with pytest.raises(CommitFailedException), table.transaction() as transaction:
        transaction.set_properties(a="b")
    assert catalog.load_table(("shop", "orders")).properties == {"a": "b"}

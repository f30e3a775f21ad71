"""Tables of Paimon's catalogs: a warehouse, a JDBC catalog, and a server."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow.compute as pc
import pytest
from support.answers import Answers, Request, answering

from dv_maintenance.catalogs import configured
from dv_maintenance.catalogs.paimon import Settings, listed, located
from dv_maintenance.cli import main
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import (
    DamagedTableError,
    DvMaintenanceError,
    RefusedError,
    StorageDeniedError,
    StorageUnavailableError,
    TableNotFoundError,
    UnsupportedFeatureError,
    UsageError,
)
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.read import read
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables import open_table
from dv_maintenance.tables.find import FoundTable
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.testing.catalogs import CatalogCase, CatalogContract

TOKEN = "token-of-the-test"
HUSH = "hush-hush"


@pytest.fixture
def warehouse(golden_copy: Callable[[str], Path], tmp_path: Path) -> Path:
    """Its database ``shop`` has the table ``orders`` with deletion vectors, and a folder without a table."""
    place = tmp_path / "warehouse"
    shutil.copytree(golden_copy("paimon/append_dv/table"), place / "shop.db" / "orders")
    (place / "shop.db" / "scratch").mkdir()
    (place / "notes").mkdir()
    return place


def test_a_warehouse_is_a_catalog(
    warehouse: Path, catalogs: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    catalogs(lake={"type": "paimon", "warehouse": str(warehouse)})
    assert main(["health", "lake.shop.orders", "--json"]) == 0, capsys.readouterr()
    settings = configured()["lake"]
    assert list(listed("lake.shop", settings)) == [FoundTable("orders", "paimon")]  # type: ignore[arg-type]
    assert list(listed("lake.*", settings)) == [FoundTable("shop.orders", "paimon")]  # type: ignore[arg-type]
    assert main(["purge", "lake.shop.orders", "--engine", "local"]) == 0, capsys.readouterr()
    for name in ("none", "scratch"):
        with pytest.raises(TableNotFoundError, match=f"lake.shop.{name}: no Paimon table is at"):
            open_table(f"lake.shop.{name}")
    with pytest.raises(UnsupportedFeatureError, match="a system table"):
        open_table("lake.shop.orders$snapshots")
    with pytest.raises(UsageError, match=r"write lake\.DATABASE\.TABLE"):
        open_table("lake.shop")


def test_a_branch_is_named_as_in_paimon(warehouse: Path, catalogs: Callable[..., None]) -> None:
    catalogs(lake={"type": "paimon", "warehouse": warehouse.as_uri()})
    table = open_table("lake.shop.orders$branch_dev")
    assert table.uri == f"{warehouse.as_uri()}/shop.db/orders/branch/branch-dev"


@pytest.fixture
def jdbc(warehouse: Path, tmp_path: Path, catalogs: Callable[..., None]) -> sqlite3.Connection:
    connection = sqlite3.connect(tmp_path / "a catalog.db")
    connection.execute("CREATE TABLE paimon_tables (catalog_key, database_name, table_name)")
    rows = [("jdbc", "shop", "orders"), ("jdbc", "shop", "a.b"), ("other", "shop", "hidden")]
    connection.executemany("INSERT INTO paimon_tables VALUES (?, ?, ?)", rows)
    connection.commit()
    uri = f"jdbc:sqlite:{tmp_path / 'a catalog.db'}"
    catalogs(lake={"type": "paimon", "metastore": "jdbc", "warehouse": str(warehouse), "uri": uri, "password": HUSH})
    return connection


def test_a_jdbc_catalog_says_which_tables_there_are(jdbc: sqlite3.Connection, tmp_path: Path) -> None:
    assert open_table("lake.shop.orders").snapshot().version > 0
    settings: Any = configured()["lake"]
    assert list(listed("lake.shop", settings)) == [FoundTable("`a.b`", "paimon"), FoundTable("orders", "paimon")]
    assert len(list(listed("lake.*", settings))) == 2
    jdbc.execute("DELETE FROM paimon_tables WHERE table_name = 'orders'")
    jdbc.commit()
    with pytest.raises(TableNotFoundError, match="has no such table"):
        open_table("lake.shop.orders")
    jdbc.execute("DROP TABLE paimon_tables")
    with pytest.raises(StorageUnavailableError, match=r"did not answer as expected .OperationalError") as caught:
        open_table("lake.shop.orders")
    assert HUSH not in f"{caught.value}{settings!r}"
    (tmp_path / "a catalog.db").unlink()
    with pytest.raises(StorageUnavailableError):
        open_table("lake.shop.orders")
    assert not (tmp_path / "a catalog.db").exists()


@pytest.mark.parametrize(("scheme", "driver"), [("mysql", "pymysql"), ("postgresql", "psycopg")])
def test_a_driver_that_is_missing_is_named(scheme: str, driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, driver, None)
    settings = Settings(type="paimon", metastore="jdbc", warehouse="s3://b", uri=f"jdbc:{scheme}://h/d?password={HUSH}")
    with pytest.raises(RefusedError) as caught:
        list(listed("lake.shop", settings))
    assert caught.value.next_step == f"install {driver}"
    assert HUSH not in str(caught.value)


@pytest.mark.parametrize(("scheme", "driver"), [("mysql", "pymysql"), ("postgresql", "psycopg")])
def test_a_driver_gets_what_the_settings_say(scheme: str, driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No such database runs here: what the driver is called with."""
    called: list[Any] = []

    class Connection:
        def cursor(self) -> Connection:
            return self

        def execute(self, *query: Any) -> None:
            called.append(query)

        description: ClassVar = [("table_name",)]

        def fetchall(self) -> list[tuple[str]]:
            return [("orders",)]

        def close(self) -> None:
            called.append("closed")

    def connect(*places: str, **keys: Any) -> Connection:
        called.append((*places, keys))
        return Connection()

    monkeypatch.setitem(sys.modules, driver, SimpleNamespace(connect=connect))
    uri = f"jdbc:{scheme}://h:77/d"
    settings = Settings(type="paimon", metastore="jdbc", warehouse="s3://b", uri=uri, user="me", password=HUSH)
    assert list(listed("lake.shop", settings)) == [FoundTable("orders", "paimon")]
    keys = {"user": "me", "password": HUSH, "connect_timeout": 10}
    where = {"host": "h", "port": 77, "database": "d"}
    assert called[0] == ((f"{scheme}://h:77/d", keys) if driver == "psycopg" else ({**where, **keys},))
    query, arguments = called[1]
    assert query.endswith("WHERE catalog_key = %s AND database_name = %s")
    assert (arguments, called[2:]) == (("jdbc", "shop"), ["closed", "closed"]), "one query"


class Double:
    """A REST catalog with one table of a prefix, and a table of another type. It makes snapshots as Paimon's own server
    in ``test_paimon_judged.py``.

    commits : the requests, in order.
    before : is called before the next commit is looked at.
    lost : answers of the next commits that get lost, after they are done.
    told : what it lists of the main branch. tags : their snapshots.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.commits: list[Any] = []
        self.before: list[Callable[[], object]] = []
        self.lost = 0
        self.told: dict[str, Any] = {"snapshots": [], "tags": None, "branches": None, "consumers": []}
        self.tags: dict[str, Any] = {}
        self.snapshot: Any = {"snapshot": {"snapshot": {"id": self.newest}, "recordCount": 1}}

    @property
    def newest(self) -> int:
        return max(int(each.name.removeprefix("snapshot-")) for each in (self.place / "snapshot").glob("snapshot-*"))

    def __call__(self, request: Request) -> tuple[int, Any]:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return 401, {"message": "who are you", "code": 401}
        if request.path == "/v1/config":
            assert request.query == {"warehouse": "wh"}
            return 200, {"defaults": {"prefix": "p"}, "overrides": {}}
        database = "/v1/p/databases/shop"
        orders = {"id": "id-1", "name": "orders", "path": self.place.as_uri(), "schema": {"options": {}}}
        objects = {"id": "id-2", "name": "things", "path": "s3://x", "schema": {"options": {"type": "object-table"}}}
        match request.path.removeprefix(database):
            case "/tables/orders":
                return 200, orders
            case "/tables/things":
                return 200, objects
            case "/tables/orders/snapshot" if self.snapshot is not None:
                return 200, self.snapshot
            case "/tables/orders/commit" if request.method == "POST":
                return self.committed(request.object)
            case told if (key := told.removeprefix("/tables/orders/")) in self.told:
                return 200, self.page(key, int(request.query.get("pageToken", 0)))
            case told if (tag := told.removeprefix("/tables/orders/tags/")) in self.tags:
                return 200, {"tagName": tag, "snapshot": self.tags[tag], "tagCreateTime": None}
            case "/table-details":
                if "pageToken" not in request.query:
                    return 200, {"tableDetails": [orders], "nextPageToken": "two"}
                return 200, {"tableDetails": [objects], "nextPageToken": None}
            case "/v1/p/databases":
                return 200, {"databases": ["shop"]}
        return 404, {"message": "not there", "code": 404, "resourceType": "TABLE"}

    def page(self, key: str, at: int) -> dict[str, Any]:
        """A list of lists is told in pages."""
        found = self.told[key]
        if not found or not isinstance(found[0], list):
            return {key: found}
        return {key: found[at], "nextPageToken": str(at + 1) if at + 1 < len(found) else None}

    def committed(self, asked: Any) -> tuple[int, Any]:
        if self.before:
            self.before.pop()()
        self.commits.append(asked)
        assert set(asked) == {"tableId", "snapshot", "statistics"}
        if asked["tableId"] != "id-1":
            return 404, {"message": "another table", "code": 404}
        made = asked["snapshot"]["id"] == self.newest + 1
        if made:
            self.make(asked["snapshot"])
        if self.lost:
            self.lost -= 1
            return 503, {"message": "lost", "code": 503}
        return 200, {"success": made}

    def make(self, snapshot: Any) -> None:
        number = snapshot["id"]
        (self.place / "snapshot" / f"snapshot-{number}").write_text(json.dumps(snapshot))
        self.snapshot = {"snapshot": {"snapshot": {"id": number}}}


@pytest.fixture
def double(warehouse: Path) -> Double:
    return Double(warehouse / "shop.db" / "orders")


@pytest.fixture
def server(double: Double, catalogs: Callable[..., None]) -> Iterator[Answers]:
    with answering(double) as made:
        catalogs(rest={"type": "paimon", "metastore": "rest", "warehouse": "wh", "uri": made.url, "token": TOKEN})
        yield made


def ids() -> list[int]:
    _, batches = read(open_table("rest.shop.orders"), None, columns=["id"])
    return sorted(row["id"] for batch in batches for row in batch.to_pylist())


def test_a_table_of_a_server_is_changed_through_it(
    server: Answers, double: Double, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["health", "rest.shop.orders", "--json"]) == 0, capsys.readouterr()
    before, files, first = ids(), sorted(double.place.rglob("*")), double.newest
    hint = double.place / "snapshot" / "LATEST"
    hinted = hint.read_text()
    assert main(["plan", "rest.shop.orders"]) == 0, capsys.readouterr()
    assert main(["purge", "rest.shop.orders", "--engine", "local", "--dry-run"]) == 0, capsys.readouterr()
    assert sorted(double.place.rglob("*")) == files
    assert double.commits == []
    assert main(["delete", "rest.shop.orders", "--where", f"id = {before[0]}", "--engine", "local"]) == 0
    assert ids() == before[1:]
    assert main(["purge", "rest.shop.orders", "--engine", "local"]) == 0, capsys.readouterr()
    assert ids() == before[1:]
    assert health(open_table("rest.shop.orders").snapshot()).counts.deleted_rows == 0
    assert [each["snapshot"]["id"] for each in double.commits] == [first + 1, first + 2]
    assert hint.read_text() == hinted, "the server's"
    (deleted, purged) = (each["statistics"] for each in double.commits)
    assert deleted == [], "only the index changed"
    (sums,) = purged
    rows = double.commits[1]["snapshot"]["deltaRecordCount"]
    assert (sums["spec"], sums["recordCount"]) == ({}, rows)
    assert rows < 0
    double.told = {}
    assert main(["vacuum", "rest.shop.orders"]) == 3
    assert main(["vacuum", "rest.shop.orders", "--dry-run"]) == 3
    shown = capsys.readouterr()
    assert "its REST catalog does not say which branches it has (not there)" in shown.out + shown.err
    assert "dvm engine-sql rest.shop.orders vacuum" in shown.out + shown.err
    assert TOKEN not in shown.out + shown.err


AT_ONCE = VacuumRequest(retention=0, allow_short_retention=True)


@pytest.fixture
def history(server: Answers, double: Double) -> list[dict[str, Any]]:
    """The snapshots of the table, oldest first: all but the newest may expire. The files that the first one needs are
    needed by no later one.
    """
    schema = max((double.place / "schema").iterdir())
    body = json.loads(schema.read_text())
    body["options"]["snapshot.num-retained.min"] = "1"
    schema.write_text(json.dumps(body))
    shutil.rmtree(double.place / "tag", ignore_errors=True)
    shutil.rmtree(double.place / "branch", ignore_errors=True)
    assert purge(open_table("rest.shop.orders"), LocalEngine()).verified
    numbers = sorted(int(each.name[9:]) for each in (double.place / "snapshot").glob("snapshot-*"))
    return [json.loads((double.place / "snapshot" / f"snapshot-{n}").read_text()) for n in numbers]


def oldest_readable(double: Double, body: dict[str, Any]) -> bool:
    """Whether every file of the snapshot is still there."""
    place = double.place / "snapshot" / f"snapshot-{body['id']}"
    place.write_text(json.dumps(body))
    snapshot = open_table(str(double.place)).snapshot(body["id"])
    try:
        return all((double.place / path).is_file() for path in snapshot.files["path"].to_pylist())
    finally:
        place.unlink()


def test_what_the_server_forgets_expires(history: list[dict[str, Any]], double: Double) -> None:
    assert len(history) > 2
    assert vacuum(open_table("rest.shop.orders"), AT_ONCE).deleted
    assert [each.name for each in (double.place / "snapshot").glob("snapshot-*")] == [f"snapshot-{double.newest}"]
    with pytest.raises(DamagedTableError):
        oldest_readable(double, history[0])


@pytest.mark.parametrize("told", ["tag", "snapshot", "pages"])
def test_what_only_the_server_names_is_kept(history: list[dict[str, Any]], double: Double, told: str) -> None:
    """A tag that is in no file, and snapshots that it goes on to list when their files have expired."""
    if told == "snapshot":
        double.told["snapshots"] = history
    else:
        double.told |= {"tags": ["an old/one"] if told == "tag" else [["x"], ["an old/one"]]}
        double.tags = {"an old/one": history[0]}
    ids_before = ids()
    report = vacuum(open_table("rest.shop.orders"), AT_ONCE)
    assert report.expired.kept["in a snapshot or tag that only its REST catalog names"]
    assert [each.name for each in (double.place / "snapshot").glob("snapshot-*")] == [f"snapshot-{double.newest}"]
    assert oldest_readable(double, history[0])
    assert ids() == ids_before


def test_a_consumer_of_the_server_holds_its_snapshot(history: list[dict[str, Any]], double: Double) -> None:
    third = history[2]["id"]
    double.told["consumers"] = [{"consumerId": "stream", "nextSnapshot": third}]
    vacuum(open_table("rest.shop.orders"), AT_ONCE)
    left = {int(each.name[9:]) for each in (double.place / "snapshot").glob("snapshot-*")}
    assert left == set(range(third, double.newest + 1))


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"tags": ["gone"]}, ""),
        ({"tags": None, "branches": ["dev"]}, "names the branch dev, of which the table has no files"),
        ({"snapshots": [{}]}, r"which snapshots it has \(the answer is not understood\)"),
        ({"consumers": [{"consumerId": "c"}]}, "which consumers it has"),
        ({"snapshots": [{"id": 1, "newField": "manifest-00000000-0000-0000-0000-000000000000-0"}]}, "newField"),
    ],
)
def test_answers_that_are_not_understood_end_a_vacuum(
    history: list[dict[str, Any]], double: Double, told: dict[str, Any], why: str
) -> None:
    double.told |= told
    if not why:  # the tag was deleted between two answers
        assert vacuum(open_table("rest.shop.orders"), AT_ONCE).deleted
        return
    before = sorted(double.place.rglob("*"))
    with pytest.raises((RefusedError, UnsupportedFeatureError), match=why):
        vacuum(open_table("rest.shop.orders"), AT_ONCE)
    assert sorted(double.place.rglob("*")) == before


def test_a_server_is_told_of_every_partition(golden_copy: Callable[[str], Path], catalogs: Callable[..., None]) -> None:
    place = golden_copy("paimon/append_dv_part/table")
    double = Double(place)
    with answering(double) as made:
        catalogs(rest={"type": "paimon", "metastore": "rest", "warehouse": "wh", "uri": made.url, "token": TOKEN})
        table = open_table("rest.shop.orders")
        assert purge(table, LocalEngine()).verified
        before, after = (table.snapshot(version).files for version in (double.newest - 1, double.newest))
    (sums,) = (each["statistics"] for each in double.commits)
    for each in sums:
        name = ",".join(f"{key}={value}" for key, value in each["spec"].items())
        own = [files.filter(pc.equal(files["partition"], name)) for files in (before, after)]
        for column, gained in {"physical_rows": "recordCount", "size": "fileSizeInBytes"}.items():
            then, now = (pc.sum(files[column]).as_py() or 0 for files in own)
            assert each[gained] == now - then
        assert each["fileCount"] == own[1].num_rows - own[0].num_rows
    assert len(sums) > 1


def test_a_branch_is_opened_by_its_name(server: Answers, double: Double) -> None:
    shutil.copytree(double.place / "schema", double.place / "branch" / "branch-dev" / "schema")
    with pytest.raises(UsageError, match=r"open rest\.shop\.orders\$branch_dev"):
        open_table("rest.shop.orders").branch("dev")  # type: ignore[attr-defined]


@pytest.mark.parametrize("lost", [1, 3])
def test_a_commit_whose_answer_is_lost_is_looked_up(server: Answers, double: Double, lost: int) -> None:
    before, double.lost = ids(), lost
    assert purge(open_table("rest.shop.orders"), LocalEngine()).verified
    assert ids() == before
    assert len(double.commits) == max(lost, 2)


def test_a_commit_that_may_yet_be_made_keeps_its_files(server: Answers, double: Double) -> None:
    before = ids()
    double.make = lambda _: None  # type: ignore[method-assign, assignment]
    double.lost = 3
    with pytest.raises(StorageUnavailableError, match=r"snapshot-8: .*\(lost\), and it is not there") as caught:
        purge(open_table("rest.shop.orders"), LocalEngine())
    assert "it is unknown whether the commit that names them succeeded" in str(caught.value)
    named = double.commits[0]["snapshot"]["deltaManifestList"]
    assert (double.place / "manifest" / named).exists()
    assert ids() == before


def test_another_writer_was_faster(server: Answers, double: Double) -> None:
    before = ids()

    def append() -> None:
        newest = json.loads((double.place / "snapshot" / f"snapshot-{double.newest}").read_text())
        double.make({**newest, "id": newest["id"] + 1, "commitUser": "another"})

    double.before.append(append)
    assert purge(open_table("rest.shop.orders"), LocalEngine()).verified
    assert [each["snapshot"]["id"] for each in double.commits] == [double.newest - 1, double.newest]
    named = double.commits[0]["snapshot"]["deltaManifestList"]
    assert not (double.place / "manifest" / named).exists()
    assert ids() == before


@pytest.mark.parametrize(
    ("fault", "said"), [(403, "refused the commit"), ((404, {"message": "another table"}), "another table")]
)
def test_a_commit_that_the_server_refuses_leaves_nothing(
    server: Answers, double: Double, fault: Any, said: str
) -> None:
    files, table = sorted(double.place.rglob("*")), open_table("rest.shop.orders")
    double.before.append(lambda: None)
    answer = server.answer
    server.answer = lambda request: (
        ((fault, "") if isinstance(fault, int) else fault) if request.path.endswith("/commit") else answer(request)
    )
    with pytest.raises(StorageDeniedError, match=said) as caught:
        purge(table, LocalEngine())
    assert TOKEN not in str(caught.value)
    assert [each for each in sorted(double.place.rglob("*")) if each.is_file()] == [
        each for each in files if each.is_file()
    ]


def test_what_a_server_has_is_listed(server: Answers) -> None:
    settings: Any = configured()["rest"]
    assert sorted(listed("rest.*", settings)) == [
        FoundTable("shop.orders", "paimon"),
        FoundTable("shop.things", "", "of the type object-table"),
    ]
    with pytest.raises(UnsupportedFeatureError, match=r"rest.shop.things is of the type object-table"):
        open_table("rest.shop.things")
    handle: Any = located("rest.shop.orders", settings, {})[1].catalog
    assert handle.identity == "id-1"


@pytest.mark.parametrize("off", [1, -1])
def test_files_that_the_server_does_not_mean_are_not_read(server: Answers, double: Double, off: int) -> None:
    double.snapshot = {"snapshot": {"snapshot": {"id": double.newest + off}}}
    with pytest.raises(UnsupportedFeatureError, match="and the files say otherwise"):
        open_table("rest.shop.orders")


@pytest.mark.parametrize(
    ("faults", "error", "said"),
    [
        ([404], TableNotFoundError, "no such warehouse"),
        ([403], StorageDeniedError, "refused .HTTP status 403"),
        ([(401, {"message": "stale token"})], StorageDeniedError, "stale token"),
        ([503] * 3, StorageUnavailableError, "HTTP status 503"),
        ([(200, "<html>")] * 3, StorageUnavailableError, "not JSON"),
        ([(200, "[" * 100_000)] * 3, StorageUnavailableError, "not JSON"),
        ([(403, "[" * 100_000)], StorageDeniedError, "refused .HTTP status 403"),
        ([(200, [])] * 3, StorageUnavailableError, "not an object"),
    ],
)
def test_what_the_server_refuses_is_one_sentence(
    server: Answers, faults: list[Any], error: type[DvMaintenanceError], said: str
) -> None:
    server.faults = list(faults)
    with pytest.raises(error, match=said) as caught:
        open_table("rest.shop.orders")
    assert str(caught.value).startswith("rest.shop.orders: ")
    assert caught.value.next_step
    assert TOKEN not in f"{caught.value}{caught.value.next_step}"


def test_an_unknown_table_of_the_server(server: Answers) -> None:
    with pytest.raises(TableNotFoundError, match=r"rest.shop.none: the catalog has no such table .not there"):
        open_table("rest.shop.none")


@pytest.mark.parametrize("metastore", ["rest", "jdbc"])
def test_settings_without_their_uri(metastore: str, catalogs: Callable[..., None]) -> None:
    catalogs(lake={"type": "paimon", "metastore": metastore, "warehouse": "w", "uri": "ftp://h"})
    with pytest.raises(UsageError, match=f"catalogs.lake: metastore {metastore} takes a 'uri' that begins with"):
        open_table("lake.shop.orders")


class TestContract(CatalogContract):
    @pytest.fixture(params=["filesystem", "jdbc", "rest"])
    def case(self, request: pytest.FixtureRequest, warehouse: Path, tmp_path: Path) -> CatalogCase:
        if request.param == "filesystem":
            return CatalogCase("paimon", {"warehouse": str(warehouse)}, "shop", "orders")
        wanted: dict[str, Any] = {"metastore": request.param, "warehouse": str(warehouse)}
        if request.param == "jdbc":
            connection: sqlite3.Connection = request.getfixturevalue("jdbc")
            connection.execute("DELETE FROM paimon_tables WHERE table_name = 'a.b'")
            connection.commit()
            gone = {**wanted, "uri": f"jdbc:sqlite:{tmp_path}/gone", "password": HUSH}
            settings = {**wanted, "uri": f"jdbc:sqlite:{tmp_path / 'a catalog.db'}", "password": HUSH}
            return CatalogCase("paimon", settings, "shop", "orders", (HUSH,), gone)
        server: Answers = request.getfixturevalue("server")
        wanted = {"metastore": "rest", "warehouse": "wh", "token": TOKEN}
        nowhere = {**wanted, "uri": "http://127.0.0.1:9"}
        return CatalogCase("paimon", {**wanted, "uri": server.url}, "shop", "orders", (TOKEN,), nowhere)

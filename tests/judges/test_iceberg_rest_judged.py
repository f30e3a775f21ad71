"""Commits through REST to Iceberg's own server logic (``CatalogHandlers``), which decides in the suite's JVM what is a
conflict, while Spark commits to the same tables beside it; and races through each kind of catalog.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from iceberg_engine import IcebergEngine
from py4j.protocol import Py4JJavaError
from support.iceberg_rest import Failure, serving

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import ConflictError
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest
from dv_maintenance.testing.verbs import row_work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyiceberg.catalog.rest")
pytestmark = pytest.mark.deep
FAR = 4_102_444_800_000  # 2100
ROWS = 60
# As Iceberg's own server answers (REST catalog specification).
STATUS = {"CommitFailedException": 409, "NoSuchTableException": 404, "CommitStateUnknownException": 503}


class ServerLogic:
    """The table ``ns.t`` of a JDBC catalog, as Iceberg's handlers serve it. See ``iceberg_rest.RestCatalog``.

    conflicts : how many commits were refused.
    """

    def __init__(self, spark: Any, name: str, database: Path, warehouse: Path) -> None:
        self.spark, self.name, self.database = spark, f"{name}.ns.t", database
        jvm = spark._jvm
        self._rest = jvm.org.apache.iceberg.rest
        self._catalog = jvm.org.apache.iceberg.jdbc.JdbcCatalog()
        self._catalog.setConf(spark._jsc.hadoopConfiguration())
        properties = {"uri": f"jdbc:sqlite:{database}", "warehouse": str(warehouse), "jdbc.schema-version": "V1"}
        self._catalog.initialize(name, properties)
        self._table = jvm.org.apache.iceberg.catalog.TableIdentifier.parse("ns.t")
        self.failures: list[Failure] = []
        self.before: Callable[[], object] | None = None
        self.commits = self.conflicts = 0
        # Of SQLite, which has one writer at a time.
        self._lock = threading.RLock()

    def loaded(self) -> dict[str, Any]:
        with self._lock:
            everything = self._rest.RESTCatalogProperties.SnapshotMode.ALL
            return self._body(self._rest.CatalogHandlers.loadTable(self._catalog, self._table, everything))

    def commit(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        act, self.before = self.before, None
        if act is not None:
            act()
        parsed = self._rest.requests.UpdateTableRequestParser.fromJson(json.dumps(request))
        try:
            with self._lock:
                answer = self._rest.CatalogHandlers.updateTable(self._catalog, self._table, parsed)
        except Py4JJavaError as error:
            kind = error.java_exception.getClass().getSimpleName()
            status = STATUS.get(kind, 400)
            self.conflicts += status == 409
            message = str(error.java_exception.getMessage())
            return status, {"error": {"message": message, "type": kind, "code": status}}
        self.commits += 1
        return 200, self._body(answer)

    def _body(self, answer: Any) -> dict[str, Any]:
        return dict(json.loads(self._rest.responses.LoadTableResponseParser.toJson(answer)))

    def sql(self, text: str) -> list[Any]:
        with self._lock:
            return list(self.spark.sql(text.format(t=self.name)).collect())

    def rows(self) -> list[str]:
        return sorted(map(repr, self.sql("SELECT *, _row_id, _last_updated_sequence_number FROM {t}")))

    def ids(self) -> list[int]:
        return sorted(row.id for row in self.sql("SELECT id FROM {t}"))


def fill(sql: Callable[[str], object]) -> None:
    """Sixty rows in two files, a third of them deleted."""
    modes = ", ".join(f"'write.{verb}.mode' = 'merge-on-read'" for verb in ("delete", "update", "merge"))
    properties = f"'format-version' = '3', {modes}"
    sql(f"CREATE TABLE {{t}} (id INT, p STRING, v STRING) USING iceberg TBLPROPERTIES ({properties})")
    for at in range(2):
        part = f"SELECT /*+ COALESCE(1) */ CAST(id * 2 + {at} AS INT), 'a', 'x' FROM range({ROWS // 2})"
        sql(f"INSERT INTO {{t}} {part}")
    sql("DELETE FROM {t} WHERE id % 3 = 0")


@pytest.fixture
def server(iceberg_spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerLogic]:
    name = f"rest_{abs(hash(str(tmp_path)))}"
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:sqlite:{tmp_path}/pointers.db",
        ".warehouse": str(tmp_path),
        ".jdbc.schema-version": "V1",
        ".cache-enabled": "false",
    }
    for key, value in settings.items():
        iceberg_spark.conf.set(f"spark.sql.catalog.{name}{key}", value)
    found = ServerLogic(iceberg_spark, name, tmp_path / "pointers.db", tmp_path)
    found.sql(f"CREATE NAMESPACE {name}.ns")
    fill(found.sql)
    with serving(found) as uri:
        monkeypatch.setenv("PYICEBERG_CATALOG__R__TYPE", "rest")
        monkeypatch.setenv("PYICEBERG_CATALOG__R__URI", uri)
        yield found
    for key in settings:
        iceberg_spark.conf.unset(f"spark.sql.catalog.{name}{key}")


def opened() -> Any:
    return open_table("iceberg:r.ns.t")


def erase(number: int) -> None:
    delete(opened(), LocalEngine(1), f"id = {number}")


def test_every_verb(server: ServerLogic) -> None:
    rows = server.rows()
    assert purge(opened(), LocalEngine()).verified
    assert (server.rows(), server.commits) == (rows, 1)
    erase(2)
    table = opened()
    base = table.snapshot()
    work = row_work(table, base, lambda _: ({4}, [(5, "a", "new"), (77, "a", "inserted")]))
    table.commit_changes(base, work.changes, operation={"name": "MERGE"}, reads=work.reads)
    server.sql("DELETE FROM {t} WHERE id = 7")
    rows = server.rows()
    assert {row.id: row.v for row in server.sql("SELECT * FROM {t}") if row.id in (2, 4, 5, 7, 77)} == {
        5: "new",
        77: "inserted",
    }
    request = VacuumRequest(
        now=FAR, retention=0, allow_short_retention=True, guard=VacuumGuard(max_deleted_share=1.0), lite=True
    )
    opened().vacuum(request)
    assert server.rows() == rows
    assert len(server.sql("SELECT * FROM {t}.snapshots")) == 1
    server.sql("UPDATE {t} SET v = 'last' WHERE id = 8")
    assert len(server.rows()) == len(rows)


def test_format_version_1(server: ServerLogic) -> None:
    """Its snapshots have no sequence numbers."""
    server.sql("DROP TABLE {t} PURGE")
    server.sql("CREATE TABLE {t} (id INT, p STRING) USING iceberg TBLPROPERTIES ('format-version' = '1')")
    for number in range(3):
        server.sql(f"INSERT INTO {{t}} VALUES ({number}, 'a')")
    assert maintain(opened(), LocalEngine(), Policy(min_input_files=2)).verified
    assert (server.ids(), len(server.sql("SELECT * FROM {t}.files"))) == ([0, 1, 2], 1)
    guard = VacuumGuard(max_deleted_share=1.0)
    opened().vacuum(VacuumRequest(now=FAR, retention=0, allow_short_retention=True, guard=guard))
    assert len(server.sql("SELECT * FROM {t}.snapshots")) == 1
    server.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '3')")
    server.sql("INSERT INTO {t} VALUES (3, 'a')")
    assert server.ids() == [0, 1, 2, 3]
    assert maintain(opened(), LocalEngine(), Policy(min_input_files=2)).verified
    assert server.ids() == [0, 1, 2, 3]


def test_format_version_2(server: ServerLogic) -> None:
    """Position delete files are committed, also after others have replaced the one that ours read."""
    server.sql("DROP TABLE {t} PURGE")
    modes = ", ".join(f"'write.{verb}.mode' = 'merge-on-read'" for verb in ("delete", "update", "merge"))
    columns = "id BIGINT, p STRING, v STRING"
    server.sql(f"CREATE TABLE {{t}} ({columns}) USING iceberg TBLPROPERTIES ('format-version' = '2', {modes})")
    server.sql("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, 'a', 'x' FROM range(20)")
    erase(1)
    server.before = lambda: server.sql("DELETE FROM {t} WHERE id = 2")
    erase(3)
    assert server.conflicts == 1
    table = opened()
    base = table.snapshot()
    work = row_work(table, base, lambda _: ({4}, [(5, "a", "new"), (77, "a", "inserted")]))
    table.commit_changes(base, work.changes, operation={"name": "MERGE"}, reads=work.reads)
    server.sql("DELETE FROM {t} WHERE id = 6")
    left = [0, 5, *range(7, 20), 77]
    assert server.ids() == left
    assert [row.record_count for row in server.sql("SELECT record_count FROM {t}.delete_files")] == [6]
    assert purge(opened(), LocalEngine()).verified
    assert (server.ids(), server.sql("SELECT * FROM {t}.delete_files")) == (left, [])


def test_the_server_refuses_what_is_late(server: ServerLogic) -> None:
    """Spark's DELETE is committed right before ours: the server answers 409, and both hold."""
    left = server.ids()
    server.before = lambda: server.sql("DELETE FROM {t} WHERE id IN (1, 2)")
    assert purge(opened(), LocalEngine()).verified
    server.before = lambda: server.sql("DELETE FROM {t} WHERE id = 4")
    erase(5)
    assert server.conflicts == 2
    assert server.ids() == [each for each in left if each not in (1, 2, 4, 5)]


def insist(statement: Callable[[], object]) -> None:
    """Spark's statement fails where another one has changed the same files. Its user runs it again."""
    for attempt in range(20):
        try:
            statement()
        except Py4JJavaError as error:
            kind = error.java_exception.getCause() or error.java_exception
            if attempt == 19 or kind.getClass().getSimpleName() not in ("ValidationException", "CommitFailedException"):
                raise
        else:
            return


def raced(place: str, sql: Callable[[str], list[Any]]) -> int:
    """Deletes by many clients at once, and purges beside them: each is made or refused, none is lost. Returns how many
    were refused.
    """

    def ids() -> list[int]:
        return sorted(row[0] for row in sql("SELECT id FROM {t}"))

    def rows() -> list[str]:
        return sorted(map(repr, sql("SELECT *, _row_id, _last_updated_sequence_number FROM {t}")))

    left = ids()
    doomed, refused = left[::2], set[int]()

    def client(number: int) -> None:
        try:
            delete(open_table(place), LocalEngine(1), f"id = {number}")
        except ConflictError:
            refused.add(number)

    with ThreadPoolExecutor(6) as pool:
        done = [pool.submit(client, number) for number in doomed]
        for _ in range(3):
            pool.submit(purge, open_table(place), LocalEngine(1)).result()
        insist(lambda: sql(f"DELETE FROM {{t}} WHERE id = {left[1]}"))
        for each in done:
            each.result()
    assert ids() == [each for each in left if each not in {*doomed, left[1]} - refused]
    before = rows()
    assert purge(open_table(place), LocalEngine()).verified
    assert rows() == before
    assert len(refused) < len(doomed) // 2
    return len(refused)


def test_races_over_rest(server: ServerLogic) -> None:
    raced("iceberg:r.ns.t", server.sql)
    assert server.conflicts


def test_races_in_a_database(server: ServerLogic, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pointer in SQLite is swapped by pyiceberg's catalog, and by Iceberg's own beside it."""
    name = server.name.partition(".")[0]
    monkeypatch.setenv(f"PYICEBERG_CATALOG__{name.upper()}__TYPE", "sql")
    monkeypatch.setenv(f"PYICEBERG_CATALOG__{name.upper()}__URI", f"sqlite:///{server.database}")
    raced(f"iceberg:{server.name}", server.sql)


def test_races_in_a_folder(iceberg_spark: SparkSession, tmp_path: Path) -> None:
    engine = IcebergEngine(iceberg_spark, tmp_path)
    fill(lambda text: engine.sql(text, "t"))
    raced(str(engine.path("t")), lambda text: engine.sql(text, "t"))

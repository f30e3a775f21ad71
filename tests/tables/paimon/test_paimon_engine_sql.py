"""Paimon's procedures, run by a session that a test writes the commits of: what is said to it, and what is made of what
it did. Tables are written as Paimon writes them; that its real engine does, see tests/judges.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.paimon_writer import DataFile, PaimonWriter

from dv_maintenance.cli import main
from dv_maintenance.errors import DvMaintenanceError, RefusedError, UsageError
from dv_maintenance.maintenance.engine_sql import engine_sql
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.capabilities import EngineName
from dv_maintenance.tables.paimon.layout import table_layout
from dv_maintenance.tables.paimon.table import PaimonTable
from dv_maintenance.tables.paimon.verbs import engine_sql as paimon_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXTENSION = "org.apache.paimon.spark.extensions.PaimonSparkSessionExtensions"
CATALOG = "org.apache.paimon.spark.SparkCatalog"
DVS = {"bucket": "1", "deletion-vectors.enabled": "true"}


class Session:
    """A Spark session with Paimon's catalog ``lake`` over a warehouse; CALL does what ``act`` does, and queries of rows
    are answered by ``rows``, one answer after the other.
    """

    def __init__(self, warehouse: Path, act: Callable[[], object] = lambda: None, **settings: str) -> None:
        own = {"spark.sql.catalog.lake": CATALOG, "spark.sql.catalog.lake.warehouse": str(warehouse)}
        self.conf = {"spark.sql.extensions": EXTENSION, **own, **settings}
        self.warehouse, self.act = warehouse, act
        self.ran: list[str] = []
        self.rows: Iterator[Any] = iter(())
        self.user = "tests"

    def sql(self, query: str, /) -> Session:
        self.ran.append(query)
        return self

    def collect(self) -> Any:
        query = self.ran[-1]
        if "$snapshots" in query:
            return [(self.user, 2**63 - 1)]
        if query.startswith("SELECT"):
            return next(self.rows)
        self.act()
        return []

    @property
    def calls(self) -> list[str]:
        return [each for each in self.ran if each.startswith("CALL")]


@pytest.fixture
def keyed(tmp_path: Path) -> PaimonWriter:
    """Rows 1 to 6 above level 0, one of them deleted; 3 (again), 7 and a -D of 4 wait."""
    columns = {"id": "INT NOT NULL", "v": "STRING"}
    table = PaimonWriter(tmp_path / "lake" / "db.db" / "t", columns, primary_keys=["id"], options=DVS)
    first = append(table, [1, 2, 3, 4, 5, 6], level=5)
    table.delete({first: [0]}, kind="COMPACT")
    append(table, [3, 7, 4], [0, 0, 3], level=0, tag="new")
    return table


def append(
    table: PaimonWriter, ids: list[int], kinds: list[int] | None = None, level: int = 0, tag: str = "old"
) -> DataFile:
    file = data_file(table, ids, kinds, level, tag)
    table.commit("APPEND", add=[file])
    return file


def data_file(
    table: PaimonWriter, ids: list[int], kinds: list[int] | None = None, level: int = 5, tag: str = "old"
) -> DataFile:
    kinds = kinds or [0] * len(ids)
    rows = [{"id": each, "v": f"{tag}{each}"} for each in ids]
    return table.data_file(rows, kinds=kinds, level=level, _DELETE_ROW_COUNT=sum(kind == 3 for kind in kinds))


def compacted(table: PaimonWriter, deleted: list[int], rows: list[int], tag: str = "new") -> None:
    """Level 0 moves up: positions of the first file are deleted, ``rows`` are there instead."""
    first, *others = sorted(table.files.values(), key=lambda file: file.name)
    if deleted:
        table.dvs[first.key] = table.dvs[first.key] | table.dvs[first.key].from_positions(deleted)
        table.write_index()
    table.commit("COMPACT", add=[data_file(table, rows, tag=tag)], delete=others)


def run(table: PaimonWriter, act: Callable[[], object], job: str = "purge", **more: Any) -> Any:
    session = Session(table.path.parent.parent, act)
    session.rows = iter(more.pop("rows", ()))
    report = engine_sql(open_table(str(table.path)), session, job, **more)
    return report, session


# -- primary keys -------------------------------------------------------------------------------------------------


def test_keys_that_waited_may_change_and_no_others(keyed: PaimonWriter) -> None:
    report, session = run(keyed, lambda: compacted(keyed, [2, 3], [3, 7]))
    assert session.calls == ["CALL lake.sys.compact(table => 'db.t', compact_strategy => 'full')"]
    assert (report.verified, report.by, report.checked, report.problems) == (True, "keys", (4,), ())
    assert (report.version_before, report.version_after) == (3, 4)


@pytest.mark.parametrize(
    ("deleted", "rows", "why"),
    [
        ([1, 2, 3], [3, 7], "does not hold the same rows"),  # 2 is gone
        ([2, 3], [3, 7, 9], "does not hold the same rows"),  # nobody wrote 9
        ([3], [3, 7], "a key twice"),  # the older 3 is not deleted
        ([2, 3], [3], "lacks 1 rows that were waiting"),  # 7 is lost
        ([2, 3], [7], "lacks 1 rows that were waiting"),
    ],
)
def test_wrong_compactions_are_detected(keyed: PaimonWriter, deleted: list[int], rows: list[int], why: str) -> None:
    report, _ = run(keyed, lambda: compacted(keyed, deleted, rows))
    assert not report.verified
    (problem,) = report.problems
    assert why in problem


def test_rows_that_were_retracted_while_they_waited_may_be_missing(keyed: PaimonWriter) -> None:
    append(keyed, [8], level=0)
    append(keyed, [8], [3], level=0)
    report, _ = run(keyed, lambda: compacted(keyed, [2, 3], [3, 7]))
    assert (report.verified, report.by, report.checked) == (True, "keys", (6,))


def test_waiting_rows_that_may_be_missing_are_not_required(keyed: PaimonWriter) -> None:
    keyed.options = {**DVS, "sequence.field": "v"}
    keyed.write_schema()
    assert run(keyed, lambda: compacted(keyed, [2, 3], [3]))[0].verified


def test_without_rows_that_wait_all_are_compared(keyed: PaimonWriter) -> None:
    compacted(keyed, [2, 3], [3, 7])

    def full() -> None:
        files = list(keyed.files.values())
        keyed.dvs.clear()
        keyed.write_index()
        keyed.commit("COMPACT", add=[data_file(keyed, [2, 5, 6, 3, 7])], delete=files)

    report, _ = run(keyed, full)
    assert (report.by, report.checked) == ("content", (5,))
    assert not report.verified  # 3 and 7 were new3 and new7
    assert report.dvs_after == 0


def test_tables_that_merge_are_compared_by_the_engine(keyed: PaimonWriter) -> None:
    keyed.options = {"bucket": "1"}
    keyed.write_schema()
    same = [[(5, 1, 2)], [(5, 1, 2)]]
    report, session = run(keyed, lambda: compacted(keyed, [], [3, 7]), rows=same)
    assert (report.verified, report.by, report.checked) == (True, "engine", (4,))
    queries = [each for each in session.ran if "VERSION" in each]
    assert [each.rsplit(" ", 3)[-3:] for each in queries] == [["AS", "OF", "3"], ["AS", "OF", "4"]]
    report, _ = run(keyed, lambda: compacted(keyed, [], [3]), rows=[[(5, 1, 2)], [(4, 1, 2)]])
    assert not report.verified
    # A query that fails proves nothing.
    report, _ = run(keyed, lambda: compacted(keyed, [], [3]), rows=[[(5, 1, 2)]])
    assert not report.verified
    assert "was not checked" in report.problems[0]


def test_a_version_that_has_expired_is_not_checked(keyed: PaimonWriter) -> None:
    def act() -> None:
        compacted(keyed, [2, 3], [3, 7])
        (keyed.path / "snapshot" / "snapshot-3").unlink()

    report, _ = run(keyed, act)
    assert not report.verified
    assert "version 4 was not checked: there is no snapshot 3" in report.problems[0]


def test_a_vacuum(keyed: PaimonWriter) -> None:
    keyed.put("tag/tag-a", (keyed.path / "snapshot" / "snapshot-1").read_bytes())
    report, session = run(keyed, lambda: None, "vacuum")
    assert session.calls == [
        "CALL lake.sys.expire_snapshots(table => 'db.t')",
        "CALL lake.sys.remove_orphan_files(table => 'db.t')",
    ]
    assert (report.verified, report.by) == (True, "files")
    assert not any("purge_files" in each for each in session.ran)
    hidden = max(keyed.path.glob("bucket-0/*"))
    report, _ = run(keyed, lambda: hidden.unlink(missing_ok=True), "vacuum")
    assert not report.verified
    assert hidden.name in report.problems[0]


def test_files_of_a_tag_must_exist(tmp_path: Path) -> None:
    table = PaimonWriter(tmp_path / "lake" / "db.db" / "t")
    file = table.append([{"id": 1, "v": "x"}])
    table.put("tag/tag-a", (table.path / "snapshot" / "snapshot-1").read_bytes())
    table.commit("OVERWRITE", delete=[file])
    assert run(table, lambda: None, "vacuum")[0].verified
    report, _ = run(table, lambda: (table.path / "bucket-0" / file.name).unlink(missing_ok=True), "vacuum")
    assert file.name in report.problems[0]
    for manifest in table.path.glob("manifest/*"):
        manifest.unlink()
    with pytest.raises(DvMaintenanceError):
        run(table, lambda: None, "vacuum")


# -- append tables ------------------------------------------------------------------------------------------------


def test_append_tables_are_compared_by_content(tmp_path: Path) -> None:
    table = PaimonWriter(tmp_path / "lake" / "db.db" / "t")
    file = table.append([{"id": 1, "v": "x"}, {"id": 2, "v": "y"}])
    table.delete({file: [0]})

    def act(rows: list[dict[str, Any]]) -> None:
        table.append([{"id": 9, "v": "another's"}])
        old = [each for each in table.files.values() if each.name != max(table.files)[2]]
        table.dvs.clear()
        table.write_index()
        table.commit("COMPACT", add=[table.data_file(rows)], delete=old)

    report, _ = run(table, lambda: act([{"id": 2, "v": "y"}]), "optimize")
    assert (report.verified, report.by, report.checked) == (True, "content", (4,))
    assert (report.dvs_before, report.dvs_after) == (1, 0)
    assert not run(table, lambda: act([{"id": 2, "v": "z"}]), "optimize")[0].verified


# -- data evolution -----------------------------------------------------------------------------------------------


@pytest.fixture
def evolving(tmp_path: Path) -> PaimonWriter:
    """Three rows, one of them deleted, with a column in a newer file."""
    options = {"bucket": "-1", "deletion-vectors.enabled": "true", "data-evolution.enabled": "true"}
    table = PaimonWriter(tmp_path / "lake" / "db.db" / "t", options=options)
    anchor = table.append([{"id": each, "v": "old"} for each in range(3)], **of_rows(0, 1))
    table.append([{"v": f"v{each}"} for each in range(3)], **of_rows(0, 2), _WRITE_COLS=["v"])
    table.delete({anchor: [1]})
    return table


def of_rows(first: int, age: int) -> dict[str, Any]:
    return {"_FIRST_ROW_ID": first, "_MIN_SEQUENCE_NUMBER": age, "_MAX_SEQUENCE_NUMBER": age}


def test_a_purge_applies_deletion_vectors(evolving: PaimonWriter) -> None:
    def act() -> None:
        old = list(evolving.files.values())
        evolving.dvs.clear()
        evolving.write_index()
        rows = [{"id": each, "v": f"v{each}"} for each in (0, 2)]
        evolving.commit("COMPACT", add=[evolving.data_file(rows, **of_rows(3, 4))], delete=old)

    report, session = run(evolving, act)
    assert session.calls == ["CALL lake.sys.materialize_deletion_vectors(table => 'db.t')"]
    assert (report.verified, report.by, report.checked) == (True, "content", (4,))
    assert (report.dvs_before, report.dvs_after) == (1, 0)
    # Every one of the files has to be there after a vacuum.
    assert run(evolving, lambda: None, "vacuum")[0].verified


def test_a_compaction_keeps_them(evolving: PaimonWriter) -> None:
    def act(rows: list[dict[str, Any]], age: int) -> None:
        old = list(evolving.files.values())
        new = evolving.data_file(rows, **of_rows(0, age))
        evolving.dvs = {new.key: next(iter(evolving.dvs.values()))}
        evolving.write_index()
        evolving.commit("COMPACT", add=[new], delete=old)

    good = [{"id": each, "v": f"v{each}"} for each in range(3)]
    report, session = run(evolving, lambda: act(good, 2), "optimize")
    assert session.calls == ["CALL lake.sys.compact(table => 'db.t', compact_strategy => 'minor')"]
    assert (report.verified, report.by, report.checked, report.dvs_after) == (True, "content", (4,), 1)
    wrong = [{"id": each, "v": "old"} for each in range(3)]
    assert not run(evolving, lambda: act(wrong, 2), "optimize")[0].verified


def test_a_newer_file_beside_the_same_anchor_is_compared(evolving: PaimonWriter) -> None:
    def act(value: str) -> None:
        patch = max(evolving.files.values(), key=lambda file: file.name)
        new = evolving.data_file([{"v": f"{value}{each}"} for each in range(3)], **of_rows(0, 9), _WRITE_COLS=["v"])
        evolving.commit("COMPACT", add=[new], delete=[patch])

    report, _ = run(evolving, lambda: act("v"), "optimize")
    assert (report.verified, report.checked) == (True, (4,))
    report, _ = run(evolving, lambda: act("w"), "optimize")
    assert (report.verified, report.checked) == (False, (5,))


def test_files_beside_the_anchor_must_exist(evolving: PaimonWriter) -> None:
    patch = max(evolving.path.glob("bucket-0/*"))
    report, _ = run(evolving, lambda: patch.unlink(missing_ok=True), "vacuum")
    assert [patch.name in problem for problem in report.problems] == [True]


# -- names --------------------------------------------------------------------------------------------------------


def named(uri: str, wanted: str | None = None, **catalogs: str) -> EngineName:
    settings = {}
    for name, warehouse in catalogs.items():
        settings |= {f"spark.sql.catalog.{name}": CATALOG, f"spark.sql.catalog.{name}.warehouse": warehouse}
    settings["spark.sql.catalog.other"] = "org.apache.iceberg.spark.SparkCatalog"
    return paimon_sql.name_of(table_layout(Storage(uri)), settings, wanted)


def test_the_catalog_is_the_one_whose_warehouse_has_the_table() -> None:
    found = EngineName("b", "db", "t")
    assert named("file:///lake/db.db/t", a="/other", b="/lake") == found
    assert named("file:///lake/db.db/t", a="/lake/db.db", b="file:/lake/") == found
    assert named("s3://bucket/wh/db.db/t", a="s3://bucket/w", b="s3a://bucket/wh/") == found
    assert named("file:///my%20lake/my%20db.db/t-1", b="/my lake") == EngineName("b", "`my db`", "`t-1`")
    assert named("s3://rest/db-1/tb-2", "b.sales.orders", b="lake1") == EngineName("b", "sales", "orders")
    assert named("file:///lake/db.db/t", "b", b="thrift") == found


@pytest.mark.parametrize(
    ("uri", "wanted", "catalogs", "why"),
    [
        ("file:///lake/db.db/t", None, {}, "no Paimon catalog"),
        ("file:///lake/db.db/t", None, {"a": "/elsewhere"}, "no Paimon catalog"),
        ("file:///lake/db.db/t", None, {"a": "/lake", "b": "/lake"}, "several: a, b"),
        ("file:///lake/db.db/t", "other", {"a": "/lake"}, "no Paimon catalog named 'other'"),
        ("file:///lake/db/t", None, {"a": "/lake"}, "its path is not"),
        ("file:///lake/db.db/t/branch/branch-b", None, {"a": "/lake"}, "does not maintain branches"),
        ("file:///lake/db.db/t'x", None, {"a": "/lake"}, "not allowed in the SQL"),
        ("file:///lake/d%60b.db/t", None, {"a": "/lake"}, "not allowed in the SQL"),
        ("file:///lake/db.db/t%5C", None, {"a": "/lake"}, "not allowed in the SQL"),
        ("file:///lake/db.db/t$branch_b", None, {"a": "/lake"}, "not allowed in the SQL"),
        ("file:///lake/db.db/t", "a.d;b.t", {"a": "/lake"}, "not allowed in the SQL"),
    ],
)
def test_names_that_are_refused(uri: str, wanted: str | None, catalogs: dict[str, str], why: str) -> None:
    with pytest.raises(RefusedError, match=why) as caught:
        named(uri, wanted, **catalogs)
    assert caught.value.next_step or "SQL" in why or "branch" in why


def test_invalid_names() -> None:
    with pytest.raises(UsageError, match="neither a catalog"):
        named("file:///lake/db.db/t", "a.b", a="/lake")


def test_nothing_is_run_on_another_table(keyed: PaimonWriter, tmp_path: Path) -> None:
    table = open_table(str(keyed.path))
    session = Session(tmp_path / "lake")
    session.user = "somebody"
    with pytest.raises(RefusedError, match=r"lake\.db\.t in the Spark session is a different table"):
        engine_sql(table, session, "purge")
    for other, why in [
        (Session(tmp_path / "lake", **{"spark.sql.extensions": ""}), "no PaimonSparkSessionExtensions"),
        (Session(tmp_path / "elsewhere"), "no Paimon catalog"),
    ]:
        with pytest.raises(RefusedError, match=why) as caught:
            engine_sql(table, other, "purge")
        assert "paimon-spark" in (caught.value.next_step or "")
        assert not other.calls
    with pytest.raises(UsageError, match="zorder"):
        engine_sql(table, session, "zorder")
    assert not session.calls
    empty = PaimonWriter(tmp_path / "lake" / "db.db" / "empty")
    with pytest.raises(RefusedError, match="no snapshot yet"):
        engine_sql(open_table(str(empty.path)), session, "purge")


def test_a_session_that_cannot_read_the_table(keyed: PaimonWriter, tmp_path: Path) -> None:
    class Blind(Session):
        def collect(self) -> Any:
            raise ValueError("TABLE_OR_VIEW_NOT_FOUND")

    session = Blind(tmp_path / "lake")
    with pytest.raises(RefusedError, match="NOT_FOUND"):
        engine_sql(open_table(str(keyed.path)), session, "purge")
    assert not session.calls


def test_an_engine_that_fails_half_way(keyed: PaimonWriter, tmp_path: Path) -> None:
    def act() -> None:
        if len(session.calls) > 1:
            raise ValueError("no such procedure")

    session = Session(tmp_path / "lake", act)
    with pytest.raises(DvMaintenanceError, match="remove_orphan_files") as caught:
        engine_sql(open_table(str(keyed.path)), session, "vacuum")
    assert "expire_snapshots(table => 'db.t') ran" in (caught.value.done or "")


# -- Spark --------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_spark_takes_the_statements(spark: SparkSession, keyed: PaimonWriter) -> None:
    """Spark's own parser does, and its functions answer for columns of every kind."""
    parser: Any = spark._jsparkSession.sessionState().sqlParser()
    table = PaimonTable(Storage(str(keyed.path)))
    snapshot = table.snapshot()
    for name in (EngineName("lake", "db", "t"), EngineName("`my lake`", "`d-b`", "`t 1`")):
        for job in ("optimize", "purge", "vacuum"):
            for statement in paimon_sql.statements(job, name, snapshot):
                parser.parsePlan(statement)
                parser.parseMultipartIdentifier(statement.split("'")[1])
        evolving = replace(snapshot, properties={**snapshot.properties, "data-evolution.enabled": "true"})
        (statement,) = paimon_sql.statements("purge", name, evolving)
        parser.parsePlan(statement)
        for query in (paimon_sql.probe(name, snapshot)[0], paimon_sql.rows_query(name, snapshot)):
            parser.parsePlan(query)

    columns = {
        "a`b": "INT",
        "m": {"type": "MAP", "key": "INT NOT NULL", "value": "DOUBLE"},
        "t": "TIMESTAMP(6)",
        "b": "BYTES",
        "d": "DECIMAL(38, 10)",
    }
    other = PaimonWriter(keyed.path.parent / "o", columns)
    found = paimon_sql.rows_query(EngineName("lake", "db", "t"), PaimonTable(Storage(str(other.path))).snapshot())
    query = found.replace("lake.db.t VERSION AS OF 0", "{source}")
    some = "SELECT 1 `a``b`, map(1, 0.5D) m, TIMESTAMP_NTZ'2026-01-01 00:00:00' t, X'FF' b, 1.5BD d"
    none = "SELECT NULL `a``b`, NULL m, NULL t, NULL b, 2.5BD d"

    def answer(rows: str) -> Any:
        return spark.sql(query.format(source=f"({rows})")).collect()

    both = answer(f"{some} UNION ALL {none}")
    assert both[0][0] == 2
    assert both == answer(f"{none} UNION ALL {some}")
    assert both != answer(f"{some} UNION ALL {some}")
    assert answer(f"{some} LIMIT 0")[0][0] == 0


@pytest.mark.deep
def test_the_command_line_names_what_is_missing(
    spark: SparkSession, golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = shutil.copytree(golden / "paimon" / "pk_dv_b1" / "table", tmp_path / "lake" / "db.db" / "t")
    assert main(["engine-sql", str(place), "purge", "--catalog", "paimon"]) == 3
    errors = capsys.readouterr().err
    assert "PaimonSparkSessionExtensions" in errors
    assert "paimon-spark" in errors

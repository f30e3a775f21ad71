"""Position deletes of format version 2: Iceberg's own Spark runtime, pyiceberg and DuckDB read what ours leave; Spark
replaces and rewrites them, and both take turns on one table.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pytest
from iceberg_engine import IcebergEngine
from py4j.protocol import Py4JJavaError
from support.duckdb_iceberg import connected
from support.sessions import CHEAP

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest
from dv_maintenance.tables.iceberg.table import IcebergTable
from dv_maintenance.testing.history import InterferingEngine
from dv_maintenance.testing.verbs import row_work

FAR = 4_102_444_800_000  # 2100
Rows = dict[int, tuple[str | None, str]]


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    return connected()


@pytest.fixture
def engine(iceberg_spark: Any, tmp_path: Path) -> IcebergEngine:
    made = IcebergEngine(iceberg_spark, tmp_path)
    for key, value in CHEAP.items():
        made.session.conf.set(key, value)
    return made


def made(engine: IcebergEngine, name: str = "t", *, first: int = 2, partitioned: str = "p") -> Rows:
    """Sixty rows in a table that has format version 2, and maybe an older one at ``first``."""
    modes = ", ".join(f"'write.{verb}.mode'='merge-on-read'" for verb in ("delete", "update", "merge"))
    by = f"PARTITIONED BY ({partitioned})" if partitioned else ""
    engine.sql(
        f"CREATE TABLE {{t}} (id BIGINT, p STRING, v STRING) USING iceberg {by} "
        f"TBLPROPERTIES ('format-version'='{first}', {modes})",
        name,
    )
    for start in (0, 30):
        values = (
            f"id, element_at(array('a', 'b', NULL), 1 + int(id % 3)), concat('v', id) FROM range({start}, {start + 30})"
        )
        engine.sql(f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ {values}", name)
    if first < 2:
        engine.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='2')", name)
    return {at: (("a", "b", None)[at % 3], f"v{at}") for at in range(60)}


def ours(engine: IcebergEngine, name: str = "t") -> IcebergTable:
    table = open_table(str(engine.path(name)))
    assert isinstance(table, IcebergTable)
    return table


def erase(engine: IcebergEngine, condition: str) -> None:
    delete(ours(engine), LocalEngine(), condition)


def in_spark(engine: IcebergEngine) -> Rows:
    return of([*engine.sql("SELECT id, p, v FROM {t}", "t")])


def of(rows: list[Any]) -> Rows:
    found = {number: (p, v) for number, p, v in rows}
    assert len(found) == len(rows)
    return found


def by_others(engine: IcebergEngine, duck: duckdb.DuckDBPyConnection) -> dict[str, Rows]:
    """The rows that other readers find, and ours."""
    from pyiceberg.table import StaticTable

    table = ours(engine)
    place = engine.path("t") / table.snapshot().metadata.path
    theirs = StaticTable.from_metadata(str(place)).scan().to_arrow().select(["id", "p", "v"])
    rows = duck.execute(f"SELECT id, p, v FROM iceberg_scan('{place}')").fetchall()
    _, batches = read(table, None)
    own = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    return {
        "pyiceberg": of([tuple(row.values()) for row in theirs.to_pylist()]),
        "duckdb": of(rows),
        "ours": of(own),
    }


def agree(engine: IcebergEngine, duck: duckdb.DuckDBPyConnection, rows: Rows) -> None:
    assert in_spark(engine) == rows
    if ours(engine).snapshot().properties.get("write.delete.format.default") in {"orc", "avro"}:
        _, batches = read(ours(engine), None)
        assert of([tuple(row.values()) for batch in batches for row in batch.to_pylist()]) == rows
        return
    for reader, found in by_others(engine, duck).items():
        assert found == rows, reader


def without(rows: Rows, doomed: Callable[[int], bool]) -> Rows:
    return {number: row for number, row in rows.items() if not doomed(number)}


def summary(engine: IcebergEngine) -> dict[str, str]:
    (row,) = engine.sql("SELECT summary FROM {t}.snapshots ORDER BY committed_at DESC LIMIT 1", "t")
    return dict(row[0])  # type: ignore[call-overload, no-any-return]


# -- one after the other -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "partitioned", "format"),
    [
        (2, "p", "parquet"),
        *(pytest.param(1, each, "parquet", marks=pytest.mark.deep) for each in ("", "p")),
        *(pytest.param(2, "p", each, marks=pytest.mark.deep) for each in ("orc", "avro")),
    ],
)
def test_spark_goes_on(
    engine: IcebergEngine, duck: duckdb.DuckDBPyConnection, first: int, partitioned: str, format: str
) -> None:
    """``format``: of position deletes. The other readers don't know those in ORC and Avro."""
    rows = made(engine, first=first, partitioned=partitioned)
    engine.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.delete.format.default'='{format}')", "t")
    erase(engine, "id IN (3, 6, 31, 33)")
    agree(engine, duck, rows := without(rows, lambda each: each in {3, 6, 31, 33}))
    # Filters, which may skip files by bounds of ours.
    assert engine.sql("SELECT count(*), min(id), max(id) FROM {t} WHERE p = 'a' AND id < 10", "t") == [(2, 0, 9)]
    assert engine.sql("SELECT count(*) FROM {t}", "t") == [(56,)]
    files = engine.sql("SELECT file_path, record_count, referenced_data_file, content FROM {t}.delete_files", "t")
    assert sum(row[1] for row in files) == 4  # type: ignore[misc]
    assert {(row[2], row[3]) for row in files} == {(None, 1)}

    # Spark takes ours into its own: it knows that they are of one data file each.
    engine.sql("DELETE FROM {t} WHERE id IN (9, 36)", "t")
    said = summary(engine)
    replaced = int(said["removed-position-delete-files"])
    assert replaced == int(said["added-position-delete-files"]) > 0
    assert int(said["added-position-deletes"]) == int(said["removed-position-deletes"]) + 2
    erase(engine, "id IN (12, 39)")
    theirs, said = said, summary(engine)
    if format == "avro":  # Spark gives its own no bounds, so nobody knows that they are of one file
        assert "removed-position-delete-files" not in said
    else:
        assert said["removed-position-delete-files"] == said["added-position-delete-files"]
        assert said["total-delete-files"] == theirs["total-delete-files"]
    assert int(said["total-position-deletes"]) == 8
    agree(engine, duck, rows := without(rows, lambda each: each in {9, 36, 12, 39}))

    # Shared ones stay.
    engine.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.granularity'='partition')", "t")
    engine.sql("DELETE FROM {t} WHERE id % 10 = 5", "t")
    erase(engine, "id IN (18, 21, 48)")
    agree(engine, duck, rows := without(rows, lambda each: each % 10 == 5 or each in {18, 21, 48}))
    engine.sql("CALL {c}.rewrite_position_delete_files(table => '{n}', options => map('rewrite-all', 'true'))", "t")
    agree(engine, duck, rows)
    erase(engine, "id = 24")
    table = ours(engine)
    base = table.snapshot()
    work = row_work(table, base, lambda _: ({4}, [(7, "b", "moved"), (77, None, "inserted")]))
    table.commit_changes(base, work.changes, operation={"name": "MERGE"}, reads=work.reads)
    engine.sql("MERGE INTO {t} USING (SELECT 8 AS id) s ON {t}.id = s.id WHEN MATCHED THEN UPDATE SET v = 'm'", "t")
    rows = without(rows, lambda each: each in {24, 4}) | {7: ("b", "moved"), 77: (None, "inserted"), 8: (None, "m")}
    agree(engine, duck, rows)
    engine.rewrite("t")
    agree(engine, duck, rows)
    erase(engine, "id = 0")
    assert purge(ours(engine), LocalEngine()).verified
    agree(engine, duck, rows := without(rows, lambda each: each == 0))
    assert engine.sql("SELECT * FROM {t}.delete_files", "t") == []
    vacuumed(engine)
    agree(engine, duck, rows)
    engine.expire("t")
    agree(engine, duck, rows)


def vacuumed(engine: IcebergEngine) -> None:
    guard = VacuumGuard(max_deleted_share=1.0)
    ours(engine).vacuum(VacuumRequest(now=FAR, retention=0, allow_short_retention=True, guard=guard, lite=True))


# -- at the same time --------------------------------------------------------------------------------------------------


def held(engine: IcebergEngine, statement: str, meanwhile: Callable[[], object]) -> BaseException | None:
    """Run a statement of Spark, and something else when it has read the table and not committed. ``{held}`` in its
    condition is true. Returns its error.
    """
    begun, go = engine.place / "begun", engine.place / "go"

    def wait(number: int) -> bool:
        begun.touch()
        while not go.exists():
            time.sleep(0.02)
        return number >= 0

    engine.session.udf.register("held", wait, "boolean")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(engine.sql, statement, "t")
        while not begun.exists() and not running.done():
            time.sleep(0.02)
        assert not running.done(), running.exception()
        try:
            meanwhile()
        finally:
            go.touch()
        return running.exception()


def test_a_statement_of_spark_that_began_before(engine: IcebergEngine, duck: duckdb.DuckDBPyConnection) -> None:
    """Both replace the same delete file. Whoever comes second may fail, and no row comes back."""
    rows = made(engine)
    engine.sql("DELETE FROM {t} WHERE id IN (0, 3)", "t")
    error = held(engine, "DELETE FROM {t} WHERE id IN (6, 9) AND held(id)", lambda: erase(engine, "id IN (12, 15)"))
    gone = {0, 3, 12, 15} | (set() if error else {6, 9})
    print("Spark's DELETE:", type(error).__name__, str(error)[:200])
    assert error is None or isinstance(error, Py4JJavaError)
    agree(engine, duck, without(rows, lambda each: each in gone))
    erase(engine, "id IN (6, 9)")
    gone |= {6, 9}
    agree(engine, duck, rows := without(rows, lambda each: each in gone))
    assert purge(ours(engine), LocalEngine()).verified
    agree(engine, duck, rows)


def test_spark_deletes_while_ours_look_for_rows(engine: IcebergEngine, duck: duckdb.DuckDBPyConnection) -> None:
    rows = made(engine)
    engine.sql("DELETE FROM {t} WHERE id = 0", "t")
    table = ours(engine)
    base = table.snapshot()

    def found(change: Any) -> Any:
        return row_work(table, base, change)

    gone, both = found(lambda _: ({3, 6}, [])), found(lambda _: ({6, 9}, []))
    changed = found(lambda _: (set(), [(6, "a", "back?"), (12, "a", "x")]))
    engine.sql("DELETE FROM {t} WHERE id IN (6, 15)", "t")  # replaces the delete file that ours have read

    def commit(work: Any, name: str) -> Any:
        return table.commit_changes(base, work.changes, operation={"name": name}, reads=work.reads)

    assert commit(gone, "DELETE").rows_deleted == 1
    assert commit(both, "DELETE").rows_deleted == 1
    assert "deleted rows of" in commit(changed, "UPDATE").conflict
    agree(engine, duck, rows := without(rows, lambda each: each in {0, 3, 6, 9, 15}))
    # A rewrite carries over what Spark deletes, and Spark goes on with the delete files of the new files.
    engine.sql("DELETE FROM {t} WHERE id = 18", "t")
    gone_by = InterferingEngine(LocalEngine(), lambda: engine.sql("DELETE FROM {t} WHERE id IN (21, 22, 24)", "t"))
    assert purge(ours(engine), gone_by).verified
    agree(engine, duck, rows := without(rows, lambda each: each in {18, 21, 22, 24}))
    engine.sql("DELETE FROM {t} WHERE id = 27", "t")
    agree(engine, duck, rows := without(rows, lambda each: each == 27))
    engine.rewrite("t")
    agree(engine, duck, rows)


# -- random histories --------------------------------------------------------------------------------------------------


class History:
    """Ours and Spark take turns on one table; a dict knows the rows."""

    def __init__(self, engine: IcebergEngine, seed: int) -> None:
        self.engine, self.rng, self.log = engine, random.Random(seed), [f"seed {seed}"]
        self.rows = made(engine, first=self.rng.choice([1, 2]), partitioned=self.rng.choice(["", "p", "bucket(3, id)"]))

    def run(self, length: int, duck: duckdb.DuckDBPyConnection) -> None:
        acts = [
            *[self.our_delete, self.their_delete] * 4,
            *[self.our_merge, self.their_merge, self.insert] * 2,
            *[self.purge, self.maintain, self.vacuum, self.rewrite, self.rewrite_deletes, self.granularity],
        ]
        for number in range(length):
            act = self.rng.choice(acts)
            self.log.append(act.__name__)
            try:
                act()
                assert in_spark(self.engine) == self.rows
                if number % 4 == 3 or number == length - 1:
                    agree(self.engine, duck, self.rows)
            except BaseException as error:
                error.add_note(f"history so far: {'; '.join(self.log)}")
                raise

    def some(self) -> tuple[str, set[int]]:
        divisor, rest = self.rng.randint(4, 12), self.rng.randint(0, 3)
        return f"id % {divisor} = {rest}", {number for number in self.rows if number % divisor == rest}

    def our_delete(self) -> None:
        _, gone = self.some()
        if gone:
            erase(self.engine, f"id IN ({', '.join(map(str, gone))})")
        self.rows = without(self.rows, gone.__contains__)
        snapshot = ours(self.engine).snapshot()
        own, newest = snapshot.of_one_file, snapshot.entry and snapshot.entry.sequence
        paths, sequences = (snapshot.deletes.positions[name].to_pylist() for name in ("path", "data_sequence"))
        for path, sequence in zip(paths, sequences, strict=True):
            assert sequence != newest or not gone or [*own.values()].count(own[path]) == 1

    def their_delete(self) -> None:
        condition, gone = self.some()
        self.engine.sql(f"DELETE FROM {{t}} WHERE {condition}", "t")
        self.rows = without(self.rows, gone.__contains__)

    def our_merge(self) -> None:
        (_, gone), (_, changed) = self.some(), self.some()
        new = {number: (self.rng.choice(["a", "b", None]), "ours") for number in {*changed, self.rng.randint(100, 200)}}
        gone -= new.keys()  # a row that stays as it is, and goes, would go
        table = ours(self.engine)
        base = table.snapshot()
        work = row_work(table, base, lambda _: (gone, [(number, *row) for number, row in new.items()]))
        outcome = table.commit_changes(base, work.changes, operation={"name": "MERGE"}, reads=work.reads)
        assert not outcome.conflict
        self.rows = without(self.rows, gone.__contains__) | new

    def their_merge(self) -> None:
        condition, changed = self.some()
        self.engine.sql(f"UPDATE {{t}} SET v = concat(v, 'x'), p = 'b' WHERE {condition}", "t")
        self.rows |= {number: ("b", self.rows[number][1] + "x") for number in changed}

    def insert(self) -> None:
        first = max(self.rows, default=0) + 1
        self.engine.sql(f"INSERT INTO {{t}} SELECT id, 'a', 'new' FROM range({first}, {first + 8})", "t")
        self.rows |= dict.fromkeys(range(first, first + 8), ("a", "new"))

    def purge(self) -> None:
        assert purge(ours(self.engine), LocalEngine()).verified

    def maintain(self) -> None:
        assert maintain(ours(self.engine), LocalEngine(), Policy(max_deleted_ratio=0.2, min_input_files=3)).verified

    def vacuum(self) -> None:
        vacuumed(self.engine)

    def rewrite(self) -> None:
        self.engine.rewrite("t")

    def rewrite_deletes(self) -> None:
        options = "options => map('rewrite-all', 'true')"
        self.engine.sql(f"CALL {{c}}.rewrite_position_delete_files(table => '{{n}}', {options})", "t")

    def granularity(self) -> None:
        wanted = self.rng.choice(["file", "partition"])
        self.engine.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.delete.granularity'='{wanted}')", "t")


@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.deep) for each in range(1, 40))])
def test_random_histories(engine: IcebergEngine, duck: duckdb.DuckDBPyConnection, seed: int) -> None:
    History(engine, seed).run(8 if seed == 0 else 20, duck)

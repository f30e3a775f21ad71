"""Tables maintained by us: Iceberg's own Spark runtime reads the same rows with the same lineage, goes on deleting,
updating, merging, compacting and expiring, and no delete of its is lost.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_engine import IcebergEngine
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, IllegalArgumentException
from support.iceberg_edits import edit

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError
from dv_maintenance.files.avro.container import header_of, read_records
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.read import read
from dv_maintenance.maintenance.undelete import undelete
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest
from dv_maintenance.tables.iceberg.snapshot import load_snapshot
from dv_maintenance.testing.faults import Call, Fault
from dv_maintenance.testing.faulty_access import injected
from dv_maintenance.testing.history import InterferingEngine
from dv_maintenance.testing.iceberg_builder import IcebergBuilder
from dv_maintenance.testing.locations import Folder

GOLDEN = [
    "all_deleted_file",
    "avro_dv",
    "bare_blob_dv",
    "branches_tags",
    "compacted",
    "dangling_dv",
    "eq_deletes",
    "expired",
    "lineage",
    "many_dvs_one_puffin",
    "nested_types",
    "orc_dv",
    "overwrites",
    "part_identity",
    "part_transforms",
    "plain",
    "schema_evolved",
    "spec_evolved",
    "v2_upgraded",
    "v2_upgraded_part",
    "variant_col",
]
FAR = 4_102_444_800_000  # 2100
_MERGING = "'commit.manifest.min-count-to-merge' = '2'"


@pytest.fixture
def engine(iceberg_spark: Any, tmp_path: Path) -> IcebergEngine:
    return IcebergEngine(iceberg_spark, tmp_path)


def purged(engine: IcebergEngine, name: str) -> None:
    """A purge that changes nothing that Spark reads."""
    rows = engine.rows(name)
    report = purge(open_table(str(engine.path(name))), LocalEngine())
    assert report.verified, report.problems
    assert engine.rows(name) == rows
    assert ours(engine, name) == rows


def ours(engine: IcebergEngine, name: str) -> list[str]:
    """As ``IcebergEngine.rows``; only of types that Spark and Arrow make the same objects of."""
    table = open_table(str(engine.path(name)))
    snapshot = table.snapshot()
    if any(str(each.type).startswith(("struct", "list", "map", "timestamp", "decimal")) for each in snapshot.schema):
        return engine.rows(name)
    columns = [*snapshot.schema.names, *snapshot.hidden_columns.names]
    _, batches = read(table, None, columns=columns)
    return sorted(repr(tuple(row.values())) for batch in batches for row in batch.to_pylist())


def vacuumed(engine: IcebergEngine, name: str) -> None:
    """A vacuum of everything but what the references keep."""
    rows = engine.rows(name)
    request = VacuumRequest(
        now=FAR, retention=0, allow_short_retention=True, guard=VacuumGuard(max_deleted_share=1.0), lite=True
    )
    open_table(str(engine.path(name))).vacuum(request)
    assert engine.rows(name) == rows


def no_orphans(engine: IcebergEngine, name: str) -> None:
    then = time.time() - 30 * 86_400
    for path in engine.path(name).rglob("*"):
        os.utime(path, (then, then))
    assert engine.orphans(name) == []


def made(engine: IcebergEngine, name: str) -> None:
    engine.create(name, "id INT, p STRING, v STRING", partitioned="p")
    rows = (f"({number}, '{'ab'[number % 2]}', 'v{number}')" for number in range(40))
    engine.sql(f"INSERT INTO {{t}} VALUES {', '.join(rows)}", name)
    engine.sql("DELETE FROM {t} WHERE id % 3 = 0", name)


def test_spark_goes_on(engine: IcebergEngine) -> None:
    """One table through all of it, so that each statement meets what we left."""
    made(engine, "t")
    purged(engine, "t")
    engine.sql("UPDATE {t} SET v = 'new' WHERE id % 5 = 1", "t")
    purged(engine, "t")
    # Ours carries over what Spark deletes while we rewrite.
    engine.sql("DELETE FROM {t} WHERE id IN (2, 4)", "t")
    gone = InterferingEngine(LocalEngine(), lambda: engine.sql("DELETE FROM {t} WHERE id IN (5, 7, 8)", "t"))
    rows = engine.rows("t")
    assert purge(open_table(str(engine.path("t"))), gone).verified
    left = [row for row in rows if row.split(",")[0] not in {"(5", "(7", "(8"}]
    assert engine.rows("t") == left
    assert len(left) == len(rows) - 3
    # Ours deletes, Spark reads and deletes from the same file.
    delete(open_table(str(engine.path("t"))), LocalEngine(), "id = 10")
    engine.sql("DELETE FROM {t} WHERE id = 11", "t")
    assert not {row.split(",")[0] for row in engine.rows("t")} & {"(10", "(11"}
    vacuumed(engine, "t")
    rows = engine.rows("t")
    engine.rewrite("t")
    assert engine.rows("t") == rows
    engine.expire("t")
    assert engine.rows("t") == rows
    no_orphans(engine, "t")


@pytest.mark.deep
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_tables(engine: IcebergEngine, golden: Path, lay: ModuleType, name: str) -> None:
    lay.lay(str(golden / "iceberg" / name), str(engine.place / name))
    purged(engine, name)
    first = open_table(str(engine.path(name))).snapshot().schema.names[0]
    engine.sql(f"DELETE FROM {{t}} WHERE abs(hash({first})) % 7 = 3", name)
    purged(engine, name)
    vacuumed(engine, name)
    rows = engine.rows(name)
    engine.rewrite(name)
    assert engine.rows(name) == rows
    engine.expire(name)
    assert engine.rows(name) == rows
    if name != "expired":  # which has three of its own
        no_orphans(engine, name)


@pytest.mark.deep
def test_new_files_claim_an_order_only_if_they_have_it(engine: IcebergEngine) -> None:
    """Beside Spark's own rewrite: a sorted file without some rows stays sorted, two after each other do not."""
    for name in ("t", "twin"):
        engine.create(name, "id INT, p STRING, v STRING", partitioned="p")
        iceberg = engine.session._jvm.org.apache.iceberg
        column = iceberg.expressions.Expressions.ref("v")
        engine.java(name).replaceSortOrder().desc(column, iceberg.NullOrder.NULLS_LAST).commit()
        for part, count in (("one", 1), ("two", 2)):
            for at in range(count):
                rows = f"CAST(id AS INT), '{part}', concat('v', (id * 7 + {at}) % 50)"
                engine.sql(f"INSERT INTO {{t}} SELECT {rows} FROM range(40)", name)
        engine.sql("DELETE FROM {t} WHERE id % 5 = 2", name)

    def orders(name: str) -> list[object]:
        found = engine.sql("SELECT partition.p, sort_order_id FROM {t}.files WHERE content = 0", name)
        return sorted((part, order or 0) for part, order in found)

    assert orders("t") == [("one", 1), ("two", 1), ("two", 1)]
    purged(engine, "t")
    assert orders("t") == [("one", 1), ("two", 0)]
    (file,) = (str(row[0]) for row in engine.sql("SELECT file_path FROM {t}.files WHERE partition.p = 'one'", "t"))
    values = pq.ParquetFile(file).read(["v"])["v"].to_pylist()
    assert values == sorted(values, reverse=True)
    engine.rewrite("twin")
    assert orders("twin") == [("one", 1), ("two", 1)]  # Spark sorts what it merges
    engine.sql("DELETE FROM {t} WHERE id = 9", "t")
    purged(engine, "t")
    assert orders("t") == [("one", 1), ("two", 0)]


class At:
    """Runs something at one storage call of ours. ``calls``: how many there were."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        self.number, self.act, self.calls = number, act, 0

    def fault(self, call: Call) -> Fault | None:
        self.calls += 1
        if self.calls == self.number:
            self.act()
        return None

    def done(self, call: Call) -> None:
        """Nothing more to it."""


@pytest.mark.deep
def test_a_delete_at_every_call_of_a_purge(engine: IcebergEngine) -> None:
    """It is never lost, and neither is any other row."""
    made(engine, "t")
    rows = engine.rows("t")
    left = [row for row in rows if int(row[1:].split(",")[0]) % 7 != 2]
    assert 0 < len(left) < len(rows)
    folder = Folder(engine.path("t"))
    folder.save()
    number, script = 0, At(-1, list)
    while number <= script.calls or number == 1:
        number += 1
        script = At(number, lambda: engine.sql("DELETE FROM {t} WHERE id % 7 = 2", "t"))
        with injected(script):
            assert purge(open_table(str(engine.path("t"))), LocalEngine(1)).verified
        assert engine.rows("t") == (left if number <= script.calls else rows), number
        folder.reset()


CHANGES = {
    "delete": "DELETE FROM {t} WHERE held(id) AND id % 7 = 2",
    "update": "UPDATE {t} SET v = 'changed' WHERE held(id) AND id % 7 = 2",
    "merge": (
        "MERGE INTO {t} USING (SELECT id AS key FROM range(40) WHERE id % 7 = 2) ON held(id) AND id = key "
        "WHEN MATCHED AND p = 'a' THEN DELETE WHEN MATCHED THEN UPDATE SET v = 'changed'"
    ),
}


@pytest.mark.parametrize(
    ("verb", "isolation"),
    [
        ("delete", "serializable"),
        pytest.param("delete", "snapshot", marks=pytest.mark.deep),
        pytest.param("update", "serializable", marks=pytest.mark.deep),
        pytest.param("merge", "serializable", marks=pytest.mark.deep),
        pytest.param("merge", "snapshot", marks=pytest.mark.deep),
    ],
)
def test_a_change_begun_before_a_purge_and_committed_after_it(
    engine: IcebergEngine, tmp_path: Path, verb: str, isolation: str
) -> None:
    """It fails, has changed nothing, and does all of its work when it is tried again."""
    for name in ("t", "twin"):
        made(engine, name)
        engine.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.{verb}.isolation-level'='{isolation}')", name)
    begun, go = str(tmp_path / "begun"), str(tmp_path / "go")

    def held(_: int) -> bool:
        with open(begun, "w"):
            pass
        until = time.time() + 120
        while not os.path.exists(go) and time.time() < until:
            time.sleep(0.02)
        return True

    engine.session.udf.register("held", held, "boolean")
    with ThreadPoolExecutor(1) as pool:
        statement = pool.submit(engine.sql, CHANGES[verb], "t")
        while not Path(begun).exists() and not statement.done():
            time.sleep(0.02)
        assert not statement.done(), statement.exception()
        purged(engine, "t")
        rows, snapshot = engine.rows("t"), engine.java("t").currentSnapshot().snapshotId()
        Path(go).touch()
        with pytest.raises(Py4JJavaError, match="missing data files"):
            statement.result()
    assert engine.java("t").currentSnapshot().snapshotId() == snapshot
    assert engine.rows("t") == rows
    for name in ("t", "twin"):
        engine.sql(CHANGES[verb], name)
    assert values(engine, "t") == values(engine, "twin")
    assert engine.rows("t") != rows
    purged(engine, "t")


def values(engine: IcebergEngine, name: str) -> list[tuple[object, ...]]:
    """Rows with the id that each keeps; the number of its last change differs with the commits."""
    return engine.sql("SELECT *, _row_id FROM {t} ORDER BY id", name)


# -- random histories --------------------------------------------------------------------------------------------------


def statements(rng: random.Random) -> dict[str, Callable[[], str]]:
    def some() -> str:
        return f"id % {rng.randint(3, 9)} = {rng.randint(0, 2)}"

    def values() -> str:
        rows = ((rng.randint(0, 99), "abc"[rng.randrange(3)], rng.randint(0, 9)) for _ in range(rng.randint(1, 8)))
        return ", ".join(f"({number}, '{part}', 'n{word}')" for number, part, word in rows)

    def keys() -> str:
        return f"SELECT id, min(p) p, min(v) v FROM VALUES {values()} AS s(id, p, v) GROUP BY id"

    return {
        "insert": lambda: f"INSERT INTO {{t}} (id, p, v) VALUES {values()}",
        "delete": lambda: f"DELETE FROM {{t}} WHERE {some()}",
        "part": lambda: f"DELETE FROM {{t}} WHERE p = '{'abc'[rng.randrange(3)]}' AND {some()}",
        "update": lambda: f"UPDATE {{t}} SET v = concat(v, 'x') WHERE {some()}",
        "merge": lambda: (
            f"MERGE INTO {{t}} USING ({keys()}) s ON {{t}}.id = s.id "
            "WHEN MATCHED AND s.id % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.v "
            "WHEN NOT MATCHED THEN INSERT (id, p, v) VALUES (s.id, s.p, s.v)"
        ),
    }


def evolutions(rng: random.Random, number: int) -> list[str]:
    """What may happen to columns that no other statement names."""
    return [
        f"ALTER TABLE {{t}} ADD COLUMN c{number} INT",
        f"ALTER TABLE {{t}} ADD COLUMN c{number} STRUCT<a: INT, b: ARRAY<STRING>>",
        f"ALTER TABLE {{t}} RENAME COLUMN c{rng.randint(1, number)} TO d{number}",
        f"ALTER TABLE {{t}} ALTER COLUMN c{rng.randint(1, number)} TYPE BIGINT",
        f"ALTER TABLE {{t}} DROP COLUMN c{rng.randint(1, number)}",
    ]


class History:
    """One table, what Spark may do to it and what we do, in random order. Every act of ours leaves what Spark reads of
    each branch and tag as it was.
    """

    def __init__(self, engine: IcebergEngine, name: str, seed: int) -> None:
        self.engine, self.name, self.rng = engine, name, random.Random(seed)
        self.texts = statements(self.rng)
        self.evolved = self.branched = 0
        self.log: list[str] = []
        made(engine, name)

    def run(self, length: int) -> None:
        own = [self.purge, self.purge, self.maintain, self.vacuum, self.meanwhile]
        others = [self.rewrite, self.expire, self.evolve, self.respecify, self.branch, self.on_branch]
        for _ in range(length):
            act = self.rng.choice([*([self.statement] * 10), *own, *others])
            self.log.append(act.__name__)
            try:
                act()
            except BaseException as error:
                error.add_note(f"history so far: {'; '.join(self.log)}")
                raise
        self.purge()
        assert ours(self.engine, self.name) == self.engine.rows(self.name)

    def seen(self) -> dict[str, list[str]]:
        """What Spark reads, by reference."""
        refs = (str(row[0]) for row in self.engine.sql("SELECT name FROM {t}.refs", self.name))
        return {ref: self.engine.rows(self.name, ref) for ref in refs}

    def spark(self, text: str) -> None:
        self.log[-1] = text
        self.engine.sql(text, self.name)

    def statement(self) -> None:
        self.spark(self.texts[self.rng.choice([*self.texts])]())

    def purge(self) -> None:
        before = self.seen()
        purged(self.engine, self.name)
        assert self.seen() == before

    def maintain(self) -> None:
        before = self.seen()
        assert maintain(open_table(str(self.engine.path(self.name))), LocalEngine()).verified
        assert self.seen() == before

    def vacuum(self) -> None:
        before = self.seen()
        vacuumed(self.engine, self.name)
        assert self.seen() == before

    def meanwhile(self) -> None:
        """Spark deletes while we rewrite."""
        condition = f"id % {self.rng.randint(3, 9)} = 1"
        engine, name = self.engine, self.name
        engine.sql(f"DELETE FROM {{t}} WHERE id % {self.rng.randint(4, 9)} = 2", name)
        doomed = {row.split(",")[0] for row in map(repr, engine.sql(f"SELECT id FROM {{t}} WHERE {condition}", name))}
        rows = engine.rows(name)
        gone = InterferingEngine(LocalEngine(), lambda: engine.sql(f"DELETE FROM {{t}} WHERE {condition}", name))
        assert purge(open_table(str(engine.path(name))), gone).verified
        if gone.runs:
            assert engine.rows(name) == [row for row in rows if row.split(",")[0] not in doomed]

    def rewrite(self) -> None:
        self.engine.rewrite(self.name)

    def expire(self) -> None:
        self.engine.expire(self.name)

    def evolve(self) -> None:
        self.evolved += 1
        # Spark refuses those of a column that is not there, or has another type.
        with suppress(AnalysisException, IllegalArgumentException):
            self.spark(self.rng.choice(evolutions(self.rng, self.evolved)))

    def respecify(self) -> None:
        table = self.engine.java(self.name)
        names = {each.name() for each in table.spec().fields()}
        column, name = self.rng.choice([("p", "p"), ("v", "v"), ("id", "id_bucket_4")])
        self.log[-1] = f"partition by {column} {'no longer' if name in names else 'from now on'}"
        update = table.updateSpec()
        if name in names:
            update = update.removeField(name)
        else:
            term = self.engine.session._jvm.org.apache.iceberg.expressions.Expressions
            update = update.addField(term.bucket(column, 4) if column == "id" else term.ref(column))
        update.commit()

    def branch(self) -> None:
        self.branched += 1
        changes = self.engine.java(self.name).manageSnapshots()
        kind = self.rng.choice(["Branch", "Tag"])
        head = self.engine.java(self.name).currentSnapshot().snapshotId()
        self.log[-1] = f"create {kind} {self.branched}"
        getattr(changes, f"create{kind}")(f"{kind.lower()}{self.branched}", head).commit()

    def on_branch(self) -> None:
        refs = [str(row[0]) for row in self.engine.sql("SELECT name FROM {t}.refs WHERE type = 'BRANCH'", self.name)]
        text = self.texts[self.rng.choice(["delete", "insert", "update"])]()
        self.spark(text.replace("{t}", f"{{t}}.branch_{self.rng.choice(sorted(refs))}"))


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(100))
def test_random_histories(engine: IcebergEngine, seed: int) -> None:
    History(engine, "h", seed).run(14)


@pytest.mark.deep
def test_a_table_that_began_as_version_1(engine: IcebergEngine) -> None:
    """Entries of its first manifests have no content; those that a purge leaves live are written again."""
    how = "PARTITIONED BY (p) TBLPROPERTIES ('format-version' = '1')"
    engine.sql(f"CREATE TABLE {{t}} (id INT, p STRING) USING iceberg {how}", "t")
    for first in (0, 20):
        rows = ", ".join(f"({number}, '{'abc'[number % 3]}')" for number in range(first, first + 20))
        engine.sql(f"INSERT INTO {{t}} VALUES {rows}", "t")
    engine.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '3', 'write.delete.mode' = 'merge-on-read')", "t")
    engine.sql("DELETE FROM {t} WHERE id IN (0, 21)", "t")
    purged(engine, "t")
    engine.sql("DELETE FROM {t} WHERE id = 4", "t")
    purged(engine, "t")


@pytest.mark.parametrize("version", [2, pytest.param(3, marks=pytest.mark.deep)])
def test_partitions_whose_columns_have_grown(engine: IcebergEngine, version: int) -> None:
    """Values in older manifests are ints and have fewer bytes. They name the same partitions, in new manifests, too."""
    modes = f"'format-version' = '{version}', 'write.delete.mode' = 'merge-on-read', {_MERGING}"
    columns = "id BIGINT, k INT, c DECIMAL(5, 2), e DECIMAL(5, 2), f DOUBLE"
    how = f"PARTITIONED BY (k, c, truncate(e, 100), f) TBLPROPERTIES ({modes})"
    engine.sql(f"CREATE TABLE {{t}} ({columns}) USING iceberg {how}", "t")
    values = "id, int(id % 2), decimal(id % 2), decimal(1), if(id % 2 = 0, double('NaN'), -0.0D)"
    for first in (0, 20, 40):
        engine.sql(f"INSERT INTO {{t}} SELECT {values} FROM range({first}, {first + 20})", "t")
    engine.sql("DELETE FROM {t} WHERE id % 7 = 3", "t")
    for column, kind in {"k": "BIGINT", "c": "DECIMAL(12, 2)", "e": "DECIMAL(9, 2)"}.items():
        engine.sql(f"ALTER TABLE {{t}} ALTER COLUMN {column} TYPE {kind}", "t")
    engine.sql("INSERT INTO {t} VALUES (100, -99999999999, 7500000.5, -1234567.1, 0.0D), (101, 1, 1, 1, 0.0D)", "t")
    engine.sql("DELETE FROM {t} WHERE id % 7 = 5", "t")
    if version == 2:
        engine.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '3')", "t")
        engine.sql("DELETE FROM {t} WHERE id = 8", "t")
    delete(open_table(str(engine.path("t"))), LocalEngine(), "id = 101")
    purged(engine, "t")
    engine.sql("DELETE FROM {t} WHERE id IN (2, 41)", "t")
    purged(engine, "t")
    vacuumed(engine, "t")
    rows = engine.rows("t")
    engine.rewrite("t")
    assert engine.rows("t") == rows


def as_the_first_writers_did(place: Path) -> None:
    """Leave out what format version 1 had not yet: specifications and schemas by number, references, lists of
    manifests.
    """

    def strip(body: dict[str, Any]) -> None:
        for name in ("schemas", "current-schema-id", "partition-specs", "default-spec-id", "last-partition-id", "refs"):
            body.pop(name, None)
        for snapshot in body["snapshots"]:
            snapshot.pop("schema-id", None)
            listed = Path(snapshot.pop("manifest-list").removeprefix("file:")).read_bytes()
            snapshot["manifests"] = [each["500"] for each in read_records(listed, None, by_id=True)]

    for stale in place.rglob(".*.crc"):
        stale.unlink()
    edit(place, strip)


def manifests(place: Path) -> list[Path]:
    return sorted(place.glob("metadata/*-m*.avro"))


@pytest.mark.deep
def test_format_version_1(engine: IcebergEngine) -> None:
    """It has no ages and no deletes: small files are merged, snapshots expire, and Spark goes on, also to version 3."""
    engine.sql(
        "CREATE TABLE {t} (id INT, p STRING, v STRING) USING iceberg PARTITIONED BY (p) "
        "TBLPROPERTIES ('format-version' = '1')",
        "t",
    )

    def rows() -> list[str]:
        return sorted(map(repr, engine.sql("SELECT * FROM {t}", "t")))

    def files() -> int:
        return len(engine.sql("SELECT * FROM {t}.files", "t"))

    for number in range(4):
        engine.sql(f"INSERT INTO {{t}} VALUES ({number}, 'a', 'x'), ({number + 10}, 'b', NULL)", "t")
    before, small = rows(), files()
    as_the_first_writers_did(engine.path("t"))
    assert rows() == before
    report = maintain(open_table(str(engine.path("t"))), LocalEngine(), Policy(min_input_files=2))
    assert report.verified, report.problems
    assert (rows(), files(), report.steps[0].files_added) == (before, 2, 1)
    named = [json.loads(header_of(path.read_bytes())["partition-spec"]) for path in manifests(engine.path("t"))]
    assert len(named) > 5
    assert all(each == named[0] and each[0]["name"] == "p" for each in named), "of Spark's and ours"
    for number in range(4, 6):
        engine.sql(f"INSERT INTO {{t}} VALUES ({number}, 'a', 'x'), ({number + 10}, 'b', NULL)", "t")
    engine.sql("DELETE FROM {t} WHERE id = 2", "t")  # without its whole file
    engine.java("t").updateSpec().addField("v").commit()
    engine.sql("INSERT INTO {t} VALUES (20, 'a', 'y'), (21, 'a', 'y')", "t")
    engine.sql("INSERT INTO {t} VALUES (20, 'a', 'z'), (21, 'a', 'z')", "t")
    before, small = rows(), files()
    report = maintain(open_table(str(engine.path("t"))), LocalEngine(), Policy(min_input_files=2))
    assert report.verified, report.problems
    assert (rows(), files() < small) == (before, True)
    assert sum(count for (count,) in engine.sql("SELECT record_count FROM {t}.files", "t")) == len(before)
    engine.sql("INSERT INTO {t} VALUES (30, 'b', 'new')", "t")
    engine.sql("CALL {c}.rewrite_manifests('{n}')", "t")
    engine.sql("DELETE FROM {t} WHERE id = 1", "t")
    before = rows()
    kept = open_table(str(engine.path("t"))).snapshot().entry
    everything = VacuumRequest(
        now=FAR, retention=0, allow_short_retention=True, guard=VacuumGuard(max_deleted_share=1.0)
    )
    assert open_table(str(engine.path("t"))).vacuum(everything).deleted
    assert engine.sql("SELECT snapshot_id FROM {t}.snapshots", "t") == [(kept.id,)]
    assert rows() == before
    no_orphans(engine, "t")
    assert purge(open_table(str(engine.path("t"))), LocalEngine()).verified
    for version in (2, 3):
        engine.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('format-version' = '{version}')", "t")
        engine.sql(f"INSERT INTO {{t}} VALUES ({40 + version}, 'b', 'later')", "t")
        before = rows()
        assert maintain(open_table(str(engine.path("t"))), LocalEngine(), Policy(min_input_files=2)).verified
        assert rows() == before


@pytest.mark.deep
def test_equality_deletes_of_fields_in_structs(engine: IcebergEngine) -> None:
    engine.create("t", "id INT, s STRUCT<a: DOUBLE, in: STRUCT<x: INT, y: STRING>>")
    value = "IF(id = 3, NULL, struct(id / 2D, IF(id = 4, NULL, struct(IF(id = 6, NULL, id % 3), string(id % 2)))))"
    engine.sql(f"INSERT INTO {{t}} SELECT id, {value} FROM (SELECT int(id) id FROM range(40))", "t")
    builder = IcebergBuilder(engine.path("t"))
    schema = load_snapshot(builder.layout).table_schema
    assert [schema.names[number] for number in (5, 6)] == ["s.in.x", "s.in.y"]

    def deleted(name: str, value: dict[str, Any] | None) -> None:
        # Each under a name of its own: Spark keeps the content of delete files in a cache.
        place = engine.path("t") / "data" / name
        pq.write_table(pa.table({"id": [90], "s": [value]}, schema.arrow), place)
        file = {"134": 2, "100": str(place), "101": "PARQUET", "102": {}, "103": 1, "104": place.stat().st_size}
        builder.commit("delete", deletes=[{**file, "135": [5, 6]}])

    before = len(engine.rows("t"))
    deleted("one.parquet", {"a": 9.0, "in": {"x": 1, "y": "1"}})
    assert len(engine.rows("t")) == before - 7, "of 1, 7, ... 37"
    purged(engine, "t")
    engine.sql("DELETE FROM {t} WHERE s.in.x = 2", "t")
    purged(engine, "t")
    deleted("none.parquet", None)
    nulls = {row[0] for row in engine.sql("SELECT * FROM {t}", "t")} & {3, 4}
    assert nulls == {4}, "by the specification, both would be deleted"
    with pytest.raises(RefusedError, match="engines differ about the field of a null struct"):
        purge(open_table(str(engine.path("t"))), LocalEngine())


@pytest.mark.deep
def test_what_a_vacuum_set_aside_comes_back(engine: IcebergEngine) -> None:
    """Through the metadata file from before the vacuum. Spark's cleaner does not see what is set aside."""
    made(engine, "t")
    purged(engine, "t")
    engine.sql("UPDATE {t} SET v = 'new' WHERE id % 5 = 1", "t")
    place = engine.path("t")
    table = open_table(str(place))
    snapshot: Any = table.snapshot()
    document = place / snapshot.metadata.path
    at = {each: _at(engine, document, each) for each in snapshot.metadata.snapshots}
    assert len(at) > 3
    rows = engine.rows("t")
    request = VacuumRequest(
        now=FAR, retention=0, allow_short_retention=True, guard=VacuumGuard(max_deleted_share=1.0, quarantine=True)
    )
    report = table.vacuum(request)
    assert report.deleted
    assert report.quarantine
    no_orphans(engine, "t")
    assert len(open_table(str(place)).snapshot().metadata.snapshots) == 1
    with pytest.raises(Exception, match=r"FAILED_READ_FILE|NotFound"):
        for each in at:
            _at(engine, document, each)
    assert undelete(open_table(str(place))).files == report.deleted
    assert {each: _at(engine, document, each) for each in at} == at
    for each, rows_then in at.items():
        ours = read(open_table(str(document)), each)[1]
        assert sum(batch.num_rows for batch in ours) == len(rows_then)
    assert engine.rows("t") == rows


def _at(engine: IcebergEngine, document: Path, snapshot: int) -> list[str]:
    found = engine.session.read.format("iceberg").option("versionAsOf", snapshot).load(str(document))
    return sorted(map(repr, found.collect()))

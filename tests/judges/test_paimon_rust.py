"""Tables that Paimon's implementation in Rust writes: read, deleted from, purged and vacuumed here, and gone on with
there. The only writer at hand of data-evolution tables with deletion vectors.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from effort import sampled
from paimon_judging import judge_files, judge_rows, opened, our_rows, same
from pyspark.sql import SparkSession
from support.paimon_engine import PaimonEngine
from test_paimon_blobs import ELEMENTS, vector, with_vectors

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.read import read
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables.guard import VacuumRequest

if TYPE_CHECKING:
    from dv_maintenance.maintenance.execution.report import ApplyReport

EVOLVING = {"row-tracking.enabled": "true", "data-evolution.enabled": "true", "deletion-vectors.enabled": "true"}


JAVA = """
import java.util.*;
import org.apache.paimon.append.dataevolution.*;
import org.apache.paimon.fs.Path;
import org.apache.paimon.fs.local.LocalFileIO;
import org.apache.paimon.table.*;

public class Evolution {
    public int apply(String path) throws Exception {
        FileStoreTable table = FileStoreTableFactory.create(LocalFileIO.create(), new Path(path));
        table = table.copy(Collections.singletonMap("compaction.min.file-num", "2"));
        List messages = new ArrayList();
        for (Object each : new DataEvolutionCompactCoordinator(table, false, false).plan()) {
            messages.add(((DataEvolutionCompactTask) each).doCompact(table, "java"));
        }
        table.newBatchWriteBuilder().newCommit().commit(messages);
        return messages.size();
    }
}
"""


class Rust:
    """A warehouse of one database, through SQL and the writers of the Python package."""

    def __init__(self, warehouse: Path) -> None:
        from pypaimon_rust.datafusion import SQLContext

        self.warehouse = warehouse
        warehouse.mkdir()
        self._context = SQLContext()
        self._context.register_catalog("paimon", {"warehouse": str(warehouse)})
        self._context.set_current_catalog("paimon")
        self.sql("CREATE SCHEMA db")
        self._context.set_current_database("db")

    def sql(self, query: str) -> list[dict[str, Any]]:
        found = self._context.sql(query)
        return [row for batch in found for row in batch.to_pylist()]

    def create(self, columns: str, options: dict[str, str], more: str = "") -> Path:
        properties = ", ".join(f"'{key}'='{value}'" for key, value in {"bucket": "-1", **options}.items())
        self.sql(f"CREATE TABLE t ({columns}) {more} WITH ({properties})")
        return self.warehouse / "db.db" / "t"

    def table(self) -> Any:
        from pypaimon_rust.datafusion import PaimonCatalog

        return PaimonCatalog({"warehouse": str(self.warehouse)}).get_table("db.t")

    def append(self, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
        builder = self.table().new_batch_write_builder()
        writer = builder.new_write()
        writer.write_arrow(pa.RecordBatch.from_pylist(rows, schema))
        builder.new_commit().commit(writer.prepare_commit())
        writer.close()

    def update(self, values: pa.Table) -> None:
        """``values``: columns, and ``_ROW_ID``."""
        builder = self.table().new_batch_write_builder()
        columns = [name for name in values.column_names if name != "_ROW_ID"]
        update = builder.new_update().with_update_type(columns)
        builder.new_commit().commit(update.update_by_arrow_with_row_id(values))

    def rows(self, version: int) -> list[dict[str, Any]]:
        builder = self.table().new_read_builder({"scan.snapshot-id": str(version)})
        batches = builder.new_read().read(builder.new_scan().plan().splits())
        return [row for batch in batches for row in batch.to_pylist()]

    def version(self) -> int:
        return int(self.table().latest_snapshot().id())


@pytest.fixture
def rust(tmp_path: Path) -> Rust:
    return Rust(tmp_path / "lake")


def without_ids(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "_ROW_ID"} for row in rows]


@pytest.mark.parametrize("seed", sampled(range(3), 3))
def test_data_evolution(rust: Rust, seed: int) -> None:
    """Appends, updates of columns by row id, deletes by both, a new column: every snapshot has the same rows."""
    draw = random.Random(seed)
    path = rust.create("id BIGINT, a STRING, b BIGINT", EVOLVING)
    schema = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.int64())])
    ids = 0

    def append() -> None:
        nonlocal ids
        count = draw.randint(5, 40)
        rows = [{"id": ids + each, "a": f"a{each}", "b": each, "c": each} for each in range(count)]
        rust.append([{name: row[name] for name in schema.names} for row in rows], schema)
        ids += count

    def update() -> None:
        chosen = draw.sample(range(ids), draw.randint(1, 5))
        if draw.random() < 0.5:
            columns = {"b": pa.array([draw.randint(100, 999) for _ in chosen], pa.int64())}
        else:
            columns = {"a": pa.array([f"new{each}" for each in chosen])}
        live = {row["_ROW_ID"] for row in rust.sql('SELECT id, "_ROW_ID" FROM t')}
        kept = [at for at, each in enumerate(chosen) if each in live]
        if kept:
            rust.update(pa.table({"_ROW_ID": pa.array(chosen, pa.int64()), **columns}).take(kept))

    def remove() -> None:
        every = draw.choice([3, 5, 7])
        gone = range(draw.randrange(every), ids, every)
        if draw.random() < 0.5:
            rust.sql(f"DELETE FROM t WHERE id IN ({', '.join(map(str, gone))})")
        else:
            delete(opened(path), LocalEngine(), f"id IN ({', '.join(map(str, gone))})")

    append()
    for _ in range(12):
        draw.choice([append, update, update, remove])()
        if draw.random() < 0.1 and "c" not in schema.names:
            rust.sql("ALTER TABLE t ADD COLUMN c BIGINT")
            schema = schema.append(pa.field("c", pa.int64()))
    table = opened(path)
    several = with_dv = 0
    for version in range(1, rust.version() + 1):
        theirs = rust.rows(version)
        known = set(table.snapshot(version).schema.names)
        same(our_rows(path, version), [{name: value for name, value in row.items() if name in known} for row in theirs])
        counts = health(table.snapshot(version)).counts
        assert counts.physical_rows - counts.deleted_rows == len(theirs)
        several += bool(table.snapshot(version).parts.num_rows)
        with_dv += bool(counts.files_with_dv)
    same(our_rows(path), without_ids(rust.sql("SELECT * FROM t")))
    assert several > 3
    assert with_dv > 1


def test_data_evolution_by_paimon_itself(rust: Rust, paimon_engine: PaimonEngine) -> None:
    """Which applies no deletion vectors to such tables before 2.1: one without any."""
    path = rust.create("id BIGINT, a STRING, b BIGINT", EVOLVING | {"deletion-vectors.enabled": "false"})
    schema = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.int64())])
    for first in (0, 10):
        rust.append([{"id": each, "a": f"a{each}", "b": each} for each in range(first, first + 10)], schema)
    for value in (100, 200):
        rust.update(pa.table({"_ROW_ID": pa.array([3, 12], pa.int64()), "b": pa.array([value, value], pa.int64())}))
    rust.update(pa.table({"_ROW_ID": pa.array([3], pa.int64()), "a": pa.array(["new"])}))
    rust.sql("ALTER TABLE t ADD COLUMN c BIGINT")
    rust.update(pa.table({"_ROW_ID": pa.array([4], pa.int64()), "c": pa.array([4], pa.int64())}))
    for version in range(1, rust.version() + 1):
        judge_rows(paimon_engine, path, version)
    assert [row for row in our_rows(path) if row["id"] in {3, 4, 12}] == [
        {"id": 3, "a": "new", "b": 200, "c": None},
        {"id": 4, "a": "a4", "b": 4, "c": 4},
        {"id": 12, "a": "a12", "b": 200, "c": None},
    ]
    same(our_rows(path), without_ids(rust.sql("SELECT * FROM t")))


def compact_as_java(engine: PaimonEngine, path: Path) -> int:
    """Paimon's own compaction of such tables; how many groups of files it made one."""
    jvm: Any = SparkSession.getActiveSession()._jvm  # type: ignore[union-attr]
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(engine._judge.getClass().getClassLoader())
    compiler.setTargetVersion(8)
    compiler.setSourceVersion(8)
    compiler.cook(JAVA)
    judge = compiler.getClassLoader().loadClass("Evolution").getConstructors()[0].newInstance(None)
    return int(judge.apply(str(path)))


def test_live_rows_keep_their_ids_and_files_without_leave(rust: Rust, paimon_engine: PaimonEngine) -> None:
    """With the files of other columns of these rows. The table goes on without the row ids of the others; an update
    that was planned before fails, of a row that went as well as of one that moved.
    """
    path = rust.create("id BIGINT, a STRING, b BIGINT", EVOLVING)
    schema = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.int64())])

    def append(first: int) -> None:
        rust.append([{"id": each, "a": f"a{each}", "b": each} for each in range(first, first + 10)], schema)

    def update(ids: list[int], value: int) -> None:
        rust.update(pa.table({"_ROW_ID": pa.array(ids, pa.int64()), "b": pa.array([value] * len(ids), pa.int64())}))

    def purged() -> ApplyReport:
        """A purge that changes nothing that is read. Sequence numbers are those of files."""
        rows = rust.sql("SELECT * FROM t")
        report = purge(opened(path), LocalEngine())
        assert report.verified, report.problems
        same(rust.sql("SELECT * FROM t"), rows)
        same(our_rows(path), without_ids(rows))
        return report

    for first in range(0, 40, 10):
        append(first)
    update([3, 12, 25], 100)
    update([14], 200)
    builder = rust.table().new_batch_write_builder()
    stale = []
    for row_id in (15, 24):
        planned, values = builder.new_update().with_update_type(["a"]), {"_ROW_ID": pa.array([row_id], pa.int64())}
        stale.append(planned.update_by_arrow_with_row_id(pa.table({**values, "a": ["back"]})))
    rust.sql("DELETE FROM t WHERE id BETWEEN 10 AND 19 OR id IN (25, 26)")
    report = purged()
    done = [(step.files_removed, step.files_added, step.rows_purged) for step in report.steps]
    assert sorted(done) == [(1, 0, 10), (1, 2, 2)]
    for each in stale:
        with pytest.raises(ValueError, match="Row ID existence conflict"):
            builder.new_commit().commit(each)

    update([3, 21, 28], 300)
    append(40)
    rust.sql("DELETE FROM t WHERE id IN (0, 22, 27, 28, 29, 35, 49)")
    purged()
    assert health(opened(path).snapshot()).counts.files_with_dv == 0
    # Paimon's engine before 2.1 knows no deletion vectors of such tables; there is none left.
    for file in (path / "schema").iterdir():
        file.write_text(file.read_text().replace('"deletion-vectors.enabled":"true"', '"write-only":"true"'))
    rows = placed(paimon_engine, path)
    left = [*range(1, 10), 20, 21, 23, 24, *range(30, 35), *range(36, 49)]
    assert [row["_ROW_ID"] for row in rows] == [row["id"] for row in rows] == left
    judge_rows(paimon_engine, path)
    assert compact_as_java(paimon_engine, path)
    assert placed(paimon_engine, path) == rows
    paimon_engine.append(path, [(50, "java", 1)])
    assert placed(paimon_engine, path)[-1]["_ROW_ID"] == 50
    judge_rows(paimon_engine, path)
    vacuum(opened(path), VacuumRequest(retention=0, allow_short_retention=True))
    paimon_engine.expire(path)
    assert paimon_engine.orphans(path, 2**50) == []
    judge_rows(paimon_engine, path)


def placed(engine: PaimonEngine, path: Path) -> list[dict[str, Any]]:
    """The rows with their ids, by id. Sequence numbers are left out: each of a row's files has its own."""
    rows = [{name: row[name] for name in ("id", "a", "b", "_ROW_ID")} for row in engine.rows(path, lineage=True)]
    return sorted(rows, key=lambda row: row["_ROW_ID"])


def test_append_tables_are_maintained(rust: Rust, paimon_engine: PaimonEngine, spark: SparkSession) -> None:
    path = rust.create("id BIGINT, v STRING, p STRING", {"deletion-vectors.enabled": "true"}, more="PARTITIONED BY (p)")
    for first in range(0, 60, 20):
        values = ", ".join(f"({each}, 'v{each}', '{'ab'[each % 2]}')" for each in range(first, first + 20))
        rust.sql(f"INSERT INTO t VALUES {values}")
    table = opened(path)
    judge_rows(paimon_engine, path)
    judge_files(paimon_engine, path, 3)
    delete(table, spark, "id % 3 = 0")
    expected = [{"id": each, "v": f"v{each}", "p": "ab"[each % 2]} for each in range(60) if each % 3]
    same(our_rows(path), expected)
    same(expected, without_ids(rust.sql("SELECT * FROM t")))
    judge_rows(paimon_engine, path)
    purge(table, LocalEngine())
    assert health(table.snapshot()).counts.files_with_dv == 0
    same(expected, without_ids(rust.sql("SELECT * FROM t")))
    judge_rows(paimon_engine, path)
    # It goes on there, and with Paimon itself.
    rust.sql("INSERT INTO t VALUES (100, 'rust', 'a')")
    paimon_engine.append(path, [(101, "java", "b")])
    paimon_engine.delete(path, lambda row: row["id"] == 1)
    expected = [row for row in expected if row["id"] != 1]
    expected += [{"id": 100, "v": "rust", "p": "a"}, {"id": 101, "v": "java", "p": "b"}]
    same(our_rows(path), expected)
    same(expected, without_ids(rust.sql("SELECT * FROM t")))
    vacuum(table, VacuumRequest(retention=0, allow_short_retention=True))
    same(expected, without_ids(rust.sql("SELECT * FROM t")))
    judge_rows(paimon_engine, path)
    assert paimon_engine.orphans(path, 2**50) == []


def test_vectors_in_json(paimon_engine: PaimonEngine, rust: Rust) -> None:
    """Of Paimon in Java. Neither it nor Rust reads these beside deletion vectors: after a purge, both do."""
    path = rust.warehouse / "db.db" / "t"
    columns = {"id": "INT", **{kind: vector(kind, 2) for kind in ELEMENTS}}
    options = {"row-tracking.enabled": "true", "data-evolution.enabled": "true", "x": "y"}
    options |= {"vector.file.format": "json", "file.compression": "none"}
    paimon_engine.create(path, columns, options=options)
    values = [[at, *([of[(at + n) % len(of)] for n in range(2)] for of in ELEMENTS.values())] for at in range(15)]
    paimon_engine.append(path, [*values, [15, *[None] * len(ELEMENTS)]])
    with_vectors(path)

    def ours() -> list[dict[str, Any]]:
        _, batches = read(opened(path))
        return [row for batch in batches for row in batch.to_pylist()]

    same(ours(), before := without_ids(rust.sql("SELECT * FROM t")))
    assert delete(opened(path), LocalEngine(), "id IN (0, 7)").rows_deleted == 2
    with pytest.raises(ValueError, match="Row selection is not supported for line-oriented formats"):
        rust.sql("SELECT * FROM t")
    same(ours(), left := [row for row in before if row["id"] not in {0, 7}])
    assert purge(opened(path), LocalEngine()).verified
    same(ours(), left)
    same(without_ids(rust.sql("SELECT * FROM t")), left)

"""Tables on which a format's own engine deletes, updates, merges and compacts, for ``bench_aborts.py``."""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from peers import sessions

REGIONS, FILES, GONE = 4, 4, -1
# The share of deleted rows from which both sides rewrite a file: the default of our policy and of delta-spark.
RATIO = 0.05
# Slots of a session: a statement that waits takes one, without a core.
SLOTS = 16
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xmn400m",
)
# Each statement has another plan: to compile it would take longer than to run it.
QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.files.openCostInBytes": "1",
    "spark.sql.files.minPartitionNum": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}


class AbortedError(Exception):
    """Another writer's commit was in the way, as the engine says."""


@dataclass(frozen=True)
class Change:
    """A statement: ``delete``; ``update`` adds 1 to ``v``; ``merge`` does so, too, and inserts missing ids with 0.

    low, high : the ids, both included, all of one region.
    after : what each of them holds after it, or GONE.
    seconds : how long a ``merge`` waits for its source while it runs.
    """

    kind: str
    region: int
    low: int
    high: int
    after: Sequence[int]
    seconds: int = 0

    @property
    def rows(self) -> list[tuple[int, int, int, str]]:
        """What there is of these ids after it."""
        ids = zip(range(self.low, self.high + 1), self.after, strict=True)
        return [(number, self.region, value, "new") for number, value in ids if value != GONE]


class Writers(Protocol):
    """The engine of a format. Its tables are paths in ``folder``.

    own : its compaction, as the page names it.
    per_file : rows of a file at first; a region has as many files as FILES says, with its ids in order.
    """

    own: ClassVar[str]
    folder: Path
    per_file: int

    def create(self, place: str) -> None:
        """A table with ``id``, ``region``, ``v`` (0) and ``filler``, and with the size of its files as target."""

    def run(self, place: str, change: Change) -> None:
        """Raises AbortedError."""

    def compact(self, place: str) -> int:
        """Files that were rewritten, 0 for none. Raises AbortedError."""

    def read(self, place: str) -> pa.Table:
        """``id`` and ``v``."""


class Sql:
    """Statements in a Spark session."""

    own: ClassVar[str]
    conflict: ClassVar[str]

    def __init__(self, session: Any, folder: Path, per_file: int) -> None:
        self.session, self.folder, self.per_file = session, folder, per_file
        for key, value in QUICK.items():
            session.conf.set(key, value)

    def named(self, place: str) -> str:
        raise NotImplementedError

    def rows(self) -> Any:
        """A file of each partition."""
        per_region = FILES * self.per_file
        frame = self.session.range(0, REGIONS * per_region, 1, REGIONS * FILES)
        return frame.selectExpr("id", f"CAST(id DIV {per_region} AS INT) AS region", "0L AS v", "uuid() AS filler")

    def sql(self, text: str) -> list[Any]:
        try:
            rows: list[Any] = self.session.sql(text).collect()
        except Exception as error:
            if found := re.search(self.conflict, str(error)):
                raise AbortedError(found[0]) from None
            raise
        return rows

    def run(self, place: str, change: Change) -> None:
        table, ids = self.named(place), f"id BETWEEN {change.low} AND {change.high}"
        if change.kind == "delete":
            self.sql(f"DELETE FROM {table} WHERE region = {change.region} AND {ids}")
        elif change.kind == "update":
            self.sql(f"UPDATE {table} SET v = v + 1 WHERE region = {change.region} AND {ids}")
        else:
            wait = f"java_method('java.lang.Thread', 'sleep', {change.seconds * 1000}L) IS NOT NULL"
            source = f"SELECT id FROM range({change.low}, {change.high + 1}, 1, 1)"
            if change.seconds:
                source += f" WHERE id <> {change.low} OR {wait}"
            self.sql(
                f"MERGE INTO {table} t USING ({source}) s ON t.region = {change.region} AND t.{ids} AND t.id = s.id"
                " WHEN MATCHED THEN UPDATE SET v = v + 1"
                f" WHEN NOT MATCHED THEN INSERT (id, region, v, filler) VALUES (s.id, {change.region}, 0, 'new')"
            )

    def read(self, place: str) -> pa.Table:
        table: pa.Table = self.session.sql(f"SELECT id, v FROM {self.named(place)}").toArrow()
        return table


class Delta(Sql):
    own: ClassVar[str] = "OPTIMIZE"
    conflict = r"DELTA_CONCURRENT_[A-Z_]+(\.[A-Z_]+)?|Concurrent\w+Exception"

    def named(self, place: str) -> str:
        return f"delta.`{place}`"

    def create(self, place: str) -> None:
        rows = self.rows().write.format("delta").partitionBy("region")
        rows.option("delta.enableDeletionVectors", "true").save(place)
        full = min(file.stat().st_size for file in Path(place).glob("region=0/*.parquet"))
        self.session.conf.set("spark.databricks.delta.allowArbitraryProperties.enabled", "true")
        self.sql(f"ALTER TABLE {self.named(place)} SET TBLPROPERTIES ('delta.targetFileSize' = '{full}')")
        # It leaves a file alone that has no other to be merged with, so two fit.
        limits = {"minFileSize": full * 3 // 4, "maxFileSize": full * 2, "maxDeletedRowsRatio": RATIO}
        for limit, value in limits.items():
            self.session.conf.set(f"spark.databricks.delta.optimize.{limit}", str(value))

    def compact(self, place: str) -> int:
        return int(self.sql(f"OPTIMIZE {self.named(place)}")[0].metrics.numFilesRemoved)


class Iceberg(Sql):
    own: ClassVar[str] = "rewrite_data_files"
    conflict = r"missing data files|[Cc]onflicting \w+|Cannot commit[^\n]{0,60}|CommitFailedException"

    def named(self, place: str) -> str:
        return f"ice.db.{Path(place).name}"

    def create(self, place: str) -> None:
        table = self.named(place)
        modes = {f"write.{verb}.mode": "merge-on-read" for verb in ("delete", "update", "merge")}
        properties = {"format-version": "3", "write.distribution-mode": "none", **modes}
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        columns = "id BIGINT, region INT, v BIGINT, filler STRING"
        self.sql(f"CREATE TABLE {table} ({columns}) USING iceberg PARTITIONED BY (region) TBLPROPERTIES ({listed})")
        self.rows().writeTo(table).append()
        full = min(file.stat().st_size for file in Path(place).rglob("*.parquet"))
        self.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.target-file-size-bytes' = '{full}')")

    def compact(self, place: str) -> int:
        options = f"map('delete-ratio-threshold', '{RATIO}', 'min-input-files', '2')"
        table = f"db.{Path(place).name}"
        called = f"CALL ice.system.rewrite_data_files(table => '{table}', options => {options})"
        return int(self.sql(called)[0].rewritten_data_files_count)


class Paimon:
    """Paimon's Java library, as its Spark writers use it: a statement reads, writes, and then commits."""

    own: ClassVar[str] = "compact"

    def __init__(self, engine: Any, folder: Path, per_file: int) -> None:
        self.engine, self.folder, self.per_file = engine, folder, per_file
        self.staging = threading.Lock()

    def create(self, place: str) -> None:
        options = {
            "deletion-vectors.enabled": "true",
            "compaction.delete-ratio-threshold": str(RATIO),
            "compaction.min.file-num": "2",
        }
        columns = {"id": "BIGINT", "region": "INT", "v": "BIGINT", "filler": "STRING"}
        self.engine.create(place, columns, partition=["region"], options=options)
        for number in range(REGIONS * FILES):
            ids = range(number * self.per_file, (number + 1) * self.per_file)
            self.engine.append(place, [(each, number // FILES, 0, str(uuid.uuid4())) for each in ids])
        full = min(file.stat().st_size for file in Path(place).glob("region=0/*/*.parquet"))
        self.engine.alter(place, ("option", "target-file-size", f"{full} b"))

    def run(self, place: str, change: Change) -> None:
        from support.paimon_engine import EngineConflictError

        ids = range(change.low, change.high + 1)
        try:
            with self.staging:
                finish = self.engine.stage_delete(place, lambda row: row["id"] in ids, new=change.rows or None)
            time.sleep(change.seconds)
            finish()
        except EngineConflictError as error:
            raise AbortedError(re.sub(r"[^A-Za-z ].*", "", str(error).split(": ")[-1])[:60]) from None

    def compact(self, place: str) -> int:
        from support.paimon_engine import EngineConflictError

        try:
            return int(self.engine.compact(place))
        except EngineConflictError as error:
            raise AbortedError(str(error)) from None

    def read(self, place: str) -> pa.Table:
        return pa.Table.from_pylist(self.engine.rows(place)).select(["id", "v"])


class Lance:
    """pylance. Its statements try again by themselves, up to ten times in 30 seconds."""

    own: ClassVar[str] = "compact_files"

    def __init__(self, folder: Path, per_file: int) -> None:
        self.folder, self.per_file = folder, per_file

    def create(self, place: str) -> None:
        import lance

        ids = range(REGIONS * FILES * self.per_file)
        regions = [each // (FILES * self.per_file) for each in ids]
        fillers = [str(uuid.uuid4()) for _ in ids]
        rows = pa.table({"id": ids, "region": pa.array(regions, pa.int32()), "v": [0] * len(ids), "filler": fillers})
        lance.write_dataset(rows, place, max_rows_per_file=self.per_file)

    def run(self, place: str, change: Change) -> None:
        import lance

        dataset, ids = lance.dataset(place), f"id >= {change.low} AND id <= {change.high}"
        with _lance_conflicts():
            if change.kind == "delete":
                dataset.delete(ids)
            elif change.kind == "update":
                dataset.update({"v": "v + 1"}, where=ids)
            else:
                merge = dataset.merge_insert(["id"]).when_matched_update_all().when_not_matched_insert_all()
                merge.execute(self._source(dataset.schema, change))

    def _source(self, schema: pa.Schema, change: Change) -> pa.RecordBatchReader:
        table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in change.rows], schema)

        def batches() -> Iterator[pa.RecordBatch]:
            time.sleep(change.seconds)
            yield from table.to_batches()

        return pa.RecordBatchReader.from_batches(schema, batches())

    def compact(self, place: str) -> int:
        import lance

        optimize = lance.dataset(place).optimize
        with _lance_conflicts():
            metrics = optimize.compact_files(
                target_rows_per_fragment=self.per_file, materialize_deletions_threshold=RATIO, num_threads=2
            )
        return int(metrics.fragments_removed)

    def read(self, place: str) -> pa.Table:
        import lance

        return lance.dataset(place).to_table(columns=["id", "v"])


@contextmanager
def _lance_conflicts() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if found := re.search(r"[\w ]*(conflict|concurrent|retry|timed out)[\w ]*", str(error), re.IGNORECASE):
            raise AbortedError(found[0].strip()) from None
        raise


@contextmanager
def delta(folder: Path, per_file: int) -> Iterator[Delta]:
    with sessions.delta_spark(SLOTS) as session:
        yield Delta(session, folder, per_file)


@contextmanager
def iceberg(folder: Path, per_file: int) -> Iterator[Iceberg]:
    from bench_iceberg import session

    with session(folder, SLOTS) as started:
        yield Iceberg(started, folder / "db", per_file)


@contextmanager
def paimon(folder: Path, per_file: int) -> Iterator[Paimon]:
    with sessions.paimon() as engine:
        # Its rows pass through JSON.
        yield Paimon(engine, folder, per_file // 5)


@contextmanager
def lance(folder: Path, per_file: int) -> Iterator[Lance]:
    yield Lance(folder, per_file)


FORMATS: dict[str, Callable[[Path, int], AbstractContextManager[Writers]]] = {
    "delta": delta,
    "iceberg": iceberg,
    "lance": lance,
    "paimon": paimon,
}

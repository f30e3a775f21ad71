"""Compaction against four writers that delete and update without a pause: ours, then delta-spark's plain OPTIMIZE.

    python benchmarks/race_compaction.py [--seconds 180] [--rows 2000000] [--seed 1]

Two of the writers are delta-spark, two are ours; all share one Spark session with the compaction. Each owns every
fourth id and knows what it did to them, so in the end every row of the table is compared with what its writer left:
rows lost, rows back, wrong values. A writer that a commit of others threw out tries the same again.

Counted for compaction: runs, files rewritten to the end, how many of these rewrites were committed, deletes carried
over, and runs that ended with a conflict. Ends with exit code 1 if a row is wrong, or if a finished rewrite of ours was
lost.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.update import update
from dv_maintenance.engine.spark.engine import SparkEngine
from dv_maintenance.errors import ConflictError, DvMaintenanceError
from dv_maintenance.maintenance.execution.apply import maintain
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dv_maintenance.tables.work import RewriteResult, RewriteTask

JARS = Path(__file__).parent.parent / ".cache" / "jars" / "delta-4.4.0"
WRITERS = 4
FILES = 16
GONE = -1
# Between two compactions, whatever the first of them found to do.
PAUSE_SECONDS = 2


# -- the writers -------------------------------------------------------------------------------------------------


class Writer(threading.Thread):
    """Deletes and updates ranges of its ids, one statement after the other. ``values``: what each id must hold."""

    def __init__(self, number: int, place: str, session: SparkSession, rows: int, seed: int, stop: threading.Event):
        super().__init__(daemon=True)
        self.number, self.place, self.session, self.stop = number, place, session, stop
        self.ours = number % 2 == 0
        self.random = random.Random(seed * 100 + number)
        self.ids = np.arange(number, rows, WRITERS)
        self.values = np.zeros(len(self.ids), dtype=np.int64)
        self.counts: Counter[str] = Counter()
        self.trouble: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self.statement()
        except BaseException as error:  # noqa: BLE001 (raised where the thread is joined)
            self.trouble = error

    def statement(self) -> None:
        width = self.random.choice((4, 400, 4000, 20_000))
        start = self.random.randrange(int(self.ids[-1]))
        chosen = (self.ids >= start) & (self.ids < start + width)
        condition = f"id BETWEEN {start} AND {start + width - 1} AND id % {WRITERS} = {self.number}"
        deletes = self.random.random() < 0.5
        while not self.attempt(condition, deletes=deletes):
            self.counts["thrown out"] += 1
            if self.stop.is_set():
                return
        self.counts["deletes" if deletes else "updates"] += 1
        alive = chosen & (self.values != GONE)
        if deletes:
            self.values[alive] = GONE
        else:
            self.values[alive] += 1

    def attempt(self, condition: str, *, deletes: bool) -> bool:
        """Whether it was committed."""
        try:
            if self.ours and deletes:
                delete(open_table(self.place), self.session, condition)
            elif self.ours:
                update(open_table(self.place), self.session, {"v": "v + 1"}, condition)
            elif deletes:
                self.session.sql(f"DELETE FROM delta.`{self.place}` WHERE {condition}").collect()
            else:
                self.session.sql(f"UPDATE delta.`{self.place}` SET v = v + 1 WHERE {condition}").collect()
        except ConflictError:
            return False
        except Exception as error:
            if not is_conflict(error):
                raise
            return False
        return True


def is_conflict(error: Exception) -> bool:
    return bool(re.search(r"Concurrent\w+Exception|DELTA_CONCURRENT_", str(error)))


# -- the compactions ---------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """``rewrites`` that ended, and those of them that were ``committed``, in files written for ours and in runs for
    delta-spark, whose OPTIMIZE is one commit.
    """

    runs: int = 0
    rewrites: int = 0
    committed: int = 0
    conflicts: int = 0
    carried: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


class Counting:
    """An engine that counts the rewrites that came to their end."""

    name: ClassVar[str] = "spark"

    def __init__(self, engine: SparkEngine, tally: Tally) -> None:
        self.engine, self.tally = engine, tally

    def run(
        self,
        tasks: Sequence[RewriteTask],
        *,
        storage_options: Mapping[str, str] | None = None,
        on_done: Callable[[RewriteResult], None] | None = None,
    ) -> list[RewriteResult]:
        results = self.engine.run(tasks, storage_options=storage_options, on_done=on_done)
        self.tally.rewrites += len(results)
        return results

    def close(self) -> None:
        self.engine.close()


def compact_ours(place: str, session: SparkSession, tally: Tally) -> None:
    policy = Policy(max_deleted_ratio=0)
    try:
        report = maintain(open_table(place), Counting(SparkEngine(session), tally), policy)
    except ConflictError as error:
        tally.conflicts += 1
        tally.reasons[str(error)[:120]] += 1
        return
    tally.committed += sum(step.action == "rewrite" for step in report.steps)
    tally.carried += sum(step.rows_carried for step in report.steps)


def compact_by_delta_spark(place: str, session: SparkSession, tally: Tally) -> None:
    before = version(place)
    try:
        session.sql(f"OPTIMIZE delta.`{place}`").collect()
    except Exception as error:
        if not is_conflict(error):
            raise
        # It finds out when it commits: the rewrite was done.
        tally.rewrites += 1
        tally.conflicts += 1
        found = re.search(r"DELTA_CONCURRENT_\w+|Concurrent\w+Exception", str(error))
        tally.reasons[found[0] if found else "?"] += 1
        return
    done = optimized_since(place, before)
    tally.rewrites += done
    tally.committed += done


def version(place: str) -> int:
    return max(int(path.stem) for path in Path(place, "_delta_log").glob("*.json"))


def optimized_since(place: str, before: int) -> int:
    """OPTIMIZE commits after version ``before``."""
    found = 0
    for number in range(before + 1, version(place) + 1):
        for line in Path(place, "_delta_log", f"{number:020}.json").read_text().splitlines():
            found += json.loads(line).get("commitInfo", {}).get("operation") == "OPTIMIZE"
    return found


COMPACTIONS = {"ours": compact_ours, "delta-spark OPTIMIZE": compact_by_delta_spark}


# -- the race ----------------------------------------------------------------------------------------------------


def start_session(home: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    jars = sorted(JARS.glob("*.jar"))
    if not jars:
        raise SystemExit("delta-spark is missing: run 'make judges'")
    builder: SparkSession.Builder = SparkSession.builder
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": home,
        "spark.log.level": "FATAL",
        "spark.scheduler.mode": "FAIR",
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # The same policy as ours: every file with a deletion vector is rewritten.
        "spark.databricks.delta.optimize.maxDeletedRowsRatio": "0.0",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def build(session: SparkSession, place: str, rows: int) -> None:
    frame = session.range(0, rows, 1, FILES).selectExpr("id", "0L AS v", "uuid() AS filler")
    frame.write.format("delta").option("delta.enableDeletionVectors", "true").save(place)


def race(name: str, session: SparkSession, place: str, options: argparse.Namespace) -> bool:
    build(session, place, options.rows)
    stop, tally = threading.Event(), Tally()
    writers = [Writer(each, place, session, options.rows, options.seed, stop) for each in range(WRITERS)]
    started = time.monotonic()
    for writer in writers:
        writer.start()
    while time.monotonic() - started < options.seconds and not any(writer.trouble for writer in writers):
        COMPACTIONS[name](place, session, tally)
        tally.runs += 1
        time.sleep(PAUSE_SECONDS)
    stop.set()
    for writer in writers:
        writer.join()
    for writer in writers:
        if writer.trouble:
            raise writer.trouble
    wrong = compare(writers, session, place)
    counts = sum((writer.counts for writer in writers), Counter[str]())
    print(f"\n{name}: {time.monotonic() - started:.0f} s, {version(place)} versions")
    print(f"  writers: {', '.join(f'{count} {what}' for what, count in sorted(counts.items()))}")
    print(f"  compactions: {tally.runs} runs, {tally.conflicts} of them aborted by a conflict")
    print(f"  finished rewrites: {tally.rewrites}, committed: {tally.committed}; rows carried over: {tally.carried:,}")
    for reason, times in tally.reasons.most_common(3):
        print(f"    {times} times {reason}")
    print(f"  {', '.join(f'{what}: {count}' for what, count in wrong.items())}", flush=True)
    return not any(wrong.values()) and (name != "ours" or tally.committed == tally.rewrites)


def compare(writers: Sequence[Writer], session: SparkSession, place: str) -> dict[str, int]:
    """Rows that are not what their writers left, as we read the table and as delta-spark does."""
    expected = np.full(sum(len(writer.ids) for writer in writers), GONE, dtype=np.int64)
    for writer in writers:
        expected[writer.ids] = writer.values
    _, batches = read(open_table(place), columns=["id", "v"])
    ours = pa.Table.from_batches(batches)
    theirs = session.read.format("delta").load(place).select("id", "v").toArrow()
    wrong: Counter[str] = Counter()
    for found in (ours, theirs):
        wrong += differences(expected, found["id"].to_numpy(), found["v"].to_numpy())
    return {what: wrong[what] for what in ("rows lost", "rows back", "rows twice", "wrong values")}


def differences(expected: Any, ids: Any, values: Any) -> Counter[str]:
    times = np.bincount(ids, minlength=len(expected))
    known = np.full(len(expected), GONE, dtype=np.int64)
    known[ids] = values
    lives, here = expected != GONE, times > 0
    return Counter(
        {
            "rows lost": int((lives & ~here).sum()),
            "rows back": int((~lives & here).sum()),
            "rows twice": int((times > 1).sum()),
            "wrong values": int((lives & here & (known != expected)).sum()),
        }
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=COMPACTIONS)
    options = parser.parse_args()
    home = tempfile.mkdtemp(prefix="race-")
    good = True
    try:
        session = start_session(home)
        for name in [options.only] if options.only else COMPACTIONS:
            good &= race(name, session, os.path.join(home, re.sub(r"\W+", "-", name)), options)
        session.stop()
    except DvMaintenanceError as error:
        print(f"{error}\n{error.next_step or ''}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""What is compared with whom. A case builds its table once; each side works on a copy, in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from peers import sessions, tables, work

Build = Callable[[Path, int], None]
Session = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Warm:
    """Work in a session that has done the same on small tables before, which is not measured."""

    session: Session
    work: Callable[[Any, str], object]


Work = Callable[[str], object] | Warm | Sequence[str]


@dataclass(frozen=True)
class Case:
    """A pair.

    what : as the page names it.
    peer : who else does it.
    goal : the ratio of wall time to reach, or what else is to be reached.
    build : makes the table in a folder, from a size.
    sizes : of a full run, and of ``make bench-quick`` and a session's first work; the builder's unit.
    ours, theirs : the work, in a process that has imported nothing yet or in a session, or a command line.
    other_table : of the peer, where it has another one.
    read_only : neither side changes the table.
    """

    name: str
    what: str
    peer: str
    goal: str
    build: Build
    sizes: tuple[int, int]
    ours: Work
    theirs: Work
    other_table: Build | None = None
    read_only: bool = False

    @property
    def jvm(self) -> bool:
        return any(isinstance(side, Warm) and side.session is not nullcontext for side in (self.ours, self.theirs))


PYTHON = sys.executable
DVM = str(Path(PYTHON).with_name("dvm"))

SPARK = Warm(sessions.spark, work.purge_in_spark)
ONE_WORKER = Warm(sessions.spark_of_one_worker, work.purge_in_spark)
DELETE = Warm(sessions.spark, work.delete)
ERASE = Warm(sessions.spark, work.erase)
SCAN = Warm(nullcontext, work.scan)
REORG = Warm(sessions.delta_spark, work.reorg)
DELTA_DELETE = Warm(sessions.delta_spark, work.delta_delete)
DELTA_ERASE = Warm(sessions.delta_spark, work.delta_erase)
DELTA_COPY = Warm(sessions.delta_spark, work.delta_copy)
BY_PAIMON = Warm(sessions.paimon, work.paimon_compact)
BY_ONE_THREAD = partial(work.purge, threads=1)
BY_THREE = partial(work.purge, threads=3)
BY_TWO = work.compact_files
BY_ONE = partial(work.compact_files, threads=1)

COMPACT = "deltalake compact"
BY_LANCE, ALONE = "compact_files, 2 threads", "compact_files, 1 thread"
PAIMON = "Paimon's own, warm JVM"
LOCAL, DV = "ours, in-process", "delta-spark, DV"

ROWS = (20_000_000, 400_000)
FEWER = (10_000_000, 100_000)
FEWEST = (5_000_000, 400_000)
ROW = (10_000_000, 1_000_000)
GROUPS = (20_000_000, 2_000_000)
FILES = (200_000, 5_000)
PARTS = (2_000, 100)

RANDOM = tables.at_random(0.3)
ONE_FILE = partial(tables.one_file, deleted=RANDOM)
SMALLER = partial(tables.one_file, deleted=RANDOM, share=40)


def packing(name: str, what: str, goal: str, table: Build, sizes: tuple[int, int]) -> Case:
    return Case(name, f"bin packing, {what}", COMPACT, goal, table, sizes, work.optimize, work.compact)


def start_up(verb: str) -> Case:
    peer = "import deltalake"
    goal, sizes = "0.25 s CPU", (1000, 1000)
    return Case(verb, f"start-up: dvm {verb}", peer, goal, tables.one_file, sizes, (DVM, verb), (PYTHON, "-c", peer))


def vacuums(name: str, what: str, goal: str, table: Build) -> Case:
    peer = "deltalake vacuum, full"
    return Case(name, what, peer, goal, table, FILES, work.vacuum, work.full_vacuum, read_only=True)


def scans(percent: int) -> Case:
    what, plain = f"scan, {percent} % deleted at random", "the file without DV"
    table = partial(tables.one_file, deleted=tables.at_random(percent / 100))
    return Case(f"scan-{percent}", what, plain, "1.05", table, FEWER, SCAN, SCAN, tables.one_file, read_only=True)


CASES = (
    Case("random", "purge, 30 % at random", COMPACT, "0.65", tables.random_dvs, ROWS, work.purge, work.compact),
    Case("one-file", "purge of one file, 5M rows", "ours, one thread", "", ONE_FILE, FEWEST, work.purge, BY_ONE_THREAD),
    Case("columns", "the same, columns in threads", "ours, one thread", "", ONE_FILE, FEWEST, BY_THREE, BY_ONE_THREAD),
    Case("spark", "purge at random, Spark", COMPACT, "0.80, CPU 1.00", tables.random_dvs, ROWS, SPARK, work.compact),
    Case("reorg", "purge in Spark, 5M rows", "delta-spark REORG", "0.12", tables.random_dvs, FEWEST, SPARK, REORG),
    Case("workers", "20M rows, two workers", "ours, one worker", "0.56", tables.random_dvs, ROWS, SPARK, ONE_WORKER),
    Case("memory", "purge of a file in Spark", "ours, 1/40 of it", "350 MB", ONE_FILE, ROWS, SPARK, SPARK, SMALLER),
    Case("stretches", "purge, 50 % in stretches", COMPACT, "0.35", tables.stretches, ROWS, work.purge, work.compact),
    Case("groups", "purge, 2 of 10 row groups", COMPACT, "0.30", tables.two_of_ten, GROUPS, work.purge, work.compact),
    Case("paimon", "purge, Paimon, Parquet, 10M rows", PAIMON, "CPU 0.20", tables.paimon, FEWER, work.purge, BY_PAIMON),
    Case("orc", "purge, Paimon, ORC, 10M rows", PAIMON, "", tables.paimon_orc, FEWER, work.purge, BY_PAIMON),
    Case("unread", "ORC, not read back", PAIMON, "", tables.paimon_orc, FEWER, work.purge_unread, BY_PAIMON),
    Case("lance", "purge, Lance, 10M rows", BY_LANCE, "1.00", tables.lance, FEWER, work.purge, BY_TWO),
    Case("lance-1", "purge, Lance, 10M rows", ALONE, "1.00", tables.lance, FEWER, work.purge, BY_ONE),
    Case("lance-spark", "purge, Lance in Spark", BY_LANCE, "1.00", tables.lance, FEWER, SPARK, BY_TWO),
    packing("small", "files of 8 MB", "0.50", tables.small_files, (200, 12)),
    packing("large", "large row groups", "0.20", tables.large_groups, (20, 4)),
    Case("delete", "DELETE of one row", DV, "0.20", tables.one_file, ROW, DELETE, DELTA_DELETE),
    Case("copy", "DELETE of one row", "delta-spark, copy-on-write", "0.10", tables.one_file, ROW, DELETE, DELTA_COPY),
    Case("parts", "purge, 2,000 partitions, Spark", LOCAL, "3.00", tables.erased, PARTS, SPARK, work.purge),
    Case("erase", "DELETE in 2,000 files", DV, "1.00", tables.partitions, PARTS, ERASE, DELTA_ERASE),
    scans(1),
    scans(10),
    scans(50),
    start_up("health"),
    start_up("purge"),
    vacuums("vacuum", "vacuum, JSON commits only", "0.70", tables.orphans),
    vacuums("checkpoint", "vacuum, with a checkpoint", "0.50", tables.orphans_and_checkpoint),
)

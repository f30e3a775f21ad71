"""What is compared with whom. A case builds its table once; each side works on a copy, in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from peers.tables import TARGET, at_random, build, in_groups, in_stretches

CORES = 2

Work = Callable[[str], object]


@dataclass(frozen=True)
class Case:
    """A pair.

    what : as the page names it.
    peer : who else does it.
    goal : the ratio of wall time to reach, or what else is to be reached.
    build : makes the table in a folder, from a size.
    size, quick : of a full run and of ``make bench-quick``; the unit is the builder's.
    ours, theirs : the work, in a process that has imported nothing yet, or a command line.
    """

    name: str
    what: str
    peer: str
    goal: str
    build: Callable[[Path, int], None]
    size: int
    quick: int
    ours: Work | Sequence[str]
    theirs: Work | Sequence[str]


def purge(place: str) -> None:
    from dv_maintenance.engine.local import LocalEngine
    from dv_maintenance.maintenance.execution.apply import purge
    from dv_maintenance.tables import open_table

    purge(open_table(place), LocalEngine(threads=CORES))


def optimize(place: str) -> None:
    from dv_maintenance.engine.local import LocalEngine
    from dv_maintenance.maintenance.execution.apply import apply
    from dv_maintenance.maintenance.meter.of_table import decide_for
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.tables import open_table

    table = open_table(place)
    apply(table, LocalEngine(threads=CORES), decide_for(table, table.snapshot(), Policy(target_file_size=TARGET)))


def compact(place: str) -> None:
    from deltalake import DeltaTable, WriterProperties

    # The tables are in snappy, and ours stays with it.
    same = WriterProperties(compression="SNAPPY")
    DeltaTable(place).optimize.compact(target_size=TARGET, max_concurrent_tasks=CORES, writer_properties=same)


def vacuum(place: str) -> None:
    from dv_maintenance.tables import open_table

    open_table(place).vacuum(dry_run=True)


def full_vacuum(place: str) -> None:
    """Dry runs only: it would delete the files of live deletion vectors."""
    from deltalake import DeltaTable

    DeltaTable(place).vacuum(dry_run=True, full=True)


def random_dvs(root: Path, rows: int) -> None:
    build(root, rows, 16, at_random(0.3))


def stretches(root: Path, rows: int) -> None:
    build(root, rows, 16, in_stretches(0.5, 200_000), group=100_000)


def two_of_ten(root: Path, rows: int) -> None:
    files = max(rows // 1_000_000, 1)
    build(root, rows, files, in_groups(0.3, 2, 10), group=rows // files // 10)


def small_files(root: Path, files: int) -> None:
    """Of 8 MB, in row groups of a million rows, so one in each."""
    build(root, files * 160_000, files, None)


def large_groups(root: Path, files: int) -> None:
    """Half as large as the target, in row groups of 500,000 rows."""
    build(root, files * 1_000_000, files, None, group=500_000)


def orphans(root: Path, files: int) -> None:
    from bench_vacuum import build as build_vacuum

    build_vacuum(root, files)


def orphans_and_checkpoint(root: Path, files: int) -> None:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.load import load_snapshot
    from dv_maintenance.tables.delta.log.checkpoint_writer import write_checkpoint

    orphans(root, files)
    storage = Storage(str(root))
    write_checkpoint(storage, load_snapshot(storage))


def nothing_to_do(root: Path, rows: int) -> None:
    build(root, rows, 1, None)


PYTHON = sys.executable
COMPACT = "deltalake compact"
VACUUM = "deltalake vacuum, full"
IMPORT = (PYTHON, "-c", "import deltalake")
DVM = str(Path(PYTHON).with_name("dvm"))

CASES = (
    Case("random", "purge, 30 % at random", COMPACT, "0.65", random_dvs, 20_000_000, 400_000, purge, compact),
    Case("stretches", "purge, 50 % in stretches", COMPACT, "0.35", stretches, 20_000_000, 400_000, purge, compact),
    Case("groups", "purge, 2 of 10 row groups", COMPACT, "0.30", two_of_ten, 20_000_000, 2_000_000, purge, compact),
    Case("small", "bin packing, files of 8 MB", COMPACT, "0.50", small_files, 200, 12, optimize, compact),
    Case("large", "bin packing, large row groups", COMPACT, "0.20", large_groups, 20, 4, optimize, compact),
    Case(
        "health",
        "start-up: dvm health",
        "import deltalake",
        "0.25 s CPU",
        nothing_to_do,
        1000,
        1000,
        (DVM, "health"),
        IMPORT,
    ),
    Case(
        "nothing",
        "start-up: dvm purge",
        "import deltalake",
        "0.25 s CPU",
        nothing_to_do,
        1000,
        1000,
        (DVM, "purge"),
        IMPORT,
    ),
    Case("vacuum", "vacuum, JSON commits only", VACUUM, "0.70", orphans, 200_000, 5_000, vacuum, full_vacuum),
    Case(
        "checkpoint",
        "vacuum, with a checkpoint",
        VACUUM,
        "0.50",
        orphans_and_checkpoint,
        200_000,
        5_000,
        vacuum,
        full_vacuum,
    ),
)

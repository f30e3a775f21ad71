"""Tables under a real Dagster daemon while somebody keeps writing, damaging and killing: does every promise hold?

    python benchmarks/soak_dagster.py [--minutes 10] [--tables 8] [--seed 1] [--keep]

A deployment of real processes (code server, daemon, webserver) on this machine, two sensors that evaluate every five
seconds, one process per run, the local engine. For the whole time

* a writer appends to and deletes from random tables, several times a second, and remembers what each must contain;
* every now and then a table is damaged, and mended later: a deletion vector file is gone, or the newest commit is
  garbage;
* a run at work is killed;
* the page launches maintenance of its own.

Then the writer stops, and the tables come to rest. Prints what happened; ends with 1 if a claim fails.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.read import read
from dv_maintenance.service.inspection import inspect_tables
from dv_maintenance.service.tables_file import WatchConfig
from dv_maintenance.storage import FileExistsAlreadyError
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.dagster_deployment import Deployment, Event, Span, eventually

SENSORS = {"dv_accumulation": ["optimize"], "vacuum_due": ["vacuum"]}
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
# Long enough for a writer that has written its files and not committed them yet.
RETENTION_SECONDS = 30
PAUSE_SECONDS = 0.3
DAMAGE_EVERY_SECONDS, DAMAGED_SECONDS = 45.0, 25.0
KILL_EVERY_SECONDS = 50.0
LAUNCH_EVERY_SECONDS = 20.0
# After the last change: retention, runs that wait for one another, and two inspections that find nothing.
REST_SECONDS = 1800.0
QUIET_SECONDS = 20.0
ENDED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)


class WrittenTable:
    """A table and what must be in it. ``lock``: held by whoever changes it, maintenance excepted."""

    ROWS = 50_000

    def __init__(self, path: Path, chance: random.Random) -> None:
        self.path = path
        self.name = path.name
        self.lock = threading.Lock()
        self.damaged = False
        self.changes = self.lost_races = 0
        self._chance = chance
        self._builder = DeltaBuilder(str(path)).create(
            SCHEMA, properties={"delta.deletedFileRetentionDuration": f"interval {RETENTION_SECONDS} seconds"}
        )
        self._ids: set[int] = set()
        self._next = 0
        self.append(self.ROWS, files=4)

    def change(self) -> None:
        """Append some rows, or delete some, all of the newest, or those of one residue class."""
        if self._chance.random() < 0.3 or len(self._ids) < self.ROWS // 5:
            self.append(self._chance.randint(100, self.ROWS // 5))
            return
        newest = max(self._ids)
        gone = self._chance.choice(
            [
                set(self._chance.sample(sorted(self._ids), len(self._ids) // 20)),
                {each for each in self._ids if each > newest - 500},
                {each for each in self._ids if each % 7 == newest % 7},
            ]
        )
        names = pa.array(sorted(gone), pa.int64())
        self._commit(lambda: self._builder.delete(lambda rows: pc.is_in(rows["id"], names)))
        self._ids -= gone

    def append(self, count: int, files: int = 1) -> None:
        ids = range(self._next, self._next + count)
        rows = pa.table({"id": ids, "v": [f"row {each}" for each in ids]}, SCHEMA)
        self._commit(lambda: self._builder.append(rows, files=files))
        self._next += count
        self._ids |= set(ids)

    def _commit(self, change: Any) -> None:
        while True:
            try:
                change()
            except FileExistsAlreadyError:
                self.lost_races += 1  # maintenance was faster
            else:
                self.changes += 1
                return

    def difference(self) -> str | None:
        """What is wrong with the table's content; ``None``: nothing."""
        _, batches = read(open_table(str(self.path)))
        found = Counter((row["id"], row["v"]) for batch in batches for row in batch.to_pylist())
        expected = Counter((each, f"row {each}") for each in self._ids)
        if found == expected:
            return None
        return f"{self.name}: {(expected - found).total()} rows are missing, {(found - expected).total()} too many"

    @contextmanager
    def damage(self, kind: str) -> Iterator[bool]:
        """The table without one of its deletion vectors (``dv``), or with a newest commit that was written by halves
        (``log``). False where there is nothing to damage.
        """
        hidden = self.path.with_name(f"{self.path.name}.hidden")
        with self.lock:
            victim = self._a_deletion_vector() if kind == "dv" else self._new_commit()
            if victim is not None:
                if kind == "dv":
                    victim.rename(hidden)
                else:
                    shutil.copy2(victim, hidden)
                    half = victim.with_suffix(".half")
                    half.write_text(hidden.read_text()[:10])
                    half.replace(victim)
                self.damaged = True
        try:
            yield victim is not None
        finally:
            if victim is not None:
                with self.lock:
                    hidden.replace(victim)
                    self.damaged = False

    def _a_deletion_vector(self) -> Path | None:
        self._commit(lambda: self._builder.delete(lambda rows: pc.equal(rows["id"], min(self._ids))))
        self._ids.remove(min(self._ids))
        return max(self.path.glob("deletion_vector_*.bin"), key=lambda file: file.stat().st_mtime, default=None)

    def _new_commit(self) -> Path:
        versions: list[int] = []
        self._commit(lambda: versions.append(self._builder.commit([])))
        return self.path / "_delta_log" / f"{versions[-1]:020}.json"


@dataclass(slots=True)
class Troubles:
    """What was done to the deployment: tables by kind of damage, runs killed, runs launched."""

    damaged: list[tuple[str, str, float, float]] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    launched: list[str] = field(default_factory=list)


class Soak:
    def __init__(self, folder: Path, count: int, seed: int) -> None:
        self.chance = random.Random(seed)
        places = [folder / "lake" / f"t{number:02}" for number in range(count)]
        self.tables = [WrittenTable(place, random.Random(seed + number)) for number, place in enumerate(places)]
        self.file = folder / "tables.yaml"
        lines = ["defaults: {policy: {vacuum_every: 20s}, jobs: [optimize, vacuum]}", "tables:"]
        self.file.write_text("\n".join([*lines, *(f"- {{path: {place}}}" for place in places)]))
        self.deployment = Deployment(folder / "deployment", self.file, sensors=SENSORS)
        self.troubles = Troubles()
        self.over = threading.Event()
        self.errors: list[BaseException] = []

    # -- while it lasts --------------------------------------------------------------------------------------------

    def last(self, seconds: float) -> None:
        """Everybody at work for so long."""
        self.deployment.start()
        self.deployment.switch_on(*SENSORS)
        jobs = [self._write, self._damage, self._kill, self._launch]
        threads = [threading.Thread(target=self._guarded, args=(job,), name=job.__name__) for job in jobs]
        for thread in threads:
            thread.start()
        self.over.wait(seconds)
        self.over.set()
        for thread in threads:
            thread.join()

    def _guarded(self, job: Any) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 (a soak without its writer proves nothing: reported at the end)
            self.errors.append(error)
            self.over.set()

    def _write(self) -> None:
        while not self.over.wait(PAUSE_SECONDS * self.chance.random() * 2):
            table = self.chance.choice(self.tables)
            with table.lock:
                if not table.damaged:
                    table.change()

    def _damage(self) -> None:
        kinds = ["dv", "log"]
        while not self.over.wait(DAMAGE_EVERY_SECONDS - DAMAGED_SECONDS):
            table, kind = self.chance.choice(self.tables), kinds[0]
            start = time.time()
            with table.damage(kind) as done:
                if done:
                    self.over.wait(DAMAGED_SECONDS)
            if done:
                self.troubles.damaged.append((table.name, kind, start, time.time()))
                kinds.reverse()

    def _kill(self) -> None:
        """A run in the middle of its step, by the process that Dagster says it is in."""
        while not self.over.wait(KILL_EVERY_SECONDS):
            while not self.over.wait(0.2):
                at_work = self.deployment.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
                run = next((run.run_id for run in at_work if self.deployment.events(run.run_id, Event.STEP_START)), "")
                process = self.deployment.process_of(run) if run else None
                if process is not None and self.deployment.owns(process):
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                        self.troubles.killed.append(run)
                    break

    def _launch(self) -> None:
        while not self.over.wait(LAUNCH_EVERY_SECONDS):
            table, job = self.chance.choice(self.tables), self.chance.choice(["optimize", "vacuum"])
            self.troubles.launched.append(
                self.deployment.launch(f"{table.name}/dv/{table.name.rpartition('/')[2]}_{job}")
            )

    # -- afterwards ------------------------------------------------------------------------------------------------

    def come_to_rest(self) -> float | None:
        """Seconds until nothing was due any more and no run was under way, for a while; ``None``: not in time."""
        start = time.monotonic()
        quiet_since: list[float] = []

        def at_rest() -> bool:
            if any(run.status not in ENDED for run in self.deployment.instance.get_runs()) or self._due():
                quiet_since.clear()
                return False
            quiet_since.append(time.monotonic())
            return time.monotonic() - quiet_since[0] > QUIET_SECONDS

        try:
            eventually("the tables come to rest", at_rest, seconds=REST_SECONDS, every=1)
        except AssertionError:
            return None
        return quiet_since[0] - start

    def _due(self) -> bool:
        found, _ = inspect_tables(WatchConfig.load(str(self.file)))
        return any(each.due or each.error for each in found)


@dataclass(slots=True)
class Claims:
    """Claims that must hold, and numbers to report."""

    failed: list[str] = field(default_factory=list)

    def tell(self, what: str, value: object) -> None:
        print(f"{what:56} {value}")

    def hold(self, what: str, problems: list[str]) -> None:
        print(f"{'ok' if not problems else 'FAILED':8} {what}")
        for problem in problems[:20]:
            print(f"           {problem}")
        if problems:
            self.failed.append(what)


@dataclass(frozen=True, slots=True)
class Run:
    """``asked``: when it was created. ``work``: from its start to its end. ``by``: sensor, retry or page."""

    id: str
    table: str
    job: str
    by: str
    status: dg.DagsterRunStatus
    version: int | None
    asked: Span
    work: Span
    steps: list[Span]
    did: dict[str, Any] | None


def runs_of(deployment: Deployment) -> list[Run]:
    runs = []
    for record in reversed(deployment.instance.get_run_records()):
        run = record.dagster_run
        [asset] = list(run.asset_selection or [])
        *table, _, job = asset.path
        created, end = record.create_timestamp.timestamp(), record.end_time or time.time()
        by = "retry" if "dagster/retry_number" in run.tags else run.tags.get("dagster/sensor_name", "page")
        version = run.tags.get("dv/version")
        runs.append(
            Run(
                id=run.run_id,
                table="/".join(table),
                job=job,
                by=by,
                status=run.status,
                version=None if version is None else int(version),
                asked=Span(run.run_id, created, end),
                work=Span(run.run_id, record.start_time or end, end),
                steps=deployment.steps(run.run_id),
                did=deployment.materialized(run.run_id).get(asset.to_user_string()),
            )
        )
    return runs


def overlapping(spans: list[tuple[str, Span]]) -> list[str]:
    """Pairs that were at work at one time, of the same table."""
    by_table = defaultdict(list)
    for table, span in spans:
        by_table[table].append(span)
    return [
        f"{table}: {one.run[:8]} {one.start:.1f}-{one.end:.1f} and {two.run[:8]} {two.start:.1f}-{two.end:.1f}"
        for table, found in by_table.items()
        for one, two in combinations(found, 2)
        if one.run != two.run and one.overlaps(two)
    ]


def worked(run: Run) -> bool:
    if run.did is None:
        return False
    return bool(
        run.did["files_deleted"] if run.job == "vacuum" else run.did["version_after"] != run.did["version_before"]
    )


def interrupted(run: Run) -> bool:
    """Whether somebody else committed between what an optimize read and what it committed."""
    did = run.did or {}
    return run.job == "optimize" and did["version_after"] > did["version_before"] + 1


def report(soak: Soak, rest: float | None) -> list[str]:
    """Prints figures and claims; the claims that failed."""
    claims, deployment, troubles = Claims(), soak.deployment, soak.troubles
    runs = runs_of(deployment)
    ticks = list(deployment.ticks())
    seconds = [tick.end_timestamp - tick.timestamp for tick in ticks if tick.end_timestamp]
    succeeded = [run for run in runs if run.status == dg.DagsterRunStatus.SUCCESS]
    by_sensor = [run for run in runs if run.by in SENSORS]
    idle = [run for run in succeeded if not worked(run)]
    per_table = Counter(run.table for run in runs)

    claims.tell("commits of the writer", sum(table.changes for table in soak.tables))
    claims.tell("  races that the writer lost to maintenance", sum(table.lost_races for table in soak.tables))
    claims.tell("ticks", f"{len(ticks)}: {dict(Counter(tick.status.value.lower() for tick in ticks))}")
    claims.tell("  seconds per tick", f"median {median(seconds):.2f}, longest {max(seconds):.2f}")
    claims.tell("runs", f"{len(runs)}: {dict(Counter(run.status.value.lower() for run in runs))}")
    claims.tell("  by whom", dict(Counter(run.by for run in runs)))
    claims.tell("  per table", f"{min(per_table.values())} to {max(per_table.values())}")
    claims.tell("  of those that succeeded, with nothing to do", dict(Counter((run.by, run.job) for run in idle)))
    claims.tell("  during which the writer committed", sum(interrupted(run) for run in succeeded))
    retries = sum(run.by == "retry" for run in runs)
    claims.tell("killed", f"{len(troubles.killed)}, of them started again by Dagster {retries}")
    claims.tell("damaged and mended", dict(Counter(kind for _, kind, *_ in troubles.damaged)))
    if rest is not None:
        claims.tell("seconds until nothing was due any more", f"{rest:.0f}")

    claims.hold("the writer and the others did their work", [repr(error) for error in soak.errors])
    claims.hold(
        "every table contains what was written", [each for table in soak.tables if (each := table.difference())]
    )
    left = [table.name for table in soak.tables if health(open_table(str(table.path)).snapshot()).counts.files > 1]
    claims.hold("every table ends up as one file", left)
    claims.hold("no tick failed", [str(tick.error) for tick in ticks if tick.status.value == "FAILURE"])
    # Those that the sensors asked for, and what Dagster made of them when they were killed.
    own = [run for run in runs if run.version is not None]
    tagged = [(run.table, run.work) for run in own]
    claims.hold("no two runs of a table that the sensors asked for were at work at one time", overlapping(tagged))
    asked = [(run.table, run.asked) for run in by_sensor]
    claims.hold("no sensor asked for a table that had a run of a sensor in flight", overlapping(asked))
    retried = [(run.table, run.asked) for run in own]
    claims.hold("nor for one whose run was about to be retried", overlapping(retried))
    steps = [(run.table, step) for run in runs for step in run.steps]
    claims.hold("no two steps on one table at one time, whoever launched them", overlapping(steps))
    claims.hold("no run without a reason", list(unreasonable(runs)))
    claims.hold("no killed run was started again more than once", list(retried_twice(deployment, troubles)))
    claims.hold("runs failed only where a table was damaged or a process killed", list(unexplained(runs, troubles)))
    claims.hold("every table whose runs failed was maintained afterwards", list(abandoned(runs)))
    claims.hold("every damage to a log was seen, and its end too", list(unseen(deployment, troubles)))
    return claims.failed


def unreasonable(runs: list[Run]) -> Iterator[str]:
    """A sensor asks for work that it saw in a version. Where its run finds nothing to do, somebody else must have
    changed the table in between.
    """
    for run in runs:
        if run.by not in SENSORS or run.did is None or worked(run):
            continue
        others = [
            other for other in runs if other.table == run.table and run.asked.start < other.asked.end <= run.work.end
        ]
        found = run.did.get("version_before", run.did.get("version_after"))
        if found == run.version and all(other.id == run.id for other in others):
            yield f"{run.table}: {run.job} by {run.by}, {run.id[:8]}: nothing to do at version {run.version}"


def retried_twice(deployment: Deployment, troubles: Troubles) -> Iterator[str]:
    """Or not even once: Dagster's daemon misses the end of a run whose status it reads before that is written. The
    sensor asks again then.
    """
    for run in troubles.killed:
        group = deployment.instance.get_run_group(run)
        children = [each for each in group[1] if each.parent_run_id == run] if group else []
        if len(children) > 1:
            yield f"{run[:8]}: {len(children)} retries"


def unexplained(runs: list[Run], troubles: Troubles) -> Iterator[str]:
    for run in runs:
        hurt = any(
            run.table == table and start < run.work.end and run.work.start < end
            for table, _, start, end in troubles.damaged
        )
        if run.status != dg.DagsterRunStatus.SUCCESS and run.id not in troubles.killed and not hurt:
            yield f"{run.table}: {run.job} by {run.by}, {run.id[:8]}: {run.status.value}"


def abandoned(runs: list[Run]) -> Iterator[str]:
    for run in runs:
        later = [
            other
            for other in runs
            if (other.table, other.job) == (run.table, run.job) and other.work.start >= run.work.end
        ]
        if run.status == dg.DagsterRunStatus.FAILURE and not any(
            each.status == dg.DagsterRunStatus.SUCCESS for each in later
        ):
            yield f"{run.table}: {run.job}: nothing after {run.id[:8]}"


def unseen(deployment: Deployment, troubles: Troubles) -> Iterator[str]:
    """The check ``readable`` fails for as long as a log can't be read."""
    for name in {table for table, kind, *_ in troubles.damaged if kind == "log"}:
        key = dg.AssetCheckKey(dg.AssetKey([name]), "readable")
        records = deployment.instance.event_log_storage.get_asset_check_execution_history(key, limit=1000)
        events = [record.event.dagster_event for record in records if record.event]
        passed = [event.asset_check_evaluation_data.passed for event in events if event]
        if False not in passed or passed[0] is not True:
            yield f"{name}: {passed[:5]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--tables", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep tables and instance, and print their location")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    soak = Soak(folder, options.tables, options.seed)
    try:
        soak.last(options.minutes * 60)
        failed = report(soak, soak.come_to_rest())
    finally:
        soak.over.set()
        soak.deployment.stop()
        if options.keep:
            print(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

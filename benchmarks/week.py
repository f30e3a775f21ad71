"""A week of accidents for any orchestrator: tables, what happens to them, and what must be true afterwards.

An orchestrator takes part as a :class:`Face`. At the end of each day everything that is due must have been maintained,
and whatever waited must have been explained by the last inspection at it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, combinations
from pathlib import Path
from typing import Any, Literal, Protocol

from week_lake import FORMATS, LakeTable, Undo

from dv_maintenance.service.inspection import Inspection, inspect_tables
from dv_maintenance.service.tables_file import WatchConfig

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.unprivileged import permissions_apply

__all__ = ["Face", "Lake", "LakeTable", "Run", "Week", "main", "mentions"]

DAYS = ("canceled", "away", "damaged", "denied", "recreated", "late", "crashed", "twice")
# Long enough for a run that is caught at work, on any machine.
LARGE = {"files": 12, "rows": 250_000}
# How long a folder is gone and permissions are denied.
AWAY_SECONDS = 60.0
# Runs that failed follow each other at once, and then after an hour: what the next attempt after that waits at most.
NIGHT_SECONDS = 2 * 3600 + 60.0
QUIET_SECONDS = 15.0
WATCHED_EVERY_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Run:
    """``asked``: when it was created, seconds since the epoch. ``steps``: when something worked on the table.
    ``worked``: it changed something; ``None``: not known.
    """

    id: str
    table: str
    job: str
    state: Literal["active", "success", "failed", "canceled"]
    asked: float
    steps: Sequence[tuple[float, float]] = ()
    worked: bool | None = None


class Face(Protocol):
    """``grace``: seconds within which every table is looked at, and a run that was asked for exists.

    ``shared``: pattern of what is said where two definitions name one table. ``forgetful``: a run that was canceled
    before anything began is asked for again an hour later.
    """

    grace: float
    shared: str
    forgetful: bool

    def start(self) -> None:
        """Every process; returns once all tables are watched."""

    def stop(self) -> None:
        """Whatever is left of them."""

    def crash(self) -> None:
        """SIGKILL to every process at once."""

    def after_crash(self, week: Week, table: LakeTable, since: float) -> None:
        """What must happen before the table is maintained again."""

    def runs(self) -> list[Run]:
        """All so far, oldest first."""

    def active(self) -> dict[str, str]:
        """The run that works on a table or will, by the table's name."""

    def hold(self, run: str) -> None:
        """Stop the process at work."""

    def release(self, run: str) -> None:
        """It goes on."""

    def cancel(self, run: str) -> None:
        """One that is held, as on the page; returns once it has ended."""

    def cancel_early(self, table: LakeTable, job: str) -> bool:
        """The next run of a job, before it begins. False: too late, it succeeded."""

    def kill(self, run: str) -> None:
        """SIGKILL to the process at work, which is held."""

    def words(self, table: str, since: float) -> list[str]:
        """What was said of a table by inspections since then, oldest first, requests included."""

    def last_word(self, table: str, since: float) -> str:
        """What the last inspection says of a table that has been waiting since then."""

    def later(self, seconds: float) -> None:
        """Everything so far happened that much longer ago."""

    def data_versions(self, table: str) -> set[str]:
        """That consumers were shown; none if there is no such thing."""

    def checks(self, table: str) -> dict[str, bool]:
        """Whether each check passed when it was evaluated last, where the page shows it."""

    def claims(self) -> Iterator[tuple[str, list[str]]]:
        """More that must be true at the end, with what contradicts it."""


class Lake:
    """The tables, and the file that names them. ``twin``: a file that names one of them again."""

    TWICE, OTHER = "twice", "other"

    def __init__(self, folder: Path, formats: Sequence[str], settings: Sequence[str] = ()) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.formats = formats
        every = [f"{what}_{each}" for each in formats for what in ("gone", "hurt", "torn", "barred", "again")]
        first = formats[0]
        shapes: dict[str, dict[str, Any]] = {name: {"format": name.rpartition("_")[2]} for name in every}
        shapes |= {name: {"format": first} for name in ("lower", "higher", "lost", "shut")}
        shapes |= dict.fromkeys(("stopped", "killed", "crashed"), LARGE)
        late = {f"late_{each}": {"format": each, "keeps": True} for each in formats}
        shapes |= late
        shapes |= {name: {} for name in ("queued", "swept", self.TWICE)}
        self.tables = {name: LakeTable(folder / name, **shape) for name, shape in shapes.items()}
        self.file, self.twin = folder / "tables.yaml", folder / "twin.yaml"
        jobs = {"swept": "jobs: [optimize, vacuum], policy: {min_file_size: 0, vacuum_every: 20s, vacuum_min_bytes: 1}"}
        # With a day between vacuums and a margin, later than that. Without opening a table nobody can know.
        jobs |= dict.fromkeys(late, "jobs: [optimize], policy: {min_file_size: 0, erase_within: 8d}")
        settings = [*settings, "defaults: {policy: {min_file_size: 0}}"]  # nothing is due before somebody deletes
        entries = [f"- {{path: {name}, {jobs.get(name, 'jobs: [optimize]')}}}" for name in self.tables]
        self.file.write_text("\n".join(["name: week", *settings, "tables:", *entries]))
        again = f"- {{name: {self.OTHER}, path: {self.TWICE}, jobs: [optimize]}}"
        self.twin.write_text("\n".join(["name: twin", *settings, "tables:", again]))

    def __getitem__(self, name: str) -> LakeTable:
        return self.tables[name]

    def of_each_format(self, what: str) -> list[LakeTable]:
        return [self.tables[f"{what}_{each}"] for each in self.formats]

    def inspect(self) -> dict[str, Inspection]:
        """Without any memory, and whatever permissions say."""
        return {each.name: each for each in inspect_tables(WatchConfig.load(str(self.file)))[0]}


class Vigil:
    """Inspects all tables itself, and remembers those that waited while the last inspection said nothing of them."""

    def __init__(self, lake: Lake, face: Face) -> None:
        self.silences: list[str] = []
        self.errors: list[str] = []
        self._lake, self._face = lake, face
        self._since: dict[str, float] = {}
        self._known: set[tuple[str, float]] = set()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="vigil")

    @contextmanager
    def kept(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While nobody can look."""
        with self._lock:
            self._since.clear()
            yield

    def _watch(self) -> None:
        while not self._over.wait(WATCHED_EVERY_SECONDS):
            with self._lock:
                try:
                    self._look()
                except Exception as error:  # noqa: BLE001 (a table may vanish in the middle of it; reported at the end)
                    self.errors.append(repr(error))

    def _look(self) -> None:
        # Runs first: one that ended after the table was read would look like a table that is due and waits.
        active, now = self._face.active(), time.time()
        for name, found in self._lake.inspect().items():
            if name in active or not (found.error or "optimize" in found.due):
                self._since.pop(name, None)
                continue
            since = self._since.setdefault(name, now)
            if now - since < self._face.grace or (name, since) in self._known:
                continue
            if not self._face.last_word(name, since):
                self._known.add((name, since))
                why = found.error or "; ".join(chain.from_iterable(found.reasons.values()))
                self.silences.append(f"{name}: nothing is said after {now - since:.0f} s, though {why}")


@dataclass
class Week:
    """``patience``: seconds until work must be done that nothing stands in the way of any more."""

    lake: Lake
    face: Face
    patience: float = 300
    problems: dict[str, list[str]] = field(default_factory=dict)
    _start: float = field(default_factory=time.time)
    _day: str = ""

    def play(self, days: Sequence[str]) -> None:
        """Those days, in the order of the week."""
        self.vigil = Vigil(self.lake, self.face)
        with self.vigil.kept():
            for name in (each for each in DAYS if each in days):
                day = getattr(self, name)
                self._day = name
                self.problems.setdefault(name, [])
                self.tell(f"{name}: {(day.__doc__ or '').strip()}")
                try:
                    day()
                except Exception as error:  # noqa: BLE001 (the next day comes)
                    self.problem(f"the day ended early: {type(error).__name__}: {error}")
            self.tell("the week is over: everything comes to rest")
            self._day = "rest"
            self.problems["rest"] = []
            self.come_to_rest()

    def tell(self, what: str) -> None:
        print(f"{time.time() - self._start:6.0f} s  {what}", flush=True)

    def problem(self, what: str) -> None:
        self.tell(f"  PROBLEM {what}")
        self.problems[self._day].append(what)

    # -- the days --------------------------------------------------------------------------------------------------

    def canceled(self) -> None:
        """Runs are canceled: one at work, one in the queue, a vacuum. The process of another one is killed."""
        lake, face = self.lake, self.face
        stopped, queued, swept = (lake[name] for name in ("stopped", "queued", "swept"))
        begun = time.time()
        self._caught(stopped, face.cancel)
        self._caught(lake["killed"], face.kill)
        for _ in range(3):
            queued.delete()
            if face.cancel_early(queued, "optimize"):
                break
            self.maintained([queued])
        if face.forgetful:
            self.maintained([stopped, lake["killed"]])
            self._after_two_hours([queued])
        else:
            self.maintained([stopped, lake["killed"], queued])
            self.said([queued], begun, "cancel")
        self.said([stopped], begun, "cancel|marked as")
        for _ in range(3):
            swept.delete()
            self.maintained([swept])
            if face.cancel_early(swept, "vacuum"):
                break
        self._eventually(
            "expired files are deleted, though the first vacuum was canceled",
            lambda: len(swept.data_files()) == 1,
            lambda: f"swept: {len(swept.data_files())} files. {self._last(swept)}",
        )

    def away(self) -> None:
        """Folders are gone for a minute, right after rows were deleted."""
        tables = self.lake.of_each_format("gone")
        with self._accident(tables, LakeTable.lose_folder) as begun:
            self.said(tables, begun, "no table found|no _delta_log|nothing exists|not found")
            time.sleep(AWAY_SECONDS)
        self.maintained(tables)

    def damaged(self) -> None:
        """Deletion vectors vanish and commits are torn. They come back, or a table is restored from its past."""
        lake = self.lake
        hurt, torn, lost = lake.of_each_format("hurt"), lake.of_each_format("torn"), lake["lost"]
        begun = time.time()
        lost.delete()
        lost.lose_deletion_vector()
        with self._accident(torn, LakeTable.tear_log), self._accident(hurt, LakeTable.lose_deletion_vector):
            self.said([*hurt, lost], begun, "missing|fsck|is gone|not there")
            self.said(torn, begun, "Next: |damaged")
            known = time.time()
            time.sleep(AWAY_SECONDS)
            names = {table.name for table in (*hurt, *torn, lost)}
            for run in self.face.runs():
                if run.table in names and run.asked > known + 1:
                    self.problem(f"{run.table}: a run was requested, though the damage was known")
        lost.restore()
        lost.append()
        lost.delete()
        self.maintained([*hurt, *torn, lost])

    def denied(self) -> None:
        """Folders can't be written, or not even be read, and permissions are given back."""
        if not permissions_apply():
            self.tell("  left out: root ignores permissions here, and 'setpriv' is missing")
            return
        tables, shut = self.lake.of_each_format("barred"), self.lake["shut"]
        with (
            self._accident(tables, lambda table: table.deny(0o500)) as begun,
            self._accident([shut], lambda table: table.deny(0)),
        ):
            self.said([*tables, shut], begun, "[Pp]ermission denied|EACCES")
            time.sleep(AWAY_SECONDS)
        self.maintained([shut])
        self._after_two_hours(tables)  # nobody sees that a folder can be written again

    def recreated(self) -> None:
        """Tables are dropped and created again: at the same version number, a lower one, a higher one."""
        kinds = [(table, 0) for table in self.lake.of_each_format("again")]
        kinds += [(self.lake["lower"], -1), (self.lake["higher"], 3)]
        tables = [table for table, _ in kinds]
        for table in tables:
            table.delete()
        self.maintained(tables)
        self._eventually("nobody works on them", lambda: not {each.name for each in tables} & set(self.face.active()))
        time.sleep(self.face.grace)  # their state is seen
        for table, more in kinds:
            before, version = self.face.data_versions(table.name), table.version
            table.replace(table.commits + more)
            self.tell(f"  {table.name}: version {version}, now {table.version}")
            self.maintained([table])
            if before and not self.face.data_versions(table.name) - before:
                self.problem(f"{table.name}: consumers saw no other data version than before: {sorted(before)}")

    def late(self) -> None:
        """A deadline for erased rows can't be kept: the check that is named after it fails, and maintenance goes on."""
        tables = self.lake.of_each_format("late")
        for _ in range(2):
            for table in tables:
                table.delete()
            self.maintained(tables)
        for table in tables:

            def shown(table: LakeTable = table) -> str:
                return f"checks of {table.name} that pass: {self.face.checks(table.name)}"

            def right(table: LakeTable = table) -> bool:
                found = self.face.checks(table.name)
                return found.get("readable", False) and not found.get("erase_within", True)

            self._eventually(f"'erase_within' of {table.name} fails, and 'readable' passes", right, shown)
        self.tell("  'erase_within' fails, and 'readable' passes")

    def crashed(self) -> None:
        """The host goes down in the middle of a run, and comes back."""
        table = self.lake["crashed"]
        begun = time.time()
        self._at_work(table)
        with self.vigil.paused():
            self.face.crash()
            self.tell("  down")
            self.face.start()
            self.tell("  up again")
        self.face.after_crash(self, table, begun)
        self.maintained([table])

    def twice(self) -> None:
        """Two definitions of one table both watch it."""
        table = self.lake[Lake.TWICE]
        for _ in range(3):
            table.delete()
            self.maintained([table])
        self.said([table], self._start, self.face.shared)  # once, as soon as they know of each other

    def come_to_rest(self) -> None:
        """Nothing is due, no run is active, for a while."""
        quiet: list[float] = []

        def at_rest() -> bool:
            if self.face.active() or any(each.due or each.error for each in self.lake.inspect().values()):
                quiet.clear()
                return False
            quiet.append(time.monotonic())
            return quiet[-1] - quiet[0] > QUIET_SECONDS

        self._eventually("everything comes to rest", at_rest, lambda: "; ".join(self._due(self.lake.tables.values())))

    # -- what they are made of -------------------------------------------------------------------------------------

    @contextmanager
    def _accident(self, tables: Sequence[LakeTable], happens: Callable[[LakeTable], Undo]) -> Iterator[float]:
        """To tables that somebody deletes rows from at this moment; when it began."""
        begun = time.time()
        undo = []
        try:
            for table in tables:
                table.delete()
                undo.append(happens(table))
            yield begun
        finally:
            for each in undo:
                each()

    def _at_work(self, table: LakeTable) -> str:
        """A run that is held in the middle of its work: it has written files and not committed anything."""
        for _ in range(3):
            table.delete()
            version, before = table.version, table.data_files()

            def at_work(table: LakeTable = table, before: set[Path] = before) -> bool:
                return bool(table.data_files() - before) and table.name in self.face.active()

            self._eventually(f"a run on {table.name} writes files", at_work, every=0.02)
            run = self.face.active()[table.name]
            self.face.hold(run)
            if table.version == version:
                return run
            self.face.release(run)
            self.maintained([table])
        raise AssertionError(f"the runs on {table.name} were too fast")

    def _caught(self, table: LakeTable, end: Callable[[str], None]) -> None:
        run = self._at_work(table)
        version, begun = table.version, time.time()
        end(run)
        self.tell(f"  {table.name}: {run} was ended")
        # The next run may have begun at once, and may have committed by now.
        again = any(each.table == table.name and each.asked >= begun for each in self.face.runs())
        if table.version != version and not again:
            self.problem(f"{table.name}: a run that was ended has committed")

    def said(self, tables: Sequence[LakeTable], since: float, pattern: str) -> None:
        """Some inspection since then says why."""
        for table in tables:

            def found(table: LakeTable = table) -> str | None:
                return next((word for word in self.face.words(table.name, since) if re.search(pattern, word)), None)

            word = self._eventually(
                f"an inspection of {table.name} says /{pattern}/", found, partial(self._last, table)
            )
            if word:
                self.tell(f"  {table.name}: {word[:300]}")

    def maintained(self, tables: Sequence[LakeTable]) -> None:
        names, begun = ", ".join(table.name for table in tables), time.monotonic()
        done = self._eventually(
            f"{names}: maintained", lambda: self._done(tables), lambda: "; ".join(self._due(tables))
        )
        if done:
            self.tell(f"  {names}: maintained after {time.monotonic() - begun:.0f} s")

    def _after_two_hours(self, tables: Sequence[LakeTable]) -> None:
        """Nobody notices by looking that they can be maintained. Whoever waits has said until when."""
        if self._done(tables, self.face.grace):
            return
        waiting = [table for table in tables if table.name not in self.face.active()]
        for each in self._due(waiting):
            self.tell(f"  {each}")
            if re.search(r"waiting for .* \d{4}-\d\d-\d\dT[\d:]+Z", each) is None:
                self.problem(f"waits, and does not say until when: {each}")
        self.face.later(NIGHT_SECONDS)
        self.tell("  two hours pass")
        self.maintained(tables)

    def _done(self, tables: Sequence[LakeTable], seconds: float = 0) -> bool:
        until = time.monotonic() + seconds
        while self._due(tables):
            if time.monotonic() >= until:
                return False
            time.sleep(1)
        return True

    def _due(self, tables: Iterable[LakeTable]) -> list[str]:
        found = self.lake.inspect()
        due = [table for table in tables if found[table.name].error or "optimize" in found[table.name].due]
        return [f"{table.name} is due at version {found[table.name].version}: {self._last(table)}" for table in due]

    def _last(self, table: LakeTable) -> str:
        words = self.face.words(table.name, self._start)
        return f"the last word: {words[-1][:400]!r}" if words else "nothing was said"

    def _eventually(
        self, what: str, probe: Callable[[], object], else_say: Callable[[], str] = str, every: float = 1
    ) -> str:
        """Whether, and what, ``probe`` returned in time. A problem if it did not."""
        until = time.monotonic() + self.patience
        while not (found := probe()):
            if time.monotonic() > until:
                self.problem(f"not within {self.patience:.0f} s: {what}. {else_say()}")
                return ""
            time.sleep(every)
        return str(found)

    # -- the end ---------------------------------------------------------------------------------------------------

    def report(self) -> list[str]:
        """Prints figures and claims; the claims that failed."""
        runs = self.face.runs()
        print()
        print(f"{'seconds':40} {time.time() - self._start:.0f}")
        print(f"{'runs':40} {len(runs)}: {dict(Counter(run.state for run in runs))}")
        idle = Counter(run.table for run in runs if run.worked is False and run.state == "success")
        print(f"{'  that succeeded without work':40} {dict(idle)}")
        wrong = [each for table in self.lake.tables.values() if (each := _difference(table))]
        several = [f"{name}: {count} runs" for name, count in idle.items() if count > 3]
        failed = []
        for what, problems in [
            *(
                (f"{day}: everything due is maintained, every wait explained", found)
                for day, found in self.problems.items()
            ),
            ("no row is lost, none comes back", wrong),
            ("whatever waits is explained by the last inspection", self.vigil.silences),
            ("no two runs work on one table at a time", self._overlaps(runs)),
            ("no storm of runs without work", several),
            *self.face.claims(),
        ]:
            print(f"{'FAILED' if problems else 'ok':8} {what}")
            for problem in problems[:20]:
                print(f"           {problem}")
            failed += [what] if problems else []
        for error in self.vigil.errors[:5]:
            print(f"(the vigil failed once: {error})")
        return failed

    def _overlaps(self, runs: list[Run]) -> list[str]:
        steps = [(run, step) for run in runs for step in run.steps]
        return [
            f"{one.table}, run {one.id[:8]}, and {two.table}, run {two.id[:8]}, at {max(first[0], second[0]):.0f}"
            for (one, first), (two, second) in combinations(steps, 2)
            if one.id != two.id
            and {one.table, two.table} in ({one.table}, {Lake.TWICE, Lake.OTHER})
            and first[0] < second[1]
            and second[0] < first[1]
        ]


def mentions(text: str, table: str) -> bool:
    """Whether a sentence is about a table, and does not merely have a word like its name."""
    return re.search(rf"(^|; ){table}: |[/']{table}\b|from {table} on", text) is not None


def _difference(table: LakeTable) -> str | None:
    try:
        return table.difference()
    except Exception as error:  # noqa: BLE001 (the others are compared, too)
        return f"{table.name}: {error}"


def main(about: str | None, make: Callable[[Path, Lake], Face], settings: Sequence[str] = ()) -> int:
    """A script for one orchestrator. ``settings``: lines of the file of tables."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--only", nargs="*", default=[], choices=DAYS, help="some days of the week", metavar="DAY")
    parser.add_argument("--patience", type=float, default=300, help="seconds until due work must be done")
    parser.add_argument("--keep", action="store_true", help="keep tables and logs, and print their location")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="week-"))
    lake = Lake(folder / "lake", options.formats.split(","), settings)
    face = make(folder, lake)
    week = Week(lake, face, options.patience)
    try:
        face.start()
        week.play(options.only or DAYS)
        failed = week.report()
    finally:
        face.stop()
        if options.keep:
            print(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0

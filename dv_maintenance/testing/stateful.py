"""Random histories of a table with maintenance, compared with a dict of rows (Hypothesis state machine).

A format's test file subclasses :class:`TableHistories`, provides the table and its judges, and hands its ``TestCase``
to pytest. ``HYPOTHESIS_PROFILE=deep`` in the environment makes the search longer.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from dv_maintenance.errors import DamagedTableError, RefusedError, UsageError
from dv_maintenance.maintenance.execution.apply import apply, maintain, purge
from dv_maintenance.maintenance.execution.report import ApplyReport
from dv_maintenance.maintenance.manifest import write_manifests
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.planning.steps import MaintenancePlan
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables.file_log import FileLogTable
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.tables.model import Snapshot
from dv_maintenance.testing.backends import TableBackend
from dv_maintenance.testing.file_logs import check_steps
from dv_maintenance.testing.history import InterferingEngine, TableHistory
from dv_maintenance.testing.incremental import check_advanced

# Another reader: the live rows of the table at a place, at a version.
Judge = Callable[[Path, int], pa.Table]

_EXAMPLES, _STEPS = (1000, 60) if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else (25, 15)
HISTORIES = settings(
    max_examples=_EXAMPLES,
    stateful_step_count=_STEPS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

_PARTITIONS = st.sampled_from(["a", "b", None])
_FILES = st.tuples(_PARTITIONS, st.integers(1, 8))
# Every n-th row from the m-th on: few, many, or all of them.
_SHARES = st.tuples(st.sampled_from([7, 5, 3, 2, 19, 1]), st.integers(0, 18))
# How many moments ago the retention begins: 0 lets everything before now expire.
_AGO = st.integers(0, 5)
_POLICIES = st.builds(
    Policy,
    max_deleted_ratio=st.sampled_from([0, 0.05, 0.4]),
    min_file_size=st.sampled_from([None, 0]),
    min_input_files=st.sampled_from([2, 3]),
    max_tasks=st.sampled_from([None, 1]),
)


class TableHistories(RuleBasedStateMachine):
    """Every version inside the retention always holds the rows of the model and the files that it needs. A version
    outside the retention may be unreadable, but never reads differently.

    No clock is set: the retention begins at a *moment* between two past operations, and time passes by moving it to a
    later moment.
    """

    judges: ClassVar[Mapping[str, Judge]] = {}
    plans: Bundle[MaintenancePlan] = Bundle("plans")

    def backend(self, place: Path) -> TableBackend:
        """The table to create at ``place``."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="histories")
        self.place = Path(self._folder.name) / "table"
        self.history = TableHistory(self.backend(self.place))
        self.moments = [self.history.moment()]
        self.cutoff = self.moments[0]
        self.seen: Snapshot | None = None

    def teardown(self) -> None:
        """At the end of a history, check all its versions, then expire the past and purge all deletion vectors."""
        try:
            self._check_versions()
            self.vacuum(lite=False, ago=0)
            self.purge()
            self.vacuum(lite=False, ago=0)
            self._check_versions()
            assert self.history.stored() == self.history.needs(self.history.version)
        finally:
            self._folder.cleanup()

    # -- other writers ---------------------------------------------------------------------------------------------

    @initialize(files=st.lists(_FILES, min_size=2, max_size=4), share=_SHARES, data=st.data())
    def begin(self, files: list[tuple[str | None, int]], share: tuple[int, int], data: st.DataObject) -> None:
        """Start every history with rows and deletion vectors, which most failures need."""
        for file in files:
            self.append(file)
        self.delete(share, data, keep_empty=True)

    @rule(file=_FILES)
    def append(self, file: tuple[str | None, int]) -> None:
        self.history.append(*file)
        self._done()

    @rule(share=_SHARES, data=st.data(), keep_empty=st.booleans())
    def delete(self, share: tuple[int, int], data: st.DataObject, keep_empty: bool) -> None:
        """Delete rows, some of which may be deleted already."""
        style = data.draw(st.sampled_from(self.history.backend.styles), "style")
        self.history.delete_where(_in(share), style=style, keep_empty=keep_empty)
        self._done()

    @precondition(lambda self: "checkpoints" in self.history.backend.supports)
    @rule(ago=_AGO)
    def checkpoint(self, ago: int) -> None:
        """Write a checkpoint at the time when the retention begins at the cutoff, so the log drops what it may."""
        self._let_time_pass(ago)
        self.history.backend.checkpoint(self._now)

    # -- maintenance -----------------------------------------------------------------------------------------------

    @rule()
    def purge(self) -> None:
        self._maintained(purge(self.history.table, self.history.backend.engine()))
        assert self.history.live_dvs() == 0

    @rule(policy=_POLICIES)
    def compact(self, policy: Policy) -> None:
        self._maintained(maintain(self.history.table, self.history.backend.engine(), policy))

    @rule(share=_SHARES, also_appends=st.booleans(), also_vacuums=st.booleans(), purging=st.booleans())
    def run_while_others_write(
        self, share: tuple[int, int], also_appends: bool, also_vacuums: bool, purging: bool
    ) -> None:
        def others() -> None:
            self.history.delete_where(_in(share))
            if also_appends:
                self.history.append("a", 2)
            if also_vacuums:
                vacuum(self.history.table, VacuumRequest(now=self._now))

        engine = InterferingEngine(self.history.backend.engine(), others)
        self._maintained(maintain(self.history.table, engine, purge=purging))

    @rule(target=plans, policy=_POLICIES, purging=st.booleans())
    def plan(self, policy: Policy, purging: bool) -> MaintenancePlan:
        return build_plan(self.history.table.snapshot(), policy, purge=purging)

    @rule(plan=plans)
    def apply(self, plan: MaintenancePlan) -> None:
        """Apply a plan: soon, late, or for the second time."""
        saved = MaintenancePlan.from_json(json.loads(json.dumps(plan.to_json())))
        try:
            self._maintained(apply(self.history.table, self.history.backend.engine(), saved))
        except UsageError:
            # Where versions have no order, an expired one is not told from that of another table.
            assert plan.format == "iceberg"
            assert plan.version not in {entry.version for entry in self.history.table.history()}

    def _maintained(self, report: ApplyReport) -> None:
        assert report.verified, report.problems
        self._done()

    @precondition(lambda self: "manifests" in self.history.backend.supports)
    @rule()
    def manifests(self) -> None:
        """Write manifests; refused while deletion vectors exist."""
        dvs, files = self.history.live_dvs(), len(self.history.live_files())
        try:
            report = write_manifests(self.history.table, self.history.backend.engine())
        except RefusedError:
            assert dvs
        else:
            assert (dvs, report.files) == (0, files)

    # -- inspections -----------------------------------------------------------------------------------------------

    @rule()
    def inspect(self) -> None:
        """Builds on the last inspection, and decides as one that reads everything."""
        self.seen = check_advanced(self.history.table, self.seen)

    # -- time ------------------------------------------------------------------------------------------------------

    def _let_time_pass(self, ago: int) -> None:
        """Move the beginning of the retention to ``ago`` moments before now, but never back."""
        self.cutoff = max(self.cutoff, self.moments[max(0, len(self.moments) - 1 - ago)])

    @rule(lite=st.booleans(), ago=_AGO)
    def vacuum(self, lite: bool, ago: int) -> None:
        self._let_time_pass(ago)
        said = vacuum(self.history.table, VacuumRequest(dry_run=True, lite=lite, now=self._now))
        before = self.history.stored()
        done = vacuum(self.history.table, VacuumRequest(lite=lite, now=self._now))
        gone = before - self.history.stored()
        assert gone == {path for path in said.paths or () if not path.startswith(self.history.backend.logs)}
        assert len(said.paths or ()) == done.deleted
        self.history.sync()
        # No writer here leaves files that a lite vacuum can't know of.
        assert not self.history.stored() & self._expired()

    def _done(self) -> None:
        """Record a commit, and a moment to which time may pass."""
        self.history.sync()
        self.moments.append(self.history.moment())

    # -- invariants ------------------------------------------------------------------------------------------------

    @invariant()
    def the_newest_version_reads_as_the_model(self) -> None:
        assert self.history.table.version() == self.history.version
        assert self.history.read() == self.history.expected()

    @invariant()
    def every_file_inside_the_retention_is_there(self) -> None:
        assert self._needed(self.history.since(self.cutoff.version)) <= self.history.stored()

    @invariant()
    def no_file_is_left_behind(self) -> None:
        """Writers here commit every file or delete it again."""
        assert self.history.stored() <= self._needed(self.history.versions)

    @property
    def _now(self) -> int:
        """The time at which the retention begins at the cutoff."""
        return self.cutoff.time + self.history.backend.retention

    def _expired(self) -> frozenset[str]:
        """Files that only versions before the cutoff need."""
        return self._needed(self.history.versions) - self._needed(self.history.since(self.cutoff.version))

    def _needed(self, versions: Iterable[int]) -> frozenset[str]:
        return frozenset[str]().union(*map(self.history.needs, versions))

    def _check_versions(self) -> None:
        oldest, newest = self.cutoff.version, self.history.version
        kept = self.history.since(oldest)
        readable = []
        for version in self.history.versions:
            try:
                found = self.history.read(version)
            except (DamagedTableError, UsageError):
                assert version not in kept, f"version {version}"
            else:
                assert found == self.history.expected(version), f"version {version}"
                readable.append(version)
        opened = self.history.table
        assert isinstance(opened, FileLogTable)
        check_steps(opened, readable)
        for name, read in self.judges.items():
            for version in {oldest, newest}:
                rows = read(self.place, version).select(["id", "p", "v"]).to_pylist()
                judged = sorted((row["id"], row["p"], row["v"]) for row in rows)
                assert judged == self.history.expected(version), f"{name} at version {version}"


def _in(share: tuple[int, int]) -> Callable[[int], bool]:
    every, offset = share
    return lambda number: number % every == offset % every

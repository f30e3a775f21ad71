"""What maintenance promises for a table of any format, as tests.

A format's test file subclasses :class:`TableContract` and gives it a table::

    class TestDelta(TableContract):
        @pytest.fixture
        def backend(self, tmp_path: Path) -> TableBackend:
            return DeltaBackend(str(tmp_path / "table"))
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection

import pytest

from dv_maintenance.errors import RefusedError, UnsupportedFeatureError, UsageError
from dv_maintenance.files.parquet_footer import read_footer
from dv_maintenance.maintenance.checks import check_table
from dv_maintenance.maintenance.deadlines import Waiting, to_erase
from dv_maintenance.maintenance.execution.apply import apply, maintain, purge
from dv_maintenance.maintenance.execution.report import nothing_to_purge
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.manifest import write_manifests
from dv_maintenance.maintenance.meter.of_table import decide_for
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.planning.run_limits import spent_in
from dv_maintenance.maintenance.planning.steps import MaintenancePlan
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables.file_log import FileLogTable
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.tables.model import OldestDv, partition_name
from dv_maintenance.tables.registry import known_format
from dv_maintenance.testing.backends import TableBackend
from dv_maintenance.testing.contract_partitions import PartitionContract
from dv_maintenance.testing.file_logs import check_windows
from dv_maintenance.testing.history import InterferingEngine, TableHistory, require
from dv_maintenance.units import DAY

HOUR = 3_600_000


class TableContract(PartitionContract):
    """The behaviour every format has in common. ``table`` is the fixture to start from."""

    @pytest.fixture
    def backend(self) -> TableBackend:
        """The place of a table that does not exist yet. For subclasses to give."""
        raise NotImplementedError

    @pytest.fixture
    def table(self, backend: TableBackend) -> TableHistory:
        """Two files of partition a and one of partition b, 10 rows each, and three deletes: from one file of a, once
        more from that file, and from b. Ids go from 0 to 29, in that order.
        """
        return self.begun(backend)

    @staticmethod
    def begun(backend: TableBackend) -> TableHistory:
        """Make that table. A subclass whose tables can be copied may make it once for all tests."""
        table = TableHistory(backend)
        table.append("a", 10)
        table.append("a", 10)
        table.append("b", 10)
        table.delete(range(3))
        table.delete(range(5))
        table.delete([20, 29])
        return table

    # -- reading ---------------------------------------------------------------------------------------------------

    def test_every_version_has_its_snapshot(self, table: TableHistory) -> None:
        opened = table.table
        assert opened.version() == table.version
        for version, rows in table.versions.items():
            snapshot = opened.snapshot(version)
            assert (snapshot.version, snapshot.table, snapshot.format) == (version, opened.uri, opened.format)
            files = snapshot.files
            live = sum(files["physical_rows"].to_pylist()) - sum(files["deleted_rows"].to_pylist())
            assert live == len(rows)
        times = [opened.snapshot(version).timestamp for version in table.versions]
        assert times == sorted(times)
        assert opened.snapshot().version == table.version
        for version in table.backend.absent():
            with pytest.raises(UsageError):
                opened.snapshot(version)

    def test_health_counts_files_dvs_and_rows(self, table: TableHistory) -> None:
        found = health(table.table.snapshot())
        total = found.counts
        assert (total.files, total.files_with_dv, total.physical_rows, total.deleted_rows) == (3, 2, 30, 7)
        assert (total.live_rows, total.deleted_ratio) == (23, round(7 / 30, 6))
        assert found.version == table.version
        parts = {partition_name(each.partition): each.counts for each in found.partitions}
        wanted = {"p=a": (2, 1, 5), "p=b": (1, 1, 2)} if "partitions" in table.backend.supports else {"": (3, 2, 7)}
        assert {
            name: (counts.files, counts.files_with_dv, counts.deleted_rows) for name, counts in parts.items()
        } == wanted
        assert sum(counts.size_bytes for counts in parts.values()) == total.size_bytes > 0
        before = health(table.table.snapshot(list(table.versions)[3])).counts
        assert (before.files_with_dv, before.deleted_rows, before.live_rows) == (0, 0, 30)

    def test_the_oldest_dv_counts_from_the_first_of_its_file(self, table: TableHistory) -> None:
        """A delete replaces the DV of a file: rows that the first one deleted are in the file still."""
        opened = table.table
        times = {entry.version: entry.timestamp for entry in opened.history()}
        deletes = list(table.versions)[-3:]
        for version in deletes:
            assert opened.oldest_dv(opened.snapshot(version)) == OldestDv(times[deletes[0]], exact=True)
        purge(opened, table.backend.engine())
        assert opened.oldest_dv(opened.snapshot()) is None

    def test_what_is_to_be_erased(self, table: TableHistory) -> None:
        """Deleted rows wait for a purge in live files, then for a vacuum in unneeded files."""
        opened = table.table
        times = {entry.version: entry.timestamp for entry in opened.history()}
        first, day = times[list(table.versions)[-3]], DAY
        policy = Policy.from_mapping({"erase_within": f"{table.backend.retention // day + 30}d"})
        found = to_erase(opened, opened.snapshot(), policy, now=times[table.version])
        assert found is not None
        assert found.live == Waiting(
            2, first, True, first + 29 * day + table.backend.retention // day * day - table.backend.retention
        )
        assert found.unknown == ()
        purge(opened, table.backend.engine())
        table.sync()
        found = to_erase(opened, opened.snapshot(), policy, now=table.moment().time)
        assert found is not None
        assert (found.live, found.unknown) == (None, ())
        assert found.unneeded is not None
        assert (found.unneeded.oldest, found.unneeded.exact) == (first, True)
        now = table.moment().time + table.backend.retention
        vacuum(opened, VacuumRequest(now=now))
        found = to_erase(opened, opened.snapshot(), policy, now=now + 2 * day)
        assert found is not None
        assert (found.live, found.unneeded, found.unknown) == (None, None, ())

    def test_a_deadline_that_can_not_be_kept(self, table: TableHistory) -> None:
        """Its own check fails and says what to change. Everything else about the table is found out as before, and
        rows are purged at once: each day earlier counts.
        """
        opened, day = table.table, DAY
        # Retention, a daily vacuum and two days to spare: not a moment is left for a purge.
        policy = Policy(max_deleted_ratio=1, min_file_size=0).model_copy(
            update={"erase_within": table.backend.retention + 3 * day}
        )
        found = {each.check: each for each in check_table(lambda: opened, policy)}
        assert found["readable"].severity is None
        assert found["erase_within"].severity == "error"
        assert "can't be kept" in found["erase_within"].reason
        assert "or set erase_within above" in found["erase_within"].reason
        report = apply(opened, table.backend.engine(), decide_for(opened, opened.snapshot(), policy))
        assert report.verified
        table.sync()
        assert health(opened.snapshot()).counts.files_with_dv == 0
        (after,) = check_table(lambda: opened, policy, checks=["erase_within"])
        assert after.severity == "error"

    def test_the_formats_own_defaults_are_in_order(self, backend: TableBackend) -> None:
        """A check that warns of every table says nothing about any."""
        table = TableHistory(backend)
        table.append("a", 10)
        found = check_table(lambda: table.table)
        assert {each.check for each in found if each.severity} <= {"manifest_lag"}, found
        known = known_format(table.table.format)
        own = table.table.retention(table.table.snapshot())
        assert known is None or known.retention in {None, own}

    def test_every_version_reads_as_it_was(self, table: TableHistory) -> None:
        purge(table.table, table.backend.engine())
        table.sync()
        assert len(set(map(len, table.versions.values()))) > 4
        for version in table.versions:
            assert table.read(version) == table.expected(version)

    def test_history_is_newest_first(self, table: TableHistory) -> None:
        before = table.version
        purge(table.table, table.backend.engine())
        table.sync()
        entries = table.table.history()
        assert [entry.version for entry in entries] == list(table.versions)[::-1]
        order = [entry.version for entry in entries]
        assert [table.table.parent_of(version) for version in order[:-1]] == order[1:]
        for place, version in enumerate(order):
            assert [table.table.follows(version, other) for other in order] == [at > place for at in range(len(order))]
        ours = len(table.since(before)) - 1
        by_us, by_others = entries[:ours], entries[ours:]
        assert [entry.data_changed for entry in by_us] == [False] * len(by_us)
        purges = [entry for entry in by_us if entry.files_added]
        assert {entry.operation for entry in purges} == {table.backend.purged}
        assert [sum(entry.dvs_removed for entry in purges), sum(entry.dvs_added for entry in purges)] == [2, 0]
        assert [sum(entry.files_removed for entry in purges), sum(entry.files_added for entry in purges)] == [2, 2]
        deleted, again, first = by_others[:3]
        assert deleted.data_changed
        assert (first.dvs_added, first.dvs_removed, first.rows_deleted_by_dvs) == (1, 0, 3)
        assert (again.dvs_added, again.dvs_removed, again.rows_deleted_by_dvs) == (1, 1, 2)
        assert (deleted.dvs_added, deleted.dvs_removed, deleted.rows_deleted_by_dvs) == (1, 0, 2)
        assert [entry.version for entry in table.table.history(limit=2)] == [entry.version for entry in entries[:2]]

    def test_maintenance_changes_no_data(self, table: TableHistory) -> None:
        seen = list(table.versions)[-2]
        changes = table.table.changes_since(seen)
        assert (changes.since, changes.version, changes.data_version) == (seen, table.version, table.version)
        purge(table.table, table.backend.engine())
        before = table.version
        table.sync()
        changes = table.table.changes_since(before)
        assert [commit.version for commit in changes.commits] == table.since(before)[1:]
        assert changes.version == table.version != before
        assert changes.data_version is None
        assert not any(commit.data_changed for commit in changes.commits)
        purged = changes.version
        vacuum(table.table, VacuumRequest(now=table.moment().time + table.backend.retention))
        changes = table.table.changes_since(purged)
        assert changes.data_version is None
        assert not any(commit.data_changed for commit in changes.commits)

    def test_the_file_log_leads_from_version_to_version(self, table: TableHistory) -> None:
        engine = table.backend.engine()
        deleted = table.version
        purge(table.table, engine)
        table.sync()
        purged = table.version
        table.delete([5, 21])
        # All rows of a file.
        table.delete(range(10, 20), keep_empty="empty files" in table.backend.supports)
        maintain(table.table, engine)
        table.append("b", 3)
        table.sync()
        opened = table.table
        assert isinstance(opened, FileLogTable)
        check_windows(opened, list(table.versions))
        log = opened.file_log(opened.snapshot(), 0)
        assert (log.commits[0].version, log.base, log.complete) == (next(iter(table.versions)), None, True)
        entries = {entry.version: entry for entry in opened.history()}
        assert len(entries) == len(log.commits)
        for commit in log.commits:
            entry = entries[commit.version]
            said = (commit.timestamp, commit.operation, commit.data_changed)
            assert said == (entry.timestamp, entry.operation, entry.data_changed)
        # Others changed the rows.
        assert {commit.ours for commit in log.commits if commit.data_changed} == {False}
        by_us = set(table.since(deleted)[1:]) - set(table.since(purged)[1:])
        assert False not in {commit.ours for commit in log.commits if commit.version in by_us}
        spent = spent_in(log, log.commits[-1].timestamp + 1)
        assert spent.files > 0 < spent.bytes, "limits of a day need to know what runs replaced"
        rows = log.changes.to_pylist()
        created = {row["path"] for row in rows if row["added"]}
        assert created >= {row["path"] for row in rows}

    def test_the_file_log_of_a_table_without_rows(self, backend: TableBackend) -> None:
        table = TableHistory(backend)
        opened = table.table
        assert isinstance(opened, FileLogTable)
        check_windows(opened, list(table.versions))
        log = opened.file_log(opened.snapshot(), 0)
        assert (len(log.commits), log.changes.num_rows, log.base, log.complete) == (1, 0, None, True)

    # -- purge and compaction --------------------------------------------------------------------------------------

    def test_purge_takes_every_dv_and_no_row(self, table: TableHistory) -> None:
        untouched = {key for key in table.live_files() if key.dv_id is None}
        before = table.version
        report = purge(table.table, table.backend.engine())
        table.sync()
        assert report.verified, report.problems
        assert (report.version_after, report.version_before) == (table.version, before)
        assert table.live_dvs() == 0
        assert table.read() == table.expected()
        parted = "partitions" in table.backend.supports
        live = Counter(partition_name({"p": part}) if parted else "" for _, part, _ in table.expected())
        found = health(table.table.snapshot()).partitions
        assert {partition_name(each.partition): each.counts.live_rows for each in found} == live
        assert untouched < table.live_files()
        assert sorted((step.dvs_removed, step.rows_purged) for step in report.steps) == [(1, 2), (1, 5)]

    def test_purge_of_one_partition(self, table: TableHistory) -> None:
        require(table.backend, "partitions")
        before = table.live_files()
        report = purge(table.table, table.backend.engine(), ["p=b"])
        table.sync()
        assert [step.partition for step in report.steps] == ["p=b"]
        assert len(before - table.live_files()) == 1
        assert table.live_dvs() == 1
        assert table.read() == table.expected()

    @pytest.mark.parametrize("run", [purge, maintain])
    def test_a_second_run_does_nothing(self, table: TableHistory, run: Callable[..., object]) -> None:
        run(table.table, table.backend.engine())
        table.sync()
        keys, stored = table.live_files(), table.stored()
        run(table.table, table.backend.engine())
        assert table.table.version() == table.version
        assert (table.live_files(), table.stored()) == (keys, stored)

    def test_without_dvs_a_purge_reports_what_its_plan_would(self, table: TableHistory) -> None:
        engine = table.backend.engine()
        assert nothing_to_purge(table.table.snapshot()) is None
        purge(table.table, engine)
        newest = table.table.snapshot()
        assert nothing_to_purge(newest) == apply(table.table, engine, build_plan(newest, purge=True), snapshot=newest)

    def test_a_null_partition_is_one_like_others(self, table: TableHistory) -> None:
        require(table.backend, "partitions")
        table.append(None, 10)
        table.delete([31])
        report = purge(table.table, table.backend.engine(), [{"p": None}])
        assert [(step.partition, step.rows_purged) for step in report.steps] == [("p=__HIVE_DEFAULT_PARTITION__", 1)]
        assert table.read() == table.expected()

    @pytest.mark.parametrize("run", [purge, maintain])
    def test_a_lone_file_is_purged(self, backend: TableBackend, run: Callable[..., object]) -> None:
        table = TableHistory(backend)
        table.append("a", 10)
        table.delete([0])
        run(table.table, backend.engine())
        assert table.live_dvs() == 0
        assert table.read() == table.expected()

    def test_wholly_deleted_files_go_without_a_rewrite(self, backend: TableBackend) -> None:
        require(backend, "empty files")
        table = TableHistory(backend)
        for partition in ("a", "a", "b"):
            table.append(partition, 10)
        table.delete([20, 29])
        table.delete(range(20, 30), keep_empty=True)
        assert len(table.live_files()) == 3
        stored = table.stored()

        def nobody() -> None:
            raise AssertionError("there is nothing to rewrite")

        report = purge(table.table, InterferingEngine(table.backend.engine(), nobody))
        assert [(step.action, step.files_added, step.rows_purged) for step in report.steps] == [("remove", 0, 10)]
        assert len(table.live_files()) == 2
        assert table.stored() == stored
        assert table.read() == table.expected()

    def test_files_below_the_threshold_are_left_alone(self, table: TableHistory) -> None:
        keys = table.live_files()
        policy = Policy(max_deleted_ratio=0.5, min_file_size=0)
        report = maintain(table.table, table.backend.engine(), policy)
        assert report.steps == ()
        assert (table.table.version(), table.live_files()) == (table.version, keys)
        assert {left.reason: left.files for left in report.left_alone} == {
            "no deletion vector, and at least 0 B of live rows": 1,
            "at most 50 % of its rows deleted, and at least 0 B of live rows": 2,
        }
        report = maintain(table.table, table.backend.engine(), Policy(max_deleted_ratio=0.49, min_file_size=0))
        assert [step.rows_purged for step in report.steps] == [5]
        assert table.read() == table.expected()

    def test_small_files_are_merged(self, table: TableHistory) -> None:
        report = maintain(table.table, table.backend.engine())
        wanted = {"p=a": (2, 1), "p=b": (1, 1)} if "partitions" in table.backend.supports else {"": (3, 1)}
        assert {step.partition: (step.files_removed, step.files_added) for step in report.steps} == wanted
        assert table.live_dvs() == 0
        assert table.read() == table.expected()

    def test_the_policy_names_the_compression(self, table: TableHistory) -> None:
        """Where the format leaves a choice. Where it leaves none, a policy that chooses is refused by name."""
        policy = Policy(compression="gzip")  # no format's default
        known = known_format(table.table.format)
        if known is None:
            pytest.skip(f"the registry does not know {table.table.format}")
        if not known.compression:
            with pytest.raises(UsageError, match=f"{known.name} tables leave no choice of compression"):
                maintain(table.table, table.backend.engine(), policy)
            assert table.table.version() == table.version
            return
        assert maintain(table.table, table.backend.engine(), policy).verified
        storage = table.table.storage
        for path in table.table.snapshot().files["path"].to_pylist():
            with storage.open_input(table.table.path_of(path)) as file:
                group = read_footer(file).row_group(0)
            assert {group.column(leaf).compression for leaf in range(group.num_columns)} == {"GZIP"}, path
        assert table.read() == table.expected()

    # -- plans -----------------------------------------------------------------------------------------------------

    def test_a_plan_that_went_through_json_is_the_plan(self, table: TableHistory) -> None:
        plan = build_plan(table.table.snapshot(), Policy(max_deleted_ratio=0.1))
        again = MaintenancePlan.from_json(json.loads(json.dumps(plan.to_json())))
        assert again == plan
        keys = table.live_files()
        report = apply(table.table, table.backend.engine(), again)
        assert [(step.id, step.partition) for step in report.steps] == [
            (step.id, step.partition) for step in plan.steps
        ]
        planned = {(each.path, each.dv_id) for step in plan.steps for each in step.inputs}
        assert {(key.path, key.dv_id) for key in keys - table.live_files()} == planned
        assert table.read() == table.expected()

    def test_a_stale_plan_is_made_anew_where_it_has_to(self, table: TableHistory) -> None:
        plan = build_plan(table.table.snapshot(), purge=True)
        table.delete([7, 15])
        table.append("a", 10)
        report = apply(table.table, table.backend.engine(), plan)
        assert report.verified, report.problems
        assert table.live_dvs() == 0
        assert table.read() == table.expected()

    # Of one file of the plan; of all its files and another; all rows of one; all rows there are.
    @pytest.mark.parametrize(("ids", "carried"), [([7], 1), ([7, 15, 21], 2), (range(10), 0), (range(30), 0)])
    def test_a_delete_in_the_meantime_stays_deleted(
        self, table: TableHistory, ids: Collection[int], carried: int
    ) -> None:
        engine = InterferingEngine(table.backend.engine(), lambda: table.delete(ids))
        report = purge(table.table, engine)
        table.sync()
        assert report.verified, report.problems
        assert table.read() == table.expected()
        assert engine.runs == 1, "the work is kept, or of no use to anybody"
        # What is carried over goes with the next purge.
        assert sum(step.rows_carried for step in report.steps) == carried
        assert purge(table.table, table.backend.engine()).verified
        table.sync()
        assert table.read() == table.expected()
        assert table.live_dvs() == 0
        # What was written in vain is gone again.
        assert table.stored() == frozenset[str]().union(*map(table.needs, table.versions))

    # -- vacuum ----------------------------------------------------------------------------------------------------

    def test_a_dry_run_says_what_a_vacuum_does(self, table: TableHistory) -> None:
        purge(table.table, table.backend.engine())
        table.sync()
        now = table.moment().time + table.backend.retention
        stored = table.stored()
        said = vacuum(table.table, VacuumRequest(dry_run=True, now=now))
        assert (table.stored(), table.table.version()) == (stored, table.version)
        done = vacuum(table.table, VacuumRequest(now=now))
        assert said.paths is not None
        gone = {path for path in said.paths if not path.startswith(table.backend.logs)}
        assert gone == stored - table.stored()
        assert len(said.paths) == done.deleted
        assert len(gone) == said.data_files + said.dv_files > 0
        assert (done.data_files, done.dv_files, done.bytes) == (said.data_files, said.dv_files, said.bytes)
        # Nothing but what the newest version needs.
        assert table.stored() == table.needs(table.version)
        assert table.read() == table.expected()

    def test_a_vacuum_keeps_live_deletion_vectors(self, table: TableHistory) -> None:
        for number, style in enumerate(table.backend.styles):
            table.append("c", 10)
            table.delete([30 + 10 * number], style=style)
            table.delete([31 + 10 * number], style=style)
        vacuum(table.table, VacuumRequest(now=table.moment().time + table.backend.retention))
        assert table.live_dvs() == 2 + len(table.backend.styles)
        assert table.stored() == table.needs(table.version)
        assert table.read() == table.expected()

    def test_a_vacuum_with_nothing_to_do(self, table: TableHistory) -> None:
        stored = table.stored()
        assert vacuum(table.table).deleted == 0
        assert vacuum(table.table).retention == table.table.retention(table.table.snapshot())
        assert (table.stored(), table.table.version()) == (stored, table.version)

    def test_a_retention_below_the_tables_own_is_refused(self, table: TableHistory) -> None:
        purge(table.table, table.backend.engine())
        table.sync()
        stored, now = table.stored(), table.moment().time + table.backend.retention
        for retention in (0, table.backend.retention - 1):
            with pytest.raises(RefusedError):
                vacuum(table.table, VacuumRequest(retention=retention, now=now))
        assert (table.stored(), table.table.version()) == (stored, table.version)
        vacuum(table.table, VacuumRequest(retention=HOUR, allow_short_retention=True, now=now))
        assert table.stored() == table.needs(table.version)

    @pytest.mark.parametrize("lite", [False, True], ids=["full", "lite"])
    def test_a_vacuum_keeps_what_the_retention_covers(self, table: TableHistory, lite: bool) -> None:
        moment = table.moment()
        table.delete([10, 11])
        purge(table.table, table.backend.engine())
        table.sync()
        inside = table.since(moment.version)
        kept = frozenset[str]().union(*map(table.needs, inside))
        past = table.versions.keys() - inside
        expired = frozenset[str]().union(*map(table.needs, past)) - kept
        report = vacuum(table.table, VacuumRequest(now=moment.time + table.backend.retention, lite=lite))
        assert (report.cutoff, report.data_files + report.dv_files) == (moment.time, len(expired))
        assert table.stored() == kept
        for version in inside:
            assert table.read(version) == table.expected(version)

    # -- manifests -------------------------------------------------------------------------------------------------

    def test_manifests_come_after_a_purge(self, table: TableHistory) -> None:
        require(table.backend, "manifests")
        with pytest.raises(RefusedError):
            write_manifests(table.table, table.backend.engine())
        assert table.table.version() == table.version
        report = write_manifests(table.table, table.backend.engine(), purge_first=True)
        table.sync()
        assert (report.purged, report.version, report.files) == (True, table.version, len(table.live_files()))
        assert all(table.table.storage.exists(path) for path in report.manifests)
        assert write_manifests(table.table, table.backend.engine()).manifests == report.manifests
        assert table.read() == table.expected()
        table.delete([7])
        with pytest.raises(RefusedError):
            write_manifests(table.table, table.backend.engine())

    # -- what is not understood ------------------------------------------------------------------------------------

    def test_an_unknown_feature_is_refused_untouched(self, table: TableHistory) -> None:
        require(table.backend, "features")
        plan = build_plan(table.table.snapshot(), purge=True)
        table.backend.forbid()
        table.sync()
        engine = table.backend.engine()
        before = sorted(table.table.storage.list(), key=str)
        runs: list[Callable[[], object]] = [
            lambda: purge(table.table, engine),
            lambda: maintain(table.table, engine),
            lambda: apply(table.table, engine, plan),
            lambda: vacuum(table.table, VacuumRequest(now=table.moment().time + table.backend.retention)),
            lambda: vacuum(table.table, VacuumRequest(dry_run=True)),
            lambda: write_manifests(table.table, engine, purge_first=True),
        ]
        for run in runs:
            with pytest.raises(UnsupportedFeatureError) as refusal:
                run()
            assert refusal.value.features == ("fromTheFuture",)
        assert sorted(table.table.storage.list(), key=str) == before
        # Who may not write may still read.
        assert table.read() == table.expected()

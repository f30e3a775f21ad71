"""A Lance table beside Delta ones: the same assets, sensor, checks and jobs, judged by Lance's own library."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dv_maintenance.dagster import SparkResource, build_dv_assets
from dv_maintenance.maintenance.checks import CHECKS
from dv_maintenance.service.checks import check_names
from dv_maintenance.service.data_version import last_data_version
from dv_maintenance.service.tables_file import TableSettings, WatchConfig
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumRequest

Definitions = Callable[..., dg.Definitions]
MakeTable = Callable[..., TableSettings]
KEY = dg.AssetKey("docs")
OPTIMIZE, VACUUM = (dg.AssetKey(["docs", "dv", f"docs_{job}"]) for job in ("optimize", "vacuum"))


class Lake:
    """``docs``: 1000 ids in 2 fragments, the even ones of the first 500 deleted, and as much as that unneeded."""

    def __init__(self, folder: Path, lance: ModuleType) -> None:
        self.lance = lance
        self.place = str(folder / "docs")
        lance.write_dataset(pa.table({"id": range(1000)}), self.place, max_rows_per_file=500)
        self.dataset().update_config({"lance.auto_cleanup.older_than": "0s"})
        self.delete("id < 500 and id % 2 = 0")

    def dataset(self) -> Any:
        return self.lance.dataset(self.place)

    def delete(self, where: str) -> int:
        dataset = self.dataset()
        dataset.delete(where)
        return int(dataset.version)

    def ids(self) -> list[int]:
        self.dataset().validate()
        return sorted(self.dataset().to_table()["id"].to_pylist())

    def deletion_files(self) -> list[Path]:
        return sorted(Path(self.place, "_deletions").iterdir())

    def watched(self, **settings: Any) -> TableSettings:
        return WatchConfig.model_validate({"tables": [{"path": self.place, **settings}]}).tables[0]


@pytest.fixture
def lake(tmp_path: Path, pylance: ModuleType) -> Lake:
    return Lake(tmp_path, pylance)


class Ticks:
    """The sensor's, one after the other, and its runs. ``day``: begins a new one, when expired files are looked for."""

    def __init__(self, defs: dg.Definitions, instance: dg.DagsterInstance) -> None:
        self.defs, self.instance = defs, instance
        self.cursor: str | None = None

    def __call__(self) -> Any:
        context = dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, repository_def=self.defs.get_repository_def()
        )
        data = self.defs.resolve_sensor_def("dv_accumulation").evaluate_tick(context)
        self.cursor = data.cursor
        for event in data.asset_events:  # as the daemon does
            self.instance.report_runless_asset_event(event)
        return data

    def asked(self) -> list[dg.AssetKey]:
        """What the one run that a tick asks for is to do; it is done, whether that succeeds or not."""
        requests = self().run_requests
        assert len(requests) <= 1
        for request in requests:
            self.run(request)
        return [key for request in requests for key in request.asset_selection]

    def run(self, request: Any) -> dg.ExecuteInProcessResult:
        return self.defs.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=self.instance,
            asset_selection=list(request.asset_selection),
            tags=dict(request.tags),
            raise_on_error=False,
        )

    def data_versions(self) -> list[str]:
        """Of every observation, oldest first."""
        records = self.instance.fetch_observations(KEY, limit=100).records
        return [record.asset_observation.tags["dagster/data_version"] for record in reversed(records)]


@pytest.fixture
def ticks(make_definitions: Definitions, instance: dg.DagsterInstance) -> Callable[..., Ticks]:
    def make(*tables: TableSettings) -> Ticks:
        return Ticks(make_definitions(*tables), instance)

    return make


def materialized(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, Any]:
    record = instance.get_latest_materialization_event(key)
    assert record is not None
    assert record.asset_materialization is not None
    return {name: value.value for name, value in record.asset_materialization.metadata.items()}


def test_the_job_maintains_it_like_a_delta_table(
    lake: Lake, make_table: MakeTable, make_definitions: Definitions, instance: dg.DagsterInstance
) -> None:
    before = lake.ids()
    defs = make_definitions(make_table(), lake.watched())
    assert defs.resolve_job_def("dv_maintenance").execute_in_process(instance=instance).success
    assert lake.ids() == before
    assert [fragment.num_deletions for fragment in lake.dataset().get_fragments()] == [0]
    assert len(lake.dataset().versions()) == 1

    optimized, vacuumed = materialized(instance, OPTIMIZE), materialized(instance, VACUUM)
    assert (optimized["rows_purged"], optimized["files_removed"], optimized["files_added"]) == (250, 2, 1)
    assert optimized["verified"] is True
    assert (vacuumed["data_files"], vacuumed["dv_files"]) == (2, 1)
    assert vacuumed["version_files"] > 2
    for said in (optimized["reason"], optimized["explanation"], vacuumed["reason"]):
        assert "log" not in said.split()


def test_jobs_of_one_table_take_turns_in_its_pool(lake: Lake, make_definitions: Definitions) -> None:
    nodes = make_definitions(lake.watched()).resolve_job_def("dv_maintenance").graph.iterate_op_defs()
    pools = {node.name: str(node.pool)[:-6] for node in nodes if node.name != "docs__dv_observe"}
    assert pools == {"docs__dv_optimize": "dv_docs_", "docs__dv_vacuum": "dv_docs_"}


def test_a_rewrite_that_fails_does_not_starve_the_vacuum(lake: Lake, ticks: Callable[..., Ticks]) -> None:
    """It goes first, in a run of its own. The rewrite would meet the same damage again."""
    (victim,) = lake.deletion_files()
    tick = ticks(lake.watched(policy={"vacuum_every": "1ms"}))
    victim.write_bytes(victim.read_bytes()[:40])
    assert tick.asked() == [VACUUM]
    assert len(lake.dataset().versions()) == 1
    assert tick.asked() == [OPTIMIZE], "it fails"
    assert lake.deletion_files() == [victim]
    quiet = tick()
    assert quiet.run_requests == []
    assert "optimize at version 3 failed, and would fail again; waiting for a new version" in quiet.skip_message


def test_a_vacuum_is_asked_for_where_rewrites_have_failed_for_good(lake: Lake, ticks: Callable[..., Ticks]) -> None:
    (victim,) = lake.deletion_files()
    content = victim.read_bytes()
    victim.write_bytes(content[:40])
    before = ticks(lake.watched(jobs=["optimize"]))
    assert [before.asked() for _ in range(2)] == [[OPTIMIZE], []]
    tick = ticks(lake.watched())
    assert tick.asked() == [VACUUM]
    assert len(lake.dataset().versions()) == 1
    assert tick.asked() == [OPTIMIZE], "other jobs are other settings"
    assert tick.asked() == []
    # A commit, and the file is back: a new version is a new chance.
    victim.write_bytes(content)
    lake.delete("id = 999")
    assert tick.asked() == [OPTIMIZE]
    assert lake.ids() == [number for number in range(999) if number >= 500 or number % 2]


def test_vacuum_is_asked_for_once_though_it_makes_no_version(lake: Lake, ticks: Callable[..., Ticks]) -> None:
    tick = ticks(lake.watched())
    assert tick.asked() == [VACUUM]
    assert tick.asked() == [OPTIMIZE]
    # What the rewrite left unneeded is expired at once, but looked for tomorrow.
    assert tick.asked() == []
    assert tick().skip_message == "nothing is due in 1 table"


# -- data versions -----------------------------------------------------------------------------------------------------


def test_neither_maintenance_nor_a_vacuum_makes_a_new_data_version(
    lake: Lake, ticks: Callable[..., Ticks], pylance: ModuleType
) -> None:
    """The sensor, one without a cursor, or the observation of the job observes, after the old versions expired."""
    lake.dataset().create_scalar_index("id", "BTREE")
    tick = ticks(lake.watched())
    assert tick.asked() == [VACUUM]
    assert tick.asked() == [OPTIMIZE]
    tick()
    lake.dataset().cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert len(lake.dataset().versions()) == 1
    job = tick.defs.resolve_job_def("dv_maintenance")
    assert job.execute_in_process(instance=tick.instance, asset_selection=[KEY]).success
    tick()
    tick.cursor = None
    tick()
    assert set(tick.data_versions()) == {"3"}
    assert len(tick.data_versions()) > 2
    version = lake.delete("id = 999")
    tick()
    assert tick.data_versions()[-1] == str(version)


def test_a_vacuum_remembers_what_it_is_about_to_make_unknowable(lake: Lake, ticks: Callable[..., Ticks]) -> None:
    """The sensor's last inspection is older than all remaining versions."""
    tick = ticks(lake.watched(policy={"vacuum_every": "1000d"}))
    tick()
    changed = lake.delete("id = 999")
    job = tick.defs.resolve_job_def("dv_maintenance")
    selection = [OPTIMIZE, VACUUM]
    assert job.execute_in_process(instance=tick.instance, asset_selection=selection).success
    assert min(each["version"] for each in lake.dataset().versions()) > changed + 1
    tick()
    assert tick.data_versions() == ["3", *[str(changed)] * 3], "each run observes what it left"


def test_what_a_vacuum_took_away_unseen_counts_as_changed(lake: Lake) -> None:
    """Better a consumer that is woken for nothing than one that misses rows: the sensor was off for a retention."""
    lake.delete("id = 999")
    lake.delete("id = 998")
    table = open_table(lake.place)
    assert last_data_version(table, (3, 3)) == 5
    lake.dataset().update_config({"a": "b"})
    table.vacuum(VacuumRequest(retention=0, allow_short_retention=True))
    assert last_data_version(table, (3, 3)) == 5
    assert last_data_version(table, (6, 5)) == 5


# -- checks ------------------------------------------------------------------------------------------------------------


def checked(table: TableSettings, instance: dg.DagsterInstance) -> dict[str, Any]:
    """Its evaluations by check, in a run that must succeed."""
    defs = dg.Definitions(
        build_dv_assets([table]),
        jobs=[dg.define_asset_job("checks", dg.AssetSelection.all_asset_checks())],
        resources={"spark": SparkResource(engine="local")},
    )
    result = defs.resolve_job_def("checks").execute_in_process(instance=instance)
    assert result.success
    return {each.check_name: each for each in result.get_asset_check_evaluations()}


def test_a_sound_table_passes(lake: Lake, instance: dg.DagsterInstance) -> None:
    found = checked(lake.watched(jobs=["optimize", "manifest"]), instance)
    assert found.keys() == {*CHECKS} - {"erase_within"}, "without a deadline nothing can be late"
    sound = found["deletion_files"]
    assert (sound.passed, sound.description) == (True, "1 deletion file, all read and intact")
    assert found["manifest_lag"].passed
    assert (found["deleted_ratio"].metadata["deleted_ratio"].value, found["retention"].passed) == (0.25, False)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("bad_arrow_schema", "unreadable"),
        ("bad_count_mismatch", "count"),
        ("bad_garbage_arrow", "unreadable"),
        ("bad_missing_deletion", "missing"),
        ("bad_offset_out_of_range", "offset"),
        ("bad_truncated_bitmap", "unreadable"),
    ],
)
def test_a_damaged_deletion_file_is_named_and_blocks_nothing(
    golden: Path, instance: dg.DagsterInstance, name: str, fault: str
) -> None:
    found = checked(TableSettings(name="docs", path=str(golden / "lance" / name)), instance)["deletion_files"]
    assert (found.passed, found.severity, found.blocking) == (False, dg.AssetCheckSeverity.ERROR, False)
    (row,) = found.metadata["rows"].records
    assert row.data["file"].startswith("_deletions/")
    assert row.data["file"] in found.description
    assert row.data["fault"] == fault
    assert found.metadata["faults"].value == 1


def test_delta_tables_have_checksums(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    table = make_table()
    said = checked(table, instance)["deletion_files"]
    assert said.passed
    assert "exist, and are large enough" in str(said.description)
    assert "deletion_files" not in check_names(table.model_copy(update={"format": "delta"}))


# -- what a Lance table cannot have ------------------------------------------------------------------------------------


def test_partitions_are_refused_with_what_to_do(lake: Lake, ticks: Callable[..., Ticks], make_table: MakeTable) -> None:
    """Where the format was not said; with it the definition is refused."""
    tick = ticks(lake.watched(partitions="day"), make_table("other"))
    data = tick()
    assert [request.tags["dv/table"] for request in data.run_requests] == ["other"]
    failed = [each for each in data.asset_events if isinstance(each, dg.AssetCheckEvaluation) and not each.passed]
    (check,) = [each for each in failed if each.asset_key != dg.AssetKey("other")]
    assert "'day' is not a partition column" in check.description
    assert "leave partitions out: the table has none" in check.description

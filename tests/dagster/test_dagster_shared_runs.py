"""Under a real Dagster daemon, with its default executor: vacuums that are due together share one run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.dagster_deployment import LOCATION, Deployment, Event, eventually

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import maintain
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

SENSOR = "dv_vacuums"
NAMES = ("a", "b", "broken", "c")

pytestmark = pytest.mark.deep


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Tables that were purged, and whose old files have expired."""
    for name in NAMES:
        builder = DeltaBuilder(str(tmp_path / name)).create(
            pa.schema([("id", pa.int64())]), properties={"delta.deletedFileRetentionDuration": "interval 0 seconds"}
        )
        builder.append(pa.table({"id": range(100)}))
        builder.delete(lambda rows: pc.less(rows["id"], 50))
        maintain(open_table(str(tmp_path / name)), LocalEngine(), Policy(max_deleted_ratio=0))
    tables = "".join(f"- {{path: {name}, jobs: [vacuum]}}\n" for name in NAMES)
    (tmp_path / "tables.yaml").write_text(f"tables:\n{tables}")
    return tmp_path


@pytest.fixture
def deployment(tmp_path: Path, lake: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path / "deployment", lake / "tables.yaml", sensors={SENSOR: ["vacuum"]})
    code = made.folder / f"location_{LOCATION}.py"
    code.write_text(code.read_text().replace("    executor=dg.in_process_executor,\n", ""))
    try:
        made.start()
        yield made
    finally:
        made.stop()


def files(folder: Path) -> int:
    return len([*folder.glob("*.parquet"), *folder.glob("*.bin")])


def test_one_run_vacuums_all_and_one_of_them_fails(deployment: Deployment, lake: Path) -> None:
    # The vacuum of this table can't commit its start.
    blocker = lake / "broken" / "_delta_log" / f"{open_table(str(lake / 'broken')).version() + 1:020}.json"
    blocker.mkdir()
    deployment.switch_on(SENSOR)
    (run,) = eventually("there is a run", deployment.instance.get_runs)
    assert {key.to_user_string() for key in run.asset_selection or ()} == {f"{name}/dv/{name}_vacuum" for name in NAMES}
    assert deployment.finished(run.run_id).status == dg.DagsterRunStatus.FAILURE
    assert set(deployment.materialized(run.run_id)) == {"a/dv/a_vacuum", "b/dv/b_vacuum", "c/dv/c_vacuum"}
    assert deployment.events(run.run_id, Event.STEP_FAILURE) == [Event.STEP_FAILURE]
    assert not deployment.events(run.run_id, Event.STEP_WORKER_STARTING), "no process for each table"
    assert [files(lake / name) for name in NAMES] == [1, 1, 3, 1]

    blocker.rmdir()
    eventually("the last one is vacuumed", lambda: files(lake / "broken") == 1)
    eventually("its run is over", lambda: all(each.is_finished for each in deployment.instance.get_runs()))
    others = [each for each in deployment.instance.get_runs() if each.run_id != run.run_id]
    selected = {key.to_user_string() for each in others for key in each.asset_selection or ()}
    assert selected == {"broken/dv/broken_vacuum"}, "what was done is not done again"

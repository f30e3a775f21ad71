"""Many tables in one location: each is requested once, and what a tick stores stays small."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dv_maintenance.service.tables_file import TableSettings

COUNT = 30


@pytest.fixture
def tables(make_table: Callable[..., TableSettings], tmp_path: Path) -> list[TableSettings]:
    model = make_table("model")
    places = [tmp_path / f"t{number:03}" for number in range(COUNT)]
    for place in places:
        shutil.copytree(model.path, place)
    return [model.model_copy(update={"name": f"lake/{place.name}", "path": str(place)}) for place in places]


def test_a_few_changed_among_many(
    tables: list[TableSettings],
    make_definitions: Callable[..., dg.Definitions],
    delete_more: Callable[..., int],
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dv_maintenance.dagster.sensor._MAX_REQUESTS", 12)
    defs = make_definitions(*tables)
    repository, sensor = defs.get_repository_def(), defs.resolve_sensor_def("dv_accumulation")
    cursors: list[str | None] = [None]

    def tick() -> Any:
        context = dg.build_sensor_context(instance=instance, cursor=cursors[-1], repository_def=repository)
        data = sensor.evaluate_tick(context)
        cursors.append(data.cursor)
        for request in data.run_requests:
            run = dg.DagsterRun(
                job_name="__ASSET_JOB",
                asset_selection=frozenset(request.asset_selection),
                tags=request.tags,
                status=dg.DagsterRunStatus.STARTED,
            )
            instance.add_run(run)
        return data

    asked = [[request.tags["dv/table"] for request in tick().run_requests] for _ in range(4)]
    assert [len(each) for each in asked] == [12, 12, 6, 0]
    assert sorted(name for each in asked for name in each) == [table.name for table in tables], "each once"

    for table in tables[::10]:
        delete_more(table.path, 4)
    data = tick()
    observed = [event.asset_key.path[-1] for event in data.asset_events if isinstance(event, dg.AssetObservation)]
    assert observed == ["t000", "t010", "t020"]
    assert data.run_requests == [], "their runs are under way"
    assert data.skip_message.endswith(f"and {COUNT - 20} more")
    assert len(data.skip_message) < 3000
    assert len(data.cursor) < 80 * COUNT

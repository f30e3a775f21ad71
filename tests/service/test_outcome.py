"""One outcome type: what a face renders, and what crosses a process."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import UsageError
from dv_maintenance.service import verbs
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.tables_file import TableSettings, WatchConfig
from dv_maintenance.testing.delta_builder import DeltaBuilder


@pytest.fixture
def watched(tmp_path: Path) -> TableSettings:
    path = str(tmp_path / "orders")
    schema = pa.schema([("id", pa.int64()), ("shop", pa.string())])
    builder = DeltaBuilder(path).create(schema, partition_by=["shop"])
    builder.append(pa.table({"id": range(30), "shop": ["a", "b", "c"] * 10}, schema))
    builder.delete(lambda rows: pc.and_(pc.less(rows["id"], 15), pc.not_equal(rows["shop"], "c")))
    return WatchConfig.model_validate({"tables": [{"path": path, "partitions": "shop"}]}).tables[0]


def test_an_optimize_says_why_in_numbers_rows_and_a_picture(watched: TableSettings) -> None:
    outcome = verbs.optimize(watched, verbs.opened(watched), LocalEngine)
    assert "more than 5 % of the rows deleted" in outcome.reason
    assert (outcome.numbers["rows_purged"], outcome.numbers["version_after"], outcome.numbers["verified"]) == (
        10,
        3,
        True,
    )
    assert [row["rows_purged"] for row in outcome.tables["plan"]] == [5, 5]
    assert outcome.picture is not None
    assert outcome.picture.svg().startswith("<svg")
    assert outcome.report["version_after"] == 3
    assert Outcome.from_json(json.loads(json.dumps(outcome.to_json()))) == Outcome.from_json(outcome.to_json())
    assert Outcome.from_json(outcome.to_json()).picture == outcome.picture
    assert Outcome.from_json(outcome.to_json()).numbers == outcome.numbers


def test_chosen_partitions_have_outcomes_of_their_own(watched: TableSettings) -> None:
    outcome = verbs.optimize(watched, verbs.opened(watched), LocalEngine, ["b", "z"])
    assert outcome.partitions["b"].numbers["rows_purged"] == 5
    assert outcome.partitions["z"].reason == "Nothing to do: this partition has no live file."
    assert Outcome.from_json(outcome.to_json()).partitions["b"].numbers == outcome.partitions["b"].numbers


def test_a_vacuum_without_work_says_so(watched: TableSettings) -> None:
    outcome, after = verbs.vacuum_by_policy(watched, verbs.opened(watched))
    assert outcome.reason == "No file has expired."
    assert outcome.numbers["files_deleted"] == 0
    assert after is None, "no version went: the log still says which of them changed data"


def test_what_is_not_an_outcome_is_refused() -> None:
    with pytest.raises(UsageError, match="not an outcome"):
        Outcome.from_json({"reason": 1})

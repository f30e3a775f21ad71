"""Each row keeps its id and the version that changed it last, whatever moves it and whoever commits meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.fsck.check import fsck
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.commit.rewrites import commit_replacements
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.actions import Metadata, Protocol
from dv_maintenance.tables.delta.log.segment import commit_path
from dv_maintenance.tables.delta.rows.row_tracking import DOMAIN, assigns_row_ids, numbered, stored_columns
from dv_maintenance.tables.delta.rows.tasks import rewrite_tasks
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.table import Replacement
from dv_maintenance.tables.work import RewriteBin
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("id", pa.int64())])
ROW_ID, COMMIT_VERSION = "_row-id", "_row-commit-version"
TRACKED = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": ROW_ID,
    "delta.rowTracking.materializedRowCommitVersionColumnName": COMMIT_VERSION,
}


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def domain(mark: int) -> dict[str, Any]:
    return {
        "domainMetadata": {
            "domain": DOMAIN,
            "configuration": json.dumps({"rowIdHighWaterMark": mark}),
            "removed": False,
        }
    }


def with_ids(builder: DeltaBuilder, version: int, base: int) -> None:
    """Number the one file that a version added, as a writer that knows row tracking does."""
    path = commit_path(version)
    actions = [json.loads(line) for line in builder.storage.get(path).splitlines()]
    (add,) = (action["add"] for action in actions if "add" in action)
    add |= {"baseRowId": base, "defaultRowCommitVersion": version}
    lines = [*actions, domain(base + json.loads(add["stats"])["numRecords"] - 1)]
    builder.storage.put(path, b"".join(json.dumps(line).encode() + b"\n" for line in lines))


@pytest.fixture
def builder(tmp_path: Path) -> DeltaBuilder:
    """Version 3: two files of five rows, ids 100-104 and 105-109, row ids 0-4 and 5-9; 101 and 107 are deleted."""
    builder = DeltaBuilder(str(tmp_path / "t")).create(
        SCHEMA, properties=TRACKED, features=["rowTracking", "domainMetadata"]
    )
    with_ids(builder, builder.append(rows(*range(100, 105))), 0)
    with_ids(builder, builder.append(rows(*range(105, 110))), 5)
    builder.delete(lambda batch: pc.is_in(batch["id"], pa.array([101, 107])))
    return builder


def stored(builder: DeltaBuilder, version: int) -> dict[int, tuple[int, int]]:
    """Row id and commit version by id, as the files that a version added store them."""
    found = {}
    for line in builder.storage.get(commit_path(version)).splitlines():
        if add := json.loads(line).get("add"):
            for row in pq.read_table(builder.storage.local(add["path"])).to_pylist():
                found[row["id"]] = (row[ROW_ID], row[COMMIT_VERSION])
    return found


def actions(builder: DeltaBuilder, version: int, kind: str) -> list[Any]:
    lines = map(json.loads, builder.storage.get(commit_path(version)).splitlines())
    return [line[kind] for line in lines if kind in line]


def merged(builder: DeltaBuilder) -> tuple[Any, list[Replacement]]:
    """Both files rewritten into one, not committed yet."""
    base = load_snapshot(builder.storage)
    keys = tuple(FileKey(row["path"], row["dv_id"]) for row in base.files.to_pylist())
    bins = [RewriteBin("both", "", keys)]
    (result,) = LocalEngine().run(rewrite_tasks(builder.storage, base, bins, 1 << 30))
    kept = tuple(read - gone for read, gone in zip(result.source_rows, result.source_purged, strict=True))
    return base, [Replacement("both", "", keys, result.outputs, kept)]


EXPECTED = {100 + at: (at, 1 if at < 5 else 2) for at in range(10) if at not in {1, 7}}


def test_rows_keep_their_ids_through_one_rewrite_and_the_next(builder: DeltaBuilder) -> None:
    base, parts = merged(builder)
    version = commit_replacements(builder.storage, base, parts, operation={"name": "OPTIMIZE"}).version
    assert version == 4
    assert stored(builder, 4) == EXPECTED
    (add,) = actions(builder, 4, "add")
    assert (add["baseRowId"], add["defaultRowCommitVersion"]) == (10, 4)
    assert load_snapshot(builder.storage).domains[DOMAIN] == json.dumps(
        {"rowIdHighWaterMark": 17, "domainName": DOMAIN}, separators=(",", ":")
    )
    assert actions(builder, 4, "commitInfo")[0]["tags"] == {"delta.rowTracking.preserved": "true"}

    # Now from what the file stores, no longer from its base.
    builder.delete(lambda batch: pc.equal(batch["id"], 100))
    report = purge(open_table(builder.storage.uri), LocalEngine())
    assert stored(builder, report.version_after) == {key: EXPECTED[key] for key in EXPECTED.keys() - {100}}


def test_ids_that_others_gave_out_meanwhile_are_not_given_out_again(builder: DeltaBuilder) -> None:
    base, parts = merged(builder)
    with_ids(builder, builder.append(rows(1, 2, 3)), 10)
    version = commit_replacements(builder.storage, base, parts, operation={"name": "OPTIMIZE"}).version
    assert version == 5
    (add,) = actions(builder, 5, "add")
    assert (add["baseRowId"], add["defaultRowCommitVersion"]) == (13, 5)
    assert stored(builder, 5) == EXPECTED


def test_a_delete_that_raced_with_the_rewrite_is_carried_over_with_the_ids(builder: DeltaBuilder) -> None:
    base, parts = merged(builder)
    builder.delete(lambda batch: pc.equal(batch["id"], 109))
    outcome = commit_replacements(builder.storage, base, parts, operation={"name": "OPTIMIZE"})
    assert (outcome.version, len(outcome.rebased)) == (5, 1)
    (add,) = actions(builder, 5, "add")
    assert (add["deletionVector"]["cardinality"], add["baseRowId"]) == (1, 10)
    assert stored(builder, 5) == EXPECTED


def test_a_rewrite_that_began_before_rows_were_tracked_is_lost(tmp_path: Path) -> None:
    names = {key: value for key, value in TRACKED.items() if "materialized" in key}
    builder = DeltaBuilder(str(tmp_path / "t")).create(
        SCHEMA, properties=names, features=["rowTracking", "domainMetadata"]
    )
    with_ids(builder, builder.append(rows(1, 2)), 0)
    with_ids(builder, builder.append(rows(3)), 2)
    base, parts = merged(builder)
    metadata = {**base.metadata.to_json(), "configuration": {**base.metadata.configuration, **TRACKED}}
    builder.commit([{"metaData": metadata}])
    outcome = commit_replacements(builder.storage, base, parts, operation={"name": "OPTIMIZE"})
    assert outcome.version is None
    assert "row tracking" in outcome.reason


def test_a_file_without_a_base_row_id_is_damage_where_rows_are_tracked(builder: DeltaBuilder) -> None:
    builder.append(rows(1))
    with pytest.raises(DamagedTableError, match="no baseRowId"):
        merged(builder)


# -- decisions -----------------------------------------------------------------------------------------------------


def test_which_tables_number_rows_and_which_store_the_numbers() -> None:
    feature = Protocol(1, 7, None, frozenset({"rowTracking"}))

    def metadata(**configuration: str) -> Metadata:
        return Metadata(id="t", schema_string="", configuration=configuration)

    suspended = metadata(**{"delta.rowTrackingSuspended": "true"})
    assert assigns_row_ids(feature, metadata())
    assert not assigns_row_ids(feature, suspended)
    assert not assigns_row_ids(Protocol(1, 2), metadata(**TRACKED))
    assert stored_columns(feature, metadata()) is None
    assert stored_columns(Protocol(1, 2), metadata(**TRACKED)) is None
    columns = stored_columns(feature, metadata(**TRACKED))
    assert columns is not None
    assert (columns.row_id, columns.commit_version, columns.field_ids) == (ROW_ID, COMMIT_VERSION, None)
    with pytest.raises(DamagedTableError, match="materializedRowIdColumnName"):
        stored_columns(feature, metadata(**{"delta.enableRowTracking": "true"}))


def test_the_first_id_is_zero_and_no_file_shares_any() -> None:
    adds = [{"add": {"path": name, "stats": json.dumps({"numRecords": rows})}} for name, rows in (("a", 3), ("b", 2))]
    first, second, mark = numbered(adds, None, 7)
    assert [each["add"]["baseRowId"] for each in (first, second)] == [0, 3]
    assert json.loads(mark["domainMetadata"]["configuration"])["rowIdHighWaterMark"] == 4
    assert numbered([], None, 7) == []


@pytest.mark.parametrize("mark", [None, 3])
def test_a_lost_high_water_mark_gives_no_id_twice(builder: DeltaBuilder, mark: int | None) -> None:
    """Early releases of delta-kernel-rs write checkpoints without domains."""
    gone = {"domainMetadata": {"domain": DOMAIN, "configuration": "", "removed": True}}
    builder.commit([gone if mark is None else domain(mark)])
    table = open_table(builder.storage.uri)
    (fault,) = fsck(table).damage
    assert fault.reason.endswith("although row ids up to 9 are in use")
    assert purge(table, LocalEngine()).verified
    assert stored(builder, 5) == EXPECTED
    bases = sorted(add["baseRowId"] for add in actions(builder, 5, "add"))
    assert bases[0] == 10
    assert not fsck(table).damage


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rowIdHighWaterMark": "4"}'])
def test_an_invalid_high_water_mark(text: str) -> None:
    with pytest.raises(DamagedTableError, match="high-water mark"):
        numbered([], text, 7)


def test_a_new_file_must_say_how_many_rows_it_has() -> None:
    with pytest.raises(DamagedTableError, match="how many rows"):
        numbered([{"add": {"path": "a"}}], None, 7)

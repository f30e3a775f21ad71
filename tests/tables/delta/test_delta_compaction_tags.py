"""Tags that say where a rewrite put the rows of a file: what they mean where Databricks wrote them, and that ours say
the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.readers import READERS, with_delta_spark
from test_delta_rebase import rewritten

from dv_maintenance.dv import DeletionVector, DvDescriptor
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import maintain
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.commit.rewrites import commit_replacements
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.segment import latest_version, read_commit
from dv_maintenance.tables.delta.rows.tasks import dv_ref
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.table import Table
from dv_maintenance.testing.delta_builder import DeltaBuilder
from dv_maintenance.testing.history import InterferingEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TAGGED = Policy(compaction_tags=True, max_deleted_ratio=0)
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


def removes(storage: Storage, version: int) -> list[dict[str, Any]]:
    return [action["remove"] for action in read_commit(storage, version) if "remove" in action]


def told(remove: dict[str, Any]) -> tuple[str, int, int] | None:
    """Where the rows went: the file, the position of the first, and how many rows the source had."""
    tags = remove.get("tags") or {}
    if "compactionInfo" not in tags:
        return None
    [output], [info] = json.loads(tags["compactedInto"]), json.loads(tags["compactionInfo"])
    assert set(info) == {"rowOffsetInTarget", "sourceNumPhysicalRecords"}
    return output, info["rowOffsetInTarget"], info["sourceNumPhysicalRecords"]


def deleted(storage: Storage, remove: dict[str, Any]) -> DeletionVector:
    descriptor = remove.get("deletionVector")
    if descriptor is None:
        return DeletionVector.empty()
    return load(dv_ref(storage, DvDescriptor.from_json(descriptor)), storage.get_range)


def check_meaning(place: Path) -> int:
    """Each tagged source, without the rows that its remove's deletion vector names, is a slice of the new file, and the
    slices of a new file leave nothing of it. Returns the number of sources.
    """
    storage, found = Storage(str(place)), 0
    for version in range(latest_version(storage) + 1):
        covered: dict[str, int] = {}
        for remove in removes(storage, version):
            if (where := told(remove)) is None:
                continue
            output, start, physical = where
            source, new = (pq.ParquetFile(place / unquote(path)).read() for path in (remove["path"], output))
            dv = deleted(storage, remove)
            assert source.num_rows == physical
            live = source.filter(dv.keep_mask(0, physical))
            # What a file was written with beside the table's columns may differ.
            names = [name for name in new.column_names if name in live.column_names]
            assert live.select(names).to_pylist() == new.slice(start, live.num_rows).select(names).to_pylist()
            covered[output] = covered.get(output, 0) + live.num_rows
            found += 1
        for output, rows in covered.items():
            assert pq.ParquetFile(place / unquote(output)).metadata.num_rows == rows
    return found


def test_what_databricks_means(golden: Path) -> None:
    assert check_meaning(golden / "delta" / "cdf-table-with-cdc-and-dvs") == 18


@pytest.fixture
def builder(tmp_path: Path) -> DeltaBuilder:
    """Six small files in two partitions, all but one with deleted rows."""
    builder = DeltaBuilder(str(tmp_path / "table")).create(SCHEMA, partition_by=["day"])
    for day in ("mon", "tue/ wed"):
        for start in range(0, 300, 100):
            rows = {"id": range(start, start + 100), "day": [day] * 100}
            builder.append(pa.table(rows, schema=SCHEMA))
    builder.delete(lambda rows: pc.and_(pc.less(rows["id"], 200), pc.equal(pc.bit_wise_and(rows["id"], 3), 1)))
    builder.delete(lambda rows: pc.equal(rows["id"], 7))
    return builder


def table_of(builder: DeltaBuilder) -> Table:
    return open_table(builder.storage.uri)


def test_ours_mean_the_same(builder: DeltaBuilder, tmp_path: Path) -> None:
    report = maintain(table_of(builder), LocalEngine(), TAGGED)
    assert report.verified
    assert check_meaning(tmp_path / "table") == 6


def test_only_where_the_policy_asks(builder: DeltaBuilder, tmp_path: Path) -> None:
    assert maintain(table_of(builder), LocalEngine(), Policy(max_deleted_ratio=0)).verified
    assert check_meaning(tmp_path / "table") == 0


def test_rows_in_several_files_are_not_placed(tmp_path: Path) -> None:
    """A tag has one place."""
    builder = DeltaBuilder(str(tmp_path / "table")).create(SCHEMA)
    builder.append(pa.table({"id": range(90), "day": ["mon"] * 90}, schema=SCHEMA), files=3)
    base = load_snapshot(builder.storage)
    keys = [FileKey(row["path"], row["dv_id"]) for row in base.files.to_pylist()]
    [part] = rewritten(base, builder.storage, [keys], 1)
    assert len(part.outputs) > 1
    operation = {"name": "OPTIMIZE", "parameters": {}, "compactionTags": True}
    version = commit_replacements(builder.storage, base, [part], operation=operation).version
    assert version is not None
    assert [told(each) for each in removes(builder.storage, version)] == [None] * 3


def test_rows_that_were_carried_over_are_not_placed(builder: DeltaBuilder, tmp_path: Path) -> None:
    """Removes then name newer deletion vectors than those that the rewrite read."""

    def others() -> None:
        builder.delete(lambda rows: pc.and_(pc.equal(rows["id"], 8), pc.equal(rows["day"], "mon")))

    report = maintain(table_of(builder), InterferingEngine(LocalEngine(), others), TAGGED)
    assert sum(step.rows_carried for step in report.steps) == 1
    committed = removes(builder.storage, max(step.version for step in report.steps))
    days = {each["partitionValues"]["day"] for each in committed if told(each) is None}
    assert days == {"mon"}
    assert len(committed) == 6


@pytest.mark.parametrize("reader", READERS)
def test_other_readers(builder: DeltaBuilder, tmp_path: Path, reader: str) -> None:
    place = tmp_path / "table"
    before = sorted(map(str, READERS["deltalake"](place).to_pylist()))
    assert maintain(table_of(builder), LocalEngine(), TAGGED).verified
    assert sorted(map(str, READERS[reader](place).to_pylist())) == before


@pytest.mark.deep
def test_delta_spark_goes_on(builder: DeltaBuilder, tmp_path: Path, delta_spark: SparkSession) -> None:
    place = tmp_path / "table"
    before = with_delta_spark(delta_spark, place).num_rows
    assert maintain(table_of(builder), LocalEngine(), TAGGED).verified
    assert with_delta_spark(delta_spark, place).num_rows == before
    gone = delta_spark.sql(f"DELETE FROM delta.`{place}` WHERE id % 10 = 0").collect()[0][0]
    delta_spark.sql(f"OPTIMIZE delta.`{place}`").collect()
    delta_spark.sql(f"VACUUM delta.`{place}` DRY RUN").collect()
    assert with_delta_spark(delta_spark, place).num_rows == before - gone > 0

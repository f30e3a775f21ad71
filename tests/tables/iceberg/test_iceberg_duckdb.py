"""DuckDB reads golden tables as we do, and what a delete, a purge and a vacuum of ours leave."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from effort import sampled
from support.duckdb_iceberg import connected

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.tables.iceberg.table import IcebergTable

# Their keys are called id. Left out: what DuckDB 1.5 can't read (ORC, Avro, variants, nanoseconds, bare blobs of DVs),
# and equality deletes, by which it drops rows that Spark keeps.
NAMES = (
    "part_transforms",
    *("all_deleted_file", "bad_wrong_reference", "branches_tags", "compacted", "dangling_dv", "expired", "lineage"),
    *("many_dvs_one_puffin", "nested_types", "overwrites", "part_identity", "plain", "schema_evolved", "spec_evolved"),
    *("v2_upgraded", "v2_upgraded_part"),
)


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    return connected()


def plain(value: Any) -> Any:
    """Comparable: DuckDB calls UTC by another name, and zero has a sign."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


def texts(rows: pa.Table) -> list[str]:
    return sorted(repr(plain(row)) for row in rows.to_pylist())


def theirs(duck: duckdb.DuckDBPyConnection, table: IcebergTable) -> list[str]:
    uri = table.storage.uri_of(table.snapshot().metadata.path)
    return texts(duck.execute("SELECT * FROM iceberg_scan(?)", [uri]).to_arrow_table())


@pytest.mark.parametrize("name", sampled(NAMES, 8))
def test_duckdb_agrees(duck: duckdb.DuckDBPyConnection, laid_copy: Callable[[str], Path], name: str) -> None:
    table = open_table(str(laid_copy(name)))
    assert isinstance(table, IcebergTable)
    schema, batches = read(table)
    rows = pa.Table.from_batches(batches, schema)
    assert theirs(duck, table) == texts(rows)
    last = sorted(rows["id"].to_pylist())[4]
    delete(table, LocalEngine(), f"id <= {last}")
    left = texts(rows.filter(pc.greater(rows["id"], last)))
    assert theirs(duck, table) == left
    assert purge(table, LocalEngine()).verified
    assert theirs(duck, table) == left

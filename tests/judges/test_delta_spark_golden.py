"""Golden tables before and after maintenance, as delta-spark reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from golden_tables import names_in
from support.readers import with_delta_spark
from test_golden_delta import EXPECTED, rewrite_all

from dv_maintenance.engine.spark import SparkEngine
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What delta-spark cannot read as it came: stale checksum files of Hadoop beside the log (the first two), a variant that
# toArrow() has no type for, a partition folder with a bare colon.
UNREADABLE = {
    "cdc_ict_table",
    "cdf-column-mapping-name-mode-3-7",
    "spark-variant-checkpoint",
    "timestamp-partitioned-table",
}
WITH_DVS = sorted(name for name, facts in EXPECTED.items() if facts["kind"] == "rows" and facts["replay"]["live_dvs"])
OTHERS = sorted(
    name for name, facts in EXPECTED.items() if facts["kind"] == "rows" and name not in {*WITH_DVS, *UNREADABLE}
)
# test_golden_delta.py has deltalake and polars judge the rewrite of every table; `make deep` asks delta-spark, too.
SHORT = {"cdf-table-update-ops", "data-reader-timestamp_ntz-name-mode", "delta-1.2.1-only-struct-stats"}
PURGED = {"cdf-table-with-cdc-and-dvs", "dv-with-columnmapping", "made-inline-dv"}
assert not EXPECTED or (set(WITH_DVS) >= PURGED and set(OTHERS) >= SHORT), "a golden table has another name"


def as_delta_spark_sees_it(spark: SparkSession, canon: ModuleType, path: Path) -> str:
    return str(canon.digest(canon.rows(with_delta_spark(spark, path))))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in PURGED else pytest.mark.deep) for name in WITH_DVS]
    or names_in("delta", ()),
)
def test_a_purge_on_spark_changes_nothing_for_delta_spark(
    golden_copy: Callable[[str], Path], delta_spark: SparkSession, canon: ModuleType, name: str
) -> None:
    path = golden_copy(f"delta/{name}")
    table = open_table(str(path))
    before = as_delta_spark_sees_it(delta_spark, canon, path)
    report = purge(table, SparkEngine(session=delta_spark))
    files = table.snapshot().files
    assert report.verified
    assert files["dv_id"].null_count == files.num_rows
    assert as_delta_spark_sees_it(delta_spark, canon, path) == before


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SHORT else pytest.mark.deep) for name in OTHERS] or names_in("delta", ()),
)
def test_a_rewrite_of_every_file_changes_nothing_for_delta_spark(
    golden_copy: Callable[[str], Path], delta_spark: SparkSession, canon: ModuleType, name: str
) -> None:
    path = golden_copy(f"delta/{name}")
    table = open_table(str(path))
    try:
        table.check_writable(table.snapshot(), "rewrite")
    except RefusedError:
        return  # that nothing touches it is shown elsewhere
    before = as_delta_spark_sees_it(delta_spark, canon, path)
    rewrite_all(table)
    assert as_delta_spark_sees_it(delta_spark, canon, path) == before

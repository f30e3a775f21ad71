"""Formats told apart by what a metastore says, and where tables are."""

from __future__ import annotations

import pytest

from dv_maintenance.catalogs.metastore import Entry
from dv_maintenance.errors import DamagedTableError, UnsupportedFeatureError


@pytest.mark.parametrize(
    ("entry", "format", "why"),
    [
        (Entry("t", "EXTERNAL_TABLE", "s3://b/t", {"spark.sql.sources.provider": "DELTA"}), "delta", ""),
        (Entry("t", "EXTERNAL_TABLE", "s3://b/t", {"table_type": "delta"}), "delta", ""),
        (
            Entry("t", "", "s3://b/t", {"storage_handler": "io.delta.hive.DeltaStorageHandler"}),
            "delta",
            "",
        ),
        (Entry("t", "MANAGED_TABLE", "s3://b/t", {"table_type": "PAIMON"}), "paimon", ""),
        (
            Entry("t", "MANAGED_TABLE", "s3://b/t", {}, {}, "org.apache.paimon.hive.mapred.PaimonInputFormat"),
            "paimon",
            "",
        ),
        (Entry("t", "EXTERNAL_TABLE", "s3://b/t", {"table_type": "lance"}), "lance", ""),
        (
            Entry("t", "EXTERNAL_TABLE", "s3://b/t", {"table_type": "ICEBERG", "metadata_location": "s3://b/t/m"}),
            "iceberg",
            "",
        ),
        (
            Entry("t", "EXTERNAL_TABLE", "s3://b/t", {"table_type": "ICEBERG"}),
            "iceberg",
            "an Iceberg table whose metadata the catalog does not name",
        ),
        (Entry("t", "EXTERNAL_TABLE", "s3://b/t", {"spark.sql.sources.provider": "hudi"}), "hudi", "a Hudi table"),
        (
            Entry("t", "EXTERNAL_TABLE", "s3://b/t", {}, {}, "org.apache.hudi.hadoop.HoodieParquetInputFormat"),
            "hudi",
            "a Hudi table",
        ),
        (
            Entry("t", "EXTERNAL_TABLE", "s3://b/t", {"spark.sql.sources.provider": "parquet"}),
            "parquet",
            "a table of the format parquet",
        ),
        (
            Entry("t", "EXTERNAL_TABLE", "s3://b/t", {}, {}, "org.apache.hadoop.mapred.TextInputFormat"),
            "",
            "a Hive table",
        ),
        (Entry("t", "VIRTUAL_VIEW", "", {"spark.sql.sources.provider": "delta"}), "delta", "a view"),
        (Entry("t", "MATERIALIZED_VIEW", ""), "", "a materialized view"),
    ],
)
def test_formats_are_told_apart(entry: Entry, format: str, why: str) -> None:
    assert (entry.format, entry.left_alone) == (format, why)
    if why:
        with pytest.raises(UnsupportedFeatureError, match=f"glue.db.t is {why}"):
            entry.check("glue.db.t")


DELTA = {"spark.sql.sources.provider": "delta"}


@pytest.mark.parametrize(
    ("entry", "uri"),
    [
        (Entry("t", "", "s3://b/t", DELTA), "s3://b/t"),
        (Entry("t", "", "s3a://b/t/", DELTA), "s3://b/t"),
        (Entry("t", "", "s3://w/db.db/t-__PLACEHOLDER__", DELTA, {"path": "s3a://b/real one"}), "s3://b/real%20one"),
        (Entry("t", "", "file:/w/t-__PLACEHOLDER__", DELTA, {"path": "file:/b/50%25"}), "file:///b/50%2525"),
    ],
)
def test_a_table_is_where_the_serde_says(entry: Entry, uri: str) -> None:
    assert entry.opened("n", {})[0].uri == uri


@pytest.mark.parametrize(
    ("place", "said"), [("s3://w/t-__PLACEHOLDER__", "a placeholder of Spark's"), ("", "has nothing for")]
)
def test_a_placeholder_alone_is_no_place(place: str, said: str) -> None:
    with pytest.raises(DamagedTableError, match=said):
        Entry("t", "", place, DELTA).opened("glue.db.t", {})

"""The codec of new files: the table's property, else the policy's, else that of the files, else snappy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import WriterProperties, write_deltalake
from support.readers import READERS

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

PROPERTY = "delta.parquet.compression.codec"
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("value", pa.float64())])
ROWS = 500


@pytest.fixture
def build(tmp_path: Path) -> Any:
    def build(*codecs: str, **properties: str) -> str:
        """A file of deltalake's for each codec, with a deletion vector."""
        place = str(tmp_path / "t")
        builder = DeltaBuilder(place).create(SCHEMA, properties=properties)
        for number, codec in enumerate(codecs):
            ids = range(number * ROWS, number * ROWS + ROWS)
            rows = pa.table({"id": ids, "text": [f"row {i * i}" for i in ids], "value": [i / 7 for i in ids]}, SCHEMA)
            properties_of_file = WriterProperties(compression=codec)
            write_deltalake(place, rows, mode="append", writer_properties=properties_of_file)
        builder.delete(lambda batch: pc.equal(pc.bit_wise_and(batch["id"], 7), 3))
        return place

    return build


def live_codecs(place: str) -> list[set[str]]:
    footers = [pq.read_metadata(file) for file in live_files(place)]
    return [
        {
            footer.row_group(group).column(leaf).compression
            for group in range(footer.num_row_groups)
            for leaf in range(footer.num_columns)
        }
        for footer in footers
    ]


def live_files(place: str) -> list[Path]:
    return [Path(place) / path for path in open_table(place).snapshot().files["path"].to_pylist()]


@pytest.mark.parametrize(
    ("named", "policy", "expected"),
    [
        (None, None, "ZSTD"),
        (None, "gzip", "GZIP"),
        ("snappy", None, "SNAPPY"),
        ("snappy", "gzip", "SNAPPY"),
        ("uncompressed", "zstd", "UNCOMPRESSED"),
    ],
)
def test_who_names_the_codec(build: Any, named: str | None, policy: str | None, expected: str) -> None:
    place = build("ZSTD", **({} if named is None else {PROPERTY: named}))
    assert live_codecs(place) == [{"ZSTD"}]
    report = maintain(open_table(place), LocalEngine(1), Policy.from_mapping({"compression": policy}))
    assert report.verified
    assert live_codecs(place) == [{expected}]
    wanted = [row for row in range(ROWS) if row & 7 != 3]
    for name, reader in READERS.items():
        assert sorted(reader(Path(place))["id"].to_pylist()) == wanted, name
    paths = [str(file) for file in live_files(place)]
    assert duckdb.sql(f"SELECT id FROM read_parquet({paths}) ORDER BY id").fetchall() == [(row,) for row in wanted]
    assert pq.read_table(paths)["text"].to_pylist() == [f"row {row * row}" for row in wanted]


def test_a_purge_of_zstd_writes_zstd(build: Any) -> None:
    """Deltalake, Fabric and Databricks write it, and no property says so."""
    place = build("ZSTD", "ZSTD")
    purge(open_table(place), LocalEngine(1))
    assert live_codecs(place) == [{"ZSTD"}]
    assert all(".zstd." in file.name for file in live_files(place))


def test_files_in_several_codecs_take_that_of_most(build: Any) -> None:
    place = build("SNAPPY", "ZSTD", "SNAPPY")
    maintain(open_table(place), LocalEngine(1))
    assert live_codecs(place) == [{"SNAPPY"}]


def test_another_codec_alone_is_no_reason_to_rewrite(build: Any) -> None:
    place = build("SNAPPY")
    purge(open_table(place), LocalEngine(1))
    version = open_table(place).version()
    report = maintain(open_table(place), LocalEngine(1), Policy(compression="zstd", min_file_size=0))
    assert (report.steps, open_table(place).version()) == ((), version)
    assert live_codecs(place) == [{"SNAPPY"}]

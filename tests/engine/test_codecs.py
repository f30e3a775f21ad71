"""The codec of new files where nobody names one: that of most of the sources' bytes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_rewrite_task import read_duckdb, read_polars, read_pyarrow

from dv_maintenance.engine.parquet import codecs, row_group_copy
from dv_maintenance.engine.parquet.codecs import codec_of_sources
from dv_maintenance.engine.rewrite import rewrite
from dv_maintenance.storage import Storage

ROWS = 2000
NOISE = np.random.default_rng(5).normal(size=ROWS)


SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def rows(start: int, count: int = ROWS) -> pa.Table:
    return pa.table({"id": range(start, start + count), "text": [f"row {row % 7}" for row in range(count)]}, SCHEMA)


def codecs_of(path: Path) -> list[str]:
    """Of each row group."""
    footer = pq.read_metadata(path)
    return [footer.row_group(group).column(0).compression for group in range(footer.num_row_groups)]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (["zstd"], "ZSTD"),
        (["gzip"], "GZIP"),
        (["none"], "UNCOMPRESSED"),
        # The second file is the largest; the small ones have more together.
        (["zstd", "snappy"], "SNAPPY"),
        (["snappy", "zstd", "snappy", "snappy"], "SNAPPY"),
    ],
)
def test_most_bytes_decide(lake: Any, written: list[str], expected: str) -> None:
    parts = [rows(place * ROWS, ROWS if place == 1 else ROWS // 2) for place in range(len(written))]
    sources = [
        lake.write(part, f"{place}.parquet", compression=codec, use_dictionary=False)
        for place, (part, codec) in enumerate(zip(parts, written, strict=True))
    ]
    result = rewrite(lake.task(sources, SCHEMA, compression_required=False))
    (path,) = lake.outputs()
    assert result.rows_written == sum(part.num_rows for part in parts)
    assert {*codecs_of(path)} == {expected}
    assert (".zstd." in path.name) == (expected == "ZSTD")
    for read in (read_pyarrow, read_duckdb, read_polars):
        assert read(str(path)).to_pylist() == pa.concat_tables(parts).to_pylist(), read


def test_what_a_writer_left_uncompressed_does_not_count(lake: Any) -> None:
    table = rows(0).append_column("noise", pa.array(NOISE))
    source = lake.write(table, compression={"id": "zstd", "text": "zstd", "noise": "none"})
    footer = pq.read_metadata(lake.root / "in put.parquet")
    assert codecs.codec_bytes(footer, [0]).keys() == {"zstd"}
    sizes = [footer.row_group(0).column(leaf).total_compressed_size for leaf in range(3)]
    assert sizes[2] > sizes[0] + sizes[1]
    rewrite(lake.task([source], table.schema, compression_required=False))
    assert codecs_of(lake.outputs()[0]) == ["ZSTD"]


def test_copies_keep_theirs(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file, three codecs: every reader takes each column chunk for what its metadata says."""
    monkeypatch.setattr(row_group_copy, "_LARGE_ROWS", ROWS)
    parts = [rows(0), rows(ROWS), rows(2 * ROWS, ROWS - 1)]
    sources = [
        lake.write(part, f"{codec}.parquet", compression=codec, use_dictionary=False)
        for part, codec in zip(parts, ("snappy", "gzip", "zstd"), strict=True)
    ]
    task = lake.task(sources, SCHEMA, compression_required=False)
    assert rewrite(task).details["row_groups_copied"] == 2
    (path,) = lake.outputs()
    assert codecs_of(path) == ["SNAPPY", "GZIP", "SNAPPY"]
    for read in (read_pyarrow, read_duckdb, read_polars):
        assert read(str(path)).to_pylist() == pa.concat_tables(parts).to_pylist(), read


def test_a_codec_that_is_required(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_group_copy, "_LARGE_ROWS", ROWS)
    source = lake.write(rows(0), compression="gzip")
    assert rewrite(lake.task([source], SCHEMA, compression="zstd")).details["row_groups_copied"] == 0
    assert codecs_of(lake.outputs()[0]) == ["ZSTD"]


def test_codecs_that_are_not_written_here(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of LZO, or the first LZ4."""
    monkeypatch.delitem(codecs._NAMES, "GZIP")
    source = lake.write(rows(0), compression="gzip")
    rewrite(lake.task([source], SCHEMA, compression="snappy", compression_required=False))
    assert codecs_of(lake.outputs()[0]) == ["SNAPPY"]


def test_footers_are_read_until_the_codec_is_known(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And each of them once: rewriting uses them again."""
    small = [lake.write(rows(0, 10), f"{place}.parquet") for place in range(3)]
    large = lake.write(rows(0), "large.parquet", compression="zstd", use_dictionary=False)
    task = lake.task([*small, large], SCHEMA, compression_required=False)
    found, footers = codec_of_sources(task, Storage(task.output_uri))
    assert (found.compression, list(footers)) == ("zstd", [large.uri])

    read: Counter[str] = Counter()
    original = codecs.read_footer

    def counted(file: Any) -> Any:
        read["footer"] += 1
        return original(file)

    for module in ("dv_maintenance.engine.parquet.codecs", "dv_maintenance.files.parquet_footer"):
        monkeypatch.setattr(f"{module}.read_footer", counted)
    rewrite(task)
    assert read["footer"] == 4

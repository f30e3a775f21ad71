"""Live rows of files: positions, batches, damage."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dv_maintenance.engine.parquet import footer
from dv_maintenance.engine.scan import open_source, scan
from dv_maintenance.errors import DamagedDeletionVectorError, DamagedTableError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.work import ScanTask

ROWS = 100
TABLE = pa.table({"id": range(ROWS), "s": [f"v{i}" for i in range(ROWS)]})


def ids(task: ScanTask) -> list[int]:
    return [value for batch in scan(task) for value in batch.column("id").to_pylist()]


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deleted=st.sets(st.integers(0, ROWS - 1)), group_rows=st.integers(1, 60), at_once=st.integers(1, 40))
def test_a_scan_leaves_out_the_positions_of_the_dv(lake: Any, deleted: set[int], group_rows: int, at_once: int) -> None:
    source = lake.write(TABLE, row_group_size=group_rows)
    source = replace(source, dv=lake.dv(deleted) if deleted else None)
    task = ScanTask((source,), TABLE.schema)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(footer, "MAX_BATCH_ROWS", at_once)
        assert ids(task) == sorted(set(range(ROWS)) - deleted)
        assert all(0 < batch.num_rows <= at_once for batch in scan(task))


@pytest.mark.parametrize(
    "deleted",
    [[0], [ROWS - 1], range(20, 40), range(19, 41), range(ROWS), range(0, ROWS, 2)],
    ids=["first", "last", "row group", "row group and neighbours", "all", "every other"],
)
def test_positions_count_across_row_groups(lake: Any, deleted: Any) -> None:
    source = replace(lake.write(TABLE, row_group_size=20), dv=lake.dv(deleted))
    assert ids(ScanTask((source,), TABLE.schema)) == [i for i in range(ROWS) if i not in deleted]


def test_a_wholly_deleted_row_group_is_not_even_read(lake: Any) -> None:
    source = lake.write(TABLE, row_group_size=20)
    # Garbage in the place of the second row group: whoever reads it notices.
    path = lake.root / "in put.parquet"
    group = pq.read_metadata(path).row_group(1).column(0)
    data = bytearray(path.read_bytes())
    begin = group.dictionary_page_offset
    data[begin : begin + group.total_compressed_size] = b"\xff" * group.total_compressed_size
    path.write_bytes(data)
    task = ScanTask((source,), TABLE.schema)
    with pytest.raises(DamagedTableError, match=r"in%20put\.parquet cannot be read"):
        ids(task)
    source = replace(source, dv=lake.dv(range(20, 40)))
    assert ids(ScanTask((source,), TABLE.schema)) == [*range(20), *range(40, ROWS)]


def test_counts_are_known_before_rows_are_read(lake: Any) -> None:
    source = replace(lake.write(TABLE), dv=lake.dv([1, 2, 99]))
    with open_source(source, ScanTask((source,), TABLE.schema), Storage(source.uri)) as reader:
        assert (reader.rows, reader.purged, reader.size) == (ROWS, 3, source.size)


def test_masks_are_made_for_more_than_a_batch_but_not_for_all(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dv_maintenance.engine.rows.live_rows._AT_ONCE", 32)
    monkeypatch.setattr(footer, "MAX_BATCH_ROWS", 7)
    deleted = {0, 6, 31, 32, *range(40, 61), 99}
    source = replace(lake.write(TABLE, row_group_size=50), dv=lake.dv(deleted))
    with open_source(source, ScanTask((source,), TABLE.schema), Storage(source.uri)) as reader:
        live = list(reader.live())
    assert [at for each in live for at in each.positions().to_pylist()] == sorted(set(range(ROWS)) - deleted)
    assert all(each.positions().equals(each.batch["id"]) for each in live)
    masks = [each.live.buffers()[1].address for each in live if each.live is not None]
    assert (len(masks), len(set(masks))) == (4, 3)


def test_several_sources_follow_each_other(lake: Any) -> None:
    first = replace(lake.write(TABLE, "1.parquet"), dv=lake.dv(range(2, ROWS)))
    second = replace(lake.write(TABLE, "2.parquet"), dv=lake.dv(range(1, ROWS)))
    assert ids(ScanTask((first, second, first), TABLE.schema)) == [0, 1, 0, 0, 1]


def test_a_file_without_any_wanted_column_still_has_its_rows(lake: Any) -> None:
    source = replace(lake.write(TABLE, row_group_size=30), dv=lake.dv([0, 31]), constants={"p": "x"})
    schema = pa.schema([("p", pa.string()), ("new", pa.int32())])
    rows = [row for batch in scan(ScanTask((source,), schema)) for row in batch.to_pylist()]
    assert rows == [{"p": "x", "new": None}] * (ROWS - 2)


def test_an_empty_file_has_no_batches(lake: Any) -> None:
    source = lake.write(TABLE.slice(0, 0))
    assert list(scan(ScanTask((source,), TABLE.schema))) == []


@pytest.mark.parametrize("whole", [1 << 20, 6 << 20])
def test_large_row_groups_are_read_through_a_buffer(lake: Any, whole: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dv_maintenance.engine.parquet.reader._WHOLE_BYTES", whole)
    monkeypatch.setattr(footer, "BATCH_BYTES", 1 << 18)
    table = pa.table({"id": np.random.default_rng(0).integers(0, 2**62, 1 << 20)})
    source = lake.write(table, row_group_size=1 << 20, use_dictionary=False)
    before, held, rows = pa.total_allocated_bytes(), 0, 0
    for batch in scan(ScanTask((source,), table.schema)):
        held = max(held, pa.total_allocated_bytes() - before)
        assert batch.column("id").equals(table["id"].slice(rows, batch.num_rows).combine_chunks())
        rows += batch.num_rows
    # The row group has 8 MB; what may be there at a time is a buffer (of 1 MB at most on local disk), two pages of 1 MB
    # and a batch.
    assert (rows, held < 5 << 20) == (1 << 20, True)


# -- damage ------------------------------------------------------------------------------------------------------


def test_another_row_count_than_the_log_promises_is_damage(lake: Any) -> None:
    source = replace(lake.write(TABLE), rows=ROWS + 1)
    with pytest.raises(DamagedTableError, match=r"in%20put\.parquet has 100 rows, but the table's log says 101"):
        ids(ScanTask((source,), TABLE.schema))
    assert ids(ScanTask((replace(source, rows=None),), TABLE.schema)) == list(range(ROWS))


def test_a_missing_file_is_damage(lake: Any) -> None:
    source = lake.write(TABLE)
    os.unlink(lake.root / "in put.parquet")
    with pytest.raises(DamagedTableError, match=r"in%20put\.parquet is named by the table's log, but does not exist"):
        ids(ScanTask((source,), TABLE.schema))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all", b"PAR1" + b"\x00" * 20 + b"PAR1"])
def test_bytes_that_are_no_parquet_are_damage(lake: Any, content: bytes) -> None:
    source = lake.write(TABLE)
    (lake.root / "in put.parquet").write_bytes(content)
    with pytest.raises(DamagedTableError, match=r"in%20put\.parquet cannot be read as Parquet"):
        ids(ScanTask((source,), TABLE.schema))


def test_a_position_beyond_the_file_is_damage(lake: Any) -> None:
    source = replace(lake.write(TABLE), dv=lake.dv([ROWS]))
    with pytest.raises(DamagedDeletionVectorError, match="position 100 is beyond the file's 100 rows"):
        ids(ScanTask((source,), TABLE.schema))


def test_a_missing_dv_is_damage(lake: Any) -> None:
    dv = lake.dv([1])
    source = replace(lake.write(TABLE), dv=replace(dv, uri=lake.uri("gone.bin")))
    with pytest.raises(DamagedDeletionVectorError, match=r"gone\.bin"):
        ids(ScanTask((source,), TABLE.schema))

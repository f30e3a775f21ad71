"""A rewrite from and to an object store: few requests, none of them for the same bytes, each file's size asked once."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dv_maintenance.dv import DeletionVector, delta
from dv_maintenance.engine.parquet import reader as reading
from dv_maintenance.engine.parquet import row_group_copy
from dv_maintenance.engine.parquet.footer import ranges
from dv_maintenance.engine.parquet.preview import preview
from dv_maintenance.engine.rewrite import rewrite
from dv_maintenance.engine.scan import scan
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.storage import Storage, remote_input
from dv_maintenance.storage.remote_input import RemoteInput
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.work import DvRef, RewriteTask, ScanTask, SourceFile
from dv_maintenance.testing.faults import Recorder
from dv_maintenance.testing.faulty_access import injected
from dv_maintenance.testing.locations import Bucket

GROUP, FILES = 1000, 3
SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.float64()), ("text", pa.string())])


class Counted(Bucket):
    """``asked``: how often the store was asked for the size of a file."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def open_reader(self, store: Any, key: str, size: int | None = None) -> Any:
        self.asked[key] += size is None
        return super().open_reader(store, key, size)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Counted:
    bucket = Counted()
    monkeypatch.setattr(Storage, "default_access", bucket)
    return bucket


def rows(number: int, groups: int) -> pa.Table:
    rng = np.random.default_rng(number)
    count = GROUP * groups
    first = number * count
    return pa.table(
        [pa.array(range(first, first + count)), rng.normal(size=count), [f"text {row}" for row in range(count)]],
        schema=SCHEMA,
    )


def put(number: int, groups: int, **options: Any) -> SourceFile:
    sink = pa.BufferOutputStream()
    pq.write_table(rows(number, groups), sink, row_group_size=GROUP, use_dictionary=False, **options)
    data = sink.getvalue().to_pybytes()
    Storage("s3://lake").put(f"{number}.parquet", data)
    return SourceFile(FileKey(f"{number}.parquet"), f"s3://lake/{number}.parquet", len(data), rows=GROUP * groups)


def with_dv(source: SourceFile, positions: Sequence[int]) -> SourceFile:
    [packed] = delta.pack([DeletionVector.from_positions(positions)])
    Storage("s3://lake").put(packed.path, packed.data)
    [dv] = packed.descriptors
    ref = DvRef("delta", dv.cardinality, dv.size_in_bytes, uri=f"s3://lake/{packed.path}", offset=dv.offset)
    return replace(source, dv=ref)


def task_of(sources: Sequence[SourceFile], **options: Any) -> RewriteTask:
    return RewriteTask("t-1", ScanTask(tuple(sources), SCHEMA), "s3://lake/new", 128 << 20, **options)


@pytest.mark.parametrize("buffered", [False, True])
@pytest.mark.parametrize("required", [False, True], ids=["codec of the sources", "codec required"])
def test_nothing_is_asked_for_twice(
    bucket: Counted, monkeypatch: pytest.MonkeyPatch, buffered: bool, required: bool
) -> None:
    """Row groups without a live row are not fetched."""
    monkeypatch.setattr(remote_input, "_GAP_BYTES", 1000)
    if buffered:
        monkeypatch.setattr(reading, "_WHOLE_BYTES", 8 << 10)
        monkeypatch.setattr(reading, "_LEAST_BUFFER", 3000)
    deleted = [*range(GROUP, 2 * GROUP), 3 * GROUP + 7, 5 * GROUP - 1]
    sources = [with_dv(put(number, 5), deleted) for number in range(FILES)]
    expected: Counter[tuple[int, int]] = Counter()
    original = RemoteInput.expect

    def noted(file: RemoteInput, ranges: Sequence[tuple[int, int]]) -> None:
        expected.update(ranges)
        original(file, ranges)

    monkeypatch.setattr(RemoteInput, "expect", noted)
    recorder = Recorder()
    with injected(recorder):
        result = rewrite(task_of(sources, compression="snappy", compression_required=required))
    assert (result.rows_written, result.rows_purged) == (FILES * (5 * GROUP - len(deleted)), FILES * len(deleted))
    kept = [row for row in range(5 * GROUP) if row not in set(deleted)]
    found = pa.concat_tables(
        pq.read_table(pa.BufferReader(bucket.files()[output.uri.removeprefix("s3://lake/")]))
        for output in result.outputs
    )
    assert found.equals(pa.concat_tables(rows(number, 5).take(kept) for number in range(FILES)))

    names = [f"{number}.parquet" for number in range(FILES)]
    assert [bucket.asked[name] for name in names] == [1] * FILES
    # Footers are read directly, and everything else ahead: four of five row groups.
    ahead = Counter(call.path for call in recorder.calls if call.operation == "read range" and call.path in names)
    assert [ahead[name] for name in names] == [4 * (2 + 3 + 2) if buffered else 2] * FILES
    assert sum(length * count for (_, length), count in expected.items()) == sum(
        footer.row_group(group).column(leaf).total_compressed_size
        for footer in (pq.read_metadata(pa.BufferReader(bucket.files()[name])) for name in names)
        for group in (0, 2, 3, 4)
        for leaf in range(3)
    )
    direct = [call for call in recorder.calls if call.operation == "read input" and call.path in names]
    assert len(direct) <= 4 * FILES


def test_a_source_that_is_gone_fails_at_its_turn(bucket: Counted) -> None:
    """It is opened while the one before it is read. What was written by then is deleted."""
    sources = [put(number, 2) for number in range(FILES)]
    bucket.store.delete("1.parquet")
    before = set(bucket.files())
    seen: list[int] = []
    with pytest.raises(DamagedTableError, match=r"1\.parquet is named by the table's log, but does not exist"):
        rewrite(task_of(sources, compression="snappy", compression_required=True), on_rows=seen.append)
    assert seen[-1] == 2 * GROUP
    assert set(bucket.files()) == before


def test_copied_row_groups(bucket: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read once, although their floats are searched for NaN before that, and what was written is read once."""
    monkeypatch.setattr(row_group_copy, "_LARGE_ROWS", 1)
    options = {"store_schema": False, "write_page_index": True}
    sources = [with_dv(put(number, 5, **options), [3, GROUP + 1]) for number in range(FILES)]
    recorder = Recorder()
    with injected(recorder):
        result = rewrite(task_of(sources, compression="snappy"))
    assert result.details["row_groups_copied"] == 3 * FILES
    (output,) = result.outputs
    new = output.uri.removeprefix("s3://lake/")
    kept = [row for row in range(5 * GROUP) if row not in {3, GROUP + 1}]
    found = pq.read_table(pa.BufferReader(bucket.files()[new]))
    assert found.equals(pa.concat_tables(rows(number, 5).take(kept) for number in range(FILES)))
    counts = Counter(call.path for call in recorder.calls if call.operation == "read range")
    assert [counts[f"{number}.parquet"] for number in range(FILES)] == [1] * FILES  # small ones share a request
    # The footer twice, for Arrow and for the copies, and all page indexes at once.
    direct = Counter(call.path for call in recorder.calls if call.operation == "read input")
    assert [direct[f"{number}.parquet"] for number in range(FILES)] == [3] * FILES
    assert counts[new] == 1  # small ones share a request, with what lies between them


def test_avro_files_are_fetched_ahead(bucket: Counted) -> None:
    """From the end of the first buffer on, which has the schema."""
    fields = [{"name": "id", "type": "long"}, {"name": "noise", "type": "bytes"}]
    schema = {"type": "record", "name": "row", "fields": fields}
    noise = np.random.default_rng(3).bytes
    records = [{"id": row, "noise": noise(50_000)} for row in range(60)]
    sink = io.BytesIO()
    fastavro.writer(sink, schema, records, codec="null", sync_interval=100_000)
    Storage("s3://lake").put("a.avro", sink.getvalue())
    source = SourceFile(FileKey("a.avro"), "s3://lake/a.avro", len(sink.getvalue()), rows=60, format="avro")
    recorder = Recorder()
    with injected(recorder):
        (*batches,) = scan(ScanTask((source,), pa.schema([("id", pa.int64()), ("noise", pa.binary())])))
    assert pa.Table.from_batches(batches).to_pylist() == records
    operations = Counter(call.operation for call in recorder.calls)
    assert (operations["read input"], operations["read range"]) == (1, 1)


def test_a_preview_opens_several_sources_at_once(bucket: Counted) -> None:
    sources = [put(number, 2) for number in range(FILES)]
    recorder = Recorder()
    with injected(recorder):
        found = preview(task_of(sources, compression="snappy"))
    assert found is not None
    assert found.groups == 2 * FILES
    assert [bucket.asked[f"{number}.parquet"] for number in range(FILES)] == [1] * FILES
    assert not [call for call in recorder.calls if call.operation == "read range"]


def test_footers_of_damaged_files_name_any_range() -> None:
    """None of it is fetched: it would be without end."""

    class Chunk:
        dictionary_page_offset = None

        def __init__(self, begin: int, size: int) -> None:
            self.data_page_offset, self.total_compressed_size = begin, size

    class Group:
        chunks = (Chunk(4, 1 << 62), Chunk(-8, 50), Chunk(1 << 62, 5), Chunk(10, -5), Chunk(60, 20))

        def column(self, leaf: int) -> Chunk:
            return self.chunks[leaf]

    assert ranges(Group(), range(5), 0, 100) == [(4, 96), (60, 20)]
    assert ranges(Group(), range(5), 50, 100) == [(4, 50), (60, 20), (54, 46)]

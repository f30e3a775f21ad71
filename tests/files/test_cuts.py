"""Some rows of files of videos and vectors as files of their own, and files that are damaged."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dv_maintenance.errors import DamagedTableError, UnsupportedFeatureError
from dv_maintenance.files import parquet_cut, video
from dv_maintenance.files.avro import cut as avro_cut
from dv_maintenance.files.avro.container import read_records
from dv_maintenance.files.avro.writer import Template, write_records
from dv_maintenance.files.blob import NULL, PLACEHOLDER, delta_varint_bytes

# A video is a number, and so is a frame of it.
Frame = tuple[int, int]


def video_file(frames: Sequence[Frame], videos: Sequence[bytes], keys: Sequence[bytes]) -> bytes:
    """Each frame as a run of its own."""
    lists = [
        [len(each) for each in videos],
        [len(each) for each in keys],
        [1] * len(frames),
        [number for number, _ in frames],
        [first for _, first in frames],
    ]
    stored = [delta_varint_bytes(each) for each in lists]
    return b"".join([*videos, *keys, *stored, video._FOOTER.pack(*map(len, stored), video._MAGIC, video._VERSION)])


def frames_of(data: bytes) -> list[Any]:
    """Each row: null, the value of an older file, or the video with its index of key frames, and the frame."""
    index = video._read(pa.BufferReader(data))

    def value(number: int, frame: int) -> Any:
        if number < 0:
            return number
        one, other = index.videos[number], index.keys[number]
        return data[one.start : one.stop], data[other.start : other.stop], frame

    return [value(run.video, run.first + at * (run.video >= 0)) for run in index.runs for at in range(run.rows)]


def cut_of(kind: Any, data: bytes, rows: range, of: int) -> bytes:
    sink = io.BytesIO()
    kind.cut(pa.BufferReader(data), rows, of, sink)
    return sink.getvalue()


@settings(max_examples=examples(50))
@given(
    st.lists(st.tuples(st.integers(PLACEHOLDER, 2), st.integers(0, 5)), min_size=1, max_size=12),
    st.integers(0, 11),
    st.data(),
)
def test_videos(frames: list[Frame], start: int, data: st.DataObject) -> None:
    start = min(start, len(frames) - 1)
    stop = data.draw(st.integers(start + 1, len(frames)))
    whole = video_file(frames, [b"one", b"second", b"3"], [b"", b"key", b"k"])
    part = cut_of(video, whole, range(start, stop), len(frames))
    assert frames_of(part) == frames_of(whole)[start:stop]
    kept = {number for number, _ in frames[start:stop] if number >= 0}
    assert (b"second" in part) == (1 in kept), "others are not copied"


def test_runs_of_frames(tmp_path: Path) -> None:
    lists = [[3, 4], [0, 0], [5, 2, 3], [1, NULL, 0], [7, 0, 2]]
    stored = [delta_varint_bytes(each) for each in lists]
    footer = video._FOOTER.pack(*map(len, stored), video._MAGIC, video._VERSION)
    whole = b"onefour" + b"".join(stored) + footer
    part = cut_of(video, whole, range(2, 6), 10)
    assert frames_of(part) == [(b"four", b"", 9), (b"four", b"", 10), (b"four", b"", 11), NULL]
    assert frames_of(part) == frames_of(whole)[2:6]


def test_damaged_videos() -> None:
    whole = video_file([(0, 1), (1, 2)], [b"one", b"second"], [b"", b"key"])
    for wrong, what in (
        (b"", "no index"),
        (whole[:-5] + b"x" + whole[-4:], "does not end as"),
        (b"x" + whole, "does not fit its videos"),
        (whole[-40:], "longer than|does not fit|ends within"),
        (video_file([(5, 1)], [b"one"], [b""]), "frames that it does not have"),
        (video_file([(0, 1), (0, 2)], [b"one"], []), "different lengths"),
        (video_file([(0, 1)], [b"one"], [b""]), "it has 1 rows, not 2"),
    ):
        with pytest.raises(DamagedTableError, match=what):
            cut_of(video, wrong, range(1), 2)
    with pytest.raises(UnsupportedFeatureError, match="version 9"):
        cut_of(video, whole[:-1] + b"\t", range(1), 2)


SCHEMA = {"type": "record", "name": "r", "fields": [{"name": "v", "type": {"type": "array", "items": "float"}}]}


@pytest.mark.parametrize("codec", ["null", "zstandard", "snappy"])
def test_vectors_in_avro(codec: str) -> None:
    """Blocks have 1000 records."""
    records = [{"v": [float(at), 0.5]} for at in range(2500)]
    whole = write_records(Template(json.dumps(SCHEMA), codec), records)
    for rows in (range(2500), range(1), range(999, 1001), range(700, 2300), range(2499, 2500)):
        part = cut_of(avro_cut, whole, rows, 2500)
        assert list(read_records(part, None)) == records[rows.start : rows.stop]
        one, other = pa.BufferReader(part), pa.BufferReader(whole)
        assert avro_cut.digest(one, range(len(rows)), len(rows)) == avro_cut.digest(other, rows, 2500)
    assert avro_cut.digest(pa.BufferReader(whole), range(1, 2), 2500) != avro_cut.digest(other, range(1), 2500)
    with pytest.raises(DamagedTableError, match="it has 2500 rows, not 2400"):
        cut_of(avro_cut, whole, range(3), 2400)
    with pytest.raises(DamagedTableError):
        cut_of(avro_cut, whole[:-20], range(3), 2500)


@pytest.mark.parametrize("length", [2, None])
def test_vectors_in_parquet(tmp_path: Path, length: int | None) -> None:
    """With ids, the codec and Arrow's own schema, which knows that lists have a fixed length."""
    kind = pa.list_(pa.float32()) if length is None else pa.list_(pa.float32(), length)
    field = pa.field("v", kind, metadata={b"PARQUET:field_id": b"7"})
    values = [None if length is None and at % 5 == 0 else [float(at), float("nan")] for at in range(250)]
    whole = pa.table([pa.array(values, kind)], schema=pa.schema([field]))
    pq.write_table(whole, tmp_path / "v", row_group_size=100, compression="gzip")
    data = (tmp_path / "v").read_bytes()
    for rows in (range(250), range(99, 101), range(120, 250)):
        part = pq.ParquetFile(pa.BufferReader(cut_of(parquet_cut, data, rows, 250)))
        assert str(part.read()["v"].to_pylist()) == str(values[rows.start : rows.stop])
        assert part.schema_arrow.field("v").type == kind
        assert part.schema_arrow.field("v").metadata[b"PARQUET:field_id"] == b"7"
        assert part.metadata.row_group(0).column(0).compression == "GZIP"
    with pytest.raises(DamagedTableError, match="it has 250 rows, not 249"):
        cut_of(parquet_cut, data, range(3), 249)

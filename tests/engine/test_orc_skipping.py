"""ORC files whose values mislead readers that skip rows by bounds: they tell readers not to."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc
from support.releases import needs_orc_timestamps
from test_orc_writer import CODECS, local, read, task, written

from dv_maintenance.engine.orc.skipping import Misleading
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.orc_tail import stripe_offsets, without_row_indexes

HIGH, EMOJI = "\uff46", "\U0001f600"


@pytest.mark.parametrize(
    ("values", "kind", "misleads"),
    [
        ([0.0, 1.0, float("nan"), None], pa.float64(), False),
        ([1.0, -0.0], pa.float64(), True),
        ([1.0, -0.0], pa.float32(), True),
        ([date(1583, 1, 1), None], pa.date32(), False),
        ([date(1582, 12, 31)], pa.date32(), True),
        (["a", "é漢", None, ""], pa.string(), False),
        (["a" + HIGH, "b" + HIGH], pa.string(), False),
        (["a" + EMOJI], pa.string(), False),
        (["a" + HIGH, "b" + EMOJI], pa.string(), True),
        (["a", None, "", HIGH], pa.string(), True),
        (["a", EMOJI], pa.string(), True),
        ([{"x": -0.0}], pa.struct([("x", pa.float64())]), True),
        # Filters do not skip by what is in lists and maps.
        ([[-0.0]], pa.list_(pa.float64()), False),
        ([[(EMOJI, HIGH)]], pa.map_(pa.string(), pa.string()), False),
        ([-1, 0], pa.int64(), False),
    ],
)
def test_what_misleads_readers(values: list[Any], kind: pa.DataType, *, misleads: bool) -> None:
    found = Misleading()
    found.add([pa.array([None], kind), pa.array(values, kind)])
    assert found.found == misleads
    sliced = Misleading()
    sliced.add([pa.array([*values, None], kind).slice(len(values))])
    assert not sliced.found


def test_all_batches_of_a_column_count() -> None:
    found = Misleading()
    for first, second in (("a" + HIGH, "b" + EMOJI), ("a" + HIGH, "x")):
        found.add([pa.array([first]), pa.array([second])])
        assert not found.found
    found.add([pa.array(["a" + EMOJI]), pa.array(["x"])])
    assert found.found


@needs_orc_timestamps
@pytest.mark.parametrize("codec", CODECS)
def test_such_files_tell_readers_to_skip_nothing(tmp_path: Path, codec: str) -> None:
    ids = pa.array(range(40_000))
    plain = pa.record_batch({"id": ids, "t": pa.array([datetime(2026, 1, 1)] * 40_000), "s": pa.array(["x"] * 40_000)})
    misled = plain.set_column(2, "s", pa.array(["x"] * 39_999 + [EMOJI]))
    for batch, stride in ((plain, 10_000), (misled, 0)):
        work = task(tmp_path, batch.schema, compression=codec, target_bytes=256 << 10)
        outputs = written(work, *(batch.slice(at, 5_000) for at in range(0, 40_000, 5_000)))
        files = [orc.ORCFile(local(each)) for each in outputs]
        assert files[-1].row_index_stride == stride
        assert read(outputs, batch.schema).to_pylist() == batch.to_pylist()
        for each, file in zip(outputs, files, strict=True):
            found = stripe_offsets(pa.BufferReader(local(each).read_bytes()))
            assert len(found or []) == file.nstripes


@pytest.mark.parametrize("end", [b"", b"\x03ORC\x04", b"PAR1" * 9])
def test_what_is_not_the_end_of_an_orc_file(end: bytes) -> None:
    with pytest.raises(DamagedTableError, match="no magic number"):
        without_row_indexes(end)

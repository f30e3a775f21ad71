"""Fingerprints of rows: the same for the same rows, however they are cut and ordered, and others for others."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dv_maintenance.tables import fingerprint as module
from dv_maintenance.tables.fingerprint import fingerprint, row_hashes

TEXTS = st.lists(st.none() | st.text("aäb\0", max_size=6), max_size=30)
KINDS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]


def of(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        values = [None if each is None else each.encode() for each in values]
    return pa.array(values, kind)


def hashes(values: list[Any], kind: pa.DataType | None = None) -> list[int]:
    found: list[int] = row_hashes(pa.record_batch({"v": of(values, kind or pa.string())})).tolist()
    return found


@given(TEXTS, st.sampled_from(KINDS), st.integers(0, 30))
def test_texts_have_one_hash_each_wherever_they_are(values: list[str | None], kind: pa.DataType, cut: int) -> None:
    found = hashes(values, kind)
    known: dict[str | None, int] = {}
    for value, each in zip(values, found, strict=True):
        assert known.setdefault(value, each) == each
    assert len(set(known.values())) == len(known)
    batch = pa.record_batch({"v": of(values, kind)})
    assert row_hashes(batch.slice(cut)).tolist() == found[cut:]
    assert [hashes([value], kind)[0] for value in values] == found
    assert hashes(values) == found  # of the same bytes, whatever the widths of offsets


def test_lengths_around_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(3)
    lengths = [0, 1, 7, 8, 9, 15, 16, 17, 255, 256, 257, 65_537, 200_000, 3, 0, 256]
    values = ["".join(draw.choices("abc", k=length)) for length in lengths]
    values += [value[:-1] + "d" for value in values if value] + ["d" + value[1:] for value in values if value]
    found = hashes(values)
    assert len(set(found)) == len(set(values))
    for at_once in (1, 5, 100):
        monkeypatch.setattr(module, "_ROWS_AT_ONCE", at_once)
        assert hashes(values) == found


def test_bytes_that_change_places_are_others() -> None:
    values = ["ab", "ba", "a", "b", "", "aa", "bb", "\0", "\0\0", None]
    assert len(set(hashes(values))) == len(values)


@given(
    st.lists(st.tuples(st.integers(-5, 5) | st.none(), st.sampled_from(["x", "y", "", None])), max_size=20), st.data()
)
def test_rows_count_and_their_order_does_not(rows: list[tuple[Any, Any]], data: st.DataObject) -> None:
    schema = pa.schema([("n", pa.int64()), ("t", pa.string())])

    def batches(rows: list[tuple[Any, Any]]) -> list[pa.RecordBatch]:
        table = pa.Table.from_pylist([{"n": n, "t": t} for n, t in rows], schema)
        return list(table.to_batches(max_chunksize=data.draw(st.integers(1, 7))))

    whole = fingerprint(batches(rows))
    assert whole.rows == len(rows)
    assert fingerprint(batches(data.draw(st.permutations(rows)))) == whole
    if rows:
        assert fingerprint(batches(rows[1:])) != whole
        assert fingerprint(batches([(rows[0][0], "z"), *rows[1:]])) != whole
        assert fingerprint(batches([rows[0], *rows])) != whole


def test_values_are_their_columns() -> None:
    one = pa.record_batch({"a": ["x"], "b": ["y"]})
    other = pa.record_batch({"a": ["y"], "b": ["x"]})
    assert fingerprint([one]) != fingerprint([other])

"""Arrays and maps of blobs in records of blob files, and damaged ones."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dv_maintenance.engine.blob.map_keys import map_keys
from dv_maintenance.errors import DamagedTableError, UnsupportedFeatureError
from dv_maintenance.files.blob import _ARRAY, _HEADER, _MAP, delta_varint_bytes, elements, entries


def array(*blobs: bytes | None, version: int = 1) -> bytes:
    lengths = delta_varint_bytes([-1 if each is None else len(each) for each in blobs])
    data = b"".join(each or b"" for each in blobs)
    return _HEADER.pack(_ARRAY, version, len(blobs)) + data + lengths + len(lengths).to_bytes(4, "little")


def test_arrays() -> None:
    for blobs in ([], [b""], [None], [b"one", None, b"", b"four" * 50]):
        assert elements(array(*blobs)) == blobs
    assert elements(array(b"x" * 300, None)) == [b"x" * 300, None]


def test_maps() -> None:
    keys, blobs = [b"a", None, b""], [None, b"two", b"x"]
    lists = [delta_varint_bytes([-1 if each is None else len(each) for each in part]) for part in (keys, blobs)]
    data = b"".join(each or b"" for each in (*keys, *blobs))
    sizes = b"".join(len(each).to_bytes(4, "little") for each in lists)
    stored = _HEADER.pack(_MAP, 1, 3) + data + b"".join(lists) + sizes
    assert entries(stored) == list(zip(keys, blobs, strict=True))
    with pytest.raises(DamagedTableError, match="not the array or map"):
        elements(stored)


def test_damaged_arrays() -> None:
    right = array(b"one", b"two")
    for wrong, what in (
        (b"", "not the array"),
        (right[:9], "damaged|do not fit"),
        (right[:9] + b"x" + right[9:], "do not fit"),
        (right[:-4] + b"\xff\xff\xff\x7f", "damaged"),
        (_HEADER.pack(_ARRAY, 1, 3) + right[9:], "do not fit"),
    ):
        with pytest.raises(DamagedTableError, match=what):
            elements(wrong)
    with pytest.raises(UnsupportedFeatureError, match="version 2"):
        elements(array(b"x", version=2))


@pytest.mark.parametrize(
    ("kind", "stored"),
    [(pa.int32(), b"123"), (pa.date32(), b"12345"), (pa.string(), b"\xff"), (pa.decimal128(5, 2), b"1")],
)
def test_keys_that_are_none(kind: pa.DataType, stored: bytes) -> None:
    with pytest.raises(DamagedTableError, match="a key in a map of blobs is damaged"):
        map_keys([stored], kind)

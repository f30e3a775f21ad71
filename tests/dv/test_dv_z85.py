"""Z85 text, both sizes of the implementation."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dv_maintenance.dv import z85
from dv_maintenance.errors import DamagedDeletionVectorError

# Fewer groups than the NumPy path takes, and more.
repeats = pytest.mark.parametrize("repeat", [1, 100], ids=["short", "long"])


@given(st.binary(max_size=400))
def test_round_trip(data: bytes) -> None:
    data += bytes(-len(data) % 4)
    text = z85.encode(data)
    assert len(text) == len(data) // 4 * 5
    assert z85.decode(text) == data


@repeats
def test_the_example_of_the_rfc(repeat: int) -> None:
    data = bytes.fromhex("864fd26fb559f75b")
    assert z85.encode(data * repeat) == "HelloWorld" * repeat
    assert z85.decode("HelloWorld" * repeat) == data * repeat


def test_golden_alphabet_and_uuids(golden: Path) -> None:
    vectors = json.loads((golden / "delta" / "dv_vectors.json").read_text())
    alphabet = vectors["z85_alphabet"]
    assert [z85.encode(bytes([0, 0, 0, digit]))[-1] for digit in range(85)] == list(alphabet)
    for case in vectors["relative_paths"]:
        uuid = UUID(case["file"].rsplit("_", 1)[1].removesuffix(".bin"))
        assert z85.encode(uuid.bytes) == case["pathOrInlineDv"][-20:]


@repeats
@pytest.mark.parametrize("character", ["\\", '"', "~", ",", " ", "\0", "é", "€", "\ud800"])
def test_foreign_characters_are_refused(character: str, repeat: int) -> None:
    with pytest.raises(DamagedDeletionVectorError, match="not a Z85 character"):
        z85.decode("0" * 5 * (repeat - 1) + "00" + character + "00")


@repeats
def test_groups_above_32_bits_are_refused(repeat: int) -> None:
    zeros = "00000" * (repeat - 1)
    assert z85.decode(zeros + "%nSc0")[-4:] == b"\xff\xff\xff\xff"
    for text in ("%nSc1", "#####"):
        with pytest.raises(DamagedDeletionVectorError, match="above the largest"):
            z85.decode(zeros + text)


@pytest.mark.parametrize("length", [1, 4, 6, 501])
def test_odd_lengths_are_refused(length: int) -> None:
    with pytest.raises(DamagedDeletionVectorError, match="a multiple of 5"):
        z85.decode("0" * length)
    with pytest.raises(ValueError, match="multiples of 4"):
        z85.encode(b"\0" * (length if length % 4 else length + 1))

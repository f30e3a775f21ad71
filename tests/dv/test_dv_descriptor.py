"""Descriptors as a Delta log spells them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dv_maintenance.dv.descriptor import EMPTY, DvDescriptor
from dv_maintenance.errors import DamagedDeletionVectorError

BODY = {
    "storageType": "u",
    "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
    "offset": 1,
    "sizeInBytes": 34,
    "cardinality": 2,
}


def test_paths_of_golden_descriptors(golden: Path) -> None:
    for case in json.loads((golden / "delta" / "dv_vectors.json").read_text())["relative_paths"]:
        assert DvDescriptor("u", case["pathOrInlineDv"], 1, 34, 1).relative_path() == case["file"]


def test_json_both_ways_keeps_what_the_log_said() -> None:
    for body in (BODY, {**BODY, "offset": 0}, {key: BODY[key] for key in BODY if key != "offset"}):
        assert DvDescriptor.from_json(body).to_json() == body
    assert "offset" not in DvDescriptor.from_json({**BODY, "offset": None}).to_json()
    assert DvDescriptor.from_json({**BODY, "maxRowIndex": 12}) == DvDescriptor.from_json(BODY)


def test_unique_ids_tell_absent_offsets_from_zero() -> None:
    ids = [DvDescriptor.from_json({**BODY, "offset": offset}).unique_id for offset in (None, 0, 1)]
    assert ids == ["uab^-aqEH.-t@S}K{vb[*k^" + end for end in ("", "@0", "@1")]


def test_the_empty_descriptor() -> None:
    body = {"storageType": "i", "pathOrInlineDv": "", "sizeInBytes": 0, "cardinality": 0}
    assert EMPTY.to_json() == body
    assert DvDescriptor.from_json(body) == EMPTY


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"storageType": "r"}, "adaptiveMetadata"),
        ({"storageType": "x"}, "unknown storage type 'x'"),
        ({"storageType": None}, "unknown storage type None"),
        ({"storageType": 1}, "unknown storage type 1"),
        ({"pathOrInlineDv": None}, "pathOrInlineDv is None"),
        ({"pathOrInlineDv": 5}, "pathOrInlineDv is 5"),
        ({"offset": -1}, "offset is -1"),
        ({"offset": 2**31}, "offset is 2147483648"),
        ({"offset": "1"}, "offset is '1'"),
        ({"sizeInBytes": None}, "sizeInBytes is None"),
        ({"sizeInBytes": -34}, "sizeInBytes is -34"),
        ({"sizeInBytes": 2**31}, "sizeInBytes is 2147483648"),
        ({"sizeInBytes": 34.0}, "sizeInBytes is 34.0"),
        ({"sizeInBytes": True}, "sizeInBytes is True"),
        ({"cardinality": -1}, "cardinality is -1"),
        ({"cardinality": 2**63}, "cardinality is 9223372036854775808"),
        ({"cardinality": "9" * 1000}, "cardinality is '9{39}\\.\\.\\."),
    ],
)
def test_what_a_log_must_not_say(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(DamagedDeletionVectorError, match=reason):
        DvDescriptor.from_json({**BODY, **change})


@pytest.mark.parametrize("body", [None, [], "u", 3])
def test_a_descriptor_is_an_object(body: object) -> None:
    with pytest.raises(DamagedDeletionVectorError, match="not an object"):
        DvDescriptor.from_json(body)


@pytest.mark.parametrize("storage_type", [["u"], {}, [{}]])
def test_a_storage_type_of_a_nested_type_is_refused(storage_type: object) -> None:
    with pytest.raises(DamagedDeletionVectorError, match="unknown storage type"):
        DvDescriptor.from_json({**BODY, "storageType": storage_type})


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "too few"),
        ("vBn[lx{q8@P<9BNH/is", "too few"),
        ("vBn[lx{q8@P<9BNH/is~", "not a Z85 character"),
        ("#" * 20, "above the largest"),
        ("../vBn[lx{q8@P<9BNH/isA", "leaves the table"),
        ("a/../..vBn[lx{q8@P<9BNH/isA", "leaves the table"),
        ("/etcvBn[lx{q8@P<9BNH/isA", "leaves the table"),
    ],
)
def test_paths_that_name_no_file_of_the_table(path: str, reason: str) -> None:
    with pytest.raises(DamagedDeletionVectorError, match=reason) as caught:
        DvDescriptor("u", path, 1, 34, 1).relative_path()
    assert (caught.value.file, caught.value.offset) == (path, 1)

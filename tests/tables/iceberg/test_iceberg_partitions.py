"""Partition values as manifests have them: which name the same partition, and how new manifests hold them."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from dv_maintenance.files.avro.writer import Template
from dv_maintenance.tables.iceberg.commit.schemas import filled, for_manifests, resized
from dv_maintenance.tables.iceberg.log.metadata import SpecField
from dv_maintenance.tables.iceberg.rows.partitions import Partitions


def code(partitions: Partitions, value: object) -> int:
    return partitions.codes(0, [{1000: value}])[0]


def partitions(kind: pa.DataType) -> Partitions:
    return Partitions({0: (SpecField(1000, "p", "identity", 1),)}, {1: kind})


def decimal(number: int, size: int) -> bytes:
    return number.to_bytes(size, "big", signed=True)


@pytest.mark.parametrize("number", [0, 100, -100, 32767, -32768])
def test_a_decimal_is_the_same_in_any_width(number: int) -> None:
    """A column of DECIMAL(5, 2) that became a DECIMAL(12, 2): its older manifests have three bytes."""
    found = partitions(pa.decimal128(12, 2))
    assert code(found, decimal(number, 3)) == code(found, decimal(number, 6))
    assert code(found, decimal(number + 1, 3)) != code(found, decimal(number, 6))


def test_floats_are_compared_as_java_compares_them() -> None:
    found = partitions(pa.float64())
    assert code(found, float("nan")) == code(found, float("nan"))
    assert code(found, 0.0) != code(found, -0.0)
    again = Partitions(found.specs, found.types, found.found)
    assert code(again, float("nan")) == code(found, float("nan"))


def test_new_manifests_have_the_types_of_today() -> None:
    fixed = {"type": "fixed", "name": "d", "size": 3, "logicalType": "decimal", "precision": 5, "scale": 2}
    kinds = [("k", "int"), ("a", fixed), ("b", "d")]
    old = [{"name": name, "type": ["null", kind], "field-id": 1000 + at} for at, (name, kind) in enumerate(kinds)]
    file = {"type": "record", "name": "r2", "fields": [{"name": "p", "field-id": 102, "type": _record("r102", old)}]}
    entry = _record("entry", [{"name": "data_file", "field-id": 2, "type": file}])
    wide = {**fixed, "name": "e", "size": 6, "precision": 12}
    today = [{"name": name, "type": ["null", kind]} for name, kind in [("k", "long"), ("a", wide), ("b", {**fixed})]]
    wanted = [{**each, "field-id": 1000 + at} for at, each in enumerate(today)]
    made = for_manifests(Template(json.dumps(entry), by_id=True), 0, 3, (0, "[]"), json.dumps(wanted))
    types = made.fields("2", "102")
    values = resized({"1000": 1 << 40, "1001": decimal(-5, 3), "1002": decimal(7, 6)}, types)
    assert values == {"1000": 1 << 40, "1001": decimal(-5, 6), "1002": decimal(7, 3)}
    assert types["1000"] == ["null", "long"]


def test_files_of_the_first_format_version_are_data() -> None:
    assert filled({}, {"134": "int"}, "manifests") == {"134": 0}


def _record(name: str, fields: list[dict[str, object]]) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": fields}

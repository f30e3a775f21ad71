"""Avro by columns gives what Avro by records gives, or nothing."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import fastavro
import pytest
from effort import examples

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.files.avro import columns
from dv_maintenance.files.avro.container import read_columns, read_records, writer_schema
from dv_maintenance.files.avro.writer import Template, write_records

FIRST = {"_VERSION": {2}, "_KIND": {0, 1}}
STATS = {
    "type": "record",
    "name": "stats",
    "fields": [
        {"name": "_MIN", "type": "bytes"},
        {"name": "_COUNTS", "type": ["null", {"type": "array", "items": ["null", "long"]}]},
    ],
}
FILE = {
    "type": "record",
    "name": "file",
    "fields": [
        {"name": "_NAME", "type": "string"},
        {"name": "_SIZE", "type": "long"},
        {"name": "_STATS", "type": STATS},
        {"name": "_EXTRA", "type": {"type": "array", "items": "string"}},
        {"name": "_RATIO", "type": "double"},
        {"name": "_LEVEL", "type": ["null", "int"]},
        {"name": "_INDEX", "type": ["bytes", "null"]},
        {"name": "_COLS", "type": ["null", {"type": "array", "items": "string"}]},
        {"name": "_PATH", "type": ["null", "string"]},
        {"name": "_NEVER", "type": ["null", "long"]},
    ],
}
ENTRY = {
    "type": "record",
    "name": "entry",
    "fields": [
        {"name": "_VERSION", "type": "int"},
        {"name": "_KIND", "type": "int"},
        {"name": "_ROW", "type": "bytes"},
        {"name": "_FILE", "type": FILE},
    ],
}
WANTED: dict[str, Any] = {
    "_VERSION": None,
    "_KIND": None,
    "_ROW": None,
    "_FILE": dict.fromkeys(("_NAME", "_SIZE", "_EXTRA", "_LEVEL", "_INDEX", "_COLS", "_PATH", "_NEVER", "_NEW")),
}


def entries(count: int, rng: random.Random) -> list[dict[str, Any]]:
    def entry(number: int) -> dict[str, Any]:
        file = {
            "_NAME": f"dätä-{number}-{rng.getrandbits(64)}",
            "_SIZE": rng.choice([0, -1, 63, 64, 2**31, 2**63 - 1, -(2**63), number]),
            # Looks like the beginning of an entry, again and again.
            "_STATS": {
                "_MIN": b"\x04\x00" * rng.randrange(20),
                "_COUNTS": rng.choice([None, [], [2, 0, 300, None] * 3]),
            },
            "_EXTRA": rng.choice([[], [], ["a", "", "ö" * 70]]),
            "_RATIO": rng.random(),
            "_LEVEL": rng.choice([None, 0, -(2**31), 2**31 - 1]),
            "_INDEX": rng.choice([None, b"", rng.randbytes(200)]),
            "_COLS": rng.choice([None, [], ["x", "y"]]),
            "_PATH": rng.choice([None, None, "s3://b/" + "p" * 100]),
            "_NEVER": None,
        }
        return {"_VERSION": 2, "_KIND": number % 2, "_ROW": rng.randbytes(rng.randrange(30)), "_FILE": file}

    return [entry(number) for number in range(count)]


def written(records: list[Any], schema: Any = ENTRY) -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, fastavro.parse_schema(schema), records, sync_interval=4000)
    return sink.getvalue()


def rows(found: columns.Columns) -> list[dict[str, Any]]:
    """Columns as the records that they are of."""
    parts = {name: rows(each) if isinstance(each, dict) else each.to_pylist() for name, each in found.items()}
    return [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]


@pytest.mark.parametrize("schema", [ENTRY, ["null", ENTRY]], ids=["record", "nullable"])
@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard"])
def test_columns_are_the_records(schema: Any, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_GROUP", 20_000)  # several groups of blocks
    records = entries(700, random.Random(3))
    data = written(records, schema) if codec == "null" else write_records(Template(json.dumps(schema), codec), records)
    found = read_columns(data, WANTED, FIRST)
    assert found is not None
    assert rows(found) == list(read_records(data, WANTED))


def test_what_is_left_to_records() -> None:
    few = entries(20, random.Random(1))
    assert read_columns(written(few), WANTED, FIRST) is None, "faster by records"
    many = entries(300, random.Random(1))
    assert read_columns(written(many), WANTED, FIRST) is not None
    assert read_columns(written(many), WANTED, {}) is None, "nothing says how a record begins"
    many[150]["_VERSION"] = 3
    assert read_columns(written(many), WANTED, FIRST) is None, "another version"
    with_ratio = {**WANTED, "_FILE": {"_RATIO": None}}
    assert read_columns(written(entries(300, random.Random(1))), with_ratio, FIRST) is None, "a type without a column"


def test_damage_is_never_another_value() -> None:
    """Any bytes changed: the same as by records, or nothing."""
    rng = random.Random(11)
    records = entries(280, rng)
    sound = written(records)
    start = sound.index(b"\x04\x00")  # the first entry
    decoded = 0
    rounds = examples(50)
    for _ in range(rounds):
        damaged = bytearray(sound)
        for _ in range(rng.choice([1, 1, 3])):
            damaged[rng.randrange(start, len(damaged))] = rng.choice([0, 1, 2, 3, 4, 127, 128, 255, rng.randrange(256)])
        try:
            by_columns = read_columns(bytes(damaged), WANTED, FIRST)
        except DvMaintenanceError:
            continue
        if by_columns is not None:
            decoded += 1
            assert rows(by_columns) == list(read_records(bytes(damaged), WANTED))
    assert decoded > rounds // 8


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_block_that_ends_within_a_record(cut: int) -> None:
    """As many records as it says, and too few bytes for the last of them."""
    schema = fastavro.parse_schema(ENTRY)
    body = io.BytesIO()
    for record in entries(300, random.Random(5)):
        fastavro.schemaless_writer(body, schema, record)
    rebuilt = columns_schema()
    blocks = [(300, body.getvalue()[:-cut])]
    assert columns.decode(rebuilt, blocks, WANTED, FIRST) is None
    assert columns.decode(rebuilt, [(300, body.getvalue() + b"\x00" * cut)], WANTED, FIRST) is None
    assert columns.decode(rebuilt, [(299, body.getvalue())], WANTED, FIRST) is None
    assert columns.decode(rebuilt, [(300, body.getvalue())], WANTED, FIRST) is not None


def columns_schema() -> Any:
    return writer_schema(written([]))

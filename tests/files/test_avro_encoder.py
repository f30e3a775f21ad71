"""Rows encoded column by column are, byte for byte, what fastavro makes of the same records."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from effort import examples

from dv_maintenance.files.avro.arrow_types import record_batch, stored_schema
from dv_maintenance.files.avro.codecs import PACKERS
from dv_maintenance.files.avro.container import AvroFile, header_of
from dv_maintenance.files.avro.encoder import encoded_records
from dv_maintenance.files.avro.rows import AvroRows
from dv_maintenance.files.avro.schema import Rebuilt, parse_schema, record_of, spelled

Values = Callable[[random.Random], Any]
EDGES = [each + some for power in range(0, 64, 7) for each in (1 << power, -(1 << power)) for some in (-1, 0, 1)]
LONGS = [each for each in EDGES if -(2**63) <= each < 2**63] + [0, 63, 64, -64, -65, 2**63 - 1, -(2**63)]


def whole(rng: random.Random, bits: int) -> int:
    return rng.choice([each for each in LONGS if -(1 << bits - 1) <= each < 1 << bits - 1])


def unscaled(rng: random.Random, digits: int) -> int:
    least = rng.choice([0, 1, 127, 128, 255, 256, 32767, 32768, 10**digits - 1, rng.randrange(10**digits)])
    return min(least, 10**digits - 1) * rng.choice([1, -1])


def decimals(digits: int, scale: int) -> Values:
    return lambda rng: Decimal((int((n := unscaled(rng, digits)) < 0), tuple(map(int, str(abs(n)))), -scale))


def fixed(size: int, name: str, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def decimal(digits: int, scale: int) -> dict[str, Any]:
    return {"logicalType": "decimal", "precision": digits, "scale": scale}


# Avro type, and its values.
LEAVES: list[tuple[Any, Values]] = [
    ("boolean", lambda rng: rng.random() < 0.5),
    ("int", lambda rng: whole(rng, 32)),
    ("long", lambda rng: whole(rng, 64)),
    ("float", lambda rng: rng.choice([0.0, -0.0, 0.5, float("inf")])),
    ("double", lambda rng: rng.choice([0.0, -0.0, 1e300, rng.random()])),
    ("string", lambda rng: rng.choice(["", "é\U0001f600", "x" * rng.randrange(300)])),
    ("bytes", lambda rng: rng.randbytes(rng.choice([0, 1, 63, 64, 200]))),
    ({"type": "int", "logicalType": "date"}, lambda rng: whole(rng, 32)),
    ({"type": "int", "logicalType": "time-millis"}, lambda rng: rng.randrange(86_400_000)),
    ({"type": "long", "logicalType": "time-micros"}, lambda rng: rng.randrange(86_400_000_000)),
    *(
        ({"type": "long", "logicalType": f"timestamp-{unit}"}, lambda rng: whole(rng, 64))
        for unit in ("millis", "micros", "nanos")
    ),
    ({"type": "bytes", **decimal(9, 2)}, decimals(9, 2)),
    ({"type": "bytes", **decimal(38, 38)}, decimals(38, 38)),
    (fixed(1, "f1"), lambda rng: rng.randbytes(1)),
    (fixed(16, "f16", logicalType="uuid"), lambda rng: rng.randbytes(16)),
    (fixed(4, "d9", **decimal(9, 2)), decimals(9, 2)),
    (fixed(16, "d38", **decimal(38, 10)), decimals(38, 10)),
]


def kind(rng: random.Random, depth: int) -> tuple[Any, Values]:
    """A random type."""
    shape = rng.choice(["leaf", "array", "map", "pairs", "record"]) if depth else "leaf"
    if shape == "leaf":
        made, values = rng.choice(LEAVES)
        if isinstance(made, dict) and "name" in made:
            made = {**made, "name": f"n{rng.getrandbits(60)}"}
    elif shape == "record":
        made, values = record(rng, depth - 1)
    elif shape == "pairs":
        key, value = kind(rng, 0), maybe(rng, depth - 1)
        fields = [{"name": "key", "type": key[0]}, {"name": "value", "type": value[0]}]
        items = {"type": "record", "name": f"n{rng.getrandbits(60)}", "fields": fields}
        made = {"type": "array", "items": items, "logicalType": "map"}
        values = lambda rng: [(key[1](rng), value[1](rng)) for _ in range(rng.choice([0, 0, 1, 3, 70]))]  # noqa: E731
    elif shape == "map":
        inner = maybe(rng, depth - 1)
        made = {"type": "map", "values": inner[0]}
        values = lambda rng: [(f"k{at}", inner[1](rng)) for at in range(rng.choice([0, 0, 1, 3, 70]))]  # noqa: E731
    else:
        inner = maybe(rng, depth - 1)
        made = {"type": "array", "items": inner[0]}
        values = lambda rng: [inner[1](rng) for _ in range(rng.choice([0, 0, 1, 3, 70]))]  # noqa: E731
    return made, values


def maybe(rng: random.Random, depth: int) -> tuple[Any, Values]:
    made, values = kind(rng, depth)
    match rng.choice(["required", "null first", "null last", "never null"]):
        case "required":
            return made, values
        case "never null":
            return ["null", made], values
        case "null first":
            return ["null", made], lambda rng: None if rng.random() < 0.3 else values(rng)
    return [made, "null"], lambda rng: None if rng.random() < 0.8 else values(rng)


def record(rng: random.Random, depth: int) -> tuple[Any, Values]:
    fields = {f"c{at}": maybe(rng, depth) for at in range(rng.randint(1, 4))}
    listed = [{"name": name, "type": made} for name, (made, _) in fields.items()]
    made = {"type": "record", "name": f"n{rng.getrandbits(60)}", "fields": listed}
    return made, lambda rng: {name: values(rng) for name, (_, values) in fields.items()}


def array_of(values: list[Any], type_: pa.DataType) -> pa.Array:
    if pa.types.is_temporal(type_):
        return pa.array(values, pa.int32() if type_.bit_width == 32 else pa.int64()).view(type_)
    if pa.types.is_struct(type_):
        parts = [array_of([None if row is None else row[each.name] for row in values], each.type) for each in type_]
        nulls = pa.array([row is None for row in values], pa.bool_())
        return pa.StructArray.from_arrays(parts, fields=list(type_), mask=nulls)
    if pa.types.is_list(type_) or pa.types.is_map(type_):
        ends = [0]
        for row in values:
            ends.append(ends[-1] + len(row or ()))
        nulls = pa.array([row is None for row in values], pa.bool_())
        below = [each for row in values for each in row or ()]
        if pa.types.is_list(type_):
            items = array_of(below, type_.value_type)
            return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), items, type=type_, mask=nulls)
        key, item = (
            array_of([pair[at] for pair in below], each) for at, each in enumerate((type_.key_type, type_.item_type))
        )
        return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), key, item, type=type_, mask=nulls)
    return pa.array(values, type_)


def decoded(data: bytes) -> tuple[Rebuilt, list[list[dict[str, Any]]]]:
    file = AvroFile(io.BytesIO(data), len(data))
    return file.schema, list(file.blocks({each["name"]: None for each in file.schema["fields"]}))


@pytest.mark.parametrize("seed", range(examples(30)))
def test_random_rows(seed: int) -> None:
    rng = random.Random(seed)
    made, values = record(rng, 3)
    text = json.dumps(made)
    schema = record_of(parse_schema(text.encode()))
    arrow = stored_schema(schema)
    rows = [values(rng) for _ in range(rng.choice([0, 1, 50]))]
    columns = [array_of([row[each.name] for row in rows], each.type) for each in arrow]
    batch = pa.RecordBatch.from_arrays(columns, schema=arrow)
    file = AvroRows(text, rng.choice([*PACKERS]))
    cut = rng.randint(0, len(rows))
    parts = [batch.slice(0, cut), batch.slice(cut)]
    stored, blocks = decoded(file.header + b"".join(map(file.add, parts)) + file.end())
    records = [each for block in blocks for each in block]
    assert stored == schema
    found = record_batch(records, arrow)
    found.validate(full=True)
    assert found.equals(batch) or repr(found.to_pylist()) == repr(batch.to_pylist())
    # As fastavro encodes what it read.
    plain, sink = fastavro.parse_schema(spelled(schema)), io.BytesIO()
    for each in records:
        fastavro.schemaless_writer(sink, plain, each)
    encoded = encoded_records(schema, batch)
    assert b"".join(each.as_py() for each in encoded) == sink.getvalue()


NUMBERS = {"type": "record", "name": "r", "fields": [{"name": "x", "type": "long"}, {"name": "s", "type": "string"}]}


def test_blocks_end_with_the_record_that_fills_them() -> None:
    sizes = [*range(0, 3000, 3), 200_000, 1, 70_000, 5]
    rows = pa.record_batch({"x": pa.array(range(len(sizes))), "s": ["x" * size for size in sizes]})
    file = AvroRows(json.dumps(NUMBERS), "null", {"kind": b"of test"})
    data = [file.header, *(file.add(rows.slice(at, 7)) for at in range(0, len(sizes), 7)), file.end()]
    assert file.end() == b""
    whole_file = b"".join(data)
    assert header_of(whole_file)["kind"] == b"of test"
    assert header_of(whole_file)["avro.codec"] == b"null"
    _, blocks = decoded(whole_file)
    assert [row for block in blocks for row in block] == rows.to_pylist()
    bytes_of = [sum(len(row["s"]) + 4 for row in block) for block in blocks]
    assert min(bytes_of[:-1]) >= 63_000
    assert max(bytes_of) < 64_000 + 200_004
    # Blocks do not depend on the batches, and each file has a marker of its own.
    other = AvroRows(json.dumps(NUMBERS), "null", {"kind": b"of test"})
    at_once = other.header + other.add(rows) + other.end()
    assert at_once != whole_file
    assert decoded(at_once)[1] == blocks


def test_nulls_where_none_may_be() -> None:
    rows = pa.record_batch({"x": pa.array([1, None]), "s": ["a", "b"]})
    with pytest.raises(ValueError, match="a value is null that must not be"):
        AvroRows(json.dumps(NUMBERS), "null").add(rows)


@pytest.mark.parametrize("kind", [["null", "int", "string"], ["int"]])
def test_unions_of_more_than_null_and_a_type(kind: Any) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}]}
    with pytest.raises(ValueError, match="only unions with null are written"):
        AvroRows(json.dumps(schema), "null").add(pa.record_batch({"x": pa.array([1], pa.int32())}))

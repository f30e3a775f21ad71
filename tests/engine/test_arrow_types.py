"""Files whose Arrow schema names layouts of Arrow's are read as the types of their table."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.releases import OLD_PYARROW

from dv_maintenance.engine.rewrite import rewrite
from dv_maintenance.engine.scan import scan
from dv_maintenance.tables.work import ScanTask

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
D = Decimal
STRUCTS = pa.struct([("a", pa.string_view()), ("b", pa.large_list(pa.dictionary(pa.int8(), pa.large_string())))])

# What a writer has, and what the table calls it.
STORED: dict[str, tuple[pa.DataType, list[Any], pa.DataType]] = {
    "string view": (pa.string_view(), ["a", None, "b" * 40], pa.string()),
    "binary view": (pa.binary_view(), [b"a", None, b"b" * 40], pa.binary()),
    "large string": (pa.large_string(), ["a", None, "b"], pa.string()),
    "large binary": (pa.large_binary(), [b"a", None, b"b"], pa.binary()),
    "dictionary": (pa.dictionary(pa.int16(), pa.string()), ["a", None, "a"], pa.string()),
    "dictionary of views": (pa.dictionary(pa.int32(), pa.large_string()), ["a", None, "a"], pa.string()),
    "fixed list": (pa.list_(pa.float32(), 2), [[1.0, 2.0], None, [3.0, None]], pa.list_(pa.float32())),
    "list view": (pa.list_view(pa.string_view()), [["x"], None, []], pa.list_(pa.string())),
    "large list view": (pa.large_list_view(pa.int32()), [[1], None, []], pa.list_(pa.int32())),
    "large list": (pa.large_list(pa.string_view()), [["x"], None, []], pa.list_(pa.string())),
    "structs": (
        STRUCTS,
        [{"a": "x", "b": ["y"]}, None, {"a": None, "b": None}],
        pa.struct([("a", pa.string()), ("b", pa.list_(pa.string()))]),
    ),
    "map": (pa.map_(pa.string_view(), pa.binary_view()), [[("k", b"v")], None, []], pa.map_(pa.string(), pa.binary())),
    "JSON": (pa.json_(), ["{}", None, "1"], pa.string()),
    "UUID": (pa.uuid(), [b"0" * 16, None, b"1" * 16], pa.binary()),
    "opaque": (pa.opaque(pa.string(), "kind", "vendor"), ["a", None, "b"], pa.string()),
    "bool8": (pa.bool8(), [1, None, 0], pa.int8()),
    "duration": (pa.duration("us"), [1, None, 3], pa.int64()),
    "decimal32": (pa.decimal32(5, 1), [D("1.5"), None, D("-2.5")], pa.decimal128(5, 1)),
    "decimal64": (pa.decimal64(15, 1), [D("1.5"), None, D("-2.5")], pa.decimal128(15, 1)),
    "decimal256": (pa.decimal256(20, 1), [D("1.5"), None, D("-2.5")], pa.decimal128(20, 1)),
    "half": (pa.float16(), [1.5, None, -2.0], pa.float32()),
    "null": (pa.null(), [None, None, None], pa.int32()),
    "seconds": (pa.timestamp("s", "Europe/Amsterdam"), [WHEN, None, WHEN], pa.timestamp("us", "UTC")),
    "milliseconds": (pa.timestamp("ms", "+05:30"), [WHEN, None, WHEN], pa.timestamp("us", "UTC")),
    "nanoseconds": (pa.timestamp("ns", "UTC"), [WHEN, None, WHEN], pa.timestamp("us", "UTC")),
    "local": (pa.timestamp("s"), [WHEN.replace(tzinfo=None)] * 3, pa.timestamp("us")),
    "date64": (pa.date64(), [date(1960, 1, 2), None, date(2026, 1, 1)], pa.date32()),
    "unsigned": (pa.uint8(), [0, None, 200], pa.int16()),
    "fixed binary": (pa.binary(2), [b"ab", None, b"cd"], pa.binary()),
}


@pytest.mark.parametrize("kind", STORED)
def test_every_type_is_that_of_the_table(lake: Any, kind: str) -> None:
    stored, values, wanted = STORED[kind]
    try:
        storage = pa.array(values, stored.storage_type if isinstance(stored, pa.BaseExtensionType) else stored)
        column = pa.ExtensionArray.from_storage(stored, storage) if storage.type != stored else storage
        source = lake.write(pa.table({"id": range(3), "c": column}))
    except pa.ArrowNotImplementedError as error:
        if not OLD_PYARROW:
            raise
        pytest.skip(f"this pyarrow can't write the type: {error}")
    schema = pa.schema([("id", pa.int64()), ("c", wanted)])
    source = replace(source, dv=lake.dv([1]))
    [batch] = scan(ScanTask((source,), schema))
    expected = pa.array([values[0], values[2]], wanted)
    assert batch.schema == schema
    assert batch.column("c").equals(expected)
    rewrite(lake.task([source], schema, stats_columns=(("id",),)))
    [path] = lake.outputs()
    assert pq.read_table(path).column("c").combine_chunks().cast(wanted).equals(expected)


@pytest.mark.parametrize("said", [b"", b"no schema", b"\xff"], ids=["empty", "text", "bytes"])
def test_an_arrow_schema_that_is_damaged(lake: Any, said: bytes) -> None:
    table = pa.table({"id": range(3)})
    source = lake.write(table)
    with pq.ParquetWriter(lake.root / "in put.parquet", table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({b"ARROW:schema": said})
    with pytest.raises((pa.ArrowInvalid, OSError)):
        pq.read_table(lake.root / "in put.parquet")
    source = replace(source, size=(lake.root / "in put.parquet").stat().st_size)
    assert pa.Table.from_batches(scan(ScanTask((source,), table.schema))).equals(table)

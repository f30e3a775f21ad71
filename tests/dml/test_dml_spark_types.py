"""Arrow types in Spark's hands: the same values come out as went in."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dv_maintenance.dml.spark_types import for_spark, spark_schema
from dv_maintenance.errors import RefusedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DICTIONARY = pa.array(["a", None, "b"]).dictionary_encode()
COLUMNS = {
    "half": pa.array([0.5, None, 2.0], pa.float32()).cast(pa.float16()),
    "u8": pa.array([0, None, 255], pa.uint8()),
    "u16": pa.array([0, None, 65535], pa.uint16()),
    "u32": pa.array([0, None, 2**32 - 1], pa.uint32()),
    "u64": pa.array([0, None, 2**64 - 1], pa.uint64()),
    "text": pa.array(["", None, "é"], pa.large_string()),
    "view": pa.array(["", None, "é"], pa.string_view()),
    "bytes": pa.array([b"", None, b"x"], pa.large_binary()),
    "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
    "words": DICTIONARY,
    "day": pa.array([0, None, 86_400_000], pa.date64()),
    "seconds": pa.array([0, None, 5], pa.timestamp("s")),
    "span": pa.array([0, None, 5], pa.duration("ms")),
    "wide": pa.array([Decimal("1.5"), None, Decimal("-2.5")], pa.decimal256(38, 1)),
    "vec": pa.array([[1.0, 2.0], None, [3.0, None]], pa.list_(pa.float32(), 2)),
    "list": pa.array([[1], None, []], pa.large_list(pa.uint8())),
    "deep": pa.StructArray.from_arrays([DICTIONARY, pa.array([1, 2, 3], pa.uint16())], ["a", "b"]),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.uint32())),
    "plain": pa.array([1, None, 3], pa.int64()),
}


def test_the_same_values(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    batch = pa.record_batch(COLUMNS)
    known = spark_schema(batch.schema)
    given = for_spark(batch, known)
    assert given.schema.equals(known)
    for name, column in COLUMNS.items():
        assert [_plain(value) for value in given[name].to_pylist()] == [_plain(value) for value in column.to_pylist()]
    # Spark takes them from a worker.
    rows = spark.range(0, 1, 1, 1).mapInArrow(
        lambda _: iter([given]), from_arrow_schema(known, prefer_timestamp_ntz=True)
    )
    assert rows.where("u64 = 18446744073709551615 AND vec[0] = 3 AND deep.a = 'b' AND half = 2").count() == 1


def _plain(value: object) -> object:
    return getattr(value, "date", lambda: value)() if hasattr(value, "hour") and value.hour == 0 else value


def test_what_is_known_is_left_alone() -> None:
    batch = pa.record_batch({"a": pa.array([1]), "b": pa.array(["x"])})
    assert spark_schema(batch.schema) == batch.schema
    assert for_spark(batch, batch.schema) is batch


@pytest.mark.parametrize("kind", [pa.time32("s"), pa.time64("ns"), pa.decimal256(40, 1), pa.list_(pa.time32("s"))])
def test_what_spark_does_not_know(kind: pa.DataType) -> None:
    with pytest.raises(RefusedError, match="column c has the type"):
        spark_schema(pa.schema([("c", kind)]))


def test_values_that_do_not_fit() -> None:
    batch = pa.record_batch({"c": pa.array([1], pa.timestamp("ns"))})
    with pytest.raises(RefusedError, match="column c has values"):
        for_spark(batch, spark_schema(batch.schema))

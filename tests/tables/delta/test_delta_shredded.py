"""Rewrites of files with shredded variants: the typed part moves as it is, or the file is left to the engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.zorder import zorder
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.replay import full_state
from dv_maintenance.testing.delta_builder import DeltaBuilder

VARIANT = {"name": "v", "type": "variant", "nullable": True, "metadata": {}}


def typed(kind: pa.DataType) -> pa.DataType:
    part = pa.struct([pa.field("value", pa.binary()), pa.field("typed_value", kind)])
    return pa.struct(
        [
            pa.field("metadata", pa.binary(), False),
            pa.field("value", pa.binary()),
            pa.field("typed_value", pa.struct([pa.field("a", part, False)])),
        ]
    )


def values(numbers: range) -> list[Any]:
    """A null, a variant in binary form, typed ones."""
    typed_value = [{"a": {"value": None, "typed_value": n}} if n % 3 else None for n in numbers]
    found = [
        {"metadata": b"m", "value": None if part else b"v%d" % n, "typed_value": part}
        for n, part in zip(numbers, typed_value, strict=True)
    ]
    return [None if n % 5 == 4 else each for n, each in zip(numbers, found, strict=True)]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., DeltaBuilder]:
    def made(*kinds: pa.DataType, on: str = "true") -> DeltaBuilder:
        builder = DeltaBuilder(str(tmp_path / "t")).create(
            pa.schema([("id", pa.int64())]),
            properties={"delta.enableVariantShredding": on},
        )
        base = load_snapshot(builder.storage)
        schema = {**json.loads(base.metadata.schema_string)}
        schema["fields"] = [*schema["fields"], VARIANT]
        metadata = {**base.metadata.to_json(), "schemaString": json.dumps(schema)}
        protocol = base.protocol.to_json()
        for side in ("readerFeatures", "writerFeatures"):
            protocol[side] = [*protocol[side], "variantType", "variantShredding"]
        builder.commit([{"protocol": protocol}, {"metaData": metadata}])
        for number, kind in enumerate(kinds):
            rows = range(100 * number, 100 * number + 100)
            path = tmp_path / "t" / f"part-{number}.parquet"
            data = pa.table(
                [pa.array(rows), pa.array(values(rows), typed(pa.int32())).cast(typed(kind))],
                schema=pa.schema([("id", pa.int64()), ("v", typed(kind))]),
            )
            pq.write_table(data, path, store_schema=False)
            size = path.stat().st_size
            stats = json.dumps({"numRecords": 100})
            add = {"path": path.name, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}
            builder.commit([{"add": {**add, "stats": stats}}])
        return builder

    return made


def rows_of(builder: DeltaBuilder) -> list[Any]:
    snapshot = load_snapshot(builder.storage)
    files = [Path(builder.storage.uri.removeprefix("file://")) / path for path in snapshot.files["path"].to_pylist()]
    found = [row for file in files for row in pq.read_table(file).to_pylist()]
    return sorted(found, key=lambda row: row["id"])


def delete(builder: DeltaBuilder, *paths: str) -> None:
    builder.delete({path: range(0, 100, 2) for path in paths})


def test_the_typed_part_moves_as_it_is(make: Callable[..., DeltaBuilder]) -> None:
    builder = make(pa.int32(), pa.int64())
    before = rows_of(builder)
    delete(builder, "part-0.parquet", "part-1.parquet")
    report = purge(open_table(builder.storage.uri), LocalEngine())
    assert report.verified
    assert rows_of(builder) == before[1::2]
    kinds = []
    for add in full_state(builder.storage, load_snapshot(builder.storage)).adds.to_pylist():
        stored = pq.ParquetFile(Path(builder.storage.uri.removeprefix("file://")) / add["path"])
        kinds.append(stored.schema_arrow.field("v").type)
        assert json.loads(add["stats"])["nullCount"] == {"id": 0, "v": 10}
    assert sorted(map(str, kinds)) == sorted(map(str, [typed(pa.int32()), typed(pa.int64())]))


def test_small_files_are_not_merged(make: Callable[..., DeltaBuilder]) -> None:
    builder = make(pa.int32(), pa.int32())
    assert build_plan(load_snapshot(builder.storage)).steps == ()
    table = open_table(builder.storage.uri)
    before = rows_of(builder)
    zorder(table, LocalEngine(), ["id"])
    assert len(load_snapshot(builder.storage).files) == 1, "they are shredded alike"
    assert rows_of(builder) == before


@pytest.mark.parametrize(
    ("kinds", "on", "match"),
    [
        ((pa.int32(), pa.int64()), "true", "part-0.parquet and part-1.parquet hold variants that are shredded differ"),
        ((pa.uint32(), pa.uint32()), "true", "column v has variants that are shredded as uint32"),
        ((pa.int32(), pa.int32()), "false", "no longer allows"),
    ],
)
def test_what_is_left_to_the_engine(
    make: Callable[..., DeltaBuilder], kinds: tuple[pa.DataType, ...], on: str, match: str
) -> None:
    builder = make(*kinds, on=on)
    version = load_snapshot(builder.storage).version
    with pytest.raises(RefusedError, match=match) as caught:
        zorder(open_table(builder.storage.uri), LocalEngine(), ["id"])
    assert "engine-sql" in str(caught.value)
    assert load_snapshot(builder.storage).version == version


def test_a_missing_file_is_damage(make: Callable[..., DeltaBuilder]) -> None:
    builder = make(pa.int32())
    delete(builder, "part-0.parquet")
    builder.storage.delete(["part-0.parquet"])
    with pytest.raises(DamagedTableError, match=r"part-0\.parquet"):
        purge(open_table(builder.storage.uri), LocalEngine())

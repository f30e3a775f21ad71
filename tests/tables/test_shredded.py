"""Which typed parts of variants a rewrite keeps."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dv_maintenance.errors import RefusedError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.model import LOGICAL, FileKey
from dv_maintenance.tables.shredded import as_stored
from dv_maintenance.tables.work import SourceFile

PLAIN = pa.struct([pa.field("metadata", pa.binary()), pa.field("value", pa.binary())])
ID = "PARQUET:field_id"


def variant(name: str, number: int | None) -> pa.Field:
    ids = {} if number is None else {ID: str(number)}
    return pa.field(name, PLAIN, metadata={LOGICAL: b"variant", **ids})


def file(folder: Path, typed: pa.DataType, number: int | None = None) -> SourceFile:
    kind = pa.struct([*PLAIN, pa.field("typed_value", typed)])
    field = pa.field("v", kind, metadata=None if number is None else {ID: str(number)})
    pq.write_table(pa.table([pa.nulls(2, kind)], schema=pa.schema([field])), folder / "1.parquet")
    return SourceFile(FileKey("1.parquet"), (folder / "1.parquet").as_uri(), 1)


@pytest.mark.parametrize(("name", "own", "stored", "kept"), [
    ("v", None, None, True), ("new", 7, 7, True), ("v", 7, 8, False), ("v", 7, None, True), ("new", 7, None, False)
])  # fmt: skip
def test_a_column_is_found_by_its_id(
    tmp_path: Path, name: str, own: int | None, stored: int | None, kept: bool
) -> None:
    source = file(tmp_path, pa.int64(), stored)
    (found,) = as_stored(Storage(str(tmp_path)), pa.schema([variant(name, own)]), [source])
    assert found.names == [name]
    assert (found.field(0).type.names == ["metadata", "value", "typed_value"]) is kept


def test_types_that_arrow_stores_differently(tmp_path: Path) -> None:
    source = file(tmp_path, pa.list_(pa.struct([pa.field("typed_value", pa.timestamp("ms"))])))
    with pytest.raises(RefusedError, match=r"1\.parquet: column v has variants that are shredded as timestamp\[ms\]"):
        as_stored(Storage(str(tmp_path)), pa.schema([variant("v", None)]), [source])

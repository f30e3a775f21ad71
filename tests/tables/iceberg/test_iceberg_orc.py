"""Tables whose new files are ORC (``write.format.default``): what is written, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from support.iceberg_edits import edit
from support.releases import needs_orc_timestamps, needs_variants
from support.tables import iceberg_table as opened

from dv_maintenance.cli import main
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables.iceberg.rows.bounds import stored_bounds, stored_columns
from dv_maintenance.tables.iceberg.table import IcebergTable
from dv_maintenance.testing.iceberg_builder import IcebergBuilder

ORC = {"write.format.default": "ORC"}
needs_golden = pytest.mark.usefixtures("golden")


def made(
    place: Path, columns: Mapping[str, Any], rows: list[dict[str, Any]], properties: Mapping[str, str] = ORC
) -> IcebergTable:
    """A table with one Parquet file, which lost its first row."""
    builder = IcebergBuilder(place)
    builder.create(columns, properties=properties)
    schema = opened(place).snapshot().schema
    builder.append(pa.Table.from_pylist(rows, schema))
    builder.delete(lambda stored: pc.equal(stored["id"], rows[0]["id"]))
    return opened(place)


def rows_of(table: IcebergTable) -> list[str]:
    """With lineage."""
    snapshot = table.snapshot()
    _, batches = read(table, None, columns=[*snapshot.schema.names, *snapshot.hidden_columns.names])
    return sorted(repr(row) for batch in batches for row in batch.to_pylist())


def purged(table: IcebergTable) -> list[Path]:
    """A purge that changes no row and no lineage; the new files."""
    before, old = rows_of(table), table.snapshot().files["path"].to_pylist()
    report = purge(table, LocalEngine())
    assert report.verified, report.problems
    assert rows_of(table) == before
    return [Path(path) for path in table.snapshot().files["path"].to_pylist() if path not in old]


def attributes(field: pa.Field) -> Any:
    """The attributes of an ORC type, and of those inside it."""
    found = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    inside = [field.type.field(at) for at in range(field.type.num_fields)]
    return (found, [attributes(each) for each in inside]) if inside else found


@needs_golden
@needs_orc_timestamps
def test_types_have_the_attributes_that_java_gives_them(laid_copy: Callable[[str], Path]) -> None:
    table = opened(laid_copy("orc_dv"))
    # A compaction of Spark's, so it has the columns of row lineage.
    theirs = orc.ORCFile(table.snapshot().files["path"][0].as_py()).schema
    assert theirs.names[-2:] == ["_row_id", "_last_updated_sequence_number"]
    (path,) = purged(table)
    ours = orc.ORCFile(path).schema
    for field in theirs:
        # The table was made by a query whose columns were not null.
        text = json.dumps(attributes(ours.field(field.name))), json.dumps(attributes(field))
        wanted, found = (each.replace('.required": "true"', '.required": "false"') for each in text)
        assert found == wanted


EVERY: dict[str, Any] = {
    "id": "int",
    "b": "boolean",
    "l": "long",
    "f": "float",
    "d": "double",
    "small": "decimal(9, 2)",
    "wide": "decimal(38, 10)",
    "day": "date",
    "clock": "time",
    "t": "timestamp",
    "z": "timestamptz",
    "s": "string",
    "u": "uuid",
    "fix": "fixed[3]",
    "bin": "binary",
    "n": "timestamp_ns",
}
ATTRIBUTES = {
    "b": {},
    "l": {"iceberg.long-type": "LONG"},
    "clock": {"iceberg.long-type": "TIME"},
    "t": {"iceberg.timestamp-unit": "MICROS"},
    "n": {"iceberg.timestamp-unit": "NANOS"},
    "u": {"iceberg.binary-type": "UUID"},
    "fix": {"iceberg.binary-type": "FIXED", "iceberg.length": "3"},
    "bin": {"iceberg.binary-type": "BINARY"},
}


OLD = datetime(1500, 2, 28, 23, 59, 59, 999_999, UTC)


def values(number: int) -> dict[str, Any]:
    if number == 4:
        return {"id": 4}
    when = datetime(1971 + number, 2, 3, 4, 5, 6, 700_000)
    return {
        "id": number,
        "b": number % 2 == 0,
        "l": 10**12 * number,
        "f": [0.5, float("nan"), -0.0, float("inf")][number],
        "d": number / 4 - 0.5,
        "small": Decimal(number) + Decimal("0.25"),
        "wide": Decimal(-number) - Decimal("0.0000000001"),
        "day": [date(1, 1, 1), date(1582, 10, 4), date(1582, 10, 15), date(1969, 12, 31)][number],
        "clock": time(number, 59, 59, 999_999),
        "t": [when, datetime(1700, 1, 1), datetime(1969, 12, 31, 23, 59, 59), datetime(2262, 1, 1, 0, 0, 0, 1)][number],
        "z": when.replace(tzinfo=UTC),
        "s": "é" * number + "x" * 20,
        "u": bytes([number]) * 16,
        "fix": bytes([200 + number]) * 3,
        "bin": bytes([number]) * number,
        "n": when,
    }


@needs_orc_timestamps
def test_every_type_comes_back(tmp_path: Path) -> None:
    table = made(tmp_path / "t", EVERY, [values(at) for at in range(5)])
    (path,) = purged(table)
    assert path.suffix == ".orc"
    stored = orc.ORCFile(path)
    assert stored.compression == "ZLIB"
    for name, wanted in ATTRIBUTES.items():
        found = attributes(stored.schema.field(name))
        number = str(list(EVERY).index(name) + 1)
        assert found == {"iceberg.id": number, "iceberg.required": "false", **wanted}
    snapshot = table.snapshot()
    (row,) = snapshot.files.to_pylist()
    assert row["format"] == "orc"
    columns = stored_columns(snapshot, [(name,) for name in EVERY])
    (known,) = stored_bounds(table.layout, snapshot, np.array([0]), columns)
    bounds = {column[0]: each for column, each in known.items()}
    of_days = (date(1582, 10, 4), date(1969, 12, 31))
    assert (bounds["day"].lower, bounds["day"].upper) == tuple((each - date(1970, 1, 1)).days for each in of_days)
    assert (bounds["small"].lower, bounds["small"].upper) == (Decimal("1.25"), Decimal("3.25"))
    assert bounds["f"].lower is None  # a NaN
    assert (bounds["d"].lower, bounds["d"].upper) == (-0.25, 0.25)


@needs_orc_timestamps
def test_nested_values_come_back(tmp_path: Path) -> None:
    field = {"id": 11, "name": "a", "required": False, "type": "int"}
    inner = {"type": "list", "element-id": 12, "element": "string", "element-required": False}
    columns: dict[str, Any] = {
        "id": "int",
        "st": {"type": "struct", "fields": [field, {"id": 13, "name": "in", "required": False, "type": inner}]},
        "arr": {"type": "list", "element-id": 14, "element": "long", "element-required": False},
        "m": {"type": "map", "key-id": 15, "key": "string", "value-id": 16, "value": "double", "value-required": False},
    }  # fmt: skip
    rows: list[dict[str, Any]] = [
        {"id": 0},
        {"id": 1, "st": {"a": 1, "in": ["x", None]}, "arr": [1, None], "m": [("k", 1.5), ("l", None)]},
        {"id": 2, "st": {"a": None, "in": []}, "arr": [], "m": []},
        {"id": 3, "st": None, "arr": None, "m": None},
        {"id": 4, "st": {"a": 2, "in": None}, "arr": [3], "m": [("", 0.0)]},
    ]
    # The last of them is one that Arrow does not write.
    inner = {"type": "struct", "fields": [{"id": 21, "name": "t", "required": False, "type": "timestamptz"}]}
    outer = {"type": "struct", "fields": [{"id": 22, "name": "b", "required": False, "type": inner}]}
    columns["deep"] = {"type": "list", "element-id": 23, "element": outer, "element-required": False}
    for row, deep in zip(rows, ([], [None, {"b": None}], [{"b": {"t": None}}], [{"b": {"t": OLD}}], None), strict=True):
        row["deep"] = deep
    (path,) = purged(made(tmp_path / "t", columns, rows))
    (_, [[_, [[_, [timestamp]]]]]) = attributes(orc.ORCFile(path).schema.field("deep"))
    assert timestamp == {"iceberg.id": "21", "iceberg.required": "false", "iceberg.timestamp-unit": "MICROS"}
    found, inside = attributes(orc.ORCFile(path).schema.field("st"))
    assert found["iceberg.id"] == "2"
    assert inside[1][1][0]["iceberg.id"] == "12"


def by_pyiceberg(place: Path) -> list[tuple[str, int]]:
    tables = pytest.importorskip("pyiceberg.table")
    number = (place / "metadata" / "version-hint.text").read_text()
    found = tables.StaticTable.from_metadata(str(place / "metadata" / f"v{number}.metadata.json")).scan().to_arrow()
    return sorted(((row["v"], row["id"]) for row in found.to_pylist()), key=lambda row: (row[1] != 50, row[1]))


SIMPLE = {"id": "int", "v": "string"}
SOME = [{"id": at, "v": f"v{at}"} for at in range(20)]


def test_files_of_both_formats_become_the_one_that_the_table_wants(tmp_path: Path) -> None:
    table = made(tmp_path / "t", SIMPLE, SOME)
    assert [path.suffix for path in purged(table)] == [".orc"]
    IcebergBuilder(tmp_path / "t").append(pa.table({"id": pa.array([50], pa.int32()), "v": ["new"]}))
    before = rows_of(table)
    report = maintain(table, LocalEngine(), Policy())
    assert report.verified
    (row,) = table.snapshot().files.to_pylist()
    assert (row["format"], row["record_count"]) == ("orc", 20)
    assert rows_of(table) == before
    assert by_pyiceberg(tmp_path / "t") == [("new", 50), *((f"v{at}", at) for at in range(1, 20))]
    edit(tmp_path / "t", lambda body: body["properties"].update({"write.format.default": "parquet"}))
    IcebergBuilder(tmp_path / "t").append(pa.table({"id": pa.array([60], pa.int32()), "v": ["newer"]}))
    before = rows_of(table)
    assert maintain(table, LocalEngine(), Policy()).verified
    (row,) = table.snapshot().files.to_pylist()
    assert (row["format"], row["record_count"]) == ("parquet", 21)
    assert pq.read_schema(row["path"]).names == ["id", "v", "_row_id", "_last_updated_sequence_number"]
    assert rows_of(table) == before


@pytest.mark.parametrize(
    ("stated", "policy", "wanted"),
    [
        (None, None, "ZLIB"),
        (None, "zstd", "ZSTD"),
        ("snappy", "zstd", "SNAPPY"),
        ("NONE", None, "UNCOMPRESSED"),
        ("lz4", None, "LZ4"),
    ],
)
def test_the_codec_of_the_table(tmp_path: Path, stated: str | None, policy: str | None, wanted: str) -> None:
    properties = {**ORC, **({"write.orc.compression-codec": stated} if stated else {})}
    table = made(tmp_path / "t", SIMPLE, SOME, properties)
    report = maintain(table, LocalEngine(), Policy(compression=policy, max_deleted_ratio=0.0))
    assert report.verified
    (path,) = table.snapshot().files["path"].to_pylist()
    assert orc.ORCFile(path).compression == wanted


def test_plans_and_dry_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path / "t", SIMPLE, SOME)
    table = str(tmp_path / "t")
    for verb in (["plan", table], ["purge", table, "--engine", "local", "--dry-run"], ["fsck", table]):
        assert main(verb) == 0
        assert not [*(tmp_path / "t").rglob("*.orc")]
    capsys.readouterr()
    assert main(["apply", table, "--engine", "local", "--set", "compression=gzip", "--set", "max_deleted_ratio=0"]) == 3
    assert "does not write ORC files with the compression 'gzip'" in capsys.readouterr().err
    assert main(["purge", table, "--engine", "local"]) == 0
    assert main(["fsck", table]) == 0


def test_stripes_are_where_files_may_be_split(tmp_path: Path) -> None:
    fastavro = pytest.importorskip("fastavro")
    noise = [{"id": at, "v": f"{at * 2654435761 % 2**32:032b}" * 8} for at in range(20_000)]
    table = made(tmp_path / "t", SIMPLE, noise, ORC)
    assert maintain(table, LocalEngine(), Policy(target_file_size=1 << 18, max_deleted_ratio=0.0)).verified
    snapshot = table.snapshot()
    found = {}
    for each in snapshot.entries.by_manifest:
        with (tmp_path / "t" / table.path_of(each.path)).open("rb") as file:
            entries = [entry for entry in fastavro.reader(file) if entry["status"] == 1]
        found |= {entry["data_file"]["file_path"]: entry["data_file"]["split_offsets"] for entry in entries}
    for path in snapshot.files["path"].to_pylist():
        stored = orc.ORCFile(path)
        assert len(found[path]) == stored.nstripes
        assert found[path][0] == 3
        assert found[path] == sorted(set(found[path]))
    assert max(map(len, found.values())) > 1


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        ("timestamp", datetime(1969, 12, 31, 23, 59, 59, 1000), "in the last second before 1970"),
        ("timestamptz", datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), "in the last second before 1970"),
    ],
)
@needs_orc_timestamps
def test_values_that_other_readers_would_misread_are_refused(
    tmp_path: Path, column: str, value: datetime, what: str
) -> None:
    table = made(tmp_path / "t", {"id": "int", "t": column}, [{"id": 1}, {"id": 2, "t": value}])
    version = table.version()
    with pytest.raises(RefusedError, match=what) as raised:
        purge(table, LocalEngine())
    assert "write.format.default of Iceberg's" in str(raised.value.next_step)
    assert table.version() == version
    assert not [*(tmp_path / "t").rglob("*.orc")]


REFUSED: list[tuple[Any, dict[str, str], str]] = [
    ("geometry", {}, "the column v holds shapes in files other than Parquet"),
    ("string", {"write.orc.compression-codec": "brotli"}, "must have the compression brotli"),
    ("string", {"read.orc.vectorization.enabled": "true"}, "would misread the row ids in new ORC files"),
]


@pytest.mark.parametrize("operation", ["rewrite", "update", "merge"])
@pytest.mark.parametrize(("kind", "properties", "reason"), REFUSED)
def test_what_is_not_written(
    tmp_path: Path, kind: Any, properties: dict[str, str], reason: str, operation: str
) -> None:
    builder = IcebergBuilder(tmp_path / "t")
    builder.create({"id": "int", "v": kind}, properties={**ORC, **properties})
    table = opened(tmp_path / "t")
    with pytest.raises(RefusedError, match=reason):
        table.check_writable(table.snapshot(), operation)
    table.check_writable(table.snapshot(), "delete")


@needs_golden
@needs_variants
def test_variants_are_not_written_to_orc_files(laid_copy: Callable[[str], Path]) -> None:
    place = laid_copy("variant_col")
    edit(place, lambda body: body["properties"].update(ORC))
    with pytest.raises(RefusedError, match="variants in ORC files"):
        purge(opened(place), LocalEngine())


def test_row_ids_are_no_matter_before_version_3(laid_copy: Callable[[str], Path]) -> None:
    place = laid_copy("v2_upgraded")
    edit(place, lambda body: body.update({"format-version": 2}))
    edit(place, lambda body: body["properties"].update({**ORC, "read.orc.vectorization.enabled": "true"}))
    table = opened(place)
    table.check_writable(table.snapshot(), "rewrite")

"""ORC and Avro data files: every type as it was written, by deletion vectors and kinds, evolved, and damaged."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pyorc
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import orc
from pyspark.sql import SparkSession
from support.avro_data import avro_writer
from support.avro_files import block, header, record_bytes
from support.paimon_writer import DataFile, PaimonWriter
from support.releases import needs_orc_timestamps, skip_without_orc_timestamps

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.avro import reader as avro_file
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.orc import reader as orc_file
from dv_maintenance.engine.orc.by_rows import _converters
from dv_maintenance.engine.orc.near_epoch import zone_of
from dv_maintenance.engine.parquet.int96 import BYTES, in_bytes, marked, nanoseconds, stored_batch
from dv_maintenance.engine.parquet.output import ParquetOutput
from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.files import orc_tail
from dv_maintenance.files.parquet_footer import footer_bytes, open_parquet_file, with_bytes
from dv_maintenance.files.parquet_groups import Footer
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.tables.paimon.rows.types import arrow_type, parse_type

ROW = {
    "type": "ROW",
    "fields": [{"id": 90, "name": "x", "type": "INT"}, {"id": 91, "name": "a.b", "type": "STRING"}],
}
FORMATS = ["orc", "avro"]


def orc_writer(table: pa.Table, path: Path) -> None:
    """As Paimon's schema for ORC has it: no times, timestamps to the nanosecond."""
    fields = [pa.int32() if pa.types.is_time(each.type) else each.type for each in table.schema]
    plain = [column.cast(kind) for column, kind in zip(table.columns, fields, strict=True)]
    orc.write_table(pa.table(plain, names=table.column_names), str(path), stripe_size=1024)


def add(table: PaimonWriter, kind: str, rows: list[dict[str, Any]], **entry: Any) -> DataFile:
    write: Callable[[pa.Table, Path], None] = orc_writer
    if kind == "avro":
        write = avro_writer(table.columns, codec=entry.pop("codec", "null"), sync_interval=entry.pop("block", 100))
    return table.append(rows, suffix=f".{kind}", write=write, **entry)


def rows(table: PaimonWriter, columns: list[str] | None = None, version: int | None = None) -> list[dict[str, Any]]:
    _, batches = read(open_table(str(table.path)), version, columns)
    return [row for batch in batches for row in batch.to_pylist()]


# -- types --------------------------------------------------------------------------------------------------------

DAY = datetime(2026, 3, 1, 23, 59, 59, 123000)
TYPES: list[tuple[Any, Any]] = [
    ("BOOLEAN", True),
    ("TINYINT", -128),
    ("SMALLINT", 32767),
    ("INT", -(2**31)),
    ("BIGINT", 2**63 - 1),
    ("FLOAT", 0.5),
    ("DOUBLE", 0.1),
    ("DECIMAL(5, 2)", Decimal("-123.45")),
    ("DECIMAL(38, 10)", Decimal("-1234567890123456789012345678.0123456789")),
    ("STRING", "añ😀"),
    ("VARCHAR(4)", "abc"),
    ("BYTES", b"\0\xff"),
    ("DATE", date(1969, 12, 31)),
    ("TIME(3)", time(23, 59, 59, 999000)),
    ("TIMESTAMP(3)", DAY),
    ("TIMESTAMP(6)", DAY.replace(microsecond=123456)),
    ("TIMESTAMP(6)", datetime(1750, 1, 1, 0, 0, 0, 1)),
    ("TIMESTAMP_LTZ(3)", DAY.replace(tzinfo=UTC)),
    ("TIMESTAMP_LTZ(6)", DAY.replace(microsecond=1, tzinfo=UTC)),
    ({"type": "ARRAY", "element": "INT"}, [1, None, 3]),
    ({"type": "ARRAY", "element": {"type": "ARRAY", "element": "STRING"}}, [["a"], [], None]),
    ({"type": "ARRAY", "element": ROW}, [{"x": 1, "a.b": "y"}, None]),
    ({"type": "MAP", "key": "STRING NOT NULL", "value": "DECIMAL(4, 1)"}, [("k", Decimal("1.5")), ("l", None)]),
    ({"type": "MAP", "key": "INT NOT NULL", "value": "STRING"}, [(1, "a"), (2, None)]),
    ({"type": "MAP", "key": "DATE NOT NULL", "value": ROW}, [(date(2026, 1, 1), {"x": None, "a.b": "z"})]),
    ({"type": "MULTISET", "element": "STRING NOT NULL"}, [("a", 2)]),
    ({"type": "MULTISET", "element": "BIGINT NOT NULL"}, [(7, 2)]),
    (ROW, {"x": None, "a.b": "t"}),
]


@pytest.mark.parametrize("kind", FORMATS)
def test_every_type(tmp_path: Path, kind: str) -> None:
    skip_without_orc_timestamps(kind)
    columns = {f"c.{index}": type_ for index, (type_, _) in enumerate(TYPES)}
    table = PaimonWriter(tmp_path / "t", columns)
    some: dict[str, Any] = {f"c.{index}": value for index, (_, value) in enumerate(TYPES)}
    none = dict.fromkeys(columns)
    add(table, kind, [none, some, none, some])
    assert rows(table) == [none, some, none, some]
    # Chosen ones come alone, in the order asked for.
    names = list(columns)[::-3]
    assert rows(table, names)[1] == {name: some[name] for name in names}
    assert list(rows(table, names)[1]) == names
    _, batches = read(open_table(str(table.path)))
    (batch,) = batches
    assert batch.schema.types == [arrow_type(parse_type(type_)) for type_ in columns.values()]


@pytest.mark.parametrize("kind", FORMATS)
def test_far_timestamps(tmp_path: Path, kind: str) -> None:
    skip_without_orc_timestamps(kind)
    table = PaimonWriter(tmp_path / "t", {"id": "INT", "t": "TIMESTAMP(3)"})
    far = [{"id": 1, "t": datetime(9999, 12, 31)}, {"id": 2, "t": datetime(1, 1, 1)}]
    add(table, kind, far)
    assert rows(table) == far
    assert rows(table, ["id"]) == [{"id": 1}, {"id": 2}]
    assert rows(table, ["t"]) == [{"t": row["t"]} for row in far]


def test_an_old_pyarrow_reads_no_timestamps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orc_file, "range_is_checked", lambda: False)
    table = PaimonWriter(tmp_path / "t", {"id": "INT", "t": {"type": "ARRAY", "element": "TIMESTAMP(3)"}})
    add(table, "orc", [{"id": 1, "t": [DAY]}])
    with pytest.raises(RefusedError, match="pyarrow 26"):
        rows(table)
    assert rows(table, ["id"]) == [{"id": 1}]


DELETES = {"deletion-vectors.enabled": "true"}


def taken_for_lzo(monkeypatch: pytest.MonkeyPatch) -> str:
    """A codec that only libraries unpack from now on. None here writes LZO."""
    monkeypatch.delitem(orc_tail._CODECS, 4)
    return "lz4"


@needs_orc_timestamps
@pytest.mark.parametrize(
    ("codec", "pyorc", "readable"),
    [
        ("uncompressed", False, True),
        ("zlib", False, True),
        ("zstd", False, True),
        ("lz4", False, True),
        ("snappy", False, True),
        ("lzo", False, False),
        ("lzo", True, True),
    ],
)
def test_time_zones_of_orc_writers(
    tmp_path: Path, codec: str, pyorc: bool, readable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timestamps with a local time zone that were not written in UTC may be shifted."""
    if not pyorc:
        monkeypatch.setitem(sys.modules, "pyorc", None)
    if codec == "lzo":
        codec = taken_for_lzo(monkeypatch)

    def write(moved: bool) -> Callable[[pa.Table, Path], None]:
        def to(found: pa.Table, path: Path) -> None:
            orc.write_table(found, str(path), compression=codec)
            if moved:
                data = path.read_bytes()
                assert data.count(b"GMT") == 1
                path.write_bytes(data.replace(b"GMT", b"EST"))

        return to

    table = PaimonWriter(tmp_path / "t", {"id": "INT", "t": "TIMESTAMP_LTZ(3)", "n": "TIMESTAMP(3)"})
    row = {"id": 1, "t": DAY.replace(tzinfo=UTC), "n": DAY}
    table.append([row], suffix=".orc", write=write(moved=False))
    if readable:
        assert rows(table) == [row]
    else:
        with pytest.raises(RefusedError, match="the file does not name"):
            rows(table)
    assert rows(table, ["id", "n"]) == [{"id": 1, "n": DAY}]
    if codec == "uncompressed":
        table.append([row], suffix=".orc", write=write(moved=True))
        with pytest.raises(RefusedError, match="the time zone EST"):
            rows(table)
        # Times of the clock are those that were written, wherever that was.
        assert rows(table, ["n"]) == [{"n": DAY}, {"n": DAY}]
    exact = PaimonWriter(tmp_path / "e", table.columns, options={"orc.timestamp-ltz.legacy.type": "false"})
    exact.append([row], suffix=".orc", write=write(moved=codec == "uncompressed"))
    assert rows(exact, ["id", "t"]) == [{"id": 1, "t": row["t"]}]


@needs_orc_timestamps
def test_timestamps_near_1970_of_other_time_zones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java and C++ round the seconds of such to different sides: here the file of C++ is read as in Java."""
    zone = b"EST"

    def write(found: pa.Table, path: Path) -> None:
        orc_writer(found, path)
        path.write_bytes(path.read_bytes().replace(b"GMT", zone))

    kind = {"type": "ARRAY", "element": ROW | {"fields": [{"id": 95, "name": "t", "type": "TIMESTAMP(6)"}]}}
    for when, expected in [
        (datetime(1969, 12, 31, 20, 0, 0, 1), datetime(1969, 12, 31, 20, 0, 0, 1)),
        (datetime(1969, 12, 31, 20, 0, 0, 5000), datetime(1969, 12, 31, 20, 0, 1, 5000)),
        (datetime(1969, 12, 31, 18, 0, 0, 5000), datetime(1969, 12, 31, 18, 0, 0, 5000)),
        (datetime(1970, 1, 1, 3, 0, 0, 999000), datetime(1970, 1, 1, 3, 0, 0, 999000)),
        (datetime(1970, 1, 1), datetime(1970, 1, 1)),
        (datetime(1970, 1, 3, 0, 0, 0, 1), datetime(1970, 1, 3, 0, 0, 0, 1)),
        (None, None),
    ]:
        table = PaimonWriter(tmp_path / str(when), {"id": "INT", "l": kind})
        table.append([{"id": 1, "l": [{"t": when}]}, {"id": 2, "l": None}], suffix=".orc", write=write)
        assert rows(table) == [{"id": 1, "l": [{"t": expected}]}, {"id": 2, "l": None}]
    # Without pyorc, nothing reads the zone of such a file.
    monkeypatch.setitem(sys.modules, "pyorc", None)
    codec = taken_for_lzo(monkeypatch)
    table = PaimonWriter(tmp_path / "t", {"id": "INT", "l": kind})
    row = {"id": 1, "l": [{"t": datetime(1970, 1, 1, 0, 0, 0, 1)}]}
    table.append([row], suffix=".orc", write=lambda found, path: orc.write_table(found, path, compression=codec))
    with pytest.raises(RefusedError, match="before 1970 or within a day of it"):
        rows(table)
    assert rows(table, ["id"]) == [{"id": 1}]
    assert [zone_of(names) for names in (None, frozenset({"UTC", "EST"}), frozenset({"no/zone"}))] == [None] * 3


@needs_orc_timestamps
def test_nanoseconds(tmp_path: Path) -> None:
    kind = pa.timestamp("ns")
    table = PaimonWriter(tmp_path / "t", {"id": "INT", "t": "TIMESTAMP(9)"})
    table.append([{"id": 1, "t": 1_772_409_599_123_456_789}], suffix=".orc", write=orc_writer)
    _, batches = read(open_table(str(table.path)))
    (batch,) = batches
    assert batch.column("t") == pa.array([1_772_409_599_123_456_789], kind)
    add(table, "avro", [{"id": 2, "t": None}])
    with pytest.raises(RefusedError, match="nanoseconds"):
        rows(table)
    assert rows(table, ["id"]) == [{"id": 1}, {"id": 2}]


def test_nanoseconds_of_parquet_files(tmp_path: Path) -> None:
    """Paimon stores them in INT96, other timestamps not."""
    nanos = "TIMESTAMP(9)"
    row = {"type": "ROW", "fields": [{"id": 90, "name": "a", "type": "INT"}, {"id": 91, "name": "t", "type": nanos}]}
    columns = {"u": "TIMESTAMP(6)", "t": nanos, "l": {"type": "ARRAY", "element": row}, "r": row}
    table = PaimonWriter(tmp_path / "t", columns)
    schema = pa.schema([(name, arrow_type(parse_type(kind))) for name, kind in columns.items()])
    number = 2**63 - 1 - 10**18
    some = [None if at % 7 == 0 else number // 200 * (at - 100) - at for at in range(200)]
    far = datetime(9999, 12, 31)
    values = {
        "u": pa.array([far] * 200, pa.timestamp("us")),
        "t": pa.array(some, pa.timestamp("ns")),
        "l": pa.array([None if each is None else [None, {"a": 1, "t": each}] for each in some], schema.field("l").type),
        "r": pa.array([{"a": at, "t": each} for at, each in enumerate(some)], schema.field("r").type),
    }
    found = pa.table(values, schema)

    def write(_: pa.Table, path: Path) -> None:
        pq.write_table(found, path, row_group_size=70, use_deprecated_int96_timestamps=True)

    table.append([dict.fromkeys(columns)] * 200, write=write)
    _, batches = read(open_table(str(table.path)))
    assert pa.Table.from_batches(batches).cast(found.schema) == found
    found = found.set_column(1, "t", found["u"])
    table.append([dict.fromkeys(columns)] * 200, write=write)
    with pytest.raises(RefusedError, match="column t holds a timestamp with nanoseconds before 1677 or after 2262"):
        rows(table)
    assert rows(table, ["u"]) == [{"u": far}] * 400


# -- rows ---------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    count=st.integers(1, 400),
    deleted=st.sets(st.integers(0, 399)),
    kind=st.sampled_from(FORMATS),
    codec=st.sampled_from(["null", "deflate"]),
    bytes_of_block=st.sampled_from([1, 200, 16000]),
    rows_at_once=st.sampled_from([1, 50, 8192]),
)
def test_deletion_vectors_go_by_position(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    deleted: set[int],
    kind: str,
    codec: str,
    bytes_of_block: int,
    rows_at_once: int,
) -> None:
    table = PaimonWriter(tmp_path_factory.mktemp("t") / "t")
    more = {} if kind == "orc" else {"codec": codec, "block": bytes_of_block}
    file = add(table, kind, [{"id": each, "v": "x" * (each % 50)} for each in range(count)], **more)
    deleted = {each for each in deleted if each < count}
    if deleted:
        table.delete({file: deleted})
    left = [each for each in range(count) if each not in deleted]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avro_file, "_ROWS", rows_at_once)
        assert [row["id"] for row in rows(table, ["id"])] == left
        assert rows(table, ["v"])[:3] == [{"v": "x" * (each % 50)} for each in left[:3]]


@pytest.mark.deep
def test_rows_are_deleted(tmp_path: Path, spark: SparkSession) -> None:
    table = PaimonWriter(tmp_path / "t")
    for kind in FORMATS:
        add(table, kind, [{"id": each, "v": str(each % 3)} for each in range(9)])
    assert delete(open_table(str(table.path)), spark, "v = '1'").rows_deleted == 6
    assert [row["id"] for row in rows(table)] == [0, 2, 3, 5, 6, 8] * 2


@pytest.mark.parametrize("kind", FORMATS)
def test_kinds_of_rows(tmp_path: Path, kind: str) -> None:
    options = {"bucket": "1", "deletion-vectors.enabled": "true"}
    table = PaimonWriter(tmp_path / "t", {"id": "INT NOT NULL", "v": "STRING"}, primary_keys=["id"], options=options)
    found = [{"id": each, "v": None} for each in range(5)]
    file = add(table, kind, found, level=4, kinds=[0, 3, 2, 1, 0], _DELETE_ROW_COUNT=2)
    table.delete({file: [4]})
    assert [row["id"] for row in rows(table)] == [0, 2]


@pytest.mark.parametrize("kind", FORMATS)
def test_columns_are_the_same_by_id(tmp_path: Path, kind: str) -> None:
    table = PaimonWriter(tmp_path / "t", {"id": "INT", "a": "STRING", "r": ROW, "d": "DECIMAL(5, 1)"})
    add(table, kind, [{"id": 1, "a": "one", "r": {"x": 1, "a.b": "s"}, "d": Decimal("-1.5")}])
    wider = {
        "type": "ROW",
        "fields": [{"id": 91, "name": "y", "type": "STRING"}, {"id": 92, "name": "x", "type": "INT"}],
    }
    table.alter({"a": "DOUBLE", "r": wider, "id": "BIGINT", "d": "DECIMAL(9, 3)"}, {"a": "nowhere"})
    add(table, kind, [{"id": 2, "a": 0.5, "r": {"y": None, "x": 7}, "d": None}])
    assert rows(table) == [
        {"a": None, "r": {"y": "s", "x": None}, "id": 1, "d": Decimal("-1.500")},
        {"a": 0.5, "r": {"y": None, "x": 7}, "id": 2, "d": None},
    ]
    assert rows(table, ["a"]) == [{"a": None}, {"a": 0.5}]


@pytest.mark.parametrize("kind", FORMATS)
def test_files_of_several_formats_in_a_partitioned_table(tmp_path: Path, kind: str) -> None:
    table = PaimonWriter(tmp_path / "t", {"p": "STRING", "id": "INT"}, ["p"])
    add(table, kind, [{"p": "a", "id": 1}], partition=("a",))
    table.append([{"p": "b", "id": 2}], ("b",))
    assert rows(table) == [{"p": "a", "id": 1}, {"p": "b", "id": 2}]
    assert rows(table, ["p"]) == [{"p": "a"}, {"p": "b"}]


# -- damage -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_other_rows_than_the_manifest_says(tmp_path: Path, kind: str) -> None:
    for count in (1, 3):
        table = PaimonWriter(tmp_path / f"t{count}")
        add(table, kind, [{"id": 1, "v": "x"}, {"id": 2, "v": "y"}], _ROW_COUNT=count)
        with pytest.raises(DamagedTableError, match=r"(has|holds) 2 rows"):
            rows(table)


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_files_are_reported(tmp_path: Path, kind: str) -> None:
    """Whatever byte is changed: the number of rows is the same, or the file is reported as damaged."""
    table = PaimonWriter(tmp_path / "t", {"id": "INT", "v": "BYTES"})
    add(
        table,
        kind,
        [{"id": each, "v": f"v{each}".encode()} for each in range(20)],
        **({"block": 30} if kind == "avro" else {}),
    )
    (path,) = table.path.glob(f"bucket-0/*.{kind}")
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        try:
            assert len(rows(table)) == 20
        except (DamagedTableError, RefusedError) as error:
            assert path.name in str(error)  # noqa: PT017
    for cut in (0, 3, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(DamagedTableError, match=path.name):
            rows(table)
    path.unlink()
    with pytest.raises(DamagedTableError, match="does not exist"):
        rows(table)


@pytest.mark.parametrize("codec", ["ZLIB", "SNAPPY", "LZ4", "LZO"])
def test_maps_with_a_null_key(tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paimon writes them, and Arrow's library ends the process when it reads one."""
    ints = {"type": "MAP", "key": "INT", "value": "INT"}
    columns = {"id": "INT", "a": {"type": "ARRAY", "element": ints}, "m": ints, "n": ints}
    kind = taken_for_lzo(monkeypatch).upper() if codec == "LZO" else codec

    def write(table: pa.Table, path: Path) -> None:
        numbers = pyorc.Map(pyorc.Int(), pyorc.Int())
        schema = pyorc.Struct(id=pyorc.Int(), a=pyorc.Array(numbers), m=numbers, n=numbers)
        with path.open("wb") as file, pyorc.Writer(file, schema, compression=pyorc.CompressionKind[kind]) as writer:
            writer.writerows([(1, [{1: None}], {2: 1, None: 2}, {3: None}), (2, None, None, None)])

    table = PaimonWriter(tmp_path / "t", columns)
    table.append([dict.fromkeys(columns)] * 2, suffix=".orc", write=write)
    assert rows(table, ["id", "n", "a"])[0] == {"id": 1, "n": [(3, None)], "a": [[(1, None)]]}
    with pytest.raises(RefusedError, match="holds maps with a null key"):
        rows(table)
    monkeypatch.setitem(sys.modules, "pyorc", None)
    with pytest.raises(RefusedError, match="pyorc" if codec == "LZO" else "holds maps with a null key"):
        rows(table)


def test_maps_with_a_null_key_in_avro(tmp_path: Path) -> None:
    """Paimon writes and reads such keys if they are not text."""
    optional = ["null", "int"]
    entry = {"type": "record", "name": "e", "fields": [{"name": each, "type": optional} for each in ("key", "value")]}
    maps = {"type": "array", "items": entry, "logicalType": "map"}
    fields = [{"name": "id", "type": optional}, {"name": "m", "type": ["null", maps]}]

    def write(_: pa.Table, path: Path) -> None:
        with path.open("wb") as file:
            rows = [{"id": 1, "m": [{"key": None, "value": 1}]}, {"id": 2, "m": None}]
            fastavro.writer(file, {"type": "record", "name": "r", "fields": fields}, rows)

    columns = {"id": "INT", "m": {"type": "MAP", "key": "INT", "value": "INT"}}
    table = PaimonWriter(tmp_path / "t", columns, options=DELETES)
    name = table.append([dict.fromkeys(columns)] * 2, suffix=".avro", write=write)
    assert rows(table, ["id"]) == [{"id": 1}, {"id": 2}]
    with pytest.raises(RefusedError, match=r"\.avro can't be read: it holds maps with a null key"):
        rows(table)
    table.delete({name: [1]})
    with pytest.raises(RefusedError, match="it holds maps with a null key"):
        purge(open_table(str(table.path)), LocalEngine())


def stored_in_orc(path: Path) -> list[Any]:
    """The rows of a file, with seconds and nanoseconds of timestamps."""
    with path.open("rb") as file:
        return [*pyorc.Reader(file, converters=_converters(pyorc))]


def by_pyorc(values: list[Any], *types: Any, names: str = "itm") -> Any:
    """Writes these rows, whatever the table's are."""

    def write(_: pa.Table, path: Path) -> None:
        schema = pyorc.Struct(**dict(zip(names, types, strict=True)))
        with path.open("wb") as file, pyorc.Writer(file, schema, converters=_converters(pyorc)) as writer:
            writer.writerows(values)

    return write


@needs_orc_timestamps
@pytest.mark.parametrize("seconds", [9_223_372_036_855, -9_223_372_036_855, 2**62, 2**32 * 86_400 + 1000])
def test_timestamps_that_no_number_holds(tmp_path: Path, seconds: int) -> None:
    table = PaimonWriter(tmp_path / "t", {"i": "INT", "t": "TIMESTAMP(9)"}, options={**DELETES, "file.format": "orc"})
    write = by_pyorc([(1, (seconds, 0)), (2, None)], pyorc.Int(), pyorc.Timestamp(), names="it")
    name = table.append([dict.fromkeys("it")] * 2, suffix=".orc", write=write)
    assert rows(table, ["i"]) == [{"i": 1}, {"i": 2}]
    with pytest.raises(RefusedError, match="more than 292,000 years from now"):
        rows(table)
    table.delete({name: [1]})
    with pytest.raises(RefusedError, match="more than 292,000 years from now"):
        purge(open_table(str(table.path)), LocalEngine())


@needs_orc_timestamps
def test_what_arrow_has_no_type_for_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From ORC and Parquet files into ORC files: nanoseconds of any year, and maps with a null key."""
    nanos = {"type": "ROW", "fields": [{"id": 90, "name": "n", "type": "TIMESTAMP(9)"}]}
    columns = {"i": "INT", "t": "TIMESTAMP(9)", "m": {"type": "MAP", "key": "STRING", "value": nanos}}
    table = PaimonWriter(tmp_path / "t", columns, options={"file.format": "orc", "bucket": "-1"} | DELETES)
    far, near = (-62_135_596_800, 123_456_789), (1_700_000_000, 1)
    values = [
        (1, far, {"b": (far,), None: None, "a": (None,)}),
        (2, None, {"x": (near,)}),
        (3, None, None),
        (4, near, {None: (near,)}),
        (5, (253_402_300_799, 999_999_999), {}),
    ]
    entries = pyorc.Map(pyorc.String(), pyorc.Struct(n=pyorc.Timestamp()))
    write = by_pyorc(values, pyorc.Int(), pyorc.Timestamp(), entries)
    first = table.append([dict.fromkeys(columns)] * 5, suffix=".orc", write=write)
    stored = marked(pa.schema([pa.field("i", pa.int32()), pa.field("t", pa.timestamp("ns"))]))
    # As other writers than Paimon's have it: the time of day is positive.
    time = struct.pack("<qi", 3600 * 10**9 + 1, 2_440_588 - 365_000)

    def write_parquet(_: pa.Table, path: Path) -> None:
        with path.open("wb") as sink:
            output = ParquetOutput(sink, stored, store_schema=False)
            output.write([pa.record_batch([pa.array([6], pa.int32()), pa.array([time], BYTES)], schema=stored)])
            output.close()

    table.append([dict.fromkeys(columns)], write=write_parquet)
    table.delete({first: [1]})
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pyorc", None)
        with pytest.raises(RefusedError, match=r"maps .* pyorc") as caught:
            maintain(open_table(str(table.path)), LocalEngine(), Policy(min_input_files=2))
        assert "dv-maintenance[orc]" in str(caught.value.next_step)
    assert maintain(open_table(str(table.path)), LocalEngine(), Policy(min_input_files=2)).verified
    (path,) = open_table(str(table.path)).snapshot().files["path"].to_pylist()
    found = stored_in_orc(table.path / path)
    assert found == [values[0], *values[2:], (6, (-365_000 * 86_400 + 3600, 1), None)]
    assert [*found[0][2]] == ["b", None, "a"], "in their order"


def test_keys_that_python_takes_for_one(tmp_path: Path) -> None:
    columns = {"i": "INT", "t": {"type": "ARRAY", "element": {"type": "MAP", "key": "DOUBLE", "value": "INT"}}}
    table = PaimonWriter(tmp_path / "t", columns, options={"file.format": "orc", "bucket": "-1"} | DELETES)

    class Key(float):
        """A number that is equal to no other one."""

        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            return self is other

    values = [(1, [{Key(0.0): 1, Key(-0.0): 2, None: 3}]), (2, None)]
    write = by_pyorc(values, pyorc.Int(), pyorc.Array(pyorc.Map(pyorc.Double(), pyorc.Int())), names="it")
    file = table.append([dict.fromkeys(columns)] * 2, suffix=".orc", write=write)
    table.delete({file: [1]})
    with pytest.raises(RefusedError, match="does not tell apart"):
        purge(open_table(str(table.path)), LocalEngine())


DAMAGED: list[tuple[Any, list[Any], str]] = [
    ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}, [b"\x7f\xff"], "more than 3 digits"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 300, "scale": 1}, [b"\x7f"], "decimal of 300 digits"),
    (["null", "int", "string"], [1], "more than null and one type"),
    ("long", [2**40], "v"),
]


@pytest.mark.parametrize(("kind", "values", "why"), DAMAGED)
def test_avro_that_paimon_does_not_write(tmp_path: Path, kind: Any, values: list[Any], why: str) -> None:
    def write(_: pa.Table, path: Path) -> None:
        schema = {"type": "record", "name": "r", "fields": [{"name": "v", "type": kind}]}
        plain = json.loads(json.dumps(schema).replace('"logicalType"', '"was"'))
        records = record_bytes(plain, [{"v": value} for value in values])
        path.write_bytes(header(schema) + block(len(values), records))

    table = PaimonWriter(tmp_path / "t", {"v": "INT" if kind == "long" else "DECIMAL(3, 1)"})
    table.append([{"v": None}], suffix=".avro", write=write)
    with pytest.raises(DamagedTableError, match=why):
        rows(table)


def test_a_format_that_is_not_known(tmp_path: Path) -> None:
    table = PaimonWriter(tmp_path / "t")
    table.append([{"id": 1, "v": "x"}], suffix=".lance")
    with pytest.raises(RefusedError, match="is not a Parquet, ORC or Avro file"):
        rows(table)


@pytest.mark.parametrize("copied", [False, True])
def test_nanoseconds_in_new_parquet_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: bool) -> None:
    """In INT96 as Paimon writes it, bytes and all; row groups that Paimon wrote are copied beside them."""
    nanos = "TIMESTAMP(9)"
    row = {"type": "ROW", "fields": [{"id": 90, "name": "t", "type": nanos}]}
    columns = {"id": "INT", "u": "TIMESTAMP(6)", "t": nanos, "l": {"type": "ARRAY", "element": row}, "r": row}
    columns |= {"m": {"type": "MAP", "key": "INT", "value": nanos}}
    table = PaimonWriter(tmp_path / "t", columns)
    rows_of = 110_000 if copied else 100
    step = 10**18 // rows_of * 4
    times = [None if at % 7 == 0 else (at - rows_of // 2) * step + at for at in range(rows_of)]
    fields = {name: arrow_type(parse_type(kind)) for name, kind in columns.items()}
    values = {
        "id": pa.array(range(rows_of), pa.int32()),
        "u": pa.array([0] * rows_of, fields["u"]),
        "t": pa.array(times, fields["t"]),
        "l": pa.array([None if each is None else [None, {"t": each}] for each in times], fields["l"]),
        "r": pa.array([None if at % 5 == 1 else {"t": each} for at, each in enumerate(times)], fields["r"]),
        "m": pa.array([[(1, each)] if at % 3 else None for at, each in enumerate(times)], fields["m"]),
    }
    found = pa.table(values)
    stored = marked(found.schema)

    def write(_: pa.Table, path: Path) -> None:
        with path.open("wb") as sink:
            output = ParquetOutput(sink, stored, store_schema=False, compression="zstd")
            for batch in found.combine_chunks().to_batches():
                output.write([stored_batch(batch, stored)])
            output.write([stored_batch(batch.slice(3, 7), stored)])
            output.close()

    file = table.append([dict.fromkeys(columns)] * (rows_of + 7), write=write)
    table.delete({file: [rows_of + 1]})
    expected = pa.concat_tables([found, found[3:4], found[5:10]])
    copies: list[Any] = []
    copy = ParquetOutput.copy
    monkeypatch.setattr(ParquetOutput, "copy", lambda self, wanted: copies.append(wanted) or copy(self, wanted))
    assert purge(open_table(str(table.path)), LocalEngine()).verified
    assert len(copies) == copied
    _, batches = read(open_table(str(table.path)))
    assert pa.Table.from_batches(batches).cast(expected.schema) == expected
    (path,) = open_table(str(table.path)).snapshot().files["path"].to_pylist()
    footer = pq.read_metadata(table.path / path)
    kinds = [footer.schema.column(leaf).physical_type for leaf in range(len(footer.schema))]
    assert kinds == ["INT32", "INT64", "INT96", "INT96", "INT96", "INT32", "INT96"]
    group = footer.row_group(footer.num_row_groups - 1)
    file = pa.OSFile(str(table.path / path))
    written = Footer(footer_bytes(file) or b"", file.size()).group(footer.num_row_groups - 1)
    assert [part.column_index is None for part in written.parts] == [kind == "INT96" for kind in kinds]
    statistics = group.column(2).statistics  # pyarrow 21 shows none of INT96
    assert statistics is None or statistics.null_count == expected["t"][-group.num_rows :].null_count


@needs_orc_timestamps
def test_nanoseconds_of_any_year_are_moved(tmp_path: Path) -> None:
    """And those of ORC files, which are not bytes, become INT96 beside them."""
    table = PaimonWriter(tmp_path / "t", {"id": "INT", "t": "TIMESTAMP(9)"})
    stored = [struct.pack("<qi", each, 5_373_484) for each in (1, 2, 3)]  # 9999-12-31
    found = marked(pa.schema([pa.field("id", pa.int32()), pa.field("t", pa.timestamp("ns"))]))

    def write(_: pa.Table, path: Path) -> None:
        with path.open("wb") as sink:
            output = ParquetOutput(sink, found, store_schema=False)
            output.write([pa.record_batch([pa.array([1, 2, 3], pa.int32()), pa.array(stored, BYTES)], schema=found)])
            output.close()

    far = table.append([dict.fromkeys(["id", "t"])] * 3, write=write)
    near = table.append([{"id": 4, "t": -1}, {"id": 5, "t": None}], suffix=".orc", write=orc_writer)
    table.delete({far: [1], near: [1]})
    with pytest.raises(RefusedError, match="before 1677 or after 2262"):
        rows(table)
    assert maintain(open_table(str(table.path)), LocalEngine(), Policy(min_input_files=2)).verified
    (path,) = open_table(str(table.path)).snapshot().files["path"].to_pylist()
    with open_parquet_file(table.path / path, with_bytes(pq.read_metadata(table.path / path), [1])) as file:
        assert file.read().to_pylist() == [
            {"id": 1, "t": stored[0]},
            {"id": 3, "t": stored[2]},
            {"id": 4, "t": struct.pack("<qi", -1, 2_440_588)},
        ]


@pytest.mark.parametrize(
    ("time", "nanos", "day"),
    [(0, 0, 0), (1, 1, 0), (-1, -1, 0), (-86_399_999_999_998, 2, -1), (-86_400_000_000_001, -1, -1)],
)
def test_int96_as_java_divides(time: int, nanos: int, day: int) -> None:
    """Milliseconds are rounded down, and the day is then cut towards zero."""
    (stored,) = in_bytes(pa.array([time], pa.timestamp("ns"))).to_pylist()
    assert struct.unpack("<qi", stored) == (nanos, 2_440_588 + day)
    assert nanoseconds(pa.array([None, stored], pa.binary(12)))[1].value == time
    for unit, count in (("us", 1000), ("ms", 1_000_000)):
        whole = time // count
        coarse, exact = pa.array([whole], pa.timestamp(unit)), pa.array([whole * count], pa.timestamp("ns"))
        assert in_bytes(coarse) == in_bytes(exact)

"""Manifests: every type of column, every part that can be damaged, and flags."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.raw_manifest import Record, manifest_file, message, newest_manifest, patch, without
from support.releases import needs_pylance_14

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, UnsupportedFeatureError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.lance.commit.preflight import preflight
from dv_maintenance.tables.lance.log.manifest import parse_manifest
from dv_maintenance.tables.lance.rows.schema import arrow_schema, lance_fields
from dv_maintenance.tables.lance.snapshot import LanceSnapshot

BARE = message((3, 1))


def field(id: int, name: str, kind: str, parent: int = -1, *more: Record) -> bytes:
    return message((2, name.encode()), (3, id), (4, parent), (5, kind.encode()), (6, 1), *more)


# -- schema -------------------------------------------------------------------------------------------------------

TYPES = [
    pa.null(),
    pa.bool_(),
    *(pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(7)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp("us", zone) for zone in ("UTC", "Europe/Berlin")),
    pytest.param(pa.timestamp("us", "+08:00"), marks=needs_pylance_14),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.decimal128(38, 9), pa.decimal128(5, -2), pa.decimal256(70, 3)),
    *(pa.list_(pa.int32()), pa.large_list(pa.string()), pa.list_(pa.float32(), 8), pa.list_(pa.list_(pa.int8(), 2), 3)),
    pa.struct([pa.field("a", pa.int32(), False), pa.field("b", pa.struct([("c", pa.list_(pa.string()))]))]),
    pa.list_(pa.struct([("x", pa.int8())])),
    pa.large_list(pa.field("item", pa.struct([("x", pa.int8())]), False)),
    pa.list_(pa.struct([("x", pa.int8())]), 2),
    pa.dictionary(pa.int16(), pa.string()),
]


@pytest.mark.parametrize("type", TYPES, ids=str)
def test_lance_writes_every_type_as_it_is_read(pylance: ModuleType, tmp_path: Path, type: pa.DataType) -> None:
    schema = pa.schema([pa.field("c", type, metadata={"k": "v"}), pa.field("d", pa.int8(), False)], metadata={"a": "b"})
    table = pa.table([pa.nulls(3, type), pa.array([1, 2, 3], pa.int8())], schema=schema)
    dataset = pylance.write_dataset(table, str(tmp_path / "t"))
    assert open_table(str(tmp_path / "t")).snapshot().schema.equals(dataset.schema, check_metadata=True)


@needs_pylance_14
def test_maps_blobs_and_extensions(pylance: ModuleType, tmp_path: Path) -> None:
    from lance.arrow import BFloat16Type

    schema = pa.schema(
        [
            pa.field("m", pa.map_(pa.string(), pa.int32())),
            pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
            pa.field("vec", pa.list_(pa.field("item", BFloat16Type()), 4)),
        ]
    )
    table = pa.table([pa.nulls(2, each.type) for each in schema], schema=schema)
    dataset = pylance.write_dataset(table, str(tmp_path / "t"), data_storage_version="2.2")
    ours = open_table(str(tmp_path / "t")).snapshot().schema
    # Lance shows the storage of types that it has extensions for.
    assert ours.field("m").equals(dataset.schema.field("m"))
    assert ours.names == dataset.schema.names
    assert pa.types.is_fixed_size_list(ours.field("vec").type)
    assert ours.field("vec").type.list_size == 4


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([field(1, "a", "int32", 7)], "part of field 7, which is not listed before it"),
        ([field(1, "a", "int32", 1)], "part of field 1"),
        ([field(1, "a", "list")], "list of 0 fields"),
        ([field(1, "a", "map"), field(2, "entries", "int32", 1)], "not of keys and values"),
        ([field(1, "a", "decimal:128:99:0")], "has the type 'decimal:128:99:0'"),
        ([field(1, "a", "x" * 2000)], "a type of 2000 characters"),
        ([field(n, "a", "struct", n - 1) for n in range(400)], "nested more than 200 levels"),
        ([message((2, b"\xff"))], "not UTF-8"),
    ],
)
def test_damaged_schemas(fields: list[bytes], reason: str) -> None:
    with pytest.raises(DamagedTableError, match=reason):
        arrow_schema(lance_fields(fields), {})


def test_a_type_from_the_future() -> None:
    with pytest.raises(UnsupportedFeatureError, match="type 'hologram'") as caught:
        arrow_schema(lance_fields([field(0, "a", "hologram")]), {})
    assert caught.value.features == ("type hologram",)


def test_of_ids_that_occur_twice_the_first_is_meant() -> None:
    fields = [field(0, "a", "struct"), field(0, "b", "int8", 0), field(1, "c", "int8", 0)]
    schema = arrow_schema(lance_fields(fields), {})
    assert schema.field("a").type == pa.struct([("b", pa.int8()), ("c", pa.int8())])


# -- damage -------------------------------------------------------------------------------------------------------


def fragment(*more: Record) -> bytes:
    return message((2, message((1, b"a.lance"))), (4, 10), *more)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "too few for a manifest"),
        (bytes(100), "magic number LANC"),
        (manifest_file(BARE)[:-1], "magic number LANC"),
        (struct.pack("<QHH4s", 0, 0, 2, b"LANC"), "manifest begins at byte 0 of 16"),
        (struct.pack("<QHH4s", 2**64 - 1, 0, 2, b"LANC"), "manifest begins at byte 18446744073709551615"),
        (struct.pack("<IQHH4s", 1, 0, 0, 2, b"LANC"), "manifest has 1 bytes from byte 0 on"),
        (struct.pack("<IQHH4s", 2**32 - 1, 0, 0, 2, b"LANC"), "manifest has 4294967295 bytes"),
        (manifest_file(b""), "version 0 does not exist"),
        (manifest_file(message((3, 1 << 63))), "version 9223372036854775808 does not exist"),
        (manifest_file(BARE + message((6, 1000))), "index section begins at byte 1000"),
        (manifest_file(BARE + message((16, b"\x0f"))), "wire type 7"),
        (manifest_file(BARE + message((2, 5))), "field 2 has wire type 0, not 2"),
        (manifest_file(BARE + message((18, message((4, b"/a\0"))))), "base path 0 is called '/a.x00'"),
    ],
)
def test_damaged_manifests(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedTableError, match=reason):
        parse_manifest(data)


@pytest.mark.parametrize(
    ("fragments", "reason"),
    [
        ([fragment((1, 2**32))], "fragment id 4294967296 is above"),
        ([fragment((4, 2**40))], "has 1099511627776 rows"),
        ([fragment((1, 3)), fragment((1, 3))], "fragment 3 occurs twice"),
        ([fragment((3, message((1, 2))))], "unknown kind 2"),
        ([fragment((3, message((4, 2**33))))], "8589934592 rows of fragment 0 are deleted"),
        ([fragment((3, 7))], "field 3 has wire type 0"),
        ([fragment((2, message((1, b"../../etc/passwd"))))], "is not a path inside the table"),
        ([fragment((2, message((1, b"/etc/passwd"))))], "is not a path inside the table"),
        ([fragment((2, b""))], "is not a path inside the table"),
        ([fragment((2, message((1, b"a\0.lance"))))], "is not a path inside the table"),
        ([fragment((2, message((1, b"a" * 1001))))], "is not a path inside the table"),
    ],
)
def test_damaged_fragments(fragments: list[bytes], reason: str) -> None:
    manifest = parse_manifest(manifest_file(BARE + message(*((2, each) for each in fragments))))
    with pytest.raises(DamagedTableError, match=reason):
        manifest.fragments()


def test_a_lost_transaction_does_no_harm() -> None:
    assert parse_manifest(manifest_file(BARE + message((23, 10_000)))).transaction is None


@pytest.fixture(scope="module")
def template(pylance: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with both kinds of deletion file, an index, a column of structs, config and a branch."""
    path = tmp_path_factory.mktemp("lance") / "t"
    rows = {"id": range(12_000), "s": [{"x": n, "y": str(n)} for n in range(12_000)]}
    dataset = pylance.write_dataset(pa.table(rows), str(path), max_rows_per_file=6000)
    dataset.update_config({"team": "a"})
    dataset.create_scalar_index("id", "BTREE")
    dataset.delete("id < 5500 or id = 7000")
    return path


def refusal_of(call: Callable[[], Any]) -> DvMaintenanceError | None:
    try:
        call()
    except DvMaintenanceError as error:
        return error
    return None


@settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_a_mutated_manifest_is_refused_or_read(template: Path, tmp_path: Path, seed: int) -> None:
    """Whatever was hit: one of our errors, which names the table, or a snapshot."""
    chance = random.Random(seed)
    path = tmp_path / "mutated"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(template, path)
    file = newest_manifest(path)
    data = bytearray(file.read_bytes())
    for _ in range(chance.randint(1, 3)):
        data[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    file.write_bytes(data[: chance.choice([len(data)] * 5 + [chance.randrange(len(data))])])
    table = open_table(str(path))
    calls: list[Callable[[], Any]] = [table.snapshot, table.history, lambda: table.changes_since(1)]
    for call in calls:
        error = refusal_of(call)
        assert error is None or (error.table == table.uri and error.exit_code in {3, 5})


def test_a_damaged_manifest_names_table_file_and_version(template: Path, tmp_path: Path) -> None:
    path = shutil.copytree(template, tmp_path / "t")
    file = newest_manifest(path)
    file.write_bytes(file.read_bytes()[:-3])
    table = open_table(str(path))
    with pytest.raises(DamagedTableError, match=file.name) as caught:
        table.snapshot()
    assert (caught.value.table, caught.value.version) == (table.uri, table.version())
    assert table.snapshot(table.version() - 1).version == table.version() - 1


def test_a_manifest_under_the_name_of_another_version(template: Path, tmp_path: Path) -> None:
    path = shutil.copytree(template, tmp_path / "t")
    patch(newest_manifest(path), lambda fields: [*without(fields, 3), (3, 77)])
    with pytest.raises(DamagedTableError, match="it holds version 77, not"):
        open_table(str(path)).snapshot()


# -- what else is in it -------------------------------------------------------------------------------------------


def test_config_flags_and_indices(template: Path, pylance: ModuleType) -> None:
    snapshot = open_table(str(template)).snapshot()
    assert isinstance(snapshot, LanceSnapshot)
    manifest = snapshot.manifest
    dataset = pylance.dataset(str(template))
    assert snapshot.properties == {"team": "a"} == dataset.config()
    assert (manifest.reader_flags & 9, manifest.writer_flags & 9) == (1, 9)
    assert manifest.max_fragment_id == max(each.fragment_id for each in dataset.get_fragments())
    assert manifest.data_format == ("lance", dataset.data_storage_version)
    assert manifest.writer == f"lance {pylance.__version__}"
    (index,) = manifest.indices()
    (theirs,) = dataset.list_indices()
    assert (index.name, index.uuid, index.version) == (theirs["name"], theirs["uuid"], theirs["version"])
    assert index.kind.endswith("BTreeIndexDetails")


def test_who_wrote_it() -> None:
    writer = message((1, b"lance"), (2, b"9.0.0"), (3, b"beta.4"))
    assert parse_manifest(manifest_file(BARE + message((13, writer)))).writer == "lance 9.0.0-beta.4"
    assert parse_manifest(manifest_file(BARE)).writer is None


def test_timestamps_are_milliseconds_also_before_the_epoch() -> None:
    for seconds, nanos, millis in ((0, 0, 0), (1, 999_999_999, 1999), (-1, 500_000_000, -500)):
        stamp = message((1, seconds), (2, nanos))
        assert parse_manifest(manifest_file(BARE + message((7, stamp)))).timestamp == millis


# -- flags --------------------------------------------------------------------------------------------------------


def flagged(template: Path, target: Path, reader: int, writer: int) -> Path:
    shutil.copytree(template, target)
    patch(newest_manifest(target), lambda fields: [*without(fields, 9, 10), (9, reader), (10, writer)])
    return target


# What pylance 14 reads, and so do we.
NEW = {10, 11, 14}


# 2 would need row ids; Lance takes 32768 of readers for damage, since only writers have to know it.
@pytest.mark.parametrize(
    "bit",
    [pytest.param(bit, marks=needs_pylance_14 if bit in NEW else ()) for bit in sorted(set(range(24)) - {1, 15})],
)
def test_flags_are_refused_where_lance_refuses_them(
    template: Path, tmp_path: Path, pylance: ModuleType, bit: int
) -> None:
    path = flagged(template, tmp_path / "t", 1 | 1 << bit, 1 | 1 << bit)
    refusal = ""
    try:
        pylance.dataset(str(path))
    except (ValueError, OSError) as error:
        refusal = str(error)
    assert not refusal or "Please upgrade Lance" in refusal
    if refusal:
        with pytest.raises(UnsupportedFeatureError, match=f"reader flags {1 << bit}") as caught:
            open_table(str(path)).snapshot()
        assert len(caught.value.features) == 1
        with pytest.raises(UnsupportedFeatureError):
            preflight(Storage(str(path)))
    else:
        assert open_table(str(path)).snapshot().files.num_rows == 2


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        (512, "fragment reuse history with stable row ids"),
        (4096, "fragment tree"),
        (8192, "indices that declare covering columns apart from their keys"),
        (65536, "zone write seeds"),
        (131072, "clustering definitions and metadata of fragments"),
        (262144, "flag 262144"),
    ],
)
def test_a_refusal_names_the_feature(template: Path, tmp_path: Path, flag: int, name: str) -> None:
    path = flagged(template, tmp_path / "t", 1 | flag, 1 | flag)
    with pytest.raises(UnsupportedFeatureError, match=name) as caught:
        open_table(str(path)).snapshot()
    assert caught.value.features == (name,)


@needs_pylance_14
def test_field_ids_that_are_not_used_again(template: Path, tmp_path: Path, pylance: ModuleType) -> None:
    """The flag and the highest id, which Lance's own commits carry on."""
    path = shutil.copytree(template, tmp_path / "t")
    patch(newest_manifest(path), lambda fields: [*without(fields, 10), (10, 1 | 8 | 32768), (24, 7)])
    before = sorted(pylance.dataset(str(path)).to_table().to_pylist(), key=repr)
    assert purge(open_table(str(path)), LocalEngine()).verified
    snapshot = open_table(str(path)).snapshot()
    assert isinstance(snapshot, LanceSnapshot)
    assert snapshot.manifest.writer_flags & 32768
    dataset = pylance.dataset(str(path))
    assert sorted(dataset.to_table().to_pylist(), key=repr) == before
    dataset.add_columns({"later": "id"})
    assert max(field.id() for field in pylance.dataset(str(path)).lance_schema.fields()) == 8


def test_who_may_not_write_may_still_read(template: Path, tmp_path: Path) -> None:
    path = flagged(template, tmp_path / "t", 1, 1 | 1 << 40)
    assert open_table(str(path)).snapshot().files.num_rows == 2


@pytest.mark.parametrize(
    ("change", "feature"),
    [
        (lambda fields: [*fields, (22, b"")], "fragment tree"),
        (
            lambda fields: [
                (2, value + message((11, b""))) if number == 2 else (number, value) for number, value in fields
            ],
            "data overlay files",
        ),
    ],
)
def test_what_a_flag_should_have_announced(
    template: Path, tmp_path: Path, change: Callable[[list[Record]], list[Record]], feature: str
) -> None:
    path = shutil.copytree(template, tmp_path / "t")
    patch(newest_manifest(path), change)
    with pytest.raises(UnsupportedFeatureError) as caught:
        open_table(str(path)).snapshot()
    assert caught.value.features == (feature,)
    assert json.dumps(caught.value.to_json())

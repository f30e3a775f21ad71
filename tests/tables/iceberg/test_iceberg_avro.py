"""Tables whose new files are Avro (``write.format.default``): what is written, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.iceberg_edits import edit
from support.releases import needs_variants
from support.tables import iceberg_table as opened
from test_iceberg_orc import EVERY, SIMPLE, SOME, made, purged, rows_of, values

from dv_maintenance.cli import main
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError
from dv_maintenance.files.avro.container import header_of
from dv_maintenance.files.avro.names import safe_name
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.tables.iceberg.rows.bounds import stored_bounds, stored_columns
from dv_maintenance.testing.iceberg_builder import IcebergBuilder

AVRO = {"write.format.default": "AVRO"}
needs_golden = pytest.mark.usefixtures("golden")


def header(path: Path) -> dict[str, str]:
    return {key: value.decode() for key, value in header_of(path.read_bytes()).items()}


def fields(path: Path) -> dict[str, Any]:
    return {each["name"]: each for each in json.loads(header(path)["avro.schema"])["fields"]}


@needs_golden
def test_a_file_of_spark_is_rewritten(laid_copy: Callable[[str], Path]) -> None:
    place = laid_copy("avro_dv")
    table = opened(place)
    theirs = fields(Path(table.snapshot().files["path"][0].as_py()))
    edit(place, lambda body: body["properties"].update(AVRO))
    (path,) = purged(table)
    assert path.suffix == ".avro"
    ours = fields(path)
    assert [*ours] == [*theirs]
    assert [*ours][-2:] == ["_row_id", "_last_updated_sequence_number"]
    for name, each in theirs.items():
        each.pop("doc", None)
        # The table was made by a query whose columns were not null.
        kind = each["type"] if isinstance(each["type"], list) else ["null", each["type"]]
        # Avro knows named types by their names only, and ours have the number of the field.
        assert renamed(ours[name]) == renamed({**each, "type": kind, "default": None})


def renamed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [renamed(each) for each in schema]
    if isinstance(schema, dict):
        name = {"name": "fixed"} if schema.get("type") == "fixed" else {}
        return {key: renamed(value) for key, value in {**schema, **name}.items()}
    return schema


def test_every_type_comes_back(tmp_path: Path) -> None:
    table = made(tmp_path / "t", EVERY, [values(at) for at in range(5)], AVRO)
    (path,) = purged(table)
    assert header(path)["avro.codec"] == "deflate"
    kinds = {name: each["type"][1] for name, each in fields(path).items()}
    assert kinds["n"] == {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": False}
    assert kinds["z"] == {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True}
    assert (kinds["small"]["size"], kinds["wide"]["size"], kinds["u"]["size"], kinds["fix"]["size"]) == (4, 16, 16, 3)
    assert kinds["u"]["logicalType"] == "uuid"
    snapshot = table.snapshot()
    (row,) = snapshot.files.to_pylist()
    assert row["format"] == "avro"
    columns = stored_columns(snapshot, [(name,) for name in EVERY])
    (known,) = stored_bounds(table.layout, snapshot, np.array([0]), columns)
    bounds = {column[0]: each for column, each in known.items()}
    assert bounds["f"].lower is None  # a NaN
    assert (bounds["d"].lower, bounds["d"].upper) == (-0.25, 0.25)
    assert bounds["l"].nulls == 1


def field(number: int, name: str, kind: Any, required: bool = False) -> dict[str, Any]:
    return {"id": number, "name": name, "required": required, "type": kind}


def listed(number: int, kind: Any, required: bool = False) -> dict[str, Any]:
    return {"type": "list", "element-id": number, "element": kind, "element-required": required}


def mapped(key: tuple[int, Any], value: tuple[int, Any]) -> dict[str, Any]:
    return {"type": "map", "key-id": key[0], "key": key[1], "value-id": value[0], "value": value[1],
            "value-required": False}  # fmt: skip


def struct(*inside: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": [*inside]}


BY_NAME = mapped((18, "string"), (19, "decimal(9, 2)"))
NESTED: dict[str, Any] = {
    "id": "int",
    "st": struct(field(11, "a", "decimal(9, 2)", True), field(12, "in", listed(13, "string")), field(14, "d", "date")),
    "deep": listed(15, struct(field(16, "x", struct(field(17, "y", BY_NAME)))), True),
    "of_numbers": mapped((20, "int"), (21, listed(22, "uuid"))),
    "of_rows": mapped((23, struct(field(24, "k", "long", True))), (25, struct(field(26, "v", "boolean")))),
    "odd.name 1": struct(field(27, "1st", "int"), field(28, "é", "int"), field(29, "\U0001f600", "int")),
    "never": "unknown",
    "partly": struct(field(30, "n", "unknown"), field(31, "m", "int")),
}  # fmt: skip
DEEP = [[{"x": {"y": [("k", None), ("l", None)]}}, {"x": None}, {"x": {"y": []}}], []]
NESTED_ROWS: list[dict[str, Any]] = [
    {"id": 0, "deep": None},
    {"id": 1, "st": {"a": 1, "in": ["x", None], "d": None}, "deep": DEEP[0], "of_numbers": [(1, [b"u" * 16, None])]},
    {"id": 2, "st": {"a": -2, "in": [], "d": None}, "deep": DEEP[1], "of_rows": [({"k": 7}, {"v": True})]},
    {"id": 3, "odd.name 1": {"1st": 1, "é": 2, "\U0001f600": 3}, "partly": {"n": None, "m": 1}},
    {"id": 4, "of_numbers": [], "of_rows": [({"k": 1}, None), ({"k": 2}, {"v": None})]},
]


def test_nested_values_and_odd_names_come_back(tmp_path: Path) -> None:
    (path,) = purged(made(tmp_path / "t", NESTED, NESTED_ROWS, AVRO))
    found = fields(path)
    assert "never" not in found
    assert [each["name"] for each in found["partly"]["type"][1]["fields"]] == ["m"]
    odd = found["odd_x2Ename_x201"]
    assert (odd["iceberg-field-name"], odd["field-id"]) == ("odd.name 1", 6)
    inner = odd["type"][1]["fields"]
    assert [each["name"] for each in inner] == ["_1st", "é", "_xD83D_xDE00"]
    assert [each.get("iceberg-field-name") for each in inner] == ["1st", None, "\U0001f600"]
    numbers = found["of_numbers"]["type"][1]
    assert numbers["logicalType"] == "map"
    assert [each["field-id"] for each in numbers["items"]["fields"]] == [20, 21]
    assert found["st"]["type"][1]["fields"][0]["type"]["logicalType"] == "decimal"  # required, so no union


@pytest.mark.parametrize(
    ("name", "safe"),
    [("a_1", "a_1"), ("1a", "_1a"), ("a.b", "a_x2Eb"), ("a-b", "a_x2Db"), ("ü", "ü"), ("٣", "_٣"), ("a٣", "a٣")],
)
def test_names_in_files(name: str, safe: str) -> None:
    """As ``AvroSchemaUtil.makeCompatibleName`` of Iceberg's Java library gives them."""
    assert safe_name(name) == safe


def test_files_of_other_formats_become_avro(tmp_path: Path) -> None:
    pyiceberg = pytest.importorskip("pyiceberg.table")
    table = made(tmp_path / "t", SIMPLE, SOME, AVRO)
    assert [path.suffix for path in purged(table)] == [".avro"]
    IcebergBuilder(tmp_path / "t").append(pa.table({"id": pa.array([50], pa.int32()), "v": ["new"]}))
    before = rows_of(table)
    assert maintain(table, LocalEngine(), Policy()).verified
    (row,) = table.snapshot().files.to_pylist()
    assert (row["format"], row["record_count"]) == ("avro", 20)
    assert rows_of(table) == before
    # Avro that is rewritten as Avro, and back.
    edit(tmp_path / "t", lambda body: body["properties"].update({"write.avro.compression-codec": "zstd"}))
    assert main(["delete", str(tmp_path / "t"), "--where", "id = 5", "--engine", "local"]) == 0
    (path,) = purged(table)
    assert header(path)["avro.codec"] == "zstandard"
    edit(tmp_path / "t", lambda body: body["properties"].update({"write.format.default": "parquet"}))
    assert main(["delete", str(tmp_path / "t"), "--where", "id = 6", "--engine", "local"]) == 0
    (path,) = purged(table)
    assert path.suffix == ".parquet"
    number = (tmp_path / "t" / "metadata" / "version-hint.text").read_text()
    found = pyiceberg.StaticTable.from_metadata(str(tmp_path / "t" / "metadata" / f"v{number}.metadata.json"))
    assert sorted(found.scan().to_arrow()["id"].to_pylist()) == [*range(1, 5), *range(7, 20), 50]


@pytest.mark.parametrize(
    ("stated", "policy", "wanted"),
    [
        (None, None, "deflate"),
        (None, "zstd", "zstandard"),
        ("snappy", "zstd", "snappy"),
        ("UNCOMPRESSED", None, "null"),
    ],
)
def test_the_codec_of_the_table(tmp_path: Path, stated: str | None, policy: str | None, wanted: str) -> None:
    properties = {**AVRO, **({"write.avro.compression-codec": stated} if stated else {})}
    table = made(tmp_path / "t", SIMPLE, SOME, properties)
    assert maintain(table, LocalEngine(), Policy(compression=policy, max_deleted_ratio=0.0)).verified
    (path,) = table.snapshot().files["path"].to_pylist()
    assert header(Path(path))["avro.codec"] == wanted


def test_files_have_about_the_wanted_size(tmp_path: Path) -> None:
    noise = [{"id": at, "v": f"{at * 2654435761 % 2**32:032b}" * 8} for at in range(20_000)]
    table = made(tmp_path / "t", SIMPLE, noise, {**AVRO, "write.avro.compression-codec": "uncompressed"})
    assert maintain(table, LocalEngine(), Policy(target_file_size=1 << 21, max_deleted_ratio=0.0)).verified
    sizes = table.snapshot().files["size"].to_pylist()
    assert len(sizes) > 1
    assert max(sizes) < 5 << 20


def test_plans_and_dry_runs(tmp_path: Path) -> None:
    made(tmp_path / "t", SIMPLE, SOME, AVRO)
    table = str(tmp_path / "t")
    for verb in (["plan", table], ["purge", table, "--engine", "local", "--dry-run"], ["fsck", table]):
        assert main(verb) == 0
        assert not [*(tmp_path / "t" / "data").rglob("*.avro")]
    assert main(["purge", table, "--engine", "local"]) == 0
    assert main(["fsck", table, "--deep"]) == 0


@pytest.mark.parametrize("operation", ["rewrite", "update", "merge"])
@pytest.mark.parametrize(
    ("kind", "properties", "reason"),
    [
        ("string", {"write.avro.compression-codec": "lz4"}, "the compression lz4, but this tool writes Avro only with"),
        (
            "string",
            {"write.format.default": "vortex"},
            "must be vortex, but this tool writes only Parquet, ORC and Avro",
        ),
        ("geometry", {}, "the column v holds shapes"),
        (struct(field(11, "a.b", "int"), field(12, "a_x2Eb", "int")), {}, "the name a_x2Eb would be that of another"),
    ],
)
def test_what_is_not_written(
    tmp_path: Path, kind: Any, properties: dict[str, str], reason: str, operation: str
) -> None:
    builder = IcebergBuilder(tmp_path / "t")
    builder.create({"id": "int", "v": kind}, properties={**AVRO, **properties})
    table = opened(tmp_path / "t")
    with pytest.raises(RefusedError, match=reason):
        table.check_writable(table.snapshot(), operation)
    table.check_writable(table.snapshot(), "delete")


@needs_golden
@needs_variants
@pytest.mark.parametrize("shred", ["true", "false"])
def test_variants_are_written(laid_copy: Callable[[str], Path], shred: str) -> None:
    place = laid_copy("variant_col")
    edit(place, lambda body: body["properties"].update({**AVRO, "write.parquet.shred-variants": shred}))
    (path,) = purged(opened(place))
    variants = [each["type"] for each in fields(path).values()]
    found = [kind[1] if isinstance(kind, list) else kind for kind in variants]
    (one,) = [kind for kind in found if isinstance(kind, dict) and kind.get("logicalType") == "variant"]
    assert [each["name"] for each in one["fields"]] == ["metadata", "value"]


@pytest.mark.parametrize("stop", [0, 1])
def test_a_lost_row_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    """Every new file is read back before the commit."""
    from dv_maintenance.engine.avro import writer
    from dv_maintenance.errors import DvMaintenanceError

    class Losing(writer.AvroRows):
        def add(self, batch: pa.RecordBatch) -> bytes:
            changed = batch.set_column(1, batch.schema.field(1), pa.array([*batch.column(1).to_pylist()[:-1], "other"]))
            return super().add(batch.slice(0, batch.num_rows - 1) if stop else changed)

    table = made(tmp_path / "t", SIMPLE, SOME, AVRO)
    version = table.version()
    monkeypatch.setattr(writer, "AvroRows", Losing)
    with pytest.raises(DvMaintenanceError):
        purge(table, LocalEngine())
    assert table.version() == version
    assert not [*(tmp_path / "t" / "data").rglob("*.avro")]

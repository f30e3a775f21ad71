"""Rewrites of tables whose new files are Avro."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.avro_data import avro_type
from support.paimon_writer import PaimonWriter
from test_paimon_formats import FORMATS, ROW, TYPES, add
from test_paimon_native_formats import DV, live, purged, rows

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError
from dv_maintenance.files.avro.container import header_of, read_records
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.tables import open_table
from dv_maintenance.tables.paimon.rows.types import parse_type

AVRO = {**DV, "file.format": "avro"}


def header(path: Path) -> dict[str, str]:
    return {key: value.decode() for key, value in header_of(path.read_bytes()).items()}


def plain(type_: Any) -> Any:
    """The type, whose rows have names that Avro files can have."""
    return json.loads(json.dumps(type_).replace('"a.b"', '"a_b"'))


def renamed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(renamed, value))
    if isinstance(value, dict):
        return {name.replace(".", "_"): renamed(each) for name, each in value.items()}
    return value


def test_every_type_and_the_schema_of_paimon(tmp_path: Path) -> None:
    columns = {"id": "INT", **{f"c{index}": plain(type_) for index, (type_, _) in enumerate(TYPES)}}
    values = {f"c{index}": renamed(value) for index, (_, value) in enumerate(TYPES)}
    none = dict.fromkeys(values)
    table = PaimonWriter(tmp_path / "t", columns, options={**DV, "file.format": "Avro"})
    purged(table, "avro", [{"id": at, **each} for at, each in enumerate((none, values, none, values))])
    [file] = live(table.path)
    assert (file.name[:5], file.suffix) == ("data-", ".avro")
    assert header(file)["avro.codec"] == "zstandard"
    schema = json.loads(header(file)["avro.schema"])
    assert (schema["name"], schema["namespace"]) == ("record", "org.apache.paimon.avro.generated")
    for field, (name, kind) in zip(schema["fields"], columns.items(), strict=True):
        assert field["default"] is None
        assert without_defaults(field) == {"name": name, "type": avro_type(parse_type(kind), f"record_{name}")}


def without_defaults(schema: Any) -> Any:
    """As the tests' own writer has it, which names all rows of a column alike."""
    if isinstance(schema, list):
        return [without_defaults(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: without_defaults(each) for name, each in schema.items() if name != "default"}


def test_names_of_rows_are_defined_once(tmp_path: Path) -> None:
    inner = {"type": "ROW NOT NULL", "fields": [{"id": 20, "name": "x", "type": "INT NOT NULL"}]}
    outer = {"type": "ROW", "fields": [{"id": 21, "name": "b", "type": inner}]}
    table = PaimonWriter(tmp_path / "t", {"id": "INT NOT NULL", "a": outer, "a_b": inner}, options=AVRO)
    values = [{"id": at, "a": {"b": {"x": at}} if at % 2 else None, "a_b": {"x": -at}} for at in range(9)]
    table.delete({table.append(values): [0]})
    assert purge(open_table(str(table.path)), LocalEngine()).verified
    assert rows(table.path) == values[1:]
    [file] = live(table.path)
    by_name = {each["name"]: each["type"] for each in json.loads(header(file)["avro.schema"])["fields"]}
    assert by_name["id"] == "int"
    assert by_name["a"][1]["fields"][0]["type"]["name"] == "record_a_b"
    assert by_name["a_b"]["name"] == "record_a_b_"


def test_files_of_other_formats_become_avro(tmp_path: Path) -> None:
    table = PaimonWriter(tmp_path / "t", options=AVRO)
    values = [{"id": each, "v": "x" * each} for each in range(30)]
    table.delete({table.append(values): [0, 5]})
    for kind in FORMATS:
        table.delete({add(table, kind, values): [1, 2]})
    before = rows(table.path)
    assert maintain(open_table(str(table.path)), LocalEngine(), Policy()).verified
    assert rows(table.path) == before
    assert {file.suffix for file in live(table.path)} == {".avro"}


@pytest.mark.parametrize(
    ("option", "policy", "wanted"),
    [
        (None, None, "zstandard"),
        (None, "none", "null"),
        (None, "gzip", "deflate"),
        ("snappy", "gzip", "snappy"),
        ("null", None, "null"),
        ("deflate", "zstd", "deflate"),
        ("bzip2", None, "bzip2"),
        ("xz", None, "xz"),
        ("zstandard", None, "zstandard"),
    ],
)
def test_the_codec(tmp_path: Path, option: str | None, policy: str | None, wanted: str) -> None:
    named = {} if option is None else {"file.compression": option}
    table = PaimonWriter(tmp_path / "t", options={**AVRO, **named})
    values = [{"id": each, "v": "v"} for each in range(3)]
    table.delete({add(table, "avro", values): [0]})
    assert maintain(open_table(str(table.path)), LocalEngine(), Policy.from_mapping({"compression": policy})).verified
    [file] = live(table.path)
    assert header(file)["avro.codec"] == wanted
    assert rows(table.path) == values[1:]


@pytest.mark.parametrize(
    ("columns", "options", "why"),
    [
        ({"id": "INT", "a b": "INT"}, {}, "the name of 'a b' can't be in Avro files"),
        ({"id": "INT", "r": ROW}, {}, "the name of 'a.b' can't be in Avro files"),
        ({"id": "INT", "1st": "INT"}, {}, "the name of '1st' can't be in Avro files"),
        ({"id": "INT", "v": "VARIANT"}, {}, "variants in files other than Parquet"),
        ({"id": "INT"}, {"file.compression": "lz4"}, "'lz4', which this release can't write to avro files"),
    ],
)
def test_what_is_not_written(tmp_path: Path, columns: dict[str, Any], options: dict[str, str], why: str) -> None:
    table = PaimonWriter(tmp_path / "t", columns, options={**AVRO, **options})
    table.delete({table.append([dict.fromkeys(columns), dict.fromkeys(columns)]): [0]})
    before = set(table.path.rglob("*"))
    with pytest.raises(RefusedError, match=why):
        purge(open_table(str(table.path)), LocalEngine())
    assert set(table.path.rglob("*")) == before


@pytest.mark.parametrize("thin", ["false", "true"])
def test_a_keyed_file_is_copied_with_its_own_schema(tmp_path: Path, thin: str) -> None:
    """Keys, sequence numbers and kinds too, and columns as they were called then."""
    columns = {"id": "TINYINT NOT NULL", "at": "TIMESTAMP(3) NOT NULL", "v": "STRING"}
    options = {**AVRO, "bucket": "1", "write-only": "true", "data-file.thin-mode": thin}
    table = PaimonWriter(tmp_path / "t", columns, primary_keys=["id", "at"], options=options)
    values = [{"id": each, "at": datetime(2026, 1, each + 1), "v": f"v{each}"} for each in range(6)]
    file = add(table, "avro", values, kinds=[0, 0, 2, 0, 0, 0], level=5, _DELETE_ROW_COUNT=0)
    [source] = live(table.path)
    table.alter({"id": columns["id"], "at": columns["at"], "a b": "STRING", "new": "INT"}, {"a b": "v"})
    table.delete({file: [0, 4]}, kind="COMPACT")
    before = rows(table.path)
    assert purge(open_table(str(table.path)), LocalEngine()).verified
    assert rows(table.path) == before
    assert [each["a b"] for each in before] == ["v1", "v2", "v3", "v5"]
    [new] = live(table.path)
    assert new != source
    old = list(read_records(source.read_bytes(), None))
    assert list(read_records(new.read_bytes(), None)) == [old[at] for at in (1, 2, 3, 5)]
    assert header(new)["avro.schema"] == header(source)["avro.schema"]
    assert ("_KEY_id" in old[0]) == (thin == "false")
    [described] = open_table(str(table.path)).snapshot().files.to_pylist()
    assert (described["level"], described["schema_id"]) == (5, 0)


def test_ranges_of_row_ids(tmp_path: Path) -> None:
    """Files of a data-evolution table have no row ids in them: the place of a row is its id."""
    options = {**AVRO, "row-tracking.enabled": "true", "data-evolution.enabled": "true"}
    table = PaimonWriter(tmp_path / "t", options=options)
    values = [{"id": each, "v": f"v{each}"} for each in range(9)]
    table.delete({add(table, "avro", values, _FIRST_ROW_ID=100): [0, 5]})
    assert purge(open_table(str(table.path)), LocalEngine()).verified
    assert rows(table.path) == [each for each in values if each["id"] not in {0, 5}]
    found = open_table(str(table.path)).snapshot().files.sort_by("first_row_id").to_pylist()
    assert [(each["first_row_id"], each["physical_rows"]) for each in found] == [(101, 4), (106, 3)]
    assert list(read_records((table.path / found[1]["path"]).read_bytes(), None)) == values[6:]

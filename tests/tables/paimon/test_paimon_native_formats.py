"""Rewrites of tables whose new files are ORC, and the refusals before a rewrite."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from support.paimon_writer import PaimonWriter
from support.releases import needs_orc_timestamps
from test_paimon_formats import ROW, add

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.planning.plan import purge_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table

DV = {"bucket": "-1", "deletion-vectors.enabled": "true"}
WHEN = datetime(2026, 3, 1, 12, tzinfo=UTC)


def rows(path: Path, version: int | None = None) -> list[dict[str, Any]]:
    _, batches = read(open_table(str(path)), version)
    return [row for batch in batches for row in batch.to_pylist()]


def live(path: Path) -> list[Path]:
    return [path / each for each in open_table(str(path)).snapshot().files["path"].to_pylist()]


def purged(table: PaimonWriter, kind: str, values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a table that lost its first."""
    table.delete({add(table, kind, values): [0]})
    before = rows(table.path)
    report = purge(open_table(str(table.path)), LocalEngine())
    assert report.verified, report.problems
    assert rows(table.path) == before
    return before


def test_a_purge_keeps_the_format(tmp_path: Path) -> None:
    table = PaimonWriter(tmp_path / "t", options={**DV, "file.format": "ORC"})
    assert len(purged(table, "orc", [{"id": each, "v": "x" * each} for each in range(30)])) == 29
    [file] = live(table.path)
    assert file.name.startswith("data-")
    assert file.suffix == ".orc"


def test_old_avro_files_become_the_tables_format(tmp_path: Path) -> None:
    table = PaimonWriter(tmp_path / "t", options={**DV, "file.format": "parquet"})
    purged(table, "avro", [{"id": each, "v": "x" * each} for each in range(30)])
    assert {file.suffix for file in live(table.path)} == {".parquet"}


PADDED = [{"id": 0, "c": "x   "}, {"id": 1, "c": "ab  "}, {"id": 2, "c": " abc"}, {"id": 3, "c": None}]
STRIPPED = [{"id": 1, "c": "ab"}, {"id": 2, "c": " abc"}, {"id": 3, "c": None}]


@pytest.mark.parametrize("kind", ["orc", "parquet"])
def test_char_of_orc_files_is_read_without_the_blanks_that_pad_it(tmp_path: Path, kind: str) -> None:
    table = PaimonWriter(tmp_path / "t", {"id": "INT", "c": "CHAR(4)"}, options={**DV, "file.format": kind})
    assert purged(table, "orc", PADDED) == STRIPPED
    assert {file.suffix for file in live(table.path)} == {f".{kind}"}


def test_a_new_orc_file_whose_readers_do_not_strip_text_has_no_blanks(tmp_path: Path) -> None:
    table = PaimonWriter(tmp_path / "t", {"id": "INT", "c": "CHAR(4)"}, options={**DV, "file.format": "orc"})
    table.delete({add(table, "orc", PADDED): [0]})
    table.alter({"id": "INT", "c": "STRING"})
    assert purge(open_table(str(table.path)), LocalEngine()).verified
    [file] = live(table.path)
    assert orc.read_table(str(file)).to_pylist() == STRIPPED


@pytest.mark.parametrize("kind", ["orc", "parquet"])
def test_char_nested_in_orc_files(tmp_path: Path, kind: str) -> None:
    fields = [{"id": 90, "name": "a", "type": "CHAR(4)"}, {"id": 91, "name": "b", "type": "STRING"}]
    columns = {
        "id": "INT",
        "c": {"type": "ARRAY", "element": {"type": "ROW", "fields": fields}},
        "m": {"type": "MAP", "key": "CHAR(4)", "value": {"type": "ARRAY", "element": "CHAR(4)"}},
        "s": {"type": "MULTISET", "element": "CHAR(4)"},
        "v": {"type": "MAP", "key": "STRING", "value": "STRING"},
    }
    given: list[dict[str, Any]] = [
        {"id": 1, "c": [{"a": "x   ", "b": "y "}], "m": None, "s": None, "v": None},
        {"id": 2, "c": [{"a": "ab  ", "b": "ab  "}, None], "m": [("k   ", ["v   ", None])], "s": [("s   ", 2)],
         "v": [("k ", "v ")]},
        {"id": 3, "c": None, "m": [], "s": [], "v": []},
    ]  # fmt: skip
    expected = [
        {
            "id": 2,
            "c": [{"a": "ab", "b": "ab  "}, None],
            "m": [("k", ["v", None])],
            "s": [("s", 2)],
            "v": [("k ", "v ")],
        },
        given[2],
    ]
    table = PaimonWriter(tmp_path / "t", columns, options={**DV, "file.format": kind})
    assert purged(table, "orc", given) == expected
    _, batches = read(open_table(str(table.path)), columns=["m"])
    assert [row for batch in batches for row in batch.to_pylist()] == [{"m": each["m"]} for each in expected]


def test_a_golden_table_of_orc_files(golden: Path, golden_copy: Callable[[str], Path]) -> None:
    place = golden_copy("paimon/append_dv_orc/table")
    expected = json.loads((golden / "paimon" / "append_dv_orc" / "expected.json").read_text())
    before = rows(place)
    assert purge(open_table(str(place)), LocalEngine()).verified
    assert {path.suffix for path in live(place)} == {".orc"}
    assert rows(place) == before
    assert len(before) == expected["row_count"]


def test_the_codec_of_the_table(tmp_path: Path) -> None:
    options = {**DV, "file.format": "orc", "file.compression": "zlib"}
    table = PaimonWriter(tmp_path / "t", options=options)
    purged(table, "orc", [{"id": each, "v": "v"} for each in range(3)])
    [file] = live(table.path)
    assert orc.ORCFile(file).compression == "ZLIB"


@pytest.mark.parametrize(
    ("kind", "option", "policy", "expected"),
    [
        ("parquet", None, "snappy", "SNAPPY"),
        ("parquet", None, None, "ZSTD"),
        ("parquet", "gzip", "snappy", "GZIP"),
        ("orc", None, "none", "UNCOMPRESSED"),
        ("orc", "zlib", "none", "ZLIB"),
    ],
)
def test_the_option_comes_before_the_policy(
    tmp_path: Path, kind: str, option: str | None, policy: str | None, expected: str
) -> None:
    named = {} if option is None else {"file.compression": option}
    table = PaimonWriter(tmp_path / "t", options={**DV, "file.format": kind, **named})
    values = [{"id": each, "v": "v"} for each in range(3)]
    table.delete({table.append(values) if kind == "parquet" else add(table, kind, values): [0]})
    report = maintain(open_table(str(table.path)), LocalEngine(), Policy.from_mapping({"compression": policy}))
    assert report.verified
    [file] = live(table.path)
    if kind == "parquet":
        assert pq.read_metadata(file).row_group(0).column(0).compression == expected
    else:
        assert orc.ORCFile(file).compression == expected
    assert rows(table.path) == values[1:]


def test_a_policy_that_orc_files_can_not_follow(tmp_path: Path) -> None:
    table = PaimonWriter(tmp_path / "t", options={**DV, "file.format": "orc"})
    table.delete({add(table, "orc", [{"id": each, "v": "v"} for each in range(3)]): [0]})
    with pytest.raises(RefusedError, match="the policy requests the compression 'gzip'") as refused:
        maintain(open_table(str(table.path)), LocalEngine(), Policy(compression="gzip"))
    assert "the policy's compression" in (refused.value.next_step or "")


def test_a_codec_that_is_not_written_stops_the_plan(tmp_path: Path) -> None:
    table = PaimonWriter(tmp_path / "t", options={**DV, "file.compression": "lzo"})
    table.delete({table.append([{"id": each, "v": "v"} for each in range(3)]): [0]})
    found = open_table(str(table.path))
    with pytest.raises(RefusedError, match="the table requests the compression 'lzo'"):
        found.check_writable(found.snapshot(), "rewrite")


def test_a_codec_that_no_library_writes_here(tmp_path: Path) -> None:
    """Readers know it: other files are as right, and the plan says so."""
    table = PaimonWriter(tmp_path / "t", options={**DV, "file.format": "orc", "file.compression": "lzo"})
    table.delete({add(table, "orc", [{"id": each, "v": "v"} for each in range(3)]): [0]})
    found = open_table(str(table.path))
    (step,) = purge_plan(found.snapshot()).steps
    assert "new files are compressed with zstd, as no library writes lzo here (file.compression)" in step.reason
    assert purge(found, LocalEngine()).verified
    (path,) = found.snapshot().files["path"].to_pylist()
    assert orc.ORCFile(table.path / path).compression == "ZSTD"


def test_ids_of_columns_in_orc_files(tmp_path: Path) -> None:
    """As Paimon's own files have them: of elements, keys and values by the rule of its SpecialFields."""
    array = {"type": "ARRAY", "element": {"type": "ARRAY", "element": "INT"}}
    columns = {"id": "INT", "r": ROW, "a": array, "m": {"type": "MAP", "key": "INT NOT NULL", "value": "INT"}}
    table = PaimonWriter(tmp_path / "t", columns, options={**DV, "file.format": "orc"})
    purged(table, "orc", [{"id": each, "r": None, "a": [[each]], "m": None} for each in range(2)])
    [file] = live(table.path)
    schema = orc.ORCFile(file).schema

    def ids(field: pa.Field) -> list[int]:
        inner = [field.type.field(at) for at in range(field.type.num_fields)]
        own = [int(field.metadata[b"paimon.id"])] if b"paimon.id" in (field.metadata or {}) else []
        return own + [id_ for each in inner for id_ in ids(each)]

    base, at = 536870911, {name: int(schema.field(name).metadata[b"paimon.id"]) for name in columns}
    assert ids(schema.field("r")) == [at["r"], 90, 91]
    assert ids(schema.field("a")) == [at["a"], base + at["a"] * 1024 + 1, base + at["a"] * 1024 + 2]
    assert ids(schema.field("m")) == [at["m"], base - at["m"] * 1024 - 1, base + at["m"] * 1024 + 1]


REFUSED: list[tuple[dict[str, str], str, str]] = [
    ({"file.format": "lance"}, "parquet", "must be lance"),
    ({"file.format": "csv"}, "parquet", "must be csv"),
    ({"file.format": "orc", "file.compression": "gzip"}, "orc", "'gzip'"),
    ({"file.format": "orc"}, "parquet", "in files of the format parquet"),
    ({"file.format": "orc"}, "avro", "in files of the format avro"),
]


@pytest.mark.parametrize(("options", "kind", "why"), REFUSED)
def test_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, str], kind: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyorc", None)
    table = PaimonWriter(tmp_path / "t", {"id": "INT", "t": "TIMESTAMP_LTZ(3)"}, options={**DV, **options})
    values = [{"id": 1, "t": WHEN}, {"id": 2, "t": None}]
    table.delete({table.append(values) if kind == "parquet" else add(table, kind, values): [0]})
    before = set(table.path.rglob("*"))
    with pytest.raises(RefusedError, match=why):
        purge(open_table(str(table.path)), LocalEngine())
    assert set(table.path.rglob("*")) == before


@needs_orc_timestamps
@pytest.mark.parametrize("kind", ["parquet", "avro", "orc"])
def test_instants_are_moved_where_nothing_shifts_them(tmp_path: Path, kind: str) -> None:
    options = {**DV, "file.format": "orc", **({} if kind == "orc" else {"orc.timestamp-ltz.legacy.type": "false"})}
    table = PaimonWriter(tmp_path / "t", {"id": "INT", "t": "TIMESTAMP_LTZ(3)"}, options=options)
    values = [{"id": 1, "t": WHEN}, {"id": 2, "t": WHEN}]
    table.delete({table.append(values) if kind == "parquet" else add(table, kind, values): [0]})
    assert purge(open_table(str(table.path)), LocalEngine()).verified
    assert rows(table.path) == [{"id": 2, "t": WHEN}]
    assert {path.suffix for path in live(table.path)} == {".orc"}


@needs_orc_timestamps
def test_a_value_that_can_not_be_written_leaves_no_file(tmp_path: Path) -> None:
    table = PaimonWriter(tmp_path / "t", {"id": "INT", "t": "TIMESTAMP(3)"}, options={**DV, "file.format": "orc"})
    values = [{"id": each, "t": datetime(1969, 12, 31, 23, 59, 59, 1000 * each)} for each in range(3)]
    table.delete({table.append(values): [0]})
    before = set(table.path.rglob("*"))
    with pytest.raises(RefusedError, match="in the last second before 1970"):
        purge(open_table(str(table.path)), LocalEngine())
    assert set(table.path.rglob("*")) == before

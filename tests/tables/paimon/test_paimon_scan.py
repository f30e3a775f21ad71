"""Rows of tables: golden ones as expected, evolved schemas by field id, and what is refused to be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from effort import examples
from golden_tables import names_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.paimon_writer import NEW, OLD, DataFile, PaimonWriter
from support.places import GOLDEN

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.splits import plan_splits, scan_split
from dv_maintenance.errors import DamagedTableError, RefusedError, UsageError
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.tables.paimon.log.binary_row import Moment
from dv_maintenance.tables.paimon.rows.types import arrow_type, parse_type
from dv_maintenance.tables.paimon.table import PaimonTable
from dv_maintenance.tables.work import ScanTask

EVOLVING = {"row-tracking.enabled": "true", "data-evolution.enabled": "true"}
EXPECTED: dict[str, dict[str, Any]] = {
    path.parent.name: json.loads(path.read_text()) for path in sorted((GOLDEN / "paimon").glob("*/expected.json"))
}


def rows(path: Path, version: int | None = None, columns: list[str] | None = None) -> list[dict[str, Any]]:
    _, batches = read(open_table(str(path)), version, columns)
    return [row for batch in batches for row in batch.to_pylist()]


def lists(found: list[dict[str, Any]]) -> list[list[Any]]:
    return [list(row.values()) for row in found]


@pytest.mark.parametrize("name", names_in("paimon", EXPECTED))
def test_golden_rows(golden: Path, name: str) -> None:
    expected = EXPECTED[name]
    place = golden / "paimon" / name / "table"
    for version, state in [(None, expected), *(expected.get("at_snapshot") or {}).items()]:
        found = rows(place, None if version is None else int(version), expected["columns"])
        wanted = [row if isinstance(row, list) else [row] for row in state["rows"]]
        assert sorted(map(repr, lists(found))) == sorted(map(repr, wanted))
        assert len(found) == state["row_count"]


def test_columns(golden: Path) -> None:
    place = golden / "paimon" / "append_dv_part" / "table"
    found = rows(place, columns=["score", "pt"])
    assert list(found[0]) == ["score", "pt"]
    assert {row["pt"] for row in found} == {"a", "b"}
    table = open_table(str(place))
    for columns, why in [(["nowhere"], "no column 'nowhere'"), (["id", "id"], "named twice")]:
        with pytest.raises(UsageError, match=why):
            table.scan_tasks(table.snapshot(), columns)


def test_tasks_travel_as_json(golden: Path) -> None:
    table = open_table(str(golden / "paimon" / "append_dv_part" / "table"))
    snapshot = table.snapshot()
    tasks = table.scan_tasks(snapshot)
    assert len(tasks) == snapshot.files.num_rows
    assert [ScanTask.from_json(json.loads(json.dumps(task.to_json()))) for task in tasks] == tasks
    assert {task.sources[0].constants["pt"] for task in tasks} == {"a", "b"}
    assert all(task.sources[0].dv is not None for task in tasks)


# -- schemas ------------------------------------------------------------------------------------------------------


def test_columns_are_the_same_by_id(tmp_path: Path) -> None:
    written = PaimonWriter(tmp_path / "t", {"id": "INT", "a": "STRING", "b": "INT"})
    written.append([{"id": 1, "a": "one", "b": 10}, {"id": 2, "a": "two", "b": 20}])
    # Names change places, a column goes, and one of its name comes: another one.
    written.alter({"id": "BIGINT", "b": "STRING", "a": "DOUBLE"}, {"b": "a", "a": "nowhere"})
    file = written.append([{"id": 3, "b": "three", "a": 3.5}, {"id": 4, "b": "four", "a": None}])
    written.delete({file: [1]})
    assert rows(written.path) == [
        {"id": 1, "b": "one", "a": None},
        {"id": 2, "b": "two", "a": None},
        {"id": 3, "b": "three", "a": 3.5},
    ]
    assert rows(written.path, 1) == [{"id": 1, "a": "one", "b": 10}, {"id": 2, "a": "two", "b": 20}]
    assert rows(written.path, columns=["a"]) == [{"a": None}, {"a": None}, {"a": 3.5}]


def test_files_of_other_schemas_are_not_packed_into_one_task(tmp_path: Path) -> None:
    written = PaimonWriter(tmp_path / "t", {"id": "INT", "a": "STRING"})
    written.append([{"id": 1, "a": "one"}])
    written.alter({"id": "INT", "b": "STRING"}, {"b": "a"})
    written.append([{"id": 2, "b": "two"}])
    table = open_table(str(written.path))
    splits = plan_splits(table.scan_tasks(table.snapshot()), 1 << 30)
    found = [row for split in splits for batch in scan_split(split) for row in batch.to_pylist()]
    assert sorted(found, key=lambda row: row["id"]) == [{"id": 1, "b": "one"}, {"id": 2, "b": "two"}]


def array(element: str) -> Any:
    return {"type": "ARRAY", "element": element}


def a_map(key: str, value: str) -> Any:
    return {"type": "MAP", "key": key, "value": value}


@pytest.mark.parametrize(
    ("old", "new", "value", "expected"),
    [
        ("TINYINT", "INT", -7, -7),
        ("INT", "BIGINT", 7, 7),
        ("INT", "DOUBLE", 7, 7.0),
        ("INT", "DECIMAL(12, 2)", 7, Decimal("7.00")),
        ("FLOAT", "DOUBLE", 0.5, 0.5),
        ("DECIMAL(5, 1)", "DECIMAL(9, 3)", Decimal("-1.5"), Decimal("-1.500")),
        ("VARCHAR(3)", "STRING", "abc", "abc"),
        ("TIMESTAMP(3)", "TIMESTAMP(6)", None, None),
        ("BIGINT", "INT", 7, None),
        ("BIGINT", "DOUBLE", 7, None),
        ("INT", "STRING", 7, None),
        ("STRING", "INT", "7", None),
        ("DOUBLE", "FLOAT", 0.1, None),
        ("DECIMAL(9, 3)", "DECIMAL(9, 1)", Decimal("1.125"), None),
        ("DECIMAL(9, 3)", "DECIMAL(9, 4)", Decimal("1.125"), None),
        ("TIMESTAMP(6)", "TIMESTAMP(3)", None, "refused"),
        ("TIMESTAMP(6)", "TIMESTAMP_LTZ(6)", None, "refused"),
        ("DATE", "TIMESTAMP(6)", None, "refused"),
        ("BOOLEAN", "INT", True, None),
        ("VARCHAR(2)", "VARCHAR(3)", "ab", "ab"),
        ("CHAR(2)", "STRING", "ab", "ab"),
        ("STRING", "VARCHAR(3)", "ab", None),
        ("CHAR(2)", "CHAR(3)", "ab", None),
        ("VARCHAR(2)", "CHAR(2)", "a", None),
        ("VARBINARY(2)", "BYTES", b"ab", b"ab"),
        ("BINARY(2)", "BINARY(3)", b"ab", None),
        ("BYTES", "VARBINARY(1)", b"ab", None),
        ("TIMESTAMP(3)", "TIMESTAMP(1)", None, "refused"),
        ("BIGINT", "DECIMAL(22, 2)", -(2**63), Decimal(-(2**63))),
        ("BIGINT", "DECIMAL(21, 2)", 7, None),
        (array("INT"), array("BIGINT"), [1, None], [1, None]),
        (array("BIGINT"), array("INT"), [1, None], None),
        (array("VARCHAR(3)"), array("VARCHAR(2)"), ["abc"], None),
        (a_map("INT", "INT"), a_map("INT", "BIGINT"), [(1, 2)], [(1, 2)]),
        (a_map("INT", "INT"), a_map("BIGINT", "INT"), [(1, 2)], None),
        (array("INT"), a_map("INT", "INT"), [1], None),
    ],
)
def test_columns_that_changed_their_type(tmp_path: Path, old: Any, new: Any, value: Any, expected: Any) -> None:
    written = PaimonWriter(tmp_path / "t", {"id": "INT", "x": old})
    written.append([{"id": 1, "x": value}])
    written.alter({"id": "INT", "x": new})
    if expected == "refused" or (expected is None and value is not None):
        with pytest.raises(RefusedError, match="column x was"):
            rows(written.path)
        assert rows(written.path, columns=["id"]) == [{"id": 1}]
    else:
        assert rows(written.path) == [{"id": 1, "x": expected}]
    assert rows(written.path, 1) == [{"id": 1, "x": value}]


def test_options_that_show_another_snapshot(tmp_path: Path) -> None:
    written = PaimonWriter(tmp_path / "t", {"id": "INT"})
    for number in range(3):
        written.append([{"id": number}])
    written.write_schema(options={**written.options, "scan.snapshot-id": "2"})
    with pytest.raises(RefusedError, match=r"scan\.snapshot-id=2") as refused:
        rows(written.path)
    assert "name the snapshot" in str(refused.value.next_step)
    assert len(rows(written.path, 3)) == 3
    table = open_table(str(written.path))
    with pytest.raises(RefusedError, match=r"scan\.snapshot-id=2"):
        delete(table, LocalEngine(), "id = 1")
    assert any("scan.snapshot-id=2" in each for each in table.snapshot().warnings)


def row_type(*fields: tuple[int, str, str]) -> Any:
    return {"type": "ROW", "fields": [{"id": number, "name": name, "type": kind} for number, name, kind in fields]}


def test_fields_of_rows_are_the_same_by_id(tmp_path: Path) -> None:
    written = PaimonWriter(tmp_path / "t", {"r": row_type((1, "x", "INT"), (2, "y", "INT"))})
    written.append([{"r": {"x": 1, "y": 2}}, {"r": None}])
    written.columns = {"r": row_type((2, "x", "BIGINT"), (3, "y", "INT"))}
    written.write_schema()
    written.append([{"r": {"x": 5, "y": 6}}])
    assert rows(written.path) == [{"r": {"x": 2, "y": None}}, {"r": None}, {"r": {"x": 5, "y": 6}}]


def test_a_row_without_any_of_its_former_fields_is_null(tmp_path: Path) -> None:
    """As in Paimon, and not a row of nulls."""
    written = PaimonWriter(tmp_path / "t", {"r": row_type((1, "x", "INT"))})
    written.append([{"r": {"x": 1}}, {"r": None}])
    written.columns = {"r": row_type((2, "x", "INT"))}
    written.write_schema()
    assert rows(written.path) == [{"r": None}, {"r": None}]


def test_evolved_rows_in_arrays_are_refused(tmp_path: Path) -> None:
    written = PaimonWriter(tmp_path / "t", {"id": "INT", "l": {"type": "ARRAY", "element": row_type((2, "x", "INT"))}})
    written.append([{"id": 1, "l": [{"x": 1}]}])
    assert rows(written.path) == [{"id": 1, "l": [{"x": 1}]}]
    written.columns = {"id": "INT", "l": {"type": "ARRAY", "element": row_type((3, "x", "INT"))}}
    written.write_schema()
    written.append([{"id": 2, "l": [{"x": 2}]}])
    with pytest.raises(RefusedError, match="rows in arrays or maps"):
        rows(written.path)
    assert rows(written.path, columns=["id"]) == [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("BOOLEAN", True),
        ("TINYINT", -7),
        ("SMALLINT", 300),
        ("DOUBLE", 0.1),
        ("FLOAT", 0.5),
        ("DECIMAL(9, 2)", Decimal("-1.50")),
        ("DECIMAL(38, 10)", Decimal("-12345678901234567890.0123456789")),
        ("DATE", 19_782),
        ("STRING", "a/b %é"),
        ("BYTES", b"\0\xff"),
        ("TIMESTAMP(6)", 1_709_208_000_000_001),
        ("TIMESTAMP(9)", -1_709_208_000_000_000_001),
        ("TIMESTAMP(3)", 1_709_208_000_001),
        ("TIMESTAMP_LTZ(3)", 1_709_208_000_001),
        ("TIME(3)", 43_201_250),
        ("INT", None),
    ],
)
def test_partition_values_are_constants(tmp_path: Path, type: str, value: Any) -> None:
    # Bytes need the newer rule of folders.
    options = {"deletion-vectors.enabled": "true", "partition.legacy-name": "false"}
    written = PaimonWriter(tmp_path / "t", {"id": "INT", "p": type}, ["p"], options=options)
    kind = parse_type(type)
    stored: Any = value
    if type.startswith("TIMESTAMP"):
        per = {3: 1, 6: 1000, 9: 1_000_000}[kind.precision]
        stored = Moment(value // per, value % per * (1_000_000 // per))
    # In the file the column lacks its value: what is read is the partition's.
    file = written.data_file([{"id": 1, "p": None}], ())
    moved = DataFile(file.name, 1, (stored,), 0, 0, file.size, file.entry)
    written.commit("APPEND", add=[moved])
    table = open_table(str(written.path))
    (path,) = table.snapshot().files["path"].to_pylist()
    (written.path / path).parent.mkdir(parents=True)
    (written.path / "bucket-0" / file.name).rename(written.path / path)
    _, batches = read(table, None, ["p"])
    (found,) = [batch.column("p") for batch in batches]
    assert found.type == arrow_type(kind)
    if pa.types.is_temporal(found.type):
        found = found.cast(pa.int32() if found.type.bit_width == 32 else pa.int64())
    assert found.to_pylist() == [value]


@pytest.mark.parametrize(
    ("columns", "options", "why"),
    [
        ({"id": "INT", "t": "BLOB"}, {}, "blobs"),
        (
            {"id": "INT", "t": {"type": "ARRAY", "element": {"type": "ARRAY", "element": "BLOB"}}},
            {},
            "blobs in rows, or",
        ),
        ({"id": "INT", "t": "BLOB"}, EVOLVING | {"blob-descriptor-field": "t"}, "the URIs of blobs"),
        ({"id": "INT", "t": "BLOB"}, EVOLVING | {"blob-view-field": "t"}, "blobs of other tables, as these are now"),
        (
            {"id": "INT", "t": "BLOB"},
            EVOLVING | {"blob-view-field": "t", "blob-descriptor-field": "t", "blob-as-descriptor": "true"},
            "blobs of other tables, as these are now",
        ),
        ({"id": "INT", "t": "BLOB"}, EVOLVING | {"blob-as-descriptor": "true"}, "the places of blobs in files"),
        ({"id": "INT"}, {"scan.fallback-branch": "b"}, "fallback branch b does not exist"),
        ({"id": "INT"}, {"query-auth.enabled": "true"}, "catalog"),
    ],
)
def test_rows_that_are_not_simply_those_of_the_files(
    tmp_path: Path, columns: dict[str, Any], options: dict[str, str], why: str
) -> None:
    written = PaimonWriter(tmp_path / "t", columns, options=options)
    written.append([{"id": 1}])
    with pytest.raises(RefusedError, match=why):
        rows(written.path)
    if not options:
        assert rows(written.path, columns=["id"]) == [{"id": 1}]


def test_a_file_with_other_rows_than_the_manifest_says(tmp_path: Path) -> None:
    written = PaimonWriter(tmp_path / "t")
    written.append([{"id": 1, "v": "x"}], _ROW_COUNT=2)
    with pytest.raises(DamagedTableError, match="has 1 rows"):
        rows(written.path)


def test_branches_have_their_own_rows(tmp_path: Path) -> None:
    written = PaimonWriter(tmp_path / "t")
    written.append([{"id": 1, "v": "a"}])
    for name in ("schema/schema-0", "snapshot/snapshot-1"):
        written.put(f"branch/branch-b 1/{name}", (written.path / name).read_bytes())
    written.append([{"id": 2, "v": "b"}])
    table = open_table(str(written.path))
    assert table.format == "paimon"
    assert len(rows(written.path)) == 2
    # Given by its folder, and found by its name.
    assert rows(written.path / "branch" / "branch-b 1") == [{"id": 1, "v": "a"}]
    assert isinstance(table, PaimonTable)
    assert table.branches() == ("b 1",)
    branch = table.branch("b 1")
    assert branch.uri == f"{table.uri}/branch/branch-b%201"
    assert branch.snapshot().table == branch.uri
    assert branch.snapshot().files["path"].to_pylist() == table.snapshot(1).files["path"].to_pylist()
    with pytest.raises(UsageError, match="no branch 'c'"):
        branch.branch("c")


# -- histories ----------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "delete", "compact"]), st.integers(0, 2**30), st.integers(1, 6)), max_size=9
)


@settings(max_examples=examples(10), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, writer=st.sampled_from([OLD, NEW]), bits=st.sampled_from([32, 64]))
def test_random_histories_against_a_plain_model(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]], writer: str, bits: int
) -> None:
    """Every snapshot of a history has the rows that a model of lists has, and the history reports the changes."""
    written = PaimonWriter(tmp_path_factory.mktemp("t") / "t", writer=writer, bits=bits)
    model: dict[DataFile, list[int | None]] = {}
    states: list[list[int]] = [[]]
    act: dict[str, Callable[[int, int], None]] = {
        "append": lambda seed, count: _append(written, model, seed, count),
        "delete": lambda seed, _: _delete(written, model, seed),
        "compact": lambda seed, _: _compact(written, model, seed),
    }
    for name, seed, count in steps:
        if name == "append" or model:
            act[name](seed, count)
            states.append(sorted(each for kept in model.values() for each in kept if each is not None))
    table = open_table(str(written.path))
    assert table.version() == len(states) - 1
    for version, state in list(enumerate(states))[1:]:
        found = rows(written.path, version)
        assert sorted(row["id"] for row in found) == state
    changes = table.changes_since(0).commits
    assert [change.version for change in changes] == list(range(1, len(states)))
    for change in changes:
        assert change.data_changed or states[change.version] == states[change.version - 1]
        if change.operation == "COMPACT":
            assert not change.data_changed
    deleted = sum(entry.rows_deleted_by_dvs for entry in table.history())
    assert deleted == sum(sum(row["fresh"] for row in log) for log in [_LOG.pop(str(written.path), [])])


_LOG: dict[str, list[dict[str, int]]] = {}


def _append(written: PaimonWriter, model: dict[DataFile, list[int | None]], seed: int, count: int) -> None:
    ids = [seed * 10 + index for index in range(count)]
    model[written.append([{"id": each, "v": str(each)} for each in ids])] = list(ids)


def _delete(written: PaimonWriter, model: dict[DataFile, list[int | None]], seed: int) -> None:
    files = list(model)
    file = files[seed % len(files)]
    position = seed // 7 % len(model[file])
    fresh = model[file][position] is not None
    model[file][position] = None
    written.delete({file: [position]})
    _LOG.setdefault(str(written.path), []).append({"fresh": int(fresh)})


def _compact(written: PaimonWriter, model: dict[DataFile, list[int | None]], seed: int) -> None:
    """Some files become one, without what is deleted; DVs of the others move to another index file."""
    files = [file for index, file in enumerate(model) if seed >> index & 1]
    kept = [each for file in files for each in model.pop(file) if each is not None]
    output = written.data_file([{"id": each, "v": str(each)} for each in kept])
    for file in files:
        written.dvs.pop(file.key, None)
    written.write_index()
    written.commit("COMPACT", add=[output] if kept else [], delete=files)
    if kept:
        model[output] = list(kept)

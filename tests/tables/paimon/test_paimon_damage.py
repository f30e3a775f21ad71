"""Whatever bytes a table's own files are damaged to: what comes of it is an error of ours, or a table."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paimon_writer import NEW, OLD, PaimonWriter

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table


def read_all(path: Path) -> None:
    """All that reads a table, each for itself."""
    table = open_table(str(path), "paimon")

    def rows() -> None:
        for _ in read(table)[1]:
            pass

    steps = [
        lambda: health(table.snapshot()),
        rows,
        table.history,
        lambda: table.changes_since(0),
        lambda: table.oldest_dv(table.snapshot(2)),
    ]
    for step in steps:
        with contextlib.suppress(DvMaintenanceError):
            step()


def written(path: Path, writer: str, codec: str) -> PaimonWriter:
    columns = {"id": "BIGINT", "p": "STRING", "t": "TIMESTAMP(6)"}
    found = PaimonWriter(path, columns, ["p"], writer=writer, codec=codec)
    first = found.append([{"id": each} for each in range(10)], ("a",))
    found.append([{"id": each} for each in range(5)], ("a long name",))
    found.delete({first: [1, 2]})
    found.delete({first: [7]}, "COMPACT")
    return found


@contextlib.contextmanager
def replaced(path: Path, data: bytes) -> Iterator[None]:
    before = path.read_bytes()
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize(("writer", "codec"), [(OLD, "null"), (NEW, "null"), (NEW, "zstandard")])
def test_flipped_bytes_and_cut_files(tmp_path: Path, writer: str, codec: str) -> None:
    table = written(tmp_path / "t", writer, codec)
    files = [
        path
        for folder in ("schema", "snapshot", "manifest", "index")
        for path in sorted((table.path / folder).iterdir())
        if path.stat().st_size
    ]
    read_all(table.path)

    @settings(max_examples=examples(5))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(files))
        body = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(0, 3))):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        cut = data.draw(st.just(len(body)) | st.integers(0, len(body)))
        with replaced(path, bytes(body[:cut])):
            read_all(table.path)

    check()


def test_files_that_are_gone(tmp_path: Path) -> None:
    table = written(tmp_path / "t", NEW, "null")
    for path in sorted(each for each in table.path.rglob("*") if each.is_file()):
        body = path.read_bytes()
        path.unlink()
        read_all(table.path)
        path.write_bytes(body)


def test_a_schema_without_columns(tmp_path: Path) -> None:
    table = written(tmp_path / "t", NEW, "null")
    newest = max((table.path / "schema").iterdir())
    newest.write_text(
        json.dumps({**json.loads(newest.read_text()), "fields": None, "partitionKeys": [], "primaryKeys": []})
    )
    with pytest.raises(DamagedTableError, match="it has no columns"):
        open_table(str(table.path)).snapshot()


@pytest.mark.parametrize("name", ["totalRecordCount", "watermark"])
def test_a_count_that_is_no_number(tmp_path: Path, name: str) -> None:
    """Paimon can't read such a snapshot, and the next one would take the value over."""
    table = written(tmp_path / "t", NEW, "null")
    newest = table.path / "snapshot" / f"snapshot-{table.version}"
    newest.write_text(json.dumps({**json.loads(newest.read_text()), name: "x"}))
    with pytest.raises(DamagedTableError, match=f"{name} is not a 64-bit integer"):
        open_table(str(table.path)).snapshot()


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)


@settings(max_examples=examples(5))
@given(data=st.data())
def test_other_values_in_json(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    table = written(tmp_path_factory.mktemp("t") / "t", NEW, "null")
    name = data.draw(st.sampled_from(["schema/schema-0", "snapshot/snapshot-4", "snapshot/snapshot-2"]))
    key = data.draw(st.sampled_from(sorted(table.body(name))))
    value = data.draw(VALUES.filter(lambda each: not isinstance(each, int) or abs(each) < 2**63))
    table.change(name, **{key: value})
    read_all(table.path)


ENTRY = st.sampled_from(["_KIND", "_BUCKET", "_TOTAL_BUCKETS", "_PARTITION"])
FILE = st.sampled_from(["_FILE_SIZE", "_ROW_COUNT", "_SCHEMA_ID", "_LEVEL", "_CREATION_TIME", "_FILE_SOURCE"])
NUMBERS = st.sampled_from([-(2**31), -2, -1, 0, 1, 2, 2**31 - 1])


@settings(max_examples=examples(5))
@given(key=ENTRY, inner=FILE, number=NUMBERS, other=NUMBERS | st.just(2**62), row=st.binary(max_size=24))
def test_other_values_in_manifests(
    tmp_path_factory: pytest.TempPathFactory, key: str, inner: str, number: int, other: int, row: bytes
) -> None:
    if inner in {"_LEVEL", "_FILE_SOURCE"}:
        other = max(min(other, 2**31 - 1), -(2**31))
    table = PaimonWriter(tmp_path_factory.mktemp("t") / "t", codec="null")
    file = table.append([{"id": 1, "v": "x"}], **{inner: other})
    table.every_entry = {key: row if key == "_PARTITION" else number}
    table.append([{"id": 2, "v": "y"}])
    table.delete({file: [0]})
    read_all(table.path)

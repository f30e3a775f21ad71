"""Rows, lineage and counts of the golden Iceberg tables at every snapshot, and what becomes of the damaged ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from effort import sampled
from golden_tables import names_in
from support.places import GOLDEN
from support.releases import golden_params
from support.tables import iceberg_table as opened
from variants import as_text

from dv_maintenance.cli import main
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.maintenance.fsck.check import fsck
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.read import read
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.file_log import FileLogTable
from dv_maintenance.testing.file_logs import check_windows
from dv_maintenance.testing.incremental import check_advanced

EXPECTED: dict[str, dict[str, Any]] = {
    path.parent.name: json.loads(path.read_text()) for path in sorted((GOLDEN / "iceberg").glob("*/expected.json"))
}


def of_kind(*kinds: str) -> list[str]:
    return names_in("iceberg", (name for name, facts in EXPECTED.items() if facts["kind"] in kinds))


ROWS = of_kind("rows")
DAMAGED = {
    "bad_cardinality": "it holds 8 positions, the log says 7",
    "bad_crc": "CRC-32 is",
    "bad_length": "the file says 47 bytes, the manifest without the frame 48",
    "bad_magic": "unknown magic number",
    "bad_missing_puffin": "the file does not exist",
    "bad_position_past_end": "position 1000 is beyond the file's 40 rows",
    "bad_truncated_puffin": "truncated: 28 bytes left in the file, 56 needed",
    "bad_two_dvs": "has two deletion vectors",
}
# Damage that shows without opening a Puffin file.
IN_METADATA = {"bad_two_dvs"}

pytestmark = pytest.mark.usefixtures("golden")


def rows_at(place: Path, version: int | None, columns: list[str] | None = None) -> pa.Table:
    schema, batches = read(open_table(str(place)), version, columns)
    rows = pa.Table.from_batches(batches, schema).combine_chunks()
    if "v" in schema.names and pa.types.is_struct(schema.field("v").type):
        at = schema.get_field_index("v")
        return rows.set_column(at, "v", as_text(rows.column(at).chunk(0)))
    return rows


def nanoseconds(rows: pa.Table) -> list[dict[str, str]]:
    """Rows of ``ts_nano`` as its expected texts."""
    texts = [
        ("t", lambda values: pc.strftime(values, "%Y-%m-%dT%H:%M:%S")),
        ("z", lambda values: pc.strftime(values, "%Y-%m-%dT%H:%M:%SZ")),
    ]
    for name, text in texts:
        rows = rows.set_column(rows.schema.get_field_index(name), name, text(rows[name]))
    found = rows.to_pylist()
    for row in found:
        row["u"] = row["u"] and str(UUID(bytes=row["u"]))
        row["ti"], row["fx"] = row["ti"] and row["ti"].isoformat(), row["fx"] and row["fx"].hex()
    return found


@pytest.mark.parametrize("name", golden_params(ROWS))
def test_rows_and_counts_of_every_snapshot(laid: Callable[[str], Path], canon: ModuleType, name: str) -> None:
    table = opened(laid(name))
    for facts in EXPECTED[name]["snapshots"]:
        snapshot = table.snapshot(facts["id"])
        rows = rows_at(laid(name), facts["id"])
        if name == "ts_nano":
            assert nanoseconds(rows) == facts.get("rows", nanoseconds(rows))
        else:
            assert canon.digest(canon.rows(rows)) == facts["rows_sha256"]
        files, dvs = snapshot.files, snapshot.files.filter(pc.is_valid(snapshot.files["dv_file"]))
        positions = sum(each.cardinality for each in snapshot.positions.values())
        assert {
            "data_files": files.num_rows,
            "physical_rows": pc.sum(files["record_count"]).as_py() or 0,
            "dv_count": dvs.num_rows,
            "deleted_rows_by_dvs": (pc.sum(files["deleted_rows"]).as_py() or 0) - positions,
            "position_delete_files": snapshot.deletes.positions.num_rows,
            "equality_delete_files": len(snapshot.deletes.equality),
            "dangling_dvs": snapshot.matched.dangling_dvs.num_rows,
            "live_rows": rows.num_rows,
        } == {
            **{each: facts[each] for each in ("data_files", "physical_rows", "dv_count", "deleted_rows_by_dvs")},
            **{each: facts[each] for each in ("position_delete_files", "equality_delete_files", "live_rows")},
            "dangling_dvs": len(facts["dangling_dvs"]),
        }
        counts = health(snapshot).counts
        assert counts.live_rows == (None if snapshot.deletes.equality else facts["live_rows"])
        if "files" in facts:
            check_files(laid(name), snapshot.files.to_pylist(), facts["files"])


def check_files(place: Path, found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    def below(path: str) -> str:
        return path.partition(f"{place}/")[2]

    dvs = {
        below(row["path"]): (below(row["dv_file"]), row["dv_offset"], row["dv_length"], row["dv_sequence"])
        for row in found
        if row["dv_file"]
    }
    facts = {
        below(row["path"]): (
            row["record_count"],
            row["data_sequence"],
            row["spec_id"],
            row["first_row_id"],
            row["format"],
        )
        for row in found
    }
    assert facts == {
        each["path"]: (each["rows"], each["sequence"], each["spec"], each["first_row_id"], each["format"])
        for each in expected
    }
    assert dvs == {
        each["path"]: (dv["path"], dv["offset"], dv["length"], dv["sequence"])
        for each in expected
        if (dv := each["dv"])
    }


@pytest.mark.parametrize("name", golden_params(ROWS))
def test_the_newest_version(laid: Callable[[str], Path], canon: ModuleType, name: str) -> None:
    facts, table = EXPECTED[name], opened(laid(name))
    snapshot = table.snapshot()
    assert (table.version(), snapshot.version) == (facts["current_snapshot"], facts["current_snapshot"])
    assert snapshot.metadata.format_version == facts["format_version"]
    assert {ref: each.snapshot for ref, each in snapshot.metadata.refs.items()} == {
        ref: each["snapshot-id"] for ref, each in facts["refs"].items()
    }
    if "lineage_sha256" in facts:
        rows = rows_at(laid(name), None, facts["lineage_columns"].split(","))
        assert canon.digest(canon.rows(rows)) == facts["lineage_sha256"]
    last = next(each for each in facts["snapshots"] if each["id"] == facts["current_snapshot"])
    if "schema" in last and name != "variant_col":
        assert [f"{each.name}: {each.type}" for each in snapshot.schema] == [
            each.replace("<item:", "<element:") if "list<" in each else each for each in last["schema"]
        ]


@pytest.mark.parametrize("name", sampled(ROWS, 4))
def test_history_and_files_lead_from_version_to_version(laid: Callable[[str], Path], name: str) -> None:
    table = opened(laid(name))
    assert isinstance(table, FileLogTable)
    entries = table.history()
    chain = [each.version for each in entries][::-1]
    check_windows(table, chain)
    facts = {each["id"]: each for each in EXPECTED[name]["snapshots"]}
    for entry in entries:
        assert (entry.operation, entry.timestamp) == (
            facts[entry.version]["operation"],
            facts[entry.version]["timestamp_ms"],
        )
        parent = facts.get(facts[entry.version]["parent"])
        if parent is not None:
            grown = facts[entry.version]["data_files"] - parent["data_files"]
            assert entry.files_added - entry.files_removed == grown
            now = facts[entry.version]
            dvs, files = now["dv_count"] + len(now["dangling_dvs"]), now["position_delete_files"]
            grown = dvs + files - parent["dv_count"] - parent["position_delete_files"]
            assert entry.dvs_added - entry.dvs_removed == grown
    for at, version in enumerate(chain[1:], 1):
        assert table.parent_of(version) == chain[at - 1]
        assert table.follows(version, chain[0])
        assert not table.follows(chain[0], version)
        assert [each.version for each in table.changes_since(version).commits] == chain[at + 1 :]


@pytest.mark.parametrize("name", sampled(ROWS, 4))
def test_a_look_reads_new_manifests_only(
    laid: Callable[[str], Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = opened(laid(name))
    chain = [each.version for each in table.history()]
    kept = table.snapshot(chain[min(1, len(chain) - 1)])
    check_advanced(table, kept)
    read_paths: list[str] = []
    get = Storage.get
    monkeypatch.setattr(Storage, "get", lambda self, path: read_paths.append(path) or get(self, path))
    assert table.advanced(kept, chain[0])
    known = {table.path_of(each.path) for each in kept.entries.by_manifest}
    assert not known & set(read_paths)


def test_every_damaged_table_is_known() -> None:
    assert set(DAMAGED) == set(of_kind("damaged"))


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_tables_are_not_read(
    laid: Callable[[str], Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = laid(name)
    with pytest.raises(DamagedTableError, match=DAMAGED[name]) as caught:
        rows_at(place, None)
    assert "puffin" in str(caught.value) or name in IN_METADATA
    assert main(["read", str(place), "--json"]) == EXPECTED[name]["expected_exit"] == 5
    assert str(place) in json.loads(capsys.readouterr().out)["message"]


@pytest.mark.parametrize("name", DAMAGED)
def test_fsck_finds_the_damage(laid: Callable[[str], Path], name: str) -> None:
    report = fsck(opened(laid(name)), deep=True)
    assert report.damage
    quick = fsck(opened(laid(name)))
    assert bool(quick.damage) == (name in IN_METADATA | {"bad_missing_puffin", "bad_truncated_puffin"})


@pytest.mark.parametrize("name", sampled(golden_params(ROWS), 4))
def test_fsck_finds_sound_tables_sound(laid: Callable[[str], Path], name: str) -> None:
    report = fsck(opened(laid(name)), deep=True)
    assert not report.damage
    assert report.unread == 0


@pytest.mark.parametrize("name", of_kind("odd"))
def test_odd_tables_are_read_as_java_reads_them(laid: Callable[[str], Path], name: str) -> None:
    rows = rows_at(laid(name), None)
    facts = EXPECTED[name]
    assert rows.num_rows == facts.get("row_count", facts.get("undamaged", {}).get("row_count"))

"""Snapshots of golden tables and of hand-made ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from golden_tables import names_in
from support.places import GOLDEN
from support.raw_log import PROTOCOL, RawLog, add, dv, metadata, remove

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.rows.files import FILES
from dv_maintenance.tables.model import FILES_SCHEMA

EXPECTED: dict[str, Any] = (
    json.loads((GOLDEN / "delta" / "expected.json").read_text()) if (GOLDEN / "delta").is_dir() else {}
)


@pytest.mark.parametrize("name", names_in("delta", EXPECTED))
def test_golden(golden: Path, name: str) -> None:
    storage = Storage(str(golden / "delta" / name))
    expected = EXPECTED[name]
    if expected["kind"] == "must-refuse":
        with pytest.raises(DvMaintenanceError) as caught:
            load_snapshot(storage)
        assert caught.value.exit_code in {3, 5}
        return
    snapshot = load_snapshot(storage)
    files = snapshot.files
    files.validate(full=True)
    assert files.schema == FILES
    on_disk = files.filter(files["dv_id"].is_valid())["dv"].combine_chunks().to_pylist()
    facts = {
        "version": snapshot.version,
        "live_files": len(files),
        "live_dvs": len(files) - files["dv_id"].null_count,
        "sum_dv_cardinality": pc.sum(files["deleted_rows"]).as_py() or 0,
        "distinct_dv_files": len({one["path_or_inline"] for one in on_disk if one["storage_type"] != "i"}),
        "sum_physical_numRecords": pc.sum(files["physical_rows"]).as_py() or 0,
    }
    replay = expected["replay"]
    # The scan behind the expected facts does not read struct statistics; a reader's row count covers those.
    if replay["sum_physical_numRecords"] is None:
        known = files["physical_rows"].null_count == 0
        rows = expected.get("expected", {}).get("rows")
        assert not known or rows is None or rows == facts["sum_physical_numRecords"] - facts["sum_dv_cardinality"]
        del facts["sum_physical_numRecords"]
    assert facts == {key: replay[key] for key in facts}
    assert snapshot.duplicate_paths == ()
    assert not [warning for warning in snapshot.warnings if "checksum" in warning]


def test_golden_struct_statistics_are_counted(golden: Path) -> None:
    for name in (
        "v1-single-part-struct-stats-only",
        "v1-multi-part-struct-stats-only",
        "delta-1.2.1-only-struct-stats",
    ):
        snapshot = load_snapshot(Storage(str(golden / "delta" / name)))
        assert pc.sum(snapshot.files["physical_rows"]).as_py() == EXPECTED[name]["expected"]["rows"]


def test_every_version_of_a_golden_table(golden: Path) -> None:
    storage = Storage(str(golden / "delta" / "log-replay-dv-key-cases"))
    deleted = [load_snapshot(storage, version).files["deleted_rows"].to_pylist() for version in range(4)]
    assert deleted == [[0], [1], [2], [3]]


def test_a_damaged_golden_checkpoint_falls_back(golden_copy: Callable[[str], Path]) -> None:
    table = golden_copy("delta/dv-with-columnmapping")
    whole = load_snapshot(Storage(str(table)))
    next((table / "_delta_log").glob("*.checkpoint.parquet")).write_bytes(b"PAR1")
    again = load_snapshot(Storage(str(table)))
    assert again.files.sort_by("path").to_pylist() == whole.files.sort_by("path").to_pylist()
    assert len(again.warnings) == len(whole.warnings) + 1


@pytest.fixture
def log(tmp_path: Path) -> RawLog:
    return RawLog(tmp_path)


def test_shape_and_values(log: RawLog) -> None:
    schema = {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("id", "long"), ("day", "date"), ("n", "integer"))
        ],
    }
    log.commit(
        0,
        PROTOCOL,
        metadata(schema, ("n", "day")),
        add("x", dv(rows=3), partitionValues={"day": "2026-1-2", "n": "01"}, tags={"a": "b"}, baseRowId=5),
        add("y", partitionValues={"n": "1", "day": "2026-01-02"}, defaultRowCommitVersion=2),
        add("z", rows=None, partitionValues={"n": None, "day": ""}),
        at=1_700_000_000_123,
    )
    snapshot = load_snapshot(log.storage)
    assert snapshot.files.schema.names[: len(FILES_SCHEMA)] == FILES_SCHEMA.names
    assert snapshot.schema.names == ["id", "day", "n"]
    assert snapshot.partition_columns == ("n", "day")
    assert (snapshot.timestamp, snapshot.in_commit_timestamp) == (1_700_000_000_123, None)
    x, y, z = snapshot.files.to_pylist()
    assert (x["partition"], y["partition"]) == ("n=01/day=2026-1-2", "n=1/day=2026-01-02")
    assert z["partition"] == "n=__HIVE_DEFAULT_PARTITION__/day="
    assert (x["physical_rows"], x["deleted_rows"], x["dv_id"]) == (10, 3, "u0123456789abcdefghij@1")
    assert (y["deleted_rows"], y["dv_id"], y["dv"], y["tags"]) == (0, None, None, None)
    assert (x["tags"], x["base_row_id"], y["default_row_commit_version"]) == ([("a", "b")], 5, 2)
    assert x["partition_values"] == [("day", "2026-1-2"), ("n", "01")]
    assert (z["physical_rows"], z["modified"], z["size"]) == (None, 7, 100)


@pytest.mark.parametrize("rows", [-1, 0, 9])
def test_row_counts_that_cannot_be_right_are_unknown(log: RawLog, rows: int) -> None:
    """A statistic: the file itself knows better."""
    log.start(add("fine", dv(rows=10), rows=10), add("bad", dv("x" * 20, rows=10), rows=rows), add("none", rows=-1))
    snapshot = load_snapshot(log.storage)
    assert snapshot.files["physical_rows"].to_pylist() == [10, None, None]
    assert snapshot.warnings[0] == "no valid numRecords in the statistics of 1 file with deletion vectors"


def test_a_dv_without_row_count_is_a_warning(log: RawLog) -> None:
    log.start(add("a", dv(rows=1000), rows=None))
    assert "1 file" in load_snapshot(log.storage).warnings[0]


def test_a_file_that_is_live_twice_is_a_warning(log: RawLog) -> None:
    log.start(add("a"), add("b"))
    log.commit(1, add("a", dv()))
    snapshot = load_snapshot(log.storage)
    assert snapshot.duplicate_paths == ("a",)
    assert any("a is live more than once" in warning for warning in snapshot.warnings)
    log.commit(2, remove("a"))
    assert load_snapshot(log.storage).duplicate_paths == ()


@pytest.mark.parametrize(
    ("checksum", "warnings"),
    [
        ('{"numFiles": 2, "tableSizeBytes": 200, "numDeletedRecordsOpt": 1}', 0),
        ('{"numFiles": 3, "tableSizeBytes": 1, "numDeletedRecordsOpt": 9}', 3),
        ('{"numFiles": 2}', 0),
        ('{"numFiles": "3"}', 0),
        ("[]", 0),
        ("{", 0),
    ],
)
def test_checksum_files_are_compared_never_believed(log: RawLog, checksum: str, warnings: int) -> None:
    log.start(add("a", dv()), add("b"))
    log.put("00000000000000000000.crc", checksum)
    found = load_snapshot(log.storage).warnings
    assert len(found) == warnings
    assert all("checksum file of version 0" in warning for warning in found)


def test_in_commit_timestamps(log: RawLog) -> None:
    stamped = {"commitInfo": {"inCommitTimestamp": 77, "timestamp": 1}}
    enabled = metadata(delta__enableInCommitTimestamps="true")
    log.commit(0, PROTOCOL, metadata(), at=5000)
    log.commit(1, stamped, enabled, at=6000)
    log.commit(2, add("a"), at=7000)
    assert load_snapshot(log.storage, 0).timestamp == 5000
    at_one = load_snapshot(log.storage, 1)
    assert (at_one.timestamp, at_one.in_commit_timestamp) == (77, 77)
    at_two = load_snapshot(log.storage, 2)
    assert (at_two.timestamp, at_two.in_commit_timestamp) == (7000, None)
    assert any("does not begin with one" in each for each in at_two.warnings)
    log.parquet("00000000000000000001.checkpoint.parquet", PROTOCOL, enabled)
    assert load_snapshot(log.storage, 1).in_commit_timestamp == 77


def test_no_protocol_is_damage_no_schema_is_a_warning(log: RawLog) -> None:
    log.commit(0, PROTOCOL, add("a"))
    snapshot = load_snapshot(log.storage)
    assert len(snapshot.files) == 1
    assert "no schema" in snapshot.warnings[0]
    log.commit(0, metadata(), add("a"))
    with pytest.raises(DamagedTableError, match="no protocol") as caught:
        load_snapshot(log.storage)
    assert (caught.value.table, caught.value.version) == (log.storage.uri, 0)


def test_pandas_stays_out(golden: Path) -> None:
    """Importing it would take longer than everything else that ``dvm health`` does."""
    code = (
        "import sys; from dv_maintenance.storage import Storage; from dv_maintenance.tables.delta.load import "
        "load_snapshot; [load_snapshot(Storage(each)) for each in sys.argv[1:]]; sys.exit('pandas' in sys.modules)"
    )
    names = ["table-with-dv-small", "dv-with-columnmapping", "data-reader-partition-values"]
    subprocess.run([sys.executable, "-c", code, *(golden / "delta" / name for name in names)], check=True)

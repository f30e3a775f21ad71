"""Files of primary-key tables are rewritten one by one, where no compaction can be under way."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from golden_tables import names_in

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.read import read
from dv_maintenance.maintenance.rewriting import PURGE, requested
from dv_maintenance.tables import open_table
from dv_maintenance.tables.paimon.log.entries import added_entries
from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot
from dv_maintenance.tables.paimon.table import PaimonTable

TABLES = names_in("paimon", ("pk_dv_b1", "pk_dv_part"))


def with_options(place: Path, **options: str) -> PaimonTable:
    schema = place / "schema/schema-0"
    body = json.loads(schema.read_text())
    body["options"] |= {name.replace("_", "-"): value for name, value in options.items()}
    schema.write_text(json.dumps(body))
    table = open_table(str(place))
    assert isinstance(table, PaimonTable)
    return table


def rows(table: PaimonTable) -> list[str]:
    schema, batches = read(table)
    return sorted(map(repr, pa.Table.from_batches(batches, schema).to_pylist()))


def entries(table: PaimonTable, snapshot: PaimonSnapshot) -> list[dict[str, object]]:
    """What manifests say of the live files, in the order of their keys."""
    names = ("partition_code", "bucket", "file_name", "manifest")
    found = zip(*(snapshot.files[name].to_pylist() for name in names), strict=True)
    wanted = {(snapshot.partitions[code].row, bucket, name): at for code, bucket, name, at in found}
    read = added_entries(table.layout, snapshot, wanted)
    return [
        dict(read[file].file) for file in sorted(wanted, key=lambda file: (*file[:2], str(read[file].file["_LEVEL"])))
    ]


@pytest.mark.parametrize("name", TABLES)
def test_each_file_keeps_its_place(golden_copy: Callable[[str], Path], name: str) -> None:
    table = with_options(golden_copy(f"paimon/{name}/table"), write_only="true")
    before, old = rows(table), table.snapshot()
    said = entries(table, old)
    report = purge(table, LocalEngine())
    assert report.verified, report.problems
    new = table.snapshot()
    assert rows(table) == before
    assert health(new).counts.files_with_dv == 0
    assert new.files.num_rows == old.files.num_rows  # none was merged with another
    same = (
        "_LEVEL",
        "_MIN_KEY",
        "_MAX_KEY",
        "_KEY_STATS",
        "_MIN_SEQUENCE_NUMBER",
        "_MAX_SEQUENCE_NUMBER",
        "_SCHEMA_ID",
    )
    for before_, after in zip(said, entries(table, new), strict=True):
        assert {key: before_[key] for key in same} == {key: after[key] for key in same}
    assert sum(int(str(each["_ROW_COUNT"])) for each in entries(table, new)) == len(before)
    # Keys ascend, and all of the file's own columns are there.
    for path in new.files["path"].to_pylist():
        stored = pq.ParquetFile(Path(table.storage.local(table.storage.uri_of(path)))).read()
        assert (
            stored.column_names[:3] == ["_KEY_id", "_SEQUENCE_NUMBER", "_VALUE_KIND"]
            or "_KEY_pt" in stored.column_names
        )
        keys = stored["_KEY_id"].to_pylist()
        assert keys == sorted(keys)


def test_small_files_are_not_merged(golden_copy: Callable[[str], Path]) -> None:
    table = with_options(golden_copy("paimon/pk_dv_part/table"), write_only="true")
    version = table.version()
    report = maintain(table, LocalEngine(), Policy(max_deleted_ratio=1))
    assert not report.steps
    assert table.version() == version


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "its writers compact it"),
        ({"write_only": "true", "deletion-vectors.merge-on-read": "true"}, "only Paimon can merge"),
        ({"write_only": "true", "changelog_producer": "full-compaction"}, "changelog-producer=full-compaction"),
    ],
)
def test_what_is_left_to_paimon_names_the_one_step(
    golden_copy: Callable[[str], Path], options: dict[str, str], reason: str
) -> None:
    place = golden_copy("paimon/pk_dv_b1/table")
    table = with_options(place, **options)
    with pytest.raises(RefusedError, match=reason) as caught:
        purge(table, LocalEngine())
    assert f"dvm engine-sql {table.uri} purge" in str(caught.value.next_step)


def test_waiting_files_stop_it(golden_copy: Callable[[str], Path]) -> None:
    table = with_options(golden_copy("paimon/pk_dv_l0_hidden/table"), write_only="true")
    with pytest.raises(RefusedError, match="wait for a compaction") as caught:
        purge(table, LocalEngine())
    assert f"dvm engine-sql {table.uri} purge" in str(caught.value.next_step)
    with pytest.raises(RefusedError, match="wait for a compaction"):
        requested(table, table.snapshot(), PURGE)
    assert not maintain(table, LocalEngine()).steps


def test_what_needs_merging_stays_refused(golden_copy: Callable[[str], Path]) -> None:
    table = with_options(golden_copy("paimon/pk_dv_b1/table"), write_only="true")
    with pytest.raises(RefusedError, match="only Paimon can merge"):
        delete(table, LocalEngine(), "id = 1")


def test_orc_files_stay_orc_files(golden_copy: Callable[[str], Path]) -> None:
    """Whatever new files are to be. Those of formats that are not written here are left alone."""
    table = with_options(golden_copy("paimon/pk_dv_b1_orc/table"), write_only="true", **{"file.format": "avro"})
    before = rows(table)
    report = purge(table, LocalEngine())
    assert report.verified, report.problems
    assert rows(table) == before
    assert health(table.snapshot()).counts.files_with_dv == 0
    assert all(path.endswith(".orc") for path in table.snapshot().files["path"].to_pylist())


def test_files_of_other_formats_are_left_alone(golden_copy: Callable[[str], Path]) -> None:
    table = with_options(golden_copy("paimon/pk_dv_b1/table"), write_only="true")
    snapshot = table.snapshot()
    paths = pc.replace_substring(snapshot.files["path"], ".parquet", ".Csv")
    files = snapshot.files.set_column(snapshot.files.column_names.index("path"), "path", paths)
    (reason,) = replace(snapshot, files=files).barred()
    assert "must be csv" in reason
    zlib = with_options(Path(snapshot.layout.storage.local("")), **{"file.compression": "zlib"})
    with pytest.raises(RefusedError, match="requests the compression 'zlib'"):
        purge(zlib, LocalEngine())

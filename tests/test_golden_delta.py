"""Every golden Delta table: what its log says, what it holds, and that maintenance changes neither."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from effort import sampled
from golden_tables import names_in
from support.places import GOLDEN
from support.readers import READERS

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, RefusedError, UsageError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.tables.file_log import FileLogTable
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.table import Replacement, Table
from dv_maintenance.tables.work import RewriteBin
from dv_maintenance.testing.file_logs import check_windows

EXPECTED: dict[str, dict[str, Any]] = (
    json.loads((GOLDEN / "delta" / "expected.json").read_text()) if (GOLDEN / "delta").is_dir() else {}
)
# Removes what was never added; has a checkpoint without the statistics of the commits.
ODD_LOGS = {"canonicalized-paths-special-a", "dat-stats_as_struct"}
FORTY_YEARS = 40 * 365 * 24 * 3600 * 1000


def named(*kinds: str) -> list[str]:
    return names_in("delta", (name for name, facts in EXPECTED.items() if facts["kind"] in kinds))


def content(table: Table, canon: ModuleType, version: int | None = None) -> tuple[int, str]:
    schema, batches = read(table, version=version)
    rows = canon.rows(pa.Table.from_batches(list(batches), schema))
    return len(rows), canon.digest(rows)


def as_read_by(reader: str, canon: ModuleType, path: Path, version: int | None = None) -> tuple[int, str]:
    rows = canon.rows(READERS[reader](path, version))
    return len(rows), canon.digest(rows)


def able_readers(name: str) -> list[str]:
    return [reader for reader in READERS if "sha256" in EXPECTED[name]["readers"].get(reader, {})]


@pytest.mark.parametrize("name", named("rows", "log-only", "log-only-for-peers"))
def test_the_log_says_what_it_should(golden: Path, name: str) -> None:
    facts = EXPECTED[name]["replay"]
    snapshot = open_table(str(golden / "delta" / name)).snapshot()
    files = snapshot.files
    with_dv = files.filter(pc.is_valid(files["dv_id"]))
    assert snapshot.version == facts["version"]
    assert files.num_rows == facts["live_files"]
    assert with_dv.num_rows == facts["live_dvs"]
    assert (pc.sum(with_dv["deleted_rows"]).as_py() or 0) == facts["sum_dv_cardinality"]
    if facts["sum_physical_numRecords"] is not None and files["physical_rows"].null_count == 0:
        assert (pc.sum(files["physical_rows"]).as_py() or 0) == facts["sum_physical_numRecords"]


@pytest.mark.parametrize("name", sampled(named("rows", "log-only", "log-only-for-peers"), 6))
def test_the_file_log_leads_from_version_to_version(golden: Path, name: str) -> None:
    table = open_table(str(golden / "delta" / name))
    assert isinstance(table, FileLogTable)
    versions = readable_versions(table)
    check_windows(table, versions, strict=name not in ODD_LOGS)


def readable_versions(table: Table) -> list[int]:
    found = []
    for version in range(table.version() + 1):
        with suppress(UsageError, DamagedTableError):
            found.append(table.snapshot(version).version)
    return found


@pytest.mark.parametrize("name", named("rows"))
def test_the_rows_are_the_expected_ones(golden: Path, canon: ModuleType, name: str) -> None:
    expected = EXPECTED[name]["expected"]
    assert content(open_table(str(golden / "delta" / name)), canon) == (expected["rows"], expected["sha256"])


@pytest.mark.parametrize("name", named("must-refuse"))
def test_what_must_be_refused_is_refused_and_untouched(golden_copy: Callable[[str], Path], name: str) -> None:
    path = golden_copy(f"delta/{name}")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    table = open_table(str(path))
    calls: list[Callable[[], object]] = [
        lambda: purge(table, LocalEngine()),
        table.vacuum,
        lambda: table.write_manifests(table.snapshot()),
    ]
    for call in calls:
        with pytest.raises(DvMaintenanceError) as error:
            call()
        assert error.value.exit_code in {3, 5}, error.value
        assert error.value.message
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def rewrite_all(table: Table) -> None:
    """Rewrite every file there is, clean ones too: the widest test of reading and writing types."""
    snapshot = table.snapshot()
    table.check_writable(snapshot, "rewrite")
    keys: dict[str, list[FileKey]] = {}
    for row in snapshot.files.select(["path", "dv_id", "partition"]).to_pylist():
        keys.setdefault(row["partition"], []).append(FileKey(row["path"], row["dv_id"]))
    bins = [RewriteBin(f"bin-{n}", partition, tuple(inputs)) for n, (partition, inputs) in enumerate(keys.items())]
    results = LocalEngine().run(table.rewrite_tasks(snapshot, bins, 1 << 30))
    replacements = [
        Replacement(part.id, part.partition, part.inputs, result.outputs)
        for part, result in zip(bins, results, strict=True)
    ]
    table.commit(snapshot, replacements, operation={"name": "OPTIMIZE", "parameters": {}})


def purge_all(table: Table) -> None:
    purge(table, LocalEngine())
    version = table.version()
    assert not purge(table, LocalEngine()).steps, "a second run does nothing"
    assert table.version() == version


@pytest.mark.parametrize(("name", "job"), sampled(product(named("rows"), [purge_all, rewrite_all]), 7))
def test_maintenance_changes_no_answer(
    golden_copy: Callable[[str], Path], canon: ModuleType, name: str, job: Callable[[Table], None]
) -> None:
    path = golden_copy(f"delta/{name}")
    table = open_table(str(path))
    before = table.snapshot()
    expected = (EXPECTED[name]["expected"]["rows"], EXPECTED[name]["expected"]["sha256"])
    try:
        table.check_writable(before, "rewrite")
    except RefusedError:
        with pytest.raises(RefusedError):
            job(table)
        assert table.version() == before.version
        return

    job(table)
    after = table.snapshot()
    assert after.files["dv_id"].null_count == after.files.num_rows
    assert content(table, canon) == expected
    # The readers that could read it before still can, and agree with what they saw before.
    for reader in able_readers(name):
        assert as_read_by(reader, canon, path) == as_read_by(reader, canon, path, before.version), reader

    assert content(table, canon, before.version) == expected, "time travel inside retention"

    # Everything expired goes: DV files with it, and nothing that a reader of the newest version needs.
    table.vacuum(VacuumRequest(retention=0, allow_short_retention=True, now=after.timestamp + FORTY_YEARS))
    dv_files = [file for file in path.rglob("deletion_vector_*.bin") if not file.name.startswith(".")]
    assert dv_files == []
    assert content(table, canon) == expected
    for reader in able_readers(name):
        assert as_read_by(reader, canon, path)[0] == expected[0], reader

"""One notion of a readable table: checks, sensors, scans, metrics and ``dvm watch`` give one answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dv_maintenance.maintenance.checks import READABLE
from dv_maintenance.service.checks import check
from dv_maintenance.service.cursor import TableState
from dv_maintenance.service.inspection import Inspection, inspect_tables
from dv_maintenance.service.lake import scan
from dv_maintenance.service.metrics import exposition
from dv_maintenance.service.observe import Observer
from dv_maintenance.service.reports.lake import of_lake
from dv_maintenance.service.tables_file import TableSettings, WatchConfig
from dv_maintenance.tables.fsck import DATA, DV
from dv_maintenance.testing.backends import DeltaBackend, LanceBackend, PaimonBackend, TableBackend
from dv_maintenance.testing.contract import TableContract

BACKENDS: dict[str, Callable[[str], TableBackend]] = {
    "delta": DeltaBackend,
    "lance": LanceBackend,
    "paimon": PaimonBackend,
}


VERSIONS = {"delta": "_delta_log/*.json", "lance": "_versions/*.manifest", "paimon": "snapshot/snapshot-*"}


def lose_log(root: Path, backend: TableBackend) -> None:
    """The file of the newest version is damaged."""
    newest = max(root.glob(VERSIONS[backend.open().format]), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(b"{")


def lose(kind: str, keep: int) -> Callable[[Path, TableBackend], None]:
    def harm(root: Path, backend: TableBackend) -> None:
        table = backend.open()
        rows = table.needed_files(table.snapshot()).to_pylist()  # type: ignore[attr-defined]
        victim = root / min(row["path"] for row in rows if row["kind"] == kind)
        victim.write_bytes(victim.read_bytes()[:keep])
        if not keep:
            victim.unlink()

    return harm


HARM = {
    "no data file": lose(DATA, 0),
    "a short data file": lose(DATA, 10),
    "no deletion vectors": lose(DV, 0),
    "the log": lose_log,
}


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("format", BACKENDS)
def test_one_answer_everywhere(tmp_path: Path, format: str, harm: str) -> None:
    """The check was red while the scan and the metrics called the table fine, and a rewrite was asked for."""
    root = tmp_path / "table"
    backend = BACKENDS[format](str(root))
    TableContract.begun(backend)
    table = TableSettings(name="table", path=str(root), format=format)
    config = WatchConfig(tables=(table,))

    def answers() -> dict[str, bool]:
        (finding,) = check(table, [READABLE])
        (row,) = scan([table])
        ((watched,), _) = inspect_tables(config)
        numbers = of_lake([row]).numbers
        assert (numbers["due_tables"] > 0) == bool(watched.due)  # type: ignore[operator]
        metrics = exposition([row]).splitlines()
        return {
            "check": finding.severity != "error",
            "scan": row.error is None,
            "report": numbers["unreadable_tables"] == 0,
            "metrics": f'dvm_table_readable{{table="table",format="{format}"}} 1' in metrics,
            "watch": watched.error is None,
            "due": bool(row.due and watched.due),
            "metric of due": any(line.startswith("dvm_due") and line.endswith(" 1") for line in metrics),
            "sensor": sensor_finds_it_readable(table),
        }

    assert set(answers().values()) == {True}
    HARM[harm](root, backend)
    assert set(answers().values()) == {False}
    (row,) = scan([table])
    assert "dvm.fsck(" in str(row.error)


def sensor_finds_it_readable(table: TableSettings) -> bool:
    """Of a look that knows the version already, and only finds new work due."""
    observer = Observer(data_versions=True, checks=True)
    try:
        version = observer.probe(table, None)
        found = observer.observe(table, TableState(Inspection("table"), 0, 1), version, busy=False)
    except Exception:  # noqa: BLE001 (that is how it learns of a log that can't be read)
        return False
    assert found.readable is not None
    return not found.damaged

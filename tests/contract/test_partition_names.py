"""Partition values that need escapes in the names of folders: every verb finds its files, and knows them again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.restore import restore
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables.capabilities import RestorableTable
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.testing.backends import DeltaBackend, LanceBackend, PaimonBackend, TableBackend

BACKENDS: dict[str, Callable[[str], TableBackend]] = {
    "delta": DeltaBackend,
    "lance": LanceBackend,
    "paimon": PaimonBackend,
}
VALUES = ["a:b", "a/b", "100%", "a%3Ab", "%25", "a=b", "#", "?x", "*", '"', "2026-01-01 10:00:00.5", "é ü", "a b+c"]


@pytest.mark.parametrize("kind", BACKENDS)
def test_escaped_partitions(tmp_path: Path, kind: str) -> None:
    backend = BACKENDS[kind](str(tmp_path / "a table%41"))
    backend.create()
    for number, value in enumerate(VALUES):
        backend.append(value, [(10 * number + at, value, "x") for at in range(3)])
    backend.delete([10 * number for number in range(len(VALUES))])
    rows = sorted(backend.rows())
    before = backend.open().version()
    report = purge(backend.open(), backend.engine())
    assert (report.verified, report.problems, sum(step.rows_purged for step in report.steps)) == (
        True,
        (),
        len(VALUES),
    )
    assert sorted(backend.rows()) == rows
    table = backend.open()
    if isinstance(table, RestorableTable):
        restored = restore(table, version=before)
        assert (restored.verified, restored.problems) == (True, ())
        assert sorted(backend.rows()) == rows
        assert purge(backend.open(), backend.engine()).verified
    vacuum(backend.open(), VacuumRequest(retention=0, allow_short_retention=True))
    assert sorted(backend.rows()) == rows

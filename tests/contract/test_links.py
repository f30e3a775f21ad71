"""A table with a folder that is a link to somewhere else: it is read, and nothing is written or deleted beyond it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.testing.backends import DeltaBackend, LanceBackend, PaimonBackend, TableBackend

# Each with the folders that may be links.
BACKENDS: dict[str, tuple[Callable[[str], TableBackend], tuple[str, ...]]] = {
    "delta": (DeltaBackend, ("p=a", "_delta_log")),
    "lance": (LanceBackend, ("data", "_versions", "_deletions")),
    "paimon": (PaimonBackend, ("p=a", "p=a/bucket-0", "snapshot", "manifest")),
}


@pytest.mark.parametrize(
    ("kind", "folder"), [(kind, folder) for kind, (_, folders) in BACKENDS.items() for folder in folders]
)
def test_folders_that_are_links(tmp_path: Path, kind: str, folder: str) -> None:
    place, elsewhere = tmp_path / "table", tmp_path / "elsewhere"
    backend = BACKENDS[kind][0](str(place))
    backend.create()
    for number in range(3):
        backend.append("a", [(10 * number + at, "a", "x") for at in range(10)])
    backend.delete([1, 11])
    purge(backend.open(), backend.engine())
    backend.delete([2, 22])
    rows = sorted(backend.rows())

    (place / folder).rename(elsewhere)
    (place / folder).symlink_to(elsewhere)
    before = {file: file.read_bytes() for file in elsewhere.rglob("*") if file.is_file()}
    assert sorted(backend.rows()) == rows
    with pytest.raises(RefusedError, match="a link"):
        purge(backend.open(), backend.engine())
    for lite in (True, False):
        with suppress(RefusedError):
            vacuum(backend.open(), retention=0, allow_short_retention=True, lite=lite)
    assert {file: file.read_bytes() for file in elsewhere.rglob("*") if file.is_file()} == before
    assert sorted(backend.rows()) == rows

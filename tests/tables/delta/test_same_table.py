"""Whether the table is still the one that was read: what that costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from dv_maintenance.storage import FileInfo, Storage
from dv_maintenance.tables.delta import same_table
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.testing.delta_builder import DeltaBuilder


class OfSeconds(Storage):
    """Lists milliseconds, and says only seconds of a single object."""

    def info(self, path: str) -> FileInfo | None:
        found = super().info(path)
        return None if found is None else replace(found, modified=found.modified // 1000 * 1000)


@pytest.mark.parametrize("kind", [Storage, OfSeconds])
def test_one_look_at_the_commit_is_enough(kind: type[Storage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DeltaBuilder(str(tmp_path)).create(pa.schema([("id", pa.int64())])).append(pa.table({"id": range(9)}))
    storage = kind(str(tmp_path))
    known = load_snapshot(storage)
    monkeypatch.setattr(same_table, "load_snapshot", lambda *_: pytest.fail("reads the whole log"))
    same_table.check_same_table(storage, known)

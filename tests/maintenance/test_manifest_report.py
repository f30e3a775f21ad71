"""Writing manifests: when a purge comes first, and what is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc
import pytest

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.manifest import write_manifests
from dv_maintenance.tables import open_table

MANIFEST = "_symlink_format_manifest/manifest"


def test_without_dvs_the_engine_has_nothing_to_do(golden_copy: Callable[[str], Path]) -> None:
    table = open_table(str(golden_copy("delta/app-txn-no-checkpoint")))
    report = write_manifests(table, LocalEngine(), purge_first=True)
    assert (report.purged, report.files, report.version) == (False, 4, table.version())
    body = report.to_json()
    assert body["table"] == table.uri
    assert body["format"] == "delta"
    assert len(body["manifests"]) == len(report.manifests) > 0
    assert body["removed"] == []


def test_dvs_are_refused_unless_they_may_be_purged(golden_copy: Callable[[str], Path]) -> None:
    path = golden_copy("delta/table-with-dv-small")
    table = open_table(str(path))
    before = table.version()
    with pytest.raises(RefusedError, match="deletion vectors") as error:
        write_manifests(table, LocalEngine())
    assert "purge_first=True" in str(error.value.next_step)
    assert table.version() == before

    report = write_manifests(table, LocalEngine(), purge_first=True)
    assert (report.purged, report.manifests) == (True, (MANIFEST,))
    assert report.version == table.version() > before
    snapshot = table.snapshot()
    assert pc.all(pc.is_null(snapshot.files["dv_id"])).as_py()
    lines = (path / MANIFEST).read_text().splitlines()
    assert lines == [f"file:{path}/{name}" for name in snapshot.files["path"].to_pylist()]


def test_what_cannot_have_manifests_is_not_rewritten_for_them(golden_copy: Callable[[str], Path]) -> None:
    table = open_table(str(golden_copy("delta/dv-with-columnmapping")))
    before = table.version()
    with pytest.raises(RefusedError, match="column mapping"):
        write_manifests(table, LocalEngine(), purge_first=True)
    assert table.version() == before


def test_a_listing_that_does_not_show_the_purge_yet(
    golden_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_table(str(golden_copy("delta/table-with-dv-small")))
    old, now = table.snapshot(), type(table).snapshot
    monkeypatch.setattr(type(table), "snapshot", lambda self, version=None: now(self, version) if version else old)
    report = write_manifests(table, LocalEngine(), purge_first=True)
    assert (report.purged, report.version) == (True, old.version + 1)

"""Tags, branches and consumers: what keeps snapshots and their files alive."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.paimon_writer import PaimonWriter

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.tables.paimon.table import PaimonTable


@pytest.fixture
def written(tmp_path: Path) -> PaimonWriter:
    written = PaimonWriter(tmp_path / "t")
    for first in range(3):
        written.append([{"id": first, "v": "x"}])
    return written


def opened(written: PaimonWriter) -> PaimonTable:
    table = open_table(str(written.path))
    assert isinstance(table, PaimonTable)
    return table


def tag(written: PaimonWriter, name: str, version: int, **more: object) -> None:
    body = {**written.body(f"snapshot/snapshot-{version}"), **more}
    written.put(f"tag/tag-{name}", json.dumps(body).encode())


def test_tags(written: PaimonWriter) -> None:
    assert opened(written).tags() == {}
    tag(written, "plain", 1)
    tag(written, "timed-2", 2, tagCreateTime=[2026, 11, 21, 3, 0], tagTimeRetained=86400.0)
    written.put("tag/other", b"{")
    found = opened(written).tags()
    assert {name: each.snapshot.id for name, each in found.items()} == {"plain": 1, "timed-2": 2}
    assert (found["plain"].created, found["timed-2"].retained) == (None, "86400.0")


def test_a_snapshot_that_only_a_tag_kept(written: PaimonWriter) -> None:
    tag(written, "kept", 1)
    (written.path / "snapshot/snapshot-1").unlink()
    table = opened(written)
    assert table.snapshot(1).version == 1
    _, batches = read(table, 1)
    assert [row["id"] for batch in batches for row in batch.to_pylist()] == [0]


@pytest.mark.parametrize("text", [b"", b"[]", b'{"id": 1}'])
def test_a_tag_that_cannot_be_read(written: PaimonWriter, text: bytes) -> None:
    written.put("tag/tag-broken", text)
    with pytest.raises(DamagedTableError, match="tag/tag-broken"):
        opened(written).tags()


def test_consumers(written: PaimonWriter) -> None:
    assert opened(written).consumers() == {}
    written.put("consumer/consumer-a b", b'{"nextSnapshot": 2}')
    written.put("consumer/.hidden", b"")
    assert opened(written).consumers() == {"a b": 2}
    written.put("consumer/consumer-c", b'{"nextSnapshot": "2"}')
    with pytest.raises(DamagedTableError, match="consumer/consumer-c: nextSnapshot"):
        opened(written).consumers()


def test_branches_have_tags_of_their_own(written: PaimonWriter) -> None:
    assert opened(written).branches() == ()
    written.put("branch/branch-b/schema/schema-0", (written.path / "schema/schema-0").read_bytes())
    written.put("branch/branch-b/tag/tag-x", (written.path / "snapshot/snapshot-2").read_bytes())
    written.put("branch/other/tag/tag-x", b"")
    table = opened(written)
    assert table.branches() == ("b",)
    assert table.tags() == {}
    branch = table.branch("b")
    assert {name: each.snapshot.id for name, each in branch.tags().items()} == {"x": 2}
    assert branch.branches() == ("b",)
    assert (branch.version(), branch.snapshot(2).version) == (0, 2)

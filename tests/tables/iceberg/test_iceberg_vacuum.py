"""What a vacuum of Iceberg tables expires and deletes: as Spark's procedure, where both keep the same snapshots."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from effort import sampled
from golden_tables import names_in
from support.iceberg_edits import edit
from support.places import GOLDEN
from test_iceberg_commit import newest_document, opened, rows_of

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError, StorageUnavailableError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.fsck.check import fsck
from dv_maintenance.maintenance.undelete import undelete
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest
from dv_maintenance.tables.iceberg.vacuum import reached, run
from dv_maintenance.tables.reports import VacuumReport
from dv_maintenance.testing.backends import IcebergBackend

EXPECTED: dict[str, dict[str, Any]] = {
    path.parent.name: json.loads(path.read_text()) for path in sorted((GOLDEN / "iceberg").glob("*/expected.json"))
}
EXPIRED = names_in("iceberg", (name for name, facts in EXPECTED.items() if facts.get("expire_all_but_refs")))
FAR = 4_102_444_800_000  # 2100
DAY = 86_400_000

needs_golden = pytest.mark.usefixtures("golden")


def vacuumed(place: Path, now: int | None = None, **options: Any) -> VacuumReport:
    request = VacuumRequest(now=now, guard=VacuumGuard(max_deleted_share=1.0), **options)
    return opened(place).vacuum(request)


def age(place: Path, days: int) -> None:
    then = time.time() - days * 86_400
    for path in place.rglob("*"):
        os.utime(path, (then, then))


@needs_golden
@pytest.mark.parametrize("name", sampled(EXPIRED, 3))
def test_the_heads_of_refs_keep_what_they_keep_in_spark(laid_copy: Callable[[str], Path], name: str) -> None:
    place = laid_copy(name)
    table, heads = opened(place), {ref["snapshot-id"] for ref in EXPECTED[name]["refs"].values()}
    rows = {each: rows_of(table, each) for each in heads} if name != "variant_col" else {}
    body = json.loads(newest_document(place).read_bytes())
    for ref in body["refs"].values():
        ref.pop("max-ref-age-ms", None)
    newest_document(place).write_text(json.dumps(body))
    said = vacuumed(place, FAR, retention=0, allow_short_retention=True, dry_run=True, lite=True)
    assert {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()} >= {
        each.path for each in said.expired.files
    }
    done = vacuumed(place, FAR, retention=0, allow_short_retention=True, lite=True)
    assert done.expired.files == said.expired.files
    deleted = {each.path for each in done.expired.files}
    theirs = {path for path in EXPECTED[name]["expire_all_but_refs"]["deleted"] if not path.endswith(".metadata.json")}
    assert deleted == theirs
    assert set(opened(place).snapshot().metadata.snapshots) >= heads
    assert not fsck(opened(place)).files_damaged
    assert {each: rows_of(opened(place), each) for each in rows} == rows


@needs_golden
def test_puffin_files_go_whole_or_not_at_all(laid_copy: Callable[[str], Path]) -> None:
    """Most of the vectors in a file are live, some were replaced: Java's own expireSnapshots deletes it."""
    place = laid_copy("many_dvs_one_puffin")
    puffins = set(place.rglob("*.puffin"))
    rows = rows_of(opened(place))
    vacuumed(place, FAR, retention=0, allow_short_retention=True)
    assert set(place.rglob("*.puffin")) == puffins
    assert rows_of(opened(place)) == rows
    # When the last vector is gone, so are the files.
    purge(opened(place), LocalEngine())
    vacuumed(place, FAR, retention=0, allow_short_retention=True)
    assert not list(place.rglob("*.puffin"))
    assert len(list(place.glob("data/*.parquet"))) == 1
    assert rows_of(opened(place)) == rows


@needs_golden
def test_tags_and_branches_hold_and_are_named(laid_copy: Callable[[str], Path]) -> None:
    place = laid_copy("branches_tags")
    table = opened(place)
    refs = EXPECTED["branches_tags"]["refs"]
    rows = {each["snapshot-id"]: rows_of(table, each["snapshot-id"]) for each in refs.values()}
    now = table.snapshot().timestamp + 20 * DAY
    said = vacuumed(place, now, dry_run=True)
    holders = " ".join(said.expired.kept)
    assert "tag before-audit" in holders
    assert "branch dev" in holders
    vacuumed(place, now)
    assert {number: rows_of(opened(place), number) for number in rows} == rows
    # The branch keeps three snapshots at any age, the tag lasts thirty days.
    assert len(list(opened(place).snapshot().metadata.ancestors(refs["dev"]["snapshot-id"]))) >= 2
    vacuumed(place, now + 20 * DAY)
    assert set(opened(place).snapshot().metadata.refs) == {"main", "dev"}


@needs_golden
def test_orphans_go_by_age_only(laid_copy: Callable[[str], Path]) -> None:
    place = laid_copy("expired")
    orphans = set(EXPECTED["expired"]["unreferenced"])
    (place / "data" / "README.txt").write_text("a note")
    assert {each.path for each in vacuumed(place, dry_run=True).expired.files} == set()
    age(place, 10)
    result = vacuumed(place)
    assert {each.path for each in result.expired.files} == orphans
    assert not any((place / path).exists() for path in orphans)
    assert (place / "data" / "README.txt").exists()
    # Statistics that the metadata names are no orphans.
    body = opened(place).snapshot().metadata.body
    named = [
        each["statistics-path"] for name in ("statistics", "partition-statistics") for each in body.get(name) or ()
    ]
    assert all((place / opened(place).path_of(path)).exists() for path in named)
    assert rows_of(opened(place))


@needs_golden
def test_what_is_refused(laid_copy: Callable[[str], Path]) -> None:
    place = laid_copy("mini")
    document = newest_document(place)
    body = json.loads(document.read_text())
    with pytest.raises(RefusedError, match="shorter than the table's own"):
        vacuumed(place, retention=DAY)
    other = {**body, "table-uuid": "00000000-1111-2222-3333-444444444444"}
    strange = place / "metadata" / "00009-00000000-1111-2222-3333-444444444444.metadata.json"
    strange.write_text(json.dumps(other))
    with pytest.raises(RefusedError, match="belongs to another table"):
        vacuumed(place, FAR)
    strange.unlink()
    nested = place / "data" / "inner" / "metadata" / "v1.metadata.json"
    nested.parent.mkdir(parents=True)
    nested.write_text("{}")
    with pytest.raises(RefusedError, match="data/inner holds a table of Iceberg"):
        vacuumed(place, FAR)
    nested.unlink()
    body["properties"]["gc.enabled"] = "false"
    document.write_text(json.dumps(body))
    with pytest.raises(RefusedError, match=r"gc\.enabled is false"):
        vacuumed(place, FAR)


@needs_golden
def test_files_set_aside_come_back(laid_copy: Callable[[str], Path]) -> None:
    """The metadata file from before the vacuum names their snapshots."""
    place = laid_copy("overwrites")
    table, document = opened(place), newest_document(place)
    rows = {each: rows_of(table, each) for each in table.snapshot().metadata.snapshots}
    guard = VacuumGuard(max_deleted_share=1.0, quarantine=True)
    report = table.vacuum(VacuumRequest(now=FAR, retention=0, allow_short_retention=True, guard=guard))
    assert report.deleted > 1
    assert not any((place / each.path).exists() for each in report.expired.files)
    assert undelete(opened(place)).files == report.deleted
    assert len(opened(place).snapshot().metadata.snapshots) == 1
    assert {each: rows_of(open_table(str(document)), each) for each in rows} == rows


def test_a_commit_during_a_vacuum_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer commits between the plan and the swap: the vacuum builds on it."""
    backend = IcebergBackend(str(tmp_path / "t"))
    backend.create()
    backend.append("a", [(1, "a", "x"), (2, "a", "y")])
    backend.delete([1])
    backend.append("a", [(3, "a", "z")])
    done, swap = list[int](), run.swap

    def meanwhile(*arguments: Any) -> None:
        if not done:
            done.append(backend.append("a", [(4, "a", "new")]))
        swap(*arguments)

    monkeypatch.setattr(run, "swap", meanwhile)
    now = backend.moment() + backend.retention
    vacuumed(tmp_path / "t", now)
    assert {row[0] for row in backend.rows()} == {2, 3, 4}
    assert backend.open().version() == done[0]
    assert not fsck(backend.open()).files_damaged


def test_an_error_after_the_snapshots_expired_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file was deleted, but no reader finds these snapshots any more."""
    backend = IcebergBackend(str(tmp_path / "t"))
    backend.create()
    backend.append("a", [(1, "a", "x"), (2, "a", "y")])
    backend.delete([1])
    swap, load = run.swap, run.load_metadata

    def away(*_: Any) -> Any:
        raise StorageUnavailableError("the storage does not answer")

    def then_away(*arguments: Any) -> None:
        swap(*arguments)
        monkeypatch.setattr(run, "load_metadata", away)

    monkeypatch.setattr(run, "swap", then_away)
    with pytest.raises(StorageUnavailableError) as error:
        vacuumed(tmp_path / "t", FAR)
    assert error.value.done == "the expired snapshots were taken out of the metadata"
    monkeypatch.setattr(run, "load_metadata", load)
    assert len(backend.open().snapshot().metadata.snapshots) == 1


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("at", range(1, 5))
def test_another_vacuum_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, kept: bool) -> None:
    """It expires a snapshot right before this one reads its files. The table is not damaged."""
    backend, place = IcebergBackend(str(tmp_path / "t")), tmp_path / "t"
    backend.create()
    for number in range(4):
        backend.append("a", [(10 * number + each, "a", "x") for each in range(3)])
    backend.delete([1, 11])
    purge(backend.open(), backend.engine())
    rows, read, calls = backend.rows(), reached.manifests_of, 0

    def meanwhile(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            vacuumed(place, FAR, retention=0, allow_short_retention=True, lite=True)
        return read(*arguments)

    monkeypatch.setattr(reached, "manifests_of", meanwhile)
    ours = None if kept else 0
    vacuumed(place, backend.moment(), retention=ours, allow_short_retention=True)
    assert calls > at
    assert backend.rows() == rows
    assert not fsck(backend.open()).files_damaged


def test_statistics_go_with_their_snapshots(tmp_path: Path) -> None:
    backend = IcebergBackend(str(tmp_path / "t"))
    backend.create()
    first = backend.append("a", [(at, "a", "v") for at in range(10)])
    newest = backend.append("a", [(at, "a", "v") for at in range(10, 20)])
    snapshots = {"first": first, "newest": newest, "gone": 12345}
    files = {}
    for kind, pattern in (("statistics", "{}.stats"), ("partition-statistics", "partition-stats-{}.parquet")):
        for name in (*snapshots, "orphan"):
            files[kind, name] = tmp_path / "t" / "metadata" / pattern.format(name)
            files[kind, name].write_bytes(b"numbers")

    def named(body: dict[str, Any]) -> None:
        for kind in ("statistics", "partition-statistics"):
            body[kind] = [
                {"snapshot-id": number, "statistics-path": str(files[kind, name]), "file-size-in-bytes": 7}
                for name, number in snapshots.items()
            ]

    edit(tmp_path / "t", named)
    vacuumed(tmp_path / "t", FAR, retention=0, allow_short_retention=True)
    left = {name for (_, name), path in files.items() if path.exists()}
    assert left == {"newest", "gone"}
    body = opened(tmp_path / "t").snapshot().metadata.body
    assert [each["snapshot-id"] for each in body["partition-statistics"]] == [newest, 12345]

"""Maintenance of tables that Unity Catalog manages: only what it permits, when it is planned and when it is done."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from support.managed import ALL, ManagedBackend
from support.unity import Unity

from dv_maintenance.cli import main
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError, UnsupportedFeatureError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.service.inspection import inspect_table
from dv_maintenance.tables.delta.log.segment import commit_path, read_commit
from dv_maintenance.tables.delta.vacuum.named_since import NamedSince
from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest

NAME = "uc.main.s.table"
DAY = 86_400_000


def everything(server: Unity, backend: ManagedBackend) -> tuple[Mapping[str, bytes], str]:
    found = (path for path in backend.folder.rglob("*") if path.is_file())
    return {path.as_posix(): path.read_bytes() for path in found}, json.dumps(server.tables)


LOCAL = ("--engine", "local")
NEEDS = [
    ("DATA_REORGANIZATION", ("purge", *LOCAL)),
    ("DATA_REORGANIZATION", ("purge", *LOCAL, "--dry-run")),
    ("DATA_REORGANIZATION", ("plan",)),
    ("DATA_REORGANIZATION", ("apply", *LOCAL)),
    ("DATA_REORGANIZATION", ("zorder", *LOCAL, "--columns", "id")),
    ("DATA_REORGANIZATION", ("cluster", *LOCAL)),
    ("DATA_REORGANIZATION", ("recount",)),
    ("DATA_CLEANUP", ("vacuum",)),
    ("DATA_CLEANUP", ("vacuum", "--dry-run")),
    ("DATA_CLEANUP", ("vacuum", "--quarantine")),
    ("DATA_CLEANUP", ("vacuum", "--lite")),
    ("DATA_CLEANUP", ("undelete",)),
    ("METADATA_CLEANUP", ("checkpoint", "--clean-log")),
    ("METADATA_CLEANUP", ("checkpoint", "--clean-log", "--dry-run")),
]


@pytest.mark.parametrize(
    ("needed", "verb"), NEEDS, ids=lambda value: value if isinstance(value, str) else "-".join(value)
)
def test_what_is_not_permitted_is_refused(
    server: Unity, backend: ManagedBackend, needed: str, verb: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    others = sorted({*ALL, "SOMETHING_NEW"} - {needed})
    server.permit(backend.table, *others)
    before = everything(server, backend)
    assert main([verb[0], NAME, *verb[1:]]) == 3
    said = capsys.readouterr().err
    assert f"the catalog of {NAME} does not permit {needed}" in said
    assert f"it permits {', '.join(others)}" in said
    assert "ask the owner of the table, or the administrator of uc" in said
    assert everything(server, backend) == before


def test_without_any_permission(server: Unity, backend: ManagedBackend, capsys: pytest.CaptureFixture[str]) -> None:
    """As of every server that does not know of permissions. Rows may be changed, and checkpoints written."""
    del server.tables[backend.table]["allowed-maintenance-operations"]
    assert main(["purge", NAME, *LOCAL]) == 3
    assert "it permits no maintenance but checkpoints" in capsys.readouterr().err
    assert main(["delete", NAME, *LOCAL, "--where", "id = 1"]) == 0, capsys.readouterr()
    assert main(["restore", NAME, "--version", "2"]) == 0, capsys.readouterr()
    assert main(["checkpoint", NAME]) == 0, capsys.readouterr()
    assert main(["publish", NAME]) == 0, capsys.readouterr()
    assert main(["fsck", NAME]) == 0, capsys.readouterr()
    assert sorted(row[0] for row in backend.rows()) == [1, 2, 3, 5]


@pytest.mark.parametrize("verb", ["downgrade", "manifest"])
def test_what_no_catalog_can_permit(
    server: Unity, backend: ManagedBackend, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(server, backend)
    for flags in ([], ["--dry-run"]):
        assert main([verb, NAME, *flags]) == 3
        assert f"{verb} leaves {NAME} alone" in capsys.readouterr().err
    assert everything(server, backend) == before


def test_a_permission_that_is_withdrawn_before_the_commit(
    server: Unity, backend: ManagedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, run = everything(server, backend)[0], LocalEngine.run

    def withdrawing(self: LocalEngine, *tasks: Any, **options: Any) -> Any:
        found = run(self, *tasks, **options)
        assert everything(server, backend)[0] != files
        server.permit(backend.table, "DATA_CLEANUP")
        return found

    monkeypatch.setattr(LocalEngine, "run", withdrawing)
    with pytest.raises(RefusedError, match="does not permit DATA_REORGANIZATION"):
        purge(backend.open(), LocalEngine())
    assert everything(server, backend)[0] == files, "own files are deleted"


@pytest.mark.parametrize("quarantine", [False, True])
def test_a_permission_that_is_withdrawn_before_a_deletion(
    server: Unity, backend: ManagedBackend, quarantine: bool
) -> None:
    purge(backend.open(), LocalEngine())
    data = {path for path in everything(server, backend)[0] if not path.endswith(".json")}
    server.meanwhile[:] = [lambda: server.permit(backend.table)]
    now = backend.moment() + 8 * DAY
    with pytest.raises(RefusedError, match="does not permit DATA_CLEANUP"):
        vacuum(backend.open(), VacuumRequest(now=now, guard=VacuumGuard(quarantine=quarantine)))
    assert data <= everything(server, backend)[0].keys()
    storage = backend.open().storage
    ends = [read_commit(storage, version)[0]["commitInfo"]["operation"] for version in (4, 5)]
    assert ends == ["VACUUM START", "VACUUM END"], "restores wait for the end"


def test_a_permission_that_is_withdrawn_between_two_batches(
    server: Unity, backend: ManagedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    purge(backend.open(), LocalEngine())
    monkeypatch.setattr("dv_maintenance.tables.vacuum.BATCH", 1)
    own = NamedSince.refresh

    def withdrawn(self: NamedSince) -> bool:
        server.permit(backend.table)
        return own(self)

    monkeypatch.setattr(NamedSince, "refresh", withdrawn)
    with pytest.raises(RefusedError, match="does not permit DATA_CLEANUP") as caught:
        vacuum(backend.open(), VacuumRequest(now=backend.moment() + 8 * DAY))
    assert str(caught.value.done).startswith("1 of 2 expired files deleted")


def test_a_vacuum(server: Unity, backend: ManagedBackend) -> None:
    purge(backend.open(), LocalEngine())
    staged = [path for path in everything(server, backend)[0] if "_staged_commits" in path]
    report = vacuum(backend.open(), VacuumRequest(now=backend.moment() + 8 * DAY))
    assert report.deleted == 2, "a data file and its deletion vectors"
    assert set(staged) <= everything(server, backend)[0].keys()
    assert sorted(row[0] for row in backend.rows()) == [1, 2, 3, 5]


def test_files_of_unpublished_commits_are_live(server: Unity, backend: ManagedBackend) -> None:
    server.post_faults[:] = ["", "denied"]
    backend.append("a", [(7, "a", "y")])
    (backend.folder / commit_path(3)).unlink()
    vacuum(backend.open(), VacuumRequest(now=backend.moment() + 8 * DAY))
    assert sorted(row[0] for row in backend.rows()) == [1, 2, 3, 5, 7]


def test_no_checkpoint_of_what_is_not_published(
    server: Unity, backend: ManagedBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    server.post_faults[:] = ["", "denied"]
    backend.append("a", [(7, "a", "y")])
    copy = backend.folder / commit_path(3)
    whole = copy.read_bytes()
    for wrong in (None, whole[:100]):
        copy.unlink(missing_ok=True)
        if wrong is not None:
            copy.write_bytes(wrong)
        for flags in ([], ["--dry-run"]):
            assert main(["checkpoint", NAME, *flags]) == 3
            assert f"'dvm publish {NAME}'" in capsys.readouterr().err
    assert main(["publish", NAME]) == 0
    assert main(["checkpoint", NAME]) == 0
    assert (backend.folder / "_delta_log" / f"{3:020d}.checkpoint.parquet").exists()


def test_a_log_is_cleaned_with_its_staged_files(server: Unity, backend: ManagedBackend) -> None:
    for number in range(3):
        backend.append("a", [(7 + number, "a", "y")])
    table = backend.open()
    assert table.checkpoint().written
    backend.append("a", [(17, "a", "y")])
    stray = backend.folder / "_delta_log" / "_staged_commits" / f"{9:020d}.0.json"
    stray.write_text("torn")
    now = backend.moment() + 40 * DAY
    assert table.checkpoint(clean_log=True, dry_run=True, now=now).log_files_expired == 12
    report = backend.open().checkpoint(clean_log=True, now=now)
    assert (report.first_version, report.log_files_deleted) == (6, 12)
    left = sorted(path.name[:20] for path in (backend.folder / "_delta_log" / "_staged_commits").iterdir())
    assert [int(each) for each in left] == [6, 9]
    assert sorted(row[0] for row in backend.rows()) == [1, 2, 3, 5, 7, 8, 9, 17]


# -- the vendor's own optimizer ----------------------------------------------------------------------------------


PREDICTIVE = {"value": "ENABLE", "inherited_from_type": "CATALOG", "inherited_from_name": "main"}


def test_a_table_with_predictive_optimization_is_left_to_it(
    server: Unity, backend: ManagedBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    server.infos[backend.table] = {"effective_predictive_optimization_flag": PREDICTIVE}
    said = "predictive optimization (enabled for the catalog main)"
    assert said in " ".join(health(backend.open().snapshot()).warnings)
    for jobs in ("optimize",), ("vacuum",):
        found = inspect_table(backend.open(), jobs=jobs, now=backend.moment() + 40 * DAY)
        assert (found.due, found.optimizer) == ((), said)
    assert main(["plan", backend.name]) == 0
    assert f"left to {said}" in capsys.readouterr().out
    told = Policy(beside_optimizer=True)
    assert inspect_table(backend.open(), told, jobs=("optimize",)).due == ("optimize",)


@pytest.mark.parametrize(
    "info", [{}, {"effective_predictive_optimization_flag": {"value": "DISABLE"}}, {"refused": True}]
)
def test_a_table_without_it_is_ours(server: Unity, backend: ManagedBackend, info: dict[str, Any]) -> None:
    server.infos[backend.table] = info
    if info.get("refused"):
        server.faults = ["", "denied"]
    assert inspect_table(backend.open(), jobs=("optimize",)).due == ("optimize",)


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({"row_filter": {"function_name": "f"}}, "a row filter"),
        ({"columns": [{"name": "a"}, {"name": "b", "mask": {"function_name": "f"}}]}, "column masks"),
    ],
)
def test_filtered_and_masked_tables_are_left_alone(
    server: Unity, backend: ManagedBackend, info: dict[str, Any], said: str
) -> None:
    server.infos[backend.table] = info
    for verb in (["purge", backend.name], ["read", backend.name], ["vacuum", backend.name], ["plan", backend.name]):
        assert main(verb) == 3, verb
    with pytest.raises(UnsupportedFeatureError, match=said):
        backend.open().snapshot()

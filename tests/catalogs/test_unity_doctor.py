"""``dvm doctor`` for a catalog, and for a table in one: what is missing, and who can grant it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.managed import ALL, ManagedBackend
from support.unity import TOKEN, RequestError, Unity

from dv_maintenance.catalogs.examination import examined
from dv_maintenance.cli import main

PREDICTIVE = {"value": "ENABLE", "inherited_from_type": "SCHEMA", "inherited_from_name": "main.s"}


@pytest.fixture
def backend(server: Unity, tmp_path: Path) -> ManagedBackend:
    made = ManagedBackend(tmp_path / "t", server)
    made.create()
    return made


def checks(name: str) -> dict[str, tuple[bool, str]]:
    return {each.check: (each.ok, f"{each.found} | {each.needed} | {each.how}") for each in examined(name)}


def test_everything_is_granted(server: Unity, backend: ManagedBackend, capsys: pytest.CaptureFixture[str]) -> None:
    before = json.dumps(server.tables)
    found = checks(backend.name)
    assert list(found) == ["catalog", "token", "table in the catalog", "right to read", "right to write", *ALL]
    assert all(ok for ok, _ in found.values())
    main(["doctor", backend.name, "--json"])
    shown = capsys.readouterr()
    named = {each["name"]: each["ok"] for each in json.loads(shown.out)["checks"]}
    assert {each: named[each] for each in (*found, "table")} == dict.fromkeys((*found, "table"), True)
    assert TOKEN not in shown.out + shown.err
    assert (json.dumps(server.tables), server.posted) == (before, []), "nothing was changed"


def test_the_name_of_a_catalog(server: Unity, capsys: pytest.CaptureFixture[str]) -> None:
    del server
    assert list(checks("uc")) == ["catalog", "token"]
    main(["doctor", "uc", "--json"])
    names = [each["name"] for each in json.loads(capsys.readouterr().out)["checks"]]
    assert {"catalog", "token"} <= set(names)
    assert "table" not in names


def test_what_is_not_permitted(server: Unity, backend: ManagedBackend) -> None:
    server.permit(backend.table, "DATA_CLEANUP", "SOMETHING_NEW")
    found = checks(backend.name)
    assert found["DATA_CLEANUP"][0]
    for name in ("DATA_REORGANIZATION", "METADATA_CLEANUP"):
        assert not found[name][0]
        assert "ask the owner of the table, or the administrator of uc, to permit it" in found[name][1]
    assert main(["doctor", backend.name]) == 1


def test_who_may_only_read(server: Unity, backend: ManagedBackend) -> None:
    def vend(operation: str) -> list[Mapping[str, Any]]:
        if operation == "READ_WRITE":
            raise RequestError("PermissionDeniedException", "no MODIFY")
        return []

    server.keys[backend.table] = vend
    found = checks(backend.name)
    assert found["right to read"][0]
    ok, said = found["right to write"]
    assert not ok
    assert "no MODIFY" in said
    assert "to grant MODIFY and SELECT on the table, and USE on its schema and catalog" in said


def test_who_may_not_even_read(server: Unity, backend: ManagedBackend) -> None:
    server.faults = ["", "denied"]
    ok, said = checks(backend.name)["right to read"]
    assert not ok
    assert "to grant SELECT" in said


@pytest.mark.parametrize("fault", ["expired", "denied"])
def test_a_token_that_is_not_taken(server: Unity, fault: str) -> None:
    server.faults = [fault]
    found = checks("uc")
    assert found["catalog"][0]
    assert not found["token"][0]
    assert "administrator of uc" in found["token"][1]


def test_a_server_that_is_not_there(server: Unity, backend: ManagedBackend) -> None:
    server.faults = ["drop"] * 3
    found = checks(backend.name)
    assert list(found) == ["catalog"]
    assert not found["catalog"][0]
    assert "check uri, the network, and the server" in found["catalog"][1]


def test_optimizers_filters_and_no_such_table(server: Unity, backend: ManagedBackend) -> None:
    server.infos[backend.table] = {"effective_predictive_optimization_flag": PREDICTIVE}
    ok, said = checks(backend.name)["optimizer"]
    assert ok
    assert "predictive optimization (enabled for the schema main.s)" in said
    server.infos[backend.table] = {"row_filter": {"function_name": "f"}}
    assert not checks(backend.name)["filters"][0]
    assert not checks("uc.main.s.none")["table in the catalog"][0]


def test_an_external_table_needs_no_permission(server: Unity, tmp_path: Path) -> None:
    server.add("main.s.e", f"file://{tmp_path}", table_type="EXTERNAL")
    assert not {*checks("uc.main.s.e")} & {*ALL}


def test_other_places_are_none_of_its_business(server: Unity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "uc").mkdir()
    for place in ("uc", "s3://lake/t", "other.main.s.t", "/lake/t", "t"):
        assert not examined(place)
    assert not server.asked

"""A server of Unity Catalog that others wrote: what it answers, where ours might answer what we would like to hear."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from support.real_unity import API, RealBackend, RealUnity

from dv_maintenance.catalogs import listed, server
from dv_maintenance.cli import main
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.publish import publish
from dv_maintenance.tables.delta.commit import ratification
from dv_maintenance.tables.delta.log.segment import read_commit
from dv_maintenance.testing.delta_builder import DeltaBuilder

pytestmark = pytest.mark.deep


@pytest.fixture
def table(real: RealUnity) -> RealBackend:
    """Ids 0 to 5; 0 and 4 are deleted."""
    made = RealBackend(real, real.schema())
    made.create()
    made.append("a", [(number, "a", "x") for number in range(6)])
    made.delete([0, 4])
    return made


def ids(table: RealBackend) -> list[int]:
    return sorted(row[0] for row in table.rows())


def test_doctor(table: RealBackend, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "uc"]) == 0
    assert "it is taken" in capsys.readouterr().out
    assert main(["doctor", table.name]) == 1
    lines = capsys.readouterr().out.splitlines()
    missing = {line.split()[1] for line in lines if line.startswith("MISSING")}
    assert missing == {"DATA_REORGANIZATION", "DATA_CLEANUP", "METADATA_CLEANUP"}
    assert sum("granted" in line for line in lines) == 2


def test_pages_of_a_schema(real: RealUnity) -> None:
    schema = real.schema()
    names = sorted(f"t{number}" for number in range(60))
    for name in names:
        RealBackend(real, schema, name).create()
    assert sorted(each.path for each in listed(f"uc.main.{schema}")) == names
    found = [each.path for each in listed("uc.main.*")]
    assert {f"{schema}.{name}" for name in names} <= set(found)


def test_names_that_are_not_there(table: RealBackend, capsys: pytest.CaptureFixture[str]) -> None:
    schema = table.name.rpartition(".")[0]
    for name in (f"{schema}.none", "uc.main.none.t", "uc.none.s.t"):
        assert main(["health", name]) == 2
        assert "the catalog has no such table" in capsys.readouterr().err


def test_what_is_not_permitted_is_refused(table: RealBackend, capsys: pytest.CaptureFixture[str]) -> None:
    """It does not say what it permits."""
    files = sorted(table.folder.rglob("*"))
    for verb in (["purge", "--engine", "local"], ["vacuum"], ["checkpoint", "--clean-log"]):
        assert main([verb[0], table.name, *verb[1:]]) == 3
        assert "it permits no maintenance but checkpoints" in capsys.readouterr().err
    assert sorted(table.folder.rglob("*")) == files
    assert main(["delete", table.name, "--engine", "local", "--where", "id = 1"]) == 0, capsys.readouterr()
    for verb in (["publish"], ["checkpoint"], ["restore", "--version", "2"], ["fsck"]):
        assert main([verb[0], table.name, *verb[1:]]) == 0, capsys.readouterr()
    assert ids(table) == [1, 2, 3, 5]


def test_external_tables(real: RealUnity, capsys: pytest.CaptureFixture[str]) -> None:
    place, schema = real.root / "elsewhere", real.schema()
    role = {"role_arn": "arn:aws:iam::123456789012:role/nobody"}
    real.ask("POST", f"{API}/credentials", {"name": "none", "purpose": "STORAGE", "aws_iam_role": role})
    location = {"name": "elsewhere", "url": place.as_uri(), "credential_name": "none"}
    real.ask("POST", f"{API}/external-locations", location)
    for name, provider in (("orders", "DELTA"), ("files", "PARQUET")):
        made = {"name": name, "catalog_name": "main", "schema_name": schema, "columns": []}
        made |= {"table_type": "EXTERNAL", "data_source_format": provider, "storage_location": (place / name).as_uri()}
        real.ask("POST", f"{API}/tables", made)
    builder = DeltaBuilder(str(place / "orders")).create(pa.schema([("id", pa.int64())]))
    builder.append(pa.table({"id": range(10)}))
    builder.delete(lambda rows: pa.array([row < 4 for row in rows["id"].to_pylist()]))
    found = {each.path: each.left_alone for each in listed(f"uc.main.{schema}")}
    assert found == {"orders": "", "files": "a table of the format PARQUET"}
    assert main(["purge", f"uc.main.{schema}.orders", "--engine", "local"]) == 0, capsys.readouterr()
    # It does not say that Delta's API is for other tables.
    assert main(["health", f"uc.main.{schema}.files"]) == 2
    assert "no table found here" in capsys.readouterr().err


@pytest.mark.usefixtures("permitted")
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_lost_answers(table: RealBackend, lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers a repeated commit with a conflict."""
    own, left = server.exchange, [lost]

    def exchange(url: str, headers: Mapping[str, str], data: bytes | None, **more: Any) -> Any:
        found = own(url, headers, data, **more)
        if data is not None and left[0]:
            left[0] -= 1
            raise http.client.RemoteDisconnected("lost")
        return found

    monkeypatch.setattr(server, "exchange", exchange)
    assert purge(table.open(), LocalEngine()).verified
    assert ids(table) == [1, 2, 3, 5]
    opened = table.open()
    made = [read_commit(opened.storage, version)[0]["commitInfo"] for version in range(opened.version() + 1)]
    assert [each["operation"] for each in made].count("REORG") == 1


@pytest.mark.usefixtures("permitted")
def test_commits_of_others_that_are_not_published(table: RealBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes nine: the newest published one counts as well."""

    def later(*_: object) -> None:
        raise RefusedError("not yet")

    with monkeypatch.context() as patch:
        patch.setattr(ratification, "_publish", later)
        for number in range(10, 19):
            table.append("b", [(number, "b", "y")])
    assert table.held() == list(range(3, 12))
    assert purge(table.open(), LocalEngine()).verified
    assert ids(table) == [1, 2, 3, 5, *range(10, 19)]
    publish(table.open())
    assert table.held() == []


def test_a_name_of_another_table(real: RealUnity, table: RealBackend) -> None:
    opened = table.open()
    assert opened.version() == 2
    real.ask("DELETE", f"{table.at}/tables/{table.name_there}")
    again = RealBackend(real, table.at.rpartition("/")[2])
    again.create()
    files = sorted(table.folder.rglob("*"))
    with pytest.raises(Exception, match="dropped and created again"):
        purge(opened, LocalEngine())
    assert sorted(table.folder.rglob("*")) == files
    assert ids(again) == []

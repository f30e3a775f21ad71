"""A Unity Catalog of the tests' own, which ``DVM_CATALOGS`` calls ``uc``; and settings for others."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.managed import ALL, ManagedBackend
from support.object_stores import KEYS
from support.real_unity import RealUnity
from support.unity import TOKEN, Unity, unity

from dv_maintenance.catalogs import glue
from dv_maintenance.catalogs import unity as catalog
from dv_maintenance.tables.delta.commit import publish
from dv_maintenance.testing.delta_builder import DeltaBuilder


def name_it(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a server ``uc``."""
    (folder / "catalogs.yaml").write_text(
        f"catalogs:\n  uc: {{type: unity, uri: '{url}', token: '${{UC_TOKEN}}'}}\ntables: []\n"
    )
    monkeypatch.setenv("DVM_CATALOGS", str(folder / "catalogs.yaml"))
    monkeypatch.setenv("UC_TOKEN", TOKEN)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Unity]:
    with unity() as made:
        name_it(made.url, tmp_path, monkeypatch)
        monkeypatch.setattr("dv_maintenance.catalogs.server._PAUSE", 0.0)
        monkeypatch.setattr(publish, "_FIRST_PAUSE", 0.0)
        yield made


@pytest.fixture
def backend(server: Unity, tmp_path: Path) -> ManagedBackend:
    """Ids 0 to 5; 0 and 4 are deleted."""
    made = ManagedBackend(tmp_path / "table", server)
    made.create()
    made.append("a", [(number, "a", "x") for number in range(6)])
    made.delete([0, 4])
    return made


@pytest.fixture
def real(uc_server: RealUnity, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RealUnity:
    """A server that others wrote, which ``DVM_CATALOGS`` calls ``uc``."""
    name_it(uc_server.url, tmp_path, monkeypatch)
    return uc_server


@pytest.fixture
def permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """All maintenance, whatever the server says."""
    own = catalog._ratified
    monkeypatch.setattr(catalog, "_ratified", lambda *told: replace(own(*told), allowed=frozenset(ALL)))


@pytest.fixture
def catalogs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Writes the settings of catalogs."""
    monkeypatch.setattr("dv_maintenance.catalogs.server._PAUSE", 0.0)

    def write(**named: Mapping[str, str]) -> None:
        (tmp_path / "catalogs.yaml").write_text(json.dumps({"catalogs": named}))
        monkeypatch.setenv("DVM_CATALOGS", str(tmp_path / "catalogs.yaml"))

    return write


@pytest.fixture
def delta_table(tmp_path: Path) -> str:
    """Where a table of ten rows is, four of which are deleted."""
    builder = DeltaBuilder(str(tmp_path / "tables" / "orders")).create(pa.schema([("id", pa.int64())]))
    builder.append(pa.table({"id": range(10)}))
    builder.delete(lambda rows: pa.array([row < 4 for row in rows["id"].to_pylist()]))
    return str(tmp_path / "tables" / "orders")


@pytest.fixture
def own_keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for each in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(each)
    for name, key in KEYS.items():
        monkeypatch.setenv(name.upper(), key)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for each in (glue._client, glue._session):
        each.cache_clear()
    yield
    for each in (glue._client, glue._session):
        each.cache_clear()


@pytest.fixture
def shop(s3: tuple[str, dict[str, str]], own_keys: None, catalogs: Callable[..., None]) -> Iterator[Any]:
    """A client of the emulator, whose database ``shop`` the catalog ``glue`` has."""
    import boto3

    endpoint = s3[1]["aws_endpoint"]
    client = boto3.client("glue", endpoint_url=endpoint, region_name="us-east-1")
    client.create_database(DatabaseInput={"Name": "shop"})
    catalogs(glue={"type": "glue", "region": "us-east-1", "endpoint": endpoint})
    yield client
    for each in client.get_tables(DatabaseName="shop")["TableList"]:
        client.delete_table(DatabaseName="shop", Name=each["Name"])
    client.delete_database(Name="shop")

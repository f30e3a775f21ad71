"""A server of Unity Catalog that others wrote (the crate ``olai-uc-server``), on the loopback, and tables that it
manages.

It keeps all in memory. It takes every token, and does not say what maintenance it permits.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from dv_maintenance.tables.delta.log.segment import commit_path
from dv_maintenance.testing.backends import DeltaBackend
from support.managed import SCHEMA, ManagedBackend
from support.object_stores import serving
from support.places import ROOT
from support.unity import TOKEN
from support.unity_judges import NamedByServer

__all__ = ["API", "UC_SERVER", "RealBackend", "RealUnity", "real_unity"]

UC_SERVER = ROOT / ".cache" / "olai-uc-server" / "bin" / "uc-server"
API = "/api/2.1/unity-catalog"


@dataclass
class RealUnity:
    """Its only catalog is ``main``. ``root``: the folder that external tables may be in."""

    url: str
    root: Path
    schemas: int = field(default=0)

    def schema(self) -> str:
        """A new one. DuckDB sees no more than the 50 first tables of a schema."""
        self.schemas += 1
        self.ask("POST", f"{API}/schemas", {"name": f"s{self.schemas}", "catalog_name": "main"})
        return f"s{self.schemas}"

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read()!r}") from None


@contextmanager
def real_unity(home: Path) -> Iterator[RealUnity]:
    root = home / "tables"
    root.mkdir()
    settings = {
        "host": "127.0.0.1",
        "port": 0,
        "backend": {"engine": "sqlite", "path": ":memory:"},
        "local_storage": {"allowed-roots": [str(root)]},
        "managed_storage_root": root.as_uri(),
        "encryption": {"active": {"id": "test", "key": base64.b64encode(bytes(32)).decode()}},
    }
    (home / "uc.yaml").write_text(json.dumps(settings))  # which is YAML
    command = [str(UC_SERVER), "serve", "--config", "uc.yaml", "--no-ui"]
    with serving(command, home, r"Listening on: 127\.0\.0\.1:(\d+)", RUST_LOG="unitycatalog_server=info") as port:
        server = RealUnity(f"http://127.0.0.1:{port}", root)
        server.ask("POST", f"{API}/catalogs", {"name": "main"})
        yield server


class RealBackend(ManagedBackend):
    """A table of that server, ``uc.main.SCHEMA.NAME``, in the folder that it chooses."""

    def __init__(
        self, server: RealUnity, schema: str, name: str = "t", *, properties: Mapping[str, str] | None = None
    ) -> None:
        self.at = f"{API}/delta/v1/catalogs/main/schemas/{schema}"
        self.staged = server.ask("POST", f"{self.at}/staging-tables", {"name": name})
        self.folder = Path(unquote(urlsplit(self.staged["location"]).path))
        required = {key: value for key, value in self.staged["required-properties"].items() if value is not None}
        DeltaBackend.__init__(self, str(self.folder), properties={**required, **(properties or {})})
        self.real, self.name_there, self.table = server, name, f"main.{schema}.{name}"

    def create(self) -> None:
        self._builder.create(SCHEMA, partition_by=["p"], properties=self.properties, features=self.features)
        lines = (self.folder / commit_path(0)).read_bytes().splitlines()
        actions = {key: value for line in lines for key, value in json.loads(line).items()}
        protocol, metadata = actions["protocol"], actions["metaData"]
        body = {
            "name": self.name_there,
            "location": self.staged["location"],
            "table-type": "MANAGED",
            "columns": json.loads(metadata["schemaString"]),
            "partition-columns": metadata["partitionColumns"],
            "protocol": {
                "min-reader-version": protocol["minReaderVersion"],
                "min-writer-version": protocol["minWriterVersion"],
                "reader-features": protocol["readerFeatures"],
                "writer-features": protocol["writerFeatures"],
            },
            "properties": metadata["configuration"],
            "last-commit-timestamp-ms": actions["commitInfo"]["inCommitTimestamp"],
        }
        self.real.ask("POST", f"{self.at}/tables", body)
        self.join()

    @property
    def judged(self) -> NamedByServer:
        return NamedByServer(self.real.url, TOKEN, self.table, self.staged["table-id"], self.staged["location"])

    def held(self) -> list[int]:
        """Versions of commits that the server still names."""
        return [each["version"] for each in self.real.ask("GET", f"{self.at}/tables/{self.name_there}")["commits"]]

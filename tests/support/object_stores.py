"""Object stores of our own, on the loopback: Azurite is Microsoft's emulator of Azure, S3Proxy an S3 in front of a
folder.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

from support.places import ROOT

__all__ = ["AZURITE", "KEYS", "S3PROXY", "Store", "azurite", "s3proxy", "serving"]

Store = tuple[str, dict[str, str]]
"""The URI of a bucket, and the storage options that reach it."""

_STORES = ROOT / ".cache" / "stores"
AZURITE = _STORES / "azurite-3.37.0" / "node_modules" / ".bin" / "azurite-blob"
S3PROXY = _STORES / "s3proxy-2.9.0" / "s3proxy-2.9.0-jar-with-dependencies.jar"

_BUCKET = "lake"
KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "secret-of-the-test"}
"""Of every S3 here."""
_PATIENCE = 60

# The emulator's account, the same everywhere: no secret.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_API = "2021-08-06"


@contextmanager
def azurite(home: Path) -> Iterator[Store]:
    """Azurite, with a container."""
    arguments = ["--blobHost", "127.0.0.1", "--blobPort", "0", "--silent", "--disableTelemetry"]
    arguments += ["--inMemoryPersistence", "--extentMemoryLimit", "512", "--skipApiVersionCheck"]
    with serving([str(AZURITE), *arguments], home, r"listens on http://127\.0\.0\.1:(\d+)") as port:
        _create_container(port)
        options = {
            "azure_storage_account_name": _ACCOUNT,
            "azure_storage_account_key": _KEY,
            "azure_storage_endpoint": f"http://127.0.0.1:{port}/{_ACCOUNT}",
            "allow_http": "true",
        }
        yield f"az://{_BUCKET}", options


@contextmanager
def s3proxy(home: Path) -> Iterator[Store]:
    """S3Proxy, with a folder as its bucket. It looks, then writes: two conditional puts at once can both succeed."""
    (home / "buckets" / _BUCKET).mkdir(parents=True)
    settings = {
        "s3proxy.endpoint": "http://127.0.0.1:0",
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": KEYS["aws_access_key_id"],
        "s3proxy.credential": KEYS["aws_secret_access_key"],
        "s3proxy.ignore-unknown-headers": "true",
        "jclouds.provider": "filesystem-nio2",
        "jclouds.filesystem.basedir": str(home / "buckets"),
    }
    (home / "s3proxy.conf").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    java = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-jar", str(S3PROXY)]
    started = r"Started ServerConnector.*\{127\.0\.0\.1:(\d+)\}"
    with serving([*java, "--properties", "s3proxy.conf"], home, started) as port:
        endpoint = {"aws_endpoint": f"http://127.0.0.1:{port}", "aws_region": "us-east-1", "allow_http": "true"}
        yield f"s3://{_BUCKET}", {**endpoint, **KEYS}


@contextmanager
def serving(command: list[str], home: Path, started: str, **environment: str) -> Iterator[int]:
    """Runs a server. The port is what ``started`` finds in its output."""
    log = home / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, cwd=home, env={**os.environ, **environment})
    try:
        end = time.monotonic() + _PATIENCE
        while not (found := re.search(started, log.read_text())):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield int(found[1])
    finally:
        server.terminate()
        server.wait()


def _create_container(port: int) -> None:
    """The client of storages can't do this: see "Authorize with Shared Key" of the REST API's reference."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _API}
    # The account comes twice: the path at the emulator begins with it.
    resource = f"/{_ACCOUNT}/{_ACCOUNT}/{_BUCKET}\nrestype:container"
    signed = "PUT" + "\n" * 12 + "".join(f"{name}:{value}\n" for name, value in headers.items()) + resource
    digest = hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("PUT", f"/{_ACCOUNT}/{_BUCKET}?restype=container", headers=headers)
    answer = connection.getresponse()
    assert answer.status == 201, answer.read()
    connection.close()

"""Stores that ignore If-None-Match lose commits: the first commit to one finds out, and so does ``dvm doctor``."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from dv_maintenance import storage as storages
from dv_maintenance.cli import main
from dv_maintenance.errors import RefusedError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.commit.rewrites import commit_info_only
from dv_maintenance.testing.delta_builder import DeltaBuilder

CONDITION = "if-none-match"


@contextmanager
def proxy(target: str, kind: str) -> Iterator[tuple[str, list[str]]]:
    """In front of a store: ``strips`` conditions, or ``agrees`` to every put whatever became of it; "": neither."""
    host = urlsplit(target).netloc
    puts: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {
                name: value for name, value in self.headers.items() if kind != "strips" or name.lower() != CONDITION
            }
            upstream = http.client.HTTPConnection(host)
            upstream.request(self.command, self.path, body, headers)
            answer = upstream.getresponse()
            data, status = answer.read(), answer.status
            lie = self.command == "PUT" and kind == "agrees" and status != 200
            if self.command == "PUT":
                puts.append(self.path)
            self.send_response(200 if lie else status)
            if lie:
                self.send_header("ETag", '"0"')
            for name, value in answer.getheaders():
                if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)
            upstream.close()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward  # noqa: N815 - the server's names

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", puts
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storages, "_PROVEN", set())


@pytest.mark.parametrize("kind", ["strips", "agrees", ""])
def test_the_first_commit_finds_out(
    s3: tuple[str, dict[str, str]], tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place, options = f"{s3[0]}/{tmp_path.name}/t", s3[1]
    DeltaBuilder(place, storage_options=options).create(pa.schema([("id", pa.int64())]))
    before = [info.path for info in Storage(place, options).list()]
    with proxy(options["aws_endpoint"], kind) as (endpoint, puts):
        storage = Storage(place, {**options, "aws_endpoint": endpoint})
        if kind:
            with pytest.raises(RefusedError, match=rf"{endpoint} ignores put-if-absent") as caught:
                commit_info_only(storage, "VACUUM START", {}, {})
            assert caught.value.exit_code == 3
            assert [info.path for info in Storage(place, options).list()] == before, "nothing stays of the probe"
        else:
            assert commit_info_only(storage, "VACUUM START", {}, {}) == 1
            assert commit_info_only(storage, "VACUUM END", {}, {}) == 2
            assert len([path for path in puts if "probe" in path]) == 2, "once, though there were two commits"
        shown = [f"{name}={value}" for name, value in storage.options.items()]
        flags = [word for each in shown for word in ("--storage-option", each)]
        main(["doctor", place, "--json", *flags])
        assert "put-if-absent" not in capsys.readouterr().out, "writes only if asked to"
        main(["doctor", place, "--json", "--try-writing", *flags])
        (check,) = [each for each in json.loads(capsys.readouterr().out)["checks"] if each["name"] == "put-if-absent"]
        assert check["ok"] == (not kind)
    assert not [info.path for info in Storage(place, options).list() if "probe" in info.path]


@pytest.mark.parametrize(
    ("place", "options", "known"),
    [
        ("s3://b/t", {}, True),
        ("s3://b/t", {"aws_endpoint": "https://s3.eu-west-1.amazonaws.com"}, True),
        ("s3://b/t", {"AWS_ENDPOINT_URL": "http://minio:9000"}, False),
        ("s3://b/t", {"endpoint": "https://amazonaws.com.evil.example"}, False),
        ("gs://b/t", {}, True),
        ("abfss://c@a.dfs.core.windows.net/t", {}, True),
        ("https://host/dav/t", {}, False),
    ],
)
def test_which_stores_are_known(place: str, options: dict[str, str], known: bool) -> None:
    assert (storages._custom_endpoint(Storage(place, options).uri, options) is None) == known


def test_local_disks_are_not_tried(tmp_path: Path) -> None:
    Storage(str(tmp_path)).prove_put_if_absent("", anyhow=False)
    assert list(tmp_path.iterdir()) == []

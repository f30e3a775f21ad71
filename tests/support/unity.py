"""A Unity Catalog of our own on the loopback: the part of its Delta API that tells what a table is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote

__all__ = ["TOKEN", "Unity", "unity"]

TOKEN = "token-of-the-test"
_PATH = re.compile(r"/api/2\.1/unity-catalog/delta/v1/catalogs/([^/]+)/schemas/([^/]+)/tables/([^/?]+)(/credentials)?")


@dataclass
class Unity:
    """A server.

    tables : body of the answer by full name.
    keys : the storage credentials that it vends, by full name.
    faults : what the next requests meet, in order: ``busy`` (503 with a page), ``text`` (200, not JSON), ``drop``,
        ``torn`` (the answer breaks off), or a URL to which they are redirected.
    asked : paths of all requests.
    tokens : what each request had for authorization.
    """

    url: str = ""
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    keys: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)

    def add(self, name: str, location: str, **table: Any) -> None:
        """``table``: as in ``catalog.json`` of the golden tables."""
        self.tables[name] = {
            "metadata": {
                "table-type": table.get("table_type", "MANAGED"),
                "table-uuid": table.get("table_id", name),
                "location": location,
            },
            **({"commits": table["commits"][::-1]} if "commits" in table else {}),
            **({"latest-table-version": table["latest"]} if "latest" in table else {}),
        }


@contextmanager
def unity() -> Iterator[Unity]:
    made = Unity()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append(self.path)
            made.tokens.append(self.headers.get("Authorization"))
            fault = made.faults.pop(0) if made.faults else ""
            if fault == "drop":
                self.close_connection = True
            elif fault == "torn":
                self.close_connection = True
                self.answer(200, b"{", missing=7)
            elif fault.startswith("http"):
                self.answer(302, b"", Location=fault)
            elif fault == "busy":
                self.answer(503, b"<html>busy</html>")
            elif fault == "text":
                self.answer(200, b"hello")
            else:
                self.answer(*self.found())

        def found(self) -> tuple[int, Any]:
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return 403, error("PermissionDeniedException", "no right to it")
            match = _PATH.match(self.path)
            name = ".".join(map(unquote, match.groups()[:3])) if match else ""
            if match is None or name not in made.tables:
                return 404, error("NoSuchTableException", f"table {name} does not exist")
            if match[4]:
                return 200, {"storage-credentials": made.keys.get(name, [])}
            return 200, made.tables[name]

        def answer(self, status: int, body: Any, *, missing: int = 0, **headers: str) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data) + missing), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


def error(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"type": kind, "message": message, "code": 0}}

"""An S3 of our own on the loopback, one bucket in memory, that lets in who has the right session token."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from support.served import served

__all__ = ["KeyedStore", "keyed_store"]


@dataclass
class KeyedStore:
    """readers, writers : session tokens that are let in. refused : how many requests were not. used : all tokens."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    readers: set[str] = field(default_factory=set)
    writers: set[str] = field(default_factory=set)
    refused: int = 0
    used: list[tuple[str, str]] = field(default_factory=list)

    @property
    def options(self) -> dict[str, str]:
        return {"aws_endpoint": self.url, "aws_region": "eu-central-1", "allow_http": "true"}


class _Handler(BaseHTTPRequestHandler):
    store: ClassVar[KeyedStore]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        key, query = unquote(parts.path).lstrip("/").partition("/")[2], parse_qs(parts.query)
        token = self.headers.get("x-amz-security-token", "")
        self.store.used.append((self.command, token))
        reads = self.command in {"GET", "HEAD"}
        if token not in self.store.writers and not (reads and token in self.store.readers):
            self.store.refused += 1
            return self.answer(403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>")
        files = self.store.files
        if self.command == "PUT":
            if self.headers.get("If-None-Match") == "*" and key in files:
                return self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            source = self.headers.get("x-amz-copy-source")
            files[key] = files[unquote(source).lstrip("/").partition("/")[2]] if source else body
            return self.answer(200)
        if self.command == "POST":  # deletes
            gone = [key.decode() for key in re.findall(rb"<Key>(.*?)</Key>", body)]
            for key in gone:
                files.pop(key, None)
            said = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in gone)
            return self.answer(200, f"<DeleteResult>{said}</DeleteResult>".encode())
        if self.command == "DELETE":
            files.pop(key, None)
            return self.answer(204)
        if not key:
            return self.answer(200, self.listed(query))
        if key not in files:
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        data, wanted = files[key], re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if wanted:
            first, last = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
            return self.answer(206, data[first : last + 1], f"bytes {first}-{last}/{len(data)}")
        return self.answer(200, data)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def listed(self, query: dict[str, list[str]]) -> bytes:
        prefix, after = query.get("prefix", [""])[0], query.get("start-after", [""])[0]
        found = [key for key in sorted(self.store.files) if key.startswith(prefix) and key > after]
        each = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(self.store.files[key])}</Size><ETag>e</ETag>"
            "<LastModified>2026-11-01T00:00:00.000Z</LastModified></Contents>"
            for key in found
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{each}</ListBucketResult>".encode()

    def answer(self, status: int, data: bytes = b"", part: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Last-Modified", formatdate(1_793_000_000, usegmt=True))
        self.send_header("ETag", '"e"')
        if part:
            self.send_header("Content-Range", part)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@contextmanager
def keyed_store() -> Iterator[KeyedStore]:
    made = KeyedStore()
    with served(_Handler, store=made) as made.url:
        yield made

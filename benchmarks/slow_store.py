"""An object store that answers after a given time: S3's list, get, head, put and delete over the files of a folder.

    python benchmarks/slow_store.py FOLDER [--latency 0.03] [--rate 80] [--stuck PREFIX]

Prints its port. The first part of a path is the bucket and counts for nothing; signatures are not checked. It has a
process of its own, so that its CPU time is not that of whoever is measured, and answers any number of requests at once.
``GET /-/requests`` returns the number of requests since the last such call.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from urllib.request import urlopen
from xml.sax.saxutils import escape, unescape

_PAGE = 1000
_BLOCK = 1 << 20


class Store:
    """``rate``: bytes a second of each connection, either way. ``stuck``: keys with this prefix are never answered."""

    def __init__(self, folder: Path, latency: float, rate: float, stuck: str | None) -> None:
        self.folder, self.latency, self.rate, self.stuck = folder, latency, rate, stuck
        self.requests: Counter[str] = Counter()
        self.uploads: dict[str, dict[int, bytes]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests["connections"] += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, target, _ = head.split(" ", 2)
                if target == "/-/requests":
                    body = repr(dict(self.requests)).encode()
                    self.requests.clear()
                    writer.write(_answer(200, body))
                    continue
                split = urlsplit(target)
                key = unquote(split.path).lstrip("/").partition("/")[2]
                query = {name: values[0] for name, values in parse_qs(split.query, keep_blank_values=True).items()}
                kind = "LIST" if "list-type" in query else method
                self.requests[kind] += 1
                data = await reader.readexactly(int(_header(head, "content-length") or 0))
                await asyncio.sleep(len(data) / self.rate)
                place = query.get("prefix", "") if kind == "LIST" else key
                if self.stuck is not None and place.startswith(self.stuck):
                    await asyncio.sleep(3600)
                await asyncio.sleep(self.latency)
                if kind == "LIST":
                    writer.write(self.listing(query))
                elif method in {"GET", "HEAD"}:
                    await self.send(writer, method, key, head)
                else:
                    writer.write(self.change(method, key, query, head, data))
        writer.close()

    def listing(self, query: dict[str, str]) -> bytes:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        after = query.get("continuation-token") or query.get("start-after") or ""
        most = int(query.get("max-keys", _PAGE))
        top = prefix.rpartition("/")[0]
        found: dict[str, os.stat_result | None] = {}
        for folder, _, names in os.walk(self.folder / top):
            above = os.path.relpath(folder, self.folder).replace(os.sep, "/")
            for name in names:
                key = name if above == "." else f"{above}/{name}"
                if not key.startswith(prefix):
                    continue
                rest = key[len(prefix) :]
                if delimiter and delimiter in rest:
                    found[prefix + rest.partition(delimiter)[0] + delimiter] = None
                elif key > after:
                    found[key] = os.stat(os.path.join(folder, name))
        keys = sorted(key for key in found if key > after)
        page, more = keys[:most], len(keys) > most
        objects, prefixes = [], []
        for key in page:
            stat = found[key]
            if stat is None:
                prefixes.append(f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>")
            else:
                when = datetime.fromtimestamp(stat.st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
                objects.append(
                    f"<Contents><Key>{escape(key)}</Key><LastModified>{when}</LastModified>"
                    f'<ETag>"{stat.st_ino}"</ETag><Size>{stat.st_size}</Size></Contents>'
                )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        return _answer(
            200,
            f"<ListBucketResult><Name>lake</Name><KeyCount>{len(page)}</KeyCount><MaxKeys>{most}</MaxKeys>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{''.join(objects)}{''.join(prefixes)}"
            "</ListBucketResult>".encode(),
        )

    async def send(self, writer: asyncio.StreamWriter, method: str, key: str, head: str) -> None:
        place = self.folder / key
        if not place.is_file():
            writer.write(_answer(404, b"" if method == "HEAD" else b"<Error><Code>NoSuchKey</Code></Error>"))
            return
        stat = place.stat()
        start, end = 0, stat.st_size
        more = f'Last-Modified: {formatdate(stat.st_mtime, usegmt=True)}\r\nETag: "{stat.st_ino}"\r\n'
        if wanted := _header(head, "range").removeprefix("bytes="):
            first, _, last = wanted.partition("-")
            start = int(first) if first else max(stat.st_size - int(last), 0)
            end = min(int(last) + 1, end) if first and last else end
            more += f"Content-Range: bytes {start}-{end - 1}/{stat.st_size}\r\n"
        if start > 0 and start >= end:
            writer.write(_answer(416, b""))
            return
        writer.write(f"HTTP/1.1 {206 if wanted else 200} -\r\nContent-Length: {end - start}\r\n{more}\r\n".encode())
        if method == "HEAD":
            return
        loop = asyncio.get_running_loop()
        due = loop.time()
        with place.open("rb") as file:
            while start < end:
                count = min(_BLOCK, end - start)
                await loop.sendfile(writer.transport, file, start, count)
                start += count
                due += count / self.rate
                await asyncio.sleep(due - loop.time())

    def change(self, method: str, key: str, query: dict[str, str], head: str, data: bytes) -> bytes:
        place, upload = self.folder / key, query.get("uploadId", "")
        if method == "POST" and "delete" in query:
            for each in re.findall(r"<Key>(.*?)</Key>", data.decode()):
                (self.folder / unescape(each)).unlink(missing_ok=True)
            return _answer(200, b"<DeleteResult></DeleteResult>")
        if method == "POST" and "uploads" in query:
            upload = str(len(self.uploads))
            self.uploads[upload] = {}
            return _answer(
                200,
                f"<InitiateMultipartUploadResult><Bucket>lake</Bucket><Key>{escape(key)}</Key>"
                f"<UploadId>{upload}</UploadId></InitiateMultipartUploadResult>".encode(),
            )
        if method == "PUT" and upload:
            self.uploads[upload][int(query["partNumber"])] = data
            return _answer(200, b"", 'ETag: "part"\r\n')
        if method == "DELETE":
            if upload:
                self.uploads.pop(upload, None)
            else:
                place.unlink(missing_ok=True)
            return _answer(204, b"")
        if _header(head, "if-none-match") and place.exists():
            return _answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        if method == "POST":
            data = b"".join(part for _, part in sorted(self.uploads.pop(upload).items()))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        tag = f'"{place.stat().st_ino}"'
        if method == "PUT":
            return _answer(200, b"", f"ETag: {tag}\r\n")
        return _answer(
            200, f"<CompleteMultipartUploadResult><ETag>{escape(tag)}</ETag></CompleteMultipartUploadResult>".encode()
        )


def _header(head: str, name: str) -> str:
    """``""`` if the request has no such header."""
    lines = (line.partition(":") for line in head.split("\r\n"))
    return next((value.strip() for key, _, value in lines if key.lower() == name), "")


def _answer(status: int, data: bytes, more: str = "") -> bytes:
    return f"HTTP/1.1 {status} -\r\nContent-Length: {len(data)}\r\n{more}\r\n".encode() + data


@contextmanager
def running(
    folder: Path, latency: float, *, rate: float | None = None, stuck: str | None = None
) -> Iterator[dict[str, str]]:
    """The storage options that reach such a store."""
    command = [sys.executable, __file__, str(folder), "--latency", str(latency)]
    command += [] if rate is None else ["--rate", str(rate)]
    command += [] if stuck is None else ["--stuck", stuck]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    try:
        yield {
            "aws_endpoint": f"http://127.0.0.1:{port}",
            "aws_region": "us-east-1",
            "aws_access_key_id": "any",
            "aws_secret_access_key": "any",
            "allow_http": "true",
        }
    finally:
        process.kill()  # it may have inherited that the signal to end is ignored
        process.wait()


def requests(options: dict[str, str]) -> str:
    """How many there were since this was asked last, by kind."""
    with urlopen(f"{options['aws_endpoint']}/-/requests") as answer:
        return str(answer.read().decode())


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds")
    parser.add_argument("--rate", type=float, default=float("inf"), help="MB a second of each connection")
    parser.add_argument("--stuck")
    args = parser.parse_args()
    store = Store(args.folder, args.latency, args.rate * 1e6, args.stuck)
    server = await asyncio.start_server(store.serve, "127.0.0.1", 0, backlog=1000, limit=_BLOCK << 4)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())

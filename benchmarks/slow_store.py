"""An object store that answers after a given time: S3's list, get and head over the files of a folder.

    python benchmarks/slow_store.py FOLDER [--latency 0.03] [--stuck PREFIX]

Prints its port. The first part of a path is the bucket and counts for nothing; signatures are not checked. It has a
process of its own, so that its CPU time is not that of whoever is measured, and answers any number of requests at once.
``GET /-/requests`` tells and forgets how many there were.
"""

from __future__ import annotations

import argparse
import asyncio
import os
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
from xml.sax.saxutils import escape

_PAGE = 1000


class Store:
    """``stuck``: keys that begin with it are never answered."""

    def __init__(self, folder: Path, latency: float, stuck: str | None) -> None:
        self.folder, self.latency, self.stuck = folder, latency, stuck
        self.requests: Counter[str] = Counter()

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
                place = query.get("prefix", "") if kind == "LIST" else key
                if self.stuck is not None and place.startswith(self.stuck):
                    await asyncio.sleep(3600)
                await asyncio.sleep(self.latency)
                writer.write(self.listing(query) if kind == "LIST" else self.object(method, key, head))
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

    def object(self, method: str, key: str, head: str) -> bytes:
        place = self.folder / key
        if method not in {"GET", "HEAD"}:
            return _answer(501, b"")
        if not place.is_file():
            return _answer(404, b"" if method == "HEAD" else b"<Error><Code>NoSuchKey</Code></Error>")
        data, stat = place.read_bytes(), place.stat()
        more = f'Last-Modified: {formatdate(stat.st_mtime, usegmt=True)}\r\nETag: "{stat.st_ino}"\r\n'
        wanted = next(
            (line[13:].strip() for line in head.split("\r\n") if line.lower().startswith("range: bytes=")), ""
        )
        if not wanted:
            return _answer(200, data, more, body=method == "GET")
        first, _, last = wanted.partition("-")
        start = int(first) if first else max(len(data) - int(last), 0)
        end = min(int(last) + 1, len(data)) if first and last else len(data)
        more += f"Content-Range: bytes {start}-{end - 1}/{len(data)}\r\n"
        return _answer(206, data[start:end], more) if start < len(data) else _answer(416, b"")


def _answer(status: int, data: bytes, more: str = "", *, body: bool = True) -> bytes:
    head = f"HTTP/1.1 {status} -\r\nContent-Length: {len(data)}\r\n{more}\r\n".encode()
    return head + data if body else head


@contextmanager
def running(folder: Path, latency: float, stuck: str | None = None) -> Iterator[dict[str, str]]:
    """The storage options that reach such a store."""
    command = [sys.executable, __file__, str(folder), "--latency", str(latency)]
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
        process.terminate()
        process.wait()


def requests(options: dict[str, str]) -> str:
    """How many there were since this was asked last, by kind."""
    with urlopen(f"{options['aws_endpoint']}/-/requests") as answer:
        return str(answer.read().decode())


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds")
    parser.add_argument("--stuck")
    args = parser.parse_args()
    store = Store(args.folder, args.latency, args.stuck)
    server = await asyncio.start_server(store.serve, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())

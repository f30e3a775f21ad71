"""One exchange with a server by HTTP. Threads that ask thousands of times keep their connections."""

from __future__ import annotations

import http.client
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from functools import cache
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered, whatever its status."""

    status: int
    headers: Message
    body: bytes


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would take the token to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(_NoRedirects)
_kept = threading.local()


def exchange(url: str, headers: Mapping[str, str], data: bytes | None = None, *, seconds: float) -> Answer:
    """The answer to ``GET``, or with ``data`` to ``POST``. Follows no redirect.

    seconds : how long to wait for each part of it.

    Raises OSError or http.client.HTTPException if there is none. Of a ``POST`` it is not known then whether it had an
    effect. A ``POST`` always gets a new connection: a kept one may have been closed by the server.
    """
    parts = urlsplit(url)
    if data is None and not _by_proxy(parts.scheme, parts.hostname or ""):
        return _on_kept(parts, headers, seconds)
    asked = urllib.request.Request(url, data, dict(headers))  # noqa: S310 - callers allow http(s) alone
    try:
        with _OPENER.open(asked, timeout=seconds) as answer:
            return Answer(answer.status, answer.headers, answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.headers, error.read())


def _on_kept(parts: SplitResult, headers: Mapping[str, str], seconds: float) -> Answer:
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    # A forked process must not write to its parent's connections.
    key = (os.getpid(), parts.scheme, parts.netloc)
    connections: dict[Any, http.client.HTTPConnection] = _kept.__dict__.setdefault("connections", {})
    connection = connections.pop(key, None)
    if connection is not None:
        try:
            return _asked(connection, connections, key, path, headers)
        except (OSError, http.client.HTTPException):
            # The server may have closed it since.
            connection.close()
    made = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = made(parts.netloc.rpartition("@")[2], timeout=seconds)
    try:
        return _asked(connection, connections, key, path, headers)
    except BaseException:
        connection.close()
        raise


def _asked(
    connection: http.client.HTTPConnection,
    connections: dict[Any, http.client.HTTPConnection],
    key: Any,
    path: str,
    headers: Mapping[str, str],
) -> Answer:
    connection.request("GET", path, headers=dict(headers))
    answer = connection.getresponse()
    found = Answer(answer.status, answer.headers, answer.read())
    if not answer.will_close:
        connections[key] = connection
    return found


@cache
def _by_proxy(scheme: str, host: str) -> bool:
    return scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host)

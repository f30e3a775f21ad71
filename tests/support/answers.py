"""A server on the loopback that answers as a test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from support.served import served

__all__ = ["PAGE", "Answers", "Request", "answering"]

PAGE = "<html><body>Bad Gateway</body></html>"
"""What a proxy answers."""


@dataclass
class Request:
    """``path``: decoded, without the query."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def object(self) -> Any:
        return json.loads(self.body or b"{}")


Answer = tuple[int, Any]


@dataclass
class Answers:
    """``faults``: what the next requests get instead; a status alone comes with a page."""

    answer: Callable[[Request], Answer]
    url: str = ""
    asked: list[Request] = field(default_factory=list)
    faults: list[int | Answer] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        return [each.path for each in self.asked]


@contextmanager
def answering(answer: Callable[[Request], Answer]) -> Iterator[Answers]:
    """``answer``: status and body, a text or what becomes JSON."""
    answers = Answers(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._do()

        def do_POST(self) -> None:
            self._do()

        def _do(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, unquote(parts.path), dict(parse_qsl(parts.query)), headers, body)
            answers.asked.append(request)
            fault = answers.faults.pop(0) if answers.faults else None
            status, said = (fault, PAGE) if isinstance(fault, int) else fault or answers.answer(request)
            sent = (said if isinstance(said, str) else json.dumps(said)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if isinstance(said, str) else "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

    with served(Handler) as answers.url:
        yield answers

"""HTTP servers of the tests' own, on the loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

__all__ = ["served"]


@contextmanager
def served(handler: type[BaseHTTPRequestHandler], **attributes: object) -> Iterator[str]:
    """The URL of a server that logs nothing. attributes : of the handler's class."""
    quiet = type("Quiet", (handler,), {"log_message": lambda *_: None, **attributes})
    server = ThreadingHTTPServer(("127.0.0.1", 0), quiet)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()

"""Connections to a catalog's server that are kept: closed by the server, or of another process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread

import pytest

from dv_maintenance.catalogs import exchange as module
from dv_maintenance.catalogs.exchange import exchange


class Server:
    """Answers so many requests on each connection, then closes it without a word."""

    def __init__(self, each: int) -> None:
        self.each, self.connections, self.methods = each, 0, list[str]()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}/x"
        Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            self.connections += 1
            with connection, connection.makefile("rwb") as stream:
                for _ in range(self.each):
                    if not self.answer(stream):
                        break

    def stop(self) -> None:
        """Closing alone leaves an `accept` in another thread waiting, and taking one more."""
        with suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()

    def answer(self, stream: object) -> bool:
        lines: list[bytes] = []
        while (line := stream.readline()) not in (b"\r\n", b""):  # type: ignore[attr-defined]
            lines.append(line)
        if not lines:
            return False
        self.methods.append(lines[0].split()[0].decode())
        size = next((int(each.split(b":")[1]) for each in lines if each.lower().startswith(b"content-length")), 0)
        stream.read(size)  # type: ignore[attr-defined]
        stream.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")  # type: ignore[attr-defined]
        stream.flush()  # type: ignore[attr-defined]
        return True


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    made: list[Server] = []
    yield made
    for each in made:
        each.stop()


@pytest.mark.parametrize(("each", "connections"), [(10, 1), (1, 4), (2, 2)])
def test_a_connection_is_kept_until_the_server_closes_it(servers: list[Server], each: int, connections: int) -> None:
    servers.append(server := Server(each))
    for _ in range(4):
        assert exchange(server.url, {}, seconds=5).body == b"{}"
    assert (server.connections, server.methods) == (connections, ["GET"] * 4)


def test_a_post_has_a_connection_of_its_own(servers: list[Server]) -> None:
    """On an old one that the server has closed, it would not be known whether it had an effect."""
    servers.append(server := Server(1))
    exchange(server.url, {}, seconds=5)
    exchange(server.url, {}, b"{}", seconds=5)
    assert (server.connections, server.methods) == (2, ["GET", "POST"])


def test_a_server_that_is_not_there(servers: list[Server]) -> None:
    servers.append(server := Server(1))
    exchange(server.url, {}, seconds=5)
    server.stop()
    with pytest.raises(OSError):
        exchange(server.url, {}, seconds=5)


def test_another_thread_has_its_own(servers: list[Server]) -> None:
    servers.append(server := Server(10))
    exchange(server.url, {}, seconds=5)
    # The server serves one connection at a time: this thread's has to be closed first.
    for each in module._kept.connections.values():
        each.close()
    thread = Thread(target=exchange, args=(server.url, {}), kwargs={"seconds": 5})
    thread.start()
    thread.join(5)
    assert server.connections == 2

"""Files of object stores, read in a few large requests that run in parallel, ahead of the reader.

A store answers each request after tens of milliseconds, and each connection has its own speed. So a reader that names
the ranges that it is about to read gets them over several connections, while it still works on earlier ones.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from threading import Lock
from typing import Any, Final

import pyarrow as pa

from dv_maintenance.storage.failures import Handle, storage_errors, whole

_REQUEST_BYTES: Final = 8 << 20
# Of each file: as much as Arrow reads at once, so that the next row group comes in while one is decoded.
_UNREAD_BYTES: Final = 32 << 20
_CONNECTIONS: Final = 4
# Page indexes between row groups, for instance: fetched sooner than asked for by a request of their own.
_GAP_BYTES: Final = 256 << 10


class RemoteInput(pa.PythonFile):  # type: ignore[misc]
    """A random-access file of ranged gets for Arrow. See :func:`remote_input`."""

    def __init__(self, handle: _Expecting, mode: str) -> None:  # noqa: ARG002 - Arrow takes it in ``__cinit__``
        self._expecting = handle

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """These ranges (offset, length) will be read next, about in this order, and each byte of them once. Those that
        follow each other closely share requests.

        It is only a hint: other ranges can be read, too, and what lies after the end of the file is ignored.
        """
        self._expecting.expect(ranges)


def remote_input(path: str, inner: Any, fetch: Callable[[int, int], Any]) -> RemoteInput:
    """Open what ``inner`` reads.

    inner : a Python file with a ``size``.
    fetch : the bytes of a range (offset, length). Both may raise the errors of a storage client.
    """
    return RemoteInput(_Expecting(path, inner, fetch), mode="r")


class _Piece:
    """A part of a file that one request fetches. ``left``: expected bytes minus those that were read, even twice."""

    __slots__ = ("data", "left", "start", "stop")

    def __init__(self, start: int, stop: int, left: int) -> None:
        self.start, self.stop, self.left = start, stop, left
        self.data: Future[memoryview] | None = None

    def __lt__(self, other: _Piece) -> bool:
        return self.start < other.start


def _spans(ranges: Sequence[tuple[int, int]], size: int) -> list[list[tuple[int, int]]]:
    """The ranges within a file, as (start, stop); those that one request should fetch, gaps and all, together."""
    found: list[list[tuple[int, int]]] = []
    for start, length in ranges:
        stop = min(start + length, size)
        if not 0 <= start < stop:
            continue
        if found and 0 <= start - found[-1][-1][1] <= _GAP_BYTES:
            found[-1].append((start, stop))
        else:
            found.append([(start, stop)])
    return found


class _Expecting(Handle):
    def __init__(self, path: str, inner: Any, fetch: Callable[[int, int], Any]) -> None:
        super().__init__(path, inner)
        self._fetch = fetch
        self._pieces: list[_Piece] = []  # by their positions in the file
        self._planned: deque[_Piece] = deque()  # those to be fetched, in the order of reading
        self._unread = 0
        self._pool: ThreadPoolExecutor | None = None
        self._lock = Lock()

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        with self._lock:
            self._pieces = [piece for piece in self._pieces if piece.left > 0]
            for span in _spans(ranges, self._inner.size):
                start, length = span[0][0], span[-1][1] - span[0][0]
                count = -(-length // _REQUEST_BYTES)
                edges = [start + length * number // count for number in range(count + 1)]
                for first, last in pairwise(edges):
                    left = sum(max(0, min(stop, last) - max(start, first)) for start, stop in span)
                    insort(self._pieces, piece := _Piece(first, last, left))
                    self._planned.append(piece)
            self._fetch_planned()

    def read(self, size: int = -1) -> Any:
        at = self._inner.tell()
        left = self._inner.size - at
        end = at + (left if size < 0 else min(size, left))
        parts = []
        while at < end:
            part = self._part(at, end)
            parts.append(part)
            at += len(part)
        self._seek(at)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
            self._pieces.clear()
            self._planned.clear()
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _part(self, at: int, end: int) -> memoryview:
        """Some bytes from ``at`` on, at least one."""
        with self._lock:
            found = bisect_right(self._pieces, at, key=lambda piece: piece.start)
            piece = self._pieces[found - 1] if found and at < self._pieces[found - 1].stop else None
            if piece is None:
                end = min(end, self._pieces[found].start) if found < len(self._pieces) else end
            elif piece.data is None:
                self._planned.remove(piece)
                if self._unread + piece.stop - piece.start > _UNREAD_BYTES:
                    self._forget()
                self._begin(piece)
        if piece is None:
            self._seek(at)
            return memoryview(super().read(end - at))
        assert piece.data is not None, "it was begun"
        with storage_errors(self._path):
            data = piece.data.result()[at - piece.start : end - piece.start]
        with self._lock:
            before, piece.left = piece.left, piece.left - len(data)
            known = piece in self._pieces
            if known and before > 0 >= piece.left:
                self._unread -= piece.stop - piece.start
                self._fetch_planned()
            # Whoever reads some of it twice, as for NaN in floats before they are copied, ends with its last byte.
            if known and piece.left <= 0 and at + len(data) == piece.stop:
                self._pieces.remove(piece)
        return data

    def _seek(self, at: int) -> None:
        if self._inner.tell() != at:  # obstore forgets its buffer otherwise
            self._inner.seek(at)

    def _fetch_planned(self) -> None:
        while self._planned:
            first = self._planned[0]
            if self._unread and self._unread + first.stop - first.start > _UNREAD_BYTES:
                return
            self._begin(self._planned.popleft())

    def _forget(self) -> None:
        """What was expected and is not read, or not yet, must not fill the memory."""
        self._pieces = [piece for piece in self._pieces if piece.data is None]
        self._unread = 0

    def _begin(self, piece: _Piece) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_CONNECTIONS)
        self._unread += piece.stop - piece.start
        piece.data = self._pool.submit(self._bytes, piece.start, piece.stop - piece.start)

    def _bytes(self, start: int, length: int) -> memoryview:
        with storage_errors(self._path):
            data = memoryview(self._fetch(start, length))
            whole(data, length, self._path)
            return data

"""Copies row groups from file to file without decoding them.

Bytes pass through a buffer of fixed size. While they do, their pages are walked (``files.parquet_pages``), so that
damage in a source does not become damage in the table's newest version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

import pyarrow as pa

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.parquet_groups import (
    Group,
    Part,
    Place,
    bloom_filter_size,
    joined,
    moved,
    moved_offset_index,
)
from dv_maintenance.files.parquet_pages import PageError, PageWalk
from dv_maintenance.files.thrift_compact import Struct, ThriftError, Value

# From an object store each read is a request; from local disk a block should not leave the processor's cache before it
# is checked and written.
_REMOTE_BLOCK: Final = 8 << 20
_LOCAL_BLOCK: Final = 512 << 10
_SMALL: Final = 256 << 10
_BLOOM_HEAD: Final = 64


@dataclass(frozen=True, slots=True)
class CopiedGroup:
    """A row group in its new file.

    data : its encoded metadata.
    checksums : of the pages of each column chunk; ``None`` if the source is on local disk, where reading it again
        takes less time.
    size : bytes of all its parts.
    """

    data: bytes
    checksums: tuple[int, ...] | None
    size: int


def copy_group(pieces: Sequence[tuple[CopySource, Group]], paths: Sequence[Value], sink: Any, name: str) -> CopiedGroup:
    """Append a row group to ``sink``: pages, page indexes, Bloom filters.

    The Bloom filters of floats and decimals of fixed length are dropped, see ``ParquetOutput``.

    pieces : the row group, in one file or with its columns in several, in their order.
    paths : see ``moved``.
    name : for errors.

    Raises
    ------
    DamagedTableError : its pages contradict its metadata, or a checksum.
    """
    begin = sink.tell()
    try:
        found = [pages for source, group in pieces for pages in _pages(source.file, group.parts, sink)]
        parts = [(source, part) for source, group in pieces for part in group.parts]
        indexes = _Indexes(sink)
        for source, part in parts:
            indexes.column(source, part)
        for (source, part), pages in zip(parts, found, strict=True):
            indexes.offset(source, part, pages)
        blooms = [_bloom(source, part, sink) for source, part in parts]
    except (PageError, ThriftError) as error:
        raise DamagedTableError(
            f"{name} is damaged: {error}", next_step="restore the file, or remove it from the table"
        ) from error
    places = [
        Place(pages.at, offset, column, bloom)
        for pages, offset, column, bloom in zip(found, indexes.offsets, indexes.columns, blooms, strict=True)
    ]
    checksums = tuple(pages.checksum for pages in found) if _is_remote(pieces[0][0].file) else None
    return CopiedGroup(moved(joined([group for _, group in pieces]), places, paths), checksums, sink.tell() - begin)


def checksums(file: pa.NativeFile, ranges: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """The CRC-32 of each range (offset, length) of a file. Raises PageError if two overlap or the file ends earlier."""
    found = [0] * len(ranges)
    for number, data in _blocks(file, ranges):
        found[number] = crc32(data, found[number])
    return tuple(found)


def same_bytes(
    one: pa.NativeFile, ones: Sequence[tuple[int, int]], other: pa.NativeFile, others: Sequence[tuple[int, int]]
) -> bool:
    """Whether these ranges (offset, length) of two files have the same bytes. Raises PageError if one ends earlier."""
    buffers = [memoryview(bytearray(_LOCAL_BLOCK)) for _ in range(2)]
    for (start, length), (other_start, other_length) in zip(ones, others, strict=True):
        if length != other_length:
            return False
        for done in range(0, length, _LOCAL_BLOCK):
            mine, theirs = (buffer[: length - done] for buffer in buffers)
            _fill_all(one, mine, start + done)
            _fill_all(other, theirs, other_start + done)
            # Views compare value by value.
            if not pa.py_buffer(mine).equals(pa.py_buffer(theirs)):
                return False
    return True


@dataclass(frozen=True, slots=True)
class _Pages:
    """The pages of a column chunk in the new file. ``starts``: of the data pages, in the old one."""

    at: int
    starts: list[int]
    checksum: int


def _pages(file: pa.NativeFile, parts: Sequence[Part], sink: Any) -> list[_Pages]:
    walks = [PageWalk(part.pages[1], part.values, part.dictionary) for part in parts]
    sums = [0] * len(parts)
    at = [-1] * len(parts)
    # A store's client sends what it was given later, and the buffer is used again.
    keeps = isinstance(sink, pa.PythonFile)
    sums_wanted = _is_remote(file)
    for number, data in _blocks(file, [part.pages for part in parts]):
        if at[number] < 0:
            at[number] = sink.tell()
        sink.write(bytes(data) if keeps else data)
        walks[number].add(data)
        if sums_wanted:
            sums[number] = crc32(data, sums[number])
    for walk in walks:
        walk.end()
    if min(at, default=0) < 0:
        raise PageError("a column chunk has no pages")
    return [
        _Pages(begin, [part.pages[0] + start for start in walk.starts], checksum)
        for begin, part, walk, checksum in zip(at, parts, walks, sums, strict=True)
    ]


def _blocks(file: pa.NativeFile, ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, memoryview]]:
    """The bytes of all ranges, by their number, in the order of the file. Each view is valid until the next one."""
    order = sorted(range(len(ranges)), key=lambda number: ranges[number])
    if isinstance(file, pa.BufferReader):
        for number in order:
            file.seek(ranges[number][0])
            yield number, memoryview(file.read_buffer(ranges[number][1]))
        return
    block = _REMOTE_BLOCK if _is_remote(file) else _LOCAL_BLOCK
    buffer = memoryview(bytearray(min(block, sum(length for _, length in ranges))))
    filled = (0, 0)  # what the buffer holds, as positions in the file
    last = max((start + length for start, length in ranges), default=0)
    end = 0
    for number in order:
        start, length = ranges[number]
        if start < end:
            raise PageError("two column chunks overlap")
        end = start + length
        at = start
        while at < end:
            if not filled[0] <= at < filled[1]:
                filled = (at, at + _fill(file, buffer[: last - at], at))
            stop = min(end, filled[1])
            yield number, buffer[at - filled[0] : stop - filled[0]]
            at = stop


def _fill(file: pa.NativeFile, buffer: memoryview, at: int) -> int:
    file.seek(at)
    count: int = file.readinto(buffer)
    if not count:
        raise PageError(f"the file ends at byte {at}")
    return count


def _fill_all(file: pa.NativeFile, buffer: memoryview, at: int) -> None:
    filled = 0
    while filled < len(buffer):
        filled += _fill(file, buffer[filled:], at + filled)


def _is_remote(file: pa.NativeFile) -> bool:
    return isinstance(file, pa.PythonFile)


class CopySource:
    """A file whose row groups are copied. Small parts that are near each other, as the page indexes of all row groups,
    are read at once.
    """

    def __init__(self, file: pa.NativeFile) -> None:
        self.file, self._size = file, file.size()
        self._at, self._data = 0, b""

    def read(self, offset: int, length: int) -> bytes:
        if not self._at <= offset <= offset + length <= self._at + len(self._data):
            wanted = min(max(length, _SMALL), self._size - offset)
            self._at, self._data = offset, bytes(self.file.read_at(wanted, offset))
        found = self._data[offset - self._at : offset - self._at + length]
        if len(found) < length:
            raise PageError(f"the file ends at byte {offset + len(found)}")
        return found

    def head(self, offset: int, length: int) -> bytes:
        """At most ``length`` bytes."""
        return self.read(offset, min(length, self._size - offset))


class _Indexes:
    """Page indexes in the new file: all column indexes of a row group, then all offset indexes: readers fetch each kind
    with one request.
    """

    def __init__(self, sink: Any) -> None:
        self.columns: list[tuple[int, int] | None] = []
        self.offsets: list[tuple[int, int] | None] = []
        self._sink = sink

    def column(self, source: CopySource, part: Part) -> None:
        if part.column_index is None:
            self.columns.append(None)
            return
        data = source.read(*part.column_index)
        Struct.parse(data)
        self.columns.append(self._put(data))

    def offset(self, source: CopySource, part: Part, pages: _Pages) -> None:
        if part.offset_index is None:
            self.offsets.append(None)
            return
        data = source.read(*part.offset_index)
        new = moved_offset_index(data, pages.at - part.pages[0], pages.starts)
        self.offsets.append(self._put(new))

    def _put(self, data: bytes) -> tuple[int, int]:
        at = self._sink.tell()
        self._sink.write(data)
        return at, len(data)


def _bloom(source: CopySource, part: Part, sink: Any) -> tuple[int, int] | None:
    if part.bloom_filter is None or part.by_bytes:
        return None
    start, length = part.bloom_filter
    if length < 0:
        length = bloom_filter_size(source.head(start, _BLOOM_HEAD))
    at: int = sink.tell()
    sink.write(source.read(start, length))
    return at, length

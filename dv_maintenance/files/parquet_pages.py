"""The pages of a Parquet column chunk, walked without decoding a value: where each begins and ends, how many values it
has, and whether its bytes match its checksum.

Field ids are those of parquet.thrift (apache/parquet-format).
"""

from __future__ import annotations

import zlib
from typing import Final

from dv_maintenance.files.thrift_compact import ThriftError, skip
from dv_maintenance.files.varint import read_varint, unzigzag

_STOP, _STRUCT = 0, 12
_INTEGERS: Final = frozenset({3, 4, 5, 6})
# PageHeader
_TYPE, _SIZE, _CRC = 1, 3, 4
_HEADERS: Final = {5: 0, 6: 1, 7: 2, 8: 3}  # field of a page's own header -> type of the page
_DATA, _INDEX, _DICTIONARY, _DATA_V2 = 0, 1, 2, 3
# DataPageHeader, DictionaryPageHeader, DataPageHeaderV2: all begin with the number of values
_VALUES: Final = 1
# A header holds two bounds of its page at most, and writers truncate or omit long ones.
_LONGEST_HEADER: Final = 1 << 24
_USUAL_HEADER: Final = 512


class PageError(ValueError):
    """Pages that contradict the footer, or bytes that are not pages."""


class PageWalk:
    """Checks the bytes of one column chunk as they pass by: :meth:`add` all of them in order, then :meth:`end`.

    size : bytes of the chunk by the footer.
    values : values of the chunk by the footer, nulls included.
    dictionary : whether the footer says that the chunk has a dictionary page. Some writers have one without saying so.

    starts : where its data pages begin, counted from the first byte of the chunk.

    Memory is bounded by a page header.

    Raises
    ------
    PageError : by both methods.
    """

    def __init__(self, size: int, values: int, dictionary: bool = False) -> None:
        self.starts: list[int] = []
        self._pages = 0
        self._size, self._expected, self._dictionary = size, values, dictionary
        self._seen = self._values = 0
        self._at = 0  # where the current page begins
        self._head = b""  # a header whose end is missing
        self._left = 0  # bytes of the current page that have not passed by
        self._crc: int | None = None
        self._sum = 0

    def add(self, data: bytes | memoryview) -> None:
        self._seen += len(data)
        if self._seen > self._size:
            raise PageError(f"a column chunk has more than the {self._size} bytes that the footer names")
        if self._head:
            data, self._head = self._head + bytes(data), b""
        view = memoryview(data)
        at, end = 0, len(view)
        while at < end:
            if self._left:
                part = min(self._left, end - at)
                if self._crc is not None:
                    self._sum = zlib.crc32(view[at : at + part], self._sum)
                at, self._left = at + part, self._left - part
                if not self._left:
                    self._check_sum()
                continue
            start = at
            at = self._begin(view, at)
            if at < 0:
                self._head = bytes(view[start:])
                return

    def end(self) -> None:
        if self._seen != self._size or self._left or self._head:
            raise PageError(
                f"the pages of a column chunk do not end after the {self._size} bytes that the footer names"
            )
        if self._values != self._expected:
            raise PageError(f"the pages of a column chunk have {self._values} values, but the footer {self._expected}")

    def _begin(self, view: memoryview, at: int) -> int:
        """Begin the page whose header is at ``at``. The position after the header; -1 if its end is missing."""
        window = bytes(view[at : at + _USUAL_HEADER])
        try:
            length = self._header(window)
        except IndexError:
            if len(view) - at <= len(window):
                return self._unfinished(len(view) - at)
            window = bytes(view[at : at + _LONGEST_HEADER])
            try:
                length = self._header(window)
            except IndexError:
                return self._unfinished(len(window))
        self._at += length + self._left
        return at + length

    def _unfinished(self, length: int) -> int:
        if length >= _LONGEST_HEADER:
            raise PageError("a page header does not end")
        return -1

    def _header(self, data: bytes) -> int:
        """Take the header that ``data`` begins with; its length. Raises IndexError if the bytes end earlier."""
        kind = size = crc = own = values = None
        at, last = 0, 0
        try:
            while (head := data[at]) != _STOP:
                of = head & 0x0F
                if head >> 4:
                    last, at = last + (head >> 4), at + 1
                else:
                    number, at = read_varint(data, at + 1)
                    last = unzigzag(number)
                if of == 5 and last in (_TYPE, _SIZE, _CRC):
                    number, at = read_varint(data, at)
                    if last == _TYPE:
                        kind = unzigzag(number)
                    elif last == _SIZE:
                        size = unzigzag(number)
                    else:
                        crc = unzigzag(number) & 0xFFFFFFFF
                elif of == _STRUCT and last in _HEADERS:
                    own = _HEADERS[last]
                    values = _values(data, at)
                    at = skip(data, at, of)
                else:
                    at = skip(data, at, of)
        except (ThriftError, OverflowError) as error:
            raise PageError(f"a page header is damaged: {error}") from None
        if kind is None or size is None or own != kind or size < 0:
            raise PageError("a page header lacks the type or the size of its page")
        self._take(kind, size, values, crc)
        return at + 1

    def _take(self, kind: int, size: int, values: int | None, crc: int | None) -> None:
        if kind == _DICTIONARY:
            if self._pages:
                raise PageError("a column chunk has a dictionary page after other pages")
        elif kind in (_DATA, _DATA_V2):
            if values is None or values < 0:
                raise PageError("a page does not say how many values it has")
            if not self._pages and self._dictionary:
                raise PageError("a column chunk lacks the dictionary page that the footer names")
            self._values += values
            self.starts.append(self._at)
        elif kind != _INDEX:
            raise PageError(f"a page has the unknown type {kind}")
        self._pages += 1
        self._left, self._crc, self._sum = size, crc, 0
        if not size:
            self._check_sum()

    def _check_sum(self) -> None:
        if self._crc is not None and self._sum != self._crc:
            raise PageError(f"page {self._pages} of a column chunk does not match its checksum")


def _values(data: bytes, at: int) -> int | None:
    """The first field of a page's own header: its number of values."""
    if data[at] >> 4 != _VALUES or data[at] & 0x0F not in _INTEGERS:
        return None
    return unzigzag(read_varint(data, at + 1)[0])

"""Records of Avro blocks as columns: all records are decoded together, one field after the other.

A record begins where the one before it ends, which only decoding that one tells. So every place that looks like a
beginning is taken for one; all of them are decoded at once, and the chain of records from the first byte to the last
picks those that were right. Nothing is taken on trust: a record must end where the next one begins, a block where its
last record ends, with as many records as it says. Where anything differs, or the schema has a type that is not known
here, nothing is decoded, and the caller reads record by record, which also finds the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dv_maintenance.files.avro.schema import Rebuilt, Wanted, record_of
from dv_maintenance.files.varint import MAX_BYTES, read_varint, unzigzag, varint, zigzag

__all__ = ["Block", "Columns", "decode"]

Block = tuple[int, bytes]
"""How many records it has, and their bytes."""

Columns = dict[str, Any]
"""By name: integers as ``int64``, text as ``string``, bytes as ``binary``, a record as Columns, an array of text as a
list of lists (``None`` where it is null).
"""

_Rows = np.ndarray[Any, np.dtype[np.int64]]

# What a number of one byte stands for.
_SHORT: Final = np.array([unzigzag(byte & 0x7F) for byte in range(256)], np.int64)
_GROUP: Final = 2 << 20  # bytes
# Fewer records are decoded faster one by one.
_WORTH_IT: Final = 256
# Arrays with more items are left to the caller: each item is a step of its own.
_MOST_ITEMS: Final = 4096
_NUMBERS: Final = {"int": 32, "long": 64}
_WIDTHS: Final = {"boolean": 1, "float": 4, "double": 8}


def decode(
    schema: Rebuilt, blocks: Sequence[Block], wanted: Wanted, first: Mapping[str, Collection[int]]
) -> Columns | None:
    """The ``wanted`` fields of all records, those that the schema has; ``None`` where they can't be decoded here.

    ``first``: which values the fields that a record begins with may have. At least one of them must be known, or too
    many places look like the beginning of a record.
    """
    prefix = _prefix(schema, first)
    if not prefix or sum(count for count, _ in blocks) < _WORTH_IT:
        return None
    try:
        parts = [_decoded(schema, some, wanted, prefix) for some in _groups(blocks)]
    except (_NotHereError, pa.ArrowInvalid):
        return None
    found: Columns = _joined(parts)
    return found


def _decoded(schema: Rebuilt, blocks: Sequence[Block], wanted: Wanted, prefix: Sequence[Sequence[int]]) -> Columns:
    lanes = _Lanes(b"".join(block for _, block in blocks), prefix)
    read = lanes.value(schema, None, wanted)
    found: Columns = read(_chain(lanes, blocks))
    return found


def _groups(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Blocks that are decoded at once: so many that a step for each field counts for little, so few that what it
    works on stays in the processor's cache.
    """
    some: list[Block] = []
    size = 0
    for block in blocks:
        some.append(block)
        size += len(block[1])
        if size >= _GROUP:
            yield some
            some, size = [], 0
    if some:
        yield some


def _joined(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if isinstance(first, dict):
        return {name: _joined([part[name] for part in parts]) for name in first}
    if isinstance(first, list):
        return [each for part in parts for each in part]
    return pa.concat_arrays(parts)


class _NotHereError(Exception):
    """What is left to the caller."""


def _prefix(schema: Rebuilt, first: Mapping[str, Collection[int]]) -> list[list[int]]:
    """For each of the bytes that a record begins with, which ones are possible."""
    found: list[list[int]] = []
    if schema["type"] == "union":
        found.append([2 * [each["type"] for each in schema["branches"]].index("record")])
    for field in record_of(schema)["fields"]:
        values = first.get(field["name"])
        if values is None or field["type"]["type"] not in _NUMBERS:
            return found if field is not record_of(schema)["fields"][0] else []
        found.append([varint(zigzag(value))[0] for value in values])
    return found


_Column = Callable[[_Rows], Any]
"""The values of chosen lanes."""


class _Lanes:
    """Places that may be the beginning of a record, and how far each of them has been decoded.

    ``begin``: the places, in order. ``at``: where the next field begins. Lanes that meet what no record has are gone.
    """

    def __init__(self, data: bytes, prefix: Sequence[Sequence[int]]) -> None:
        self.stop = len(data)
        self.bytes = data
        # What follows the last byte is read and never used.
        self.data = np.frombuffer(data + bytes(max(MAX_BYTES, len(prefix))), np.uint8)
        self.begin: _Rows = np.flatnonzero(_one_of(self.data[: self.stop], prefix[0]))
        for place, values in enumerate(prefix[1:], start=1):
            self.begin = self.begin[_one_of(self.data[self.begin + place], values)]
        self.at = self.begin.copy()
        self._alive = np.ones(len(self.begin), bool)
        # Lanes by their number in the beginning.
        self.ids: _Rows = np.arange(len(self.begin))

    def value(self, schema: Rebuilt, rows: _Rows | None, wanted: Wanted | None, *, keep: bool = True) -> _Column:
        """Decode the next value of all lanes, or of those in ``rows``. ``keep``: whether anybody asks for it."""
        match schema["type"]:
            case "record":
                return self._record(schema, rows, wanted, keep=keep)
            case "union":
                return self._union(schema, rows, wanted, keep=keep)
            case "int" | "long":
                ids = self._ids(rows)
                values = self._number(rows, _NUMBERS[schema["type"]])
                return lambda chosen: _integers(values[_find(ids, chosen)])
            case "string" | "bytes":
                ids = self._ids(rows)
                start, length = self._text(rows)
                type_ = pa.string() if schema["type"] == "string" else pa.binary()
                return lambda chosen: self._texts(start, length, _find(ids, chosen), type_)
            case "array":
                ids = self._ids(rows)
                start = self._positions(rows).copy()
                self._array(schema["items"], rows)
                if keep and schema["items"]["type"] != "string":
                    raise _NotHereError
                return lambda chosen: self._lists(start[_find(ids, chosen)])
            case "boolean" | "float" | "double" if not keep:
                self._skip(rows, _WIDTHS[schema["type"]])
                return lambda _: None
            case "fixed" if not keep:
                self._skip(rows, schema["size"])
                return lambda _: None
        raise _NotHereError

    def _record(self, schema: Rebuilt, rows: _Rows | None, wanted: Wanted | None, *, keep: bool) -> _Column:
        read: dict[str, _Column] = {}
        for field in schema["fields"]:
            name = field["name"]
            asked = keep and (wanted is None or name in wanted)
            column = self.value(field["type"], rows, (wanted or {}).get(name) if asked else None, keep=asked)
            if asked:
                read[name] = column
            if rows is None:
                self._bury()
        return lambda chosen: {name: column(chosen) for name, column in read.items()}

    def _union(self, schema: Rebuilt, rows: _Rows | None, wanted: Wanted | None, *, keep: bool) -> _Column:
        kinds = [each["type"] for each in schema["branches"]]
        if len(kinds) != 2 or kinds.count("null") != 1:
            raise _NotHereError
        some = 1 - kinds.index("null")
        inner = schema["branches"][some]
        branch = self._number(rows, 32)
        if inner["type"] == "record" and rows is None:
            self._drop(None, branch != some)
            self._bury()
            return self.value(inner, None, wanted, keep=keep)
        self._drop(rows, (branch != 0) & (branch != 1))
        ids = self._ids(rows)
        present = np.flatnonzero(branch == some)
        if not len(present):
            return lambda chosen: _nulls(inner, len(chosen))
        if inner["type"] == "record" and keep:
            raise _NotHereError
        column = self.value(inner, present if rows is None else rows[present], wanted, keep=keep)
        has = branch == some
        return lambda chosen: _scattered(column, chosen, has[_find(ids, chosen)], inner)

    def _array(self, items: Rebuilt, rows: _Rows | None) -> None:
        rows = np.arange(len(self.at)) if rows is None else rows
        left = self._number(rows, 64)
        # A negative count precedes the size of a block, which none of the known writers writes.
        self._drop(rows, left < 0)
        for _ in range(_MOST_ITEMS):
            more = left > 0
            if not more.all():
                rows, left = rows[more], left[more]
            if not len(rows):
                return
            self.value(items, rows, None, keep=False)
            left -= 1
            last = np.flatnonzero(left == 0)
            if len(last):
                left[last] = self._number(rows[last], 64)
                self._drop(rows[last], left[last] < 0)
            left[~self._alive[rows]] = 0
        raise _NotHereError

    # -- steps -----------------------------------------------------------------------------------------------------

    def _number(self, rows: _Rows | None, bits: int) -> _Rows:
        """The next number of each lane. Lanes without one of so many ``bits`` are gone."""
        at = self._positions(rows)
        byte = self.data[at]
        found: _Rows = _SHORT[byte]
        end = at + 1
        more = np.flatnonzero(byte > 0x7F)
        if len(more):
            found[more], end[more] = self._longer(rows, more, at[more], bits)
        self._move(rows, end)
        return found

    def _longer(self, rows: _Rows | None, places: _Rows, at: _Rows, bits: int) -> tuple[_Rows, _Rows]:
        """Numbers of several bytes, and where they end. ``places``: which of the rows they are of."""
        byte = self.data[at]
        value = (byte & np.uint8(0x7F)).astype(np.uint64)
        end = at + 1
        more = np.arange(len(at))
        for shift in range(7, 7 * MAX_BYTES, 7):
            byte = self.data[end[more]]
            value[more] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(shift)
            end[more] += 1
            more = more[byte > 0x7F]
            if not len(more):
                break
        # Of the tenth byte one bit is left.
        self._drop(_of(rows, places), (end - at == MAX_BYTES) & (self.data[end - 1] > 1))
        found: _Rows = (value >> np.uint64(1)).view(np.int64) ^ -(value & np.uint64(1)).view(np.int64)
        if bits == 32:
            self._drop(_of(rows, places), (found < -(1 << 31)) | (found >= 1 << 31))
        return found, end

    def _text(self, rows: _Rows | None) -> tuple[_Rows, _Rows]:
        length = self._number(rows, 64)
        start = self._positions(rows)
        wrong = (length < 0) | (length > self.stop - start)
        if wrong.any():
            self._drop(rows, wrong)
            length = np.where(wrong, 0, length)
        self._move(rows, start + length)
        return start, length

    def _skip(self, rows: _Rows | None, width: int) -> None:
        self._move(rows, self._positions(rows) + width)

    def _positions(self, rows: _Rows | None) -> _Rows:
        return self.at if rows is None else self.at[rows]

    def _ids(self, rows: _Rows | None) -> _Rows:
        return self.ids if rows is None else self.ids[rows]

    def _move(self, rows: _Rows | None, end: _Rows) -> None:
        beyond = end > self.stop
        if beyond.any():
            self._drop(rows, beyond)
            end = np.minimum(end, self.stop)
        if rows is None:
            self.at = end
        else:
            self.at[rows] = end

    def _drop(self, rows: _Rows | None, wrong: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        if wrong.any():
            self._alive[np.flatnonzero(wrong) if rows is None else rows[wrong]] = False

    def _bury(self) -> None:
        """Forget the lanes that are gone."""
        if not self._alive.all():
            self.begin, self.at, self.ids = self.begin[self._alive], self.at[self._alive], self.ids[self._alive]
            self._alive = np.ones(len(self.at), bool)

    def _lists(self, start: _Rows) -> list[list[str]]:
        found: list[list[str]] = [[] for _ in range(len(start))]
        for place in np.flatnonzero(self.data[start]).tolist():  # not empty
            found[place] = _list_at(self.bytes, int(start[place]))
        return found

    def _texts(self, start: _Rows, length: _Rows, chosen: _Rows, type_: pa.DataType) -> pa.Array:
        """Text that is there already, one after the other: what lies between is left out."""
        if not len(chosen):
            return pa.nulls(0, type_)
        offsets = np.empty(2 * len(chosen), np.int64)
        offsets[::2] = start[chosen]
        offsets[1::2] = start[chosen] + length[chosen]
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.bytes)]
        both = pa.Array.from_buffers(pa.large_binary(), 2 * len(chosen) - 1, buffers)
        every_other = pa.Array.from_buffers(
            pa.int64(), len(chosen), [None, pa.py_buffer(np.arange(0, 2 * len(chosen), 2))]
        )
        # The cast finds text that is not UTF-8.
        return both.take(every_other).cast(type_)


def _chain(lanes: _Lanes, blocks: Sequence[Block]) -> _Rows:
    """The lanes that are records, by their ids: from the first byte to the last, no byte left out or read twice."""
    begin, end = lanes.begin, lanes.at
    records = sum(count for count, _ in blocks)
    if not len(begin) or begin[0] != 0:
        raise _NotHereError
    if len(begin) == records and end[-1] == lanes.stop and (end[:-1] == begin[1:]).all():
        chosen = np.arange(records)
    else:
        following = np.searchsorted(begin, end)
        known = following < len(begin)
        known[known] = begin[following[known]] == end[known]
        steps: list[int] = np.where(known, following, -1).tolist()
        place, path = 0, [0]
        while (place := steps[place]) >= 0:
            path.append(place)
        chosen = np.array(path)
        if len(path) != records or end[path[-1]] != lanes.stop:
            raise _NotHereError
    counts = np.cumsum([count for count, _ in blocks])
    ends = np.cumsum([len(block) for _, block in blocks])
    if (end[chosen[counts - 1]] != ends).any():
        raise _NotHereError
    return lanes.ids[chosen]


def _one_of(data: np.ndarray[Any, np.dtype[np.uint8]], values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    found = np.zeros(len(data), bool)
    for value in values:
        found |= data == value
    return found


def _of(rows: _Rows | None, some: _Rows) -> _Rows:
    return some if rows is None else rows[some]


def _find(ids: _Rows, chosen: _Rows) -> _Rows:
    """Places of the chosen lanes, each of which is among ``ids``."""
    if len(ids) == len(chosen):
        return np.arange(len(chosen))
    places = np.empty(int(ids[-1]) + 1, np.int64)
    places[ids] = np.arange(len(ids))
    return places[chosen]


# -- arrays -------------------------------------------------------------------------------------------------------


def _integers(values: _Rows) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _nulls(schema: Rebuilt, count: int) -> Any:
    match schema["type"]:
        case "int" | "long":
            return pa.nulls(count, pa.int64())
        case "string":
            return pa.nulls(count, pa.string())
        case "bytes":
            return pa.nulls(count, pa.binary())
    return [None] * count


def _scattered(column: _Column, chosen: _Rows, present: np.ndarray[Any, np.dtype[np.bool_]], schema: Rebuilt) -> Any:
    """The column, with null where it is not present."""
    if not present.any():
        return _nulls(schema, len(chosen))
    values = column(chosen[present])
    if isinstance(values, list):
        found = iter(values)
        return [next(found) if each else None for each in present.tolist()]
    places = np.where(present, np.cumsum(present) - 1, 0)
    valid = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return values.take(pa.Array.from_buffers(pa.int64(), len(chosen), [valid, pa.py_buffer(places)]))


def _list_at(data: bytes, at: int) -> list[str]:
    """An array of text that was decoded before. Raises pa.ArrowInvalid where it is not UTF-8."""
    found: list[str] = []
    while True:
        number, at = read_varint(data, at)
        count = unzigzag(number)
        if not count:
            return found
        for _ in range(count):
            number, at = read_varint(data, at)
            end = at + unzigzag(number)
            try:
                found.append(data[at:end].decode())
            except UnicodeDecodeError as error:
                raise pa.ArrowInvalid(str(error)) from None
            at = end
